"""Builds the two kinds of unit: a seed (planted and null run, recorded) and a draw (fresh siblings of a seed)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pytest_behaviortrace.run import targets
from pytest_behaviortrace.run.gradients import PerSampleGradients
from pytest_behaviortrace.run.policy import load_model, load_tokenizer, placed, save_policy
from pytest_behaviortrace.run.ranks import ALONE, Ranks
from pytest_behaviortrace.run.recipe import Recipe
from pytest_behaviortrace.run.recorder import Capture, RolloutRecorder
from pytest_behaviortrace.run.shared_record import SharedRecord
from pytest_behaviortrace.run.siblings import generate_draw
from pytest_behaviortrace.run.sketch import SKETCH_SEED, BlockSketch
from pytest_behaviortrace.run.store import Built, Unit, write_array, write_table
from pytest_behaviortrace.run.training import TrainedRun, train
from pytest_behaviortrace.run.warmup import shared_warm_up

Progress = Callable[..., None]
"""Told the stage, the share of the unit that is done, and, while GRPO runs, a note on what there is to see."""


def build_seed(recipe: Recipe, seed: int, folder: Path, progress: Progress, ranks: Ranks = ALONE) -> Built:
    """Train the planted and the null run of a seed and write everything that is recorded of them.

    Several processes call it together; they record beside `folder`, rank 0 writes the unit and knows its facts.
    """
    torch.set_num_threads(1)  # tiny tensors: threads cost more than they bring
    behaviors = {plant.name: plant.behavior for plant in recipe.plants}
    begin = time.perf_counter()
    tokenizer = load_tokenizer(recipe.policy.location)
    start = shared_warm_up(recipe, seed, tokenizer, lambda stage, done: progress(stage, 0.1 * done), ranks)
    warmed = time.perf_counter() - begin

    def trained(kind: str, capture: Capture, before: float, share: float) -> TrainedRun:
        shared = SharedRecord(ranks, folder.parent / f"{kind}-shards") if ranks.count > 1 else None
        return train(
            recipe,
            seed,
            planted=kind == "planted",
            recorder=RolloutRecorder(capture, shared.sink() if shared else None),
            progress=lambda stage, done, note="": progress(f"{kind} run: {stage}", before + share * done, note),
            start=start,
            shared=shared,
        )

    planted = trained("planted", Capture(recipe.sketch_width, behaviors), 0.1, 0.5)
    # The null run serves the leak test alone: rows of the window that show a behaviour.
    shown_early = Capture(recipe.sketch_width, behaviors, select=_in_window(recipe), only_shown=True)
    null = trained("null", shown_early, 0.6, 0.3)
    if not ranks.first:
        return Built({}, {})
    progress("targets", 0.92)
    begin = time.perf_counter()
    _write_planted(recipe, planted, folder)
    _write_null(recipe, null, folder)
    blocks = _write_targets(recipe, planted, folder)
    _write_policies(recipe, planted, folder)
    facts: dict[str, Any] = {
        "s_b": {
            plant.name: {"planted": planted.s_b[plant.name], "null": null.s_b[plant.name]} for plant in recipe.plants
        },
        "blocks": {name: [part.start, part.stop] for name, part in blocks.items()},
        "sketch": {"width": recipe.sketch_width, "seed": SKETCH_SEED},
        "loss_type": recipe.grpo.loss_type,
        "n_rollouts": len(planted.rows["row_id"]),
        "sft_steps": planted.sft_steps,
    }
    if ranks.count > 1:
        facts["processes"] = ranks.count
    timings = {f"planted {stage}": seconds for stage, seconds in planted.timings.items()}
    timings |= {f"null {stage}": seconds for stage, seconds in null.timings.items()}
    return Built(facts, {**timings, "warm-up": warmed, "targets and writing": time.perf_counter() - begin})


def build_draw(recipe: Recipe, seed: int, draw: int, seed_unit: Unit, folder: Path, progress: Progress) -> Built:
    """Sample siblings of both plants' probes from a seed's analysis policy and write them with their gradients."""
    torch.set_num_threads(1)
    begin = time.perf_counter()
    location = str(seed_unit.policy("analysis"))
    tokenizer, model = load_tokenizer(location), placed(load_model(location))
    sketch = BlockSketch.for_model(model, recipe.sketch_width)
    engine = PerSampleGradients(model, sketch, temperature=recipe.grpo.temperature)
    for k, plant in enumerate(recipe.plants):
        share = 1.0 / len(recipe.plants)

        def report(done: float, k: int = k, name: str = plant.name, share: float = share) -> None:
            progress(f"siblings of {name}", share * (k + done))

        made = generate_draw(recipe, plant, engine, tokenizer, seed, draw, report)
        write_table(folder, f"siblings_{plant.name}", made.rows)
        made.siblings.write(folder, f"siblings_{plant.name}")
        made.spans.write(folder, f"sibling_spans_{plant.name}")
        made.controls.write(folder, f"sibling_controls_{plant.name}")
        made.matched.write(folder, f"sibling_matched_{plant.name}")
    return Built({"n_siblings": len(made.rows["item"])}, {"siblings": time.perf_counter() - begin})


def _in_window(recipe: Recipe) -> Callable[[Sequence[int]], NDArray[np.bool_]]:
    def select(row_ids: Sequence[int]) -> NDArray[np.bool_]:
        return np.asarray(row_ids) // recipe.grpo.batch_size < recipe.cutoff

    return select


def _write_planted(recipe: Recipe, run: TrainedRun, folder: Path) -> None:
    columns = dict(run.rows)
    write_array(folder, "loss_scale", np.asarray(columns.pop("loss_scale"), np.float64))
    write_array(folder, "learning_rate", np.asarray(run.learning_rate, np.float64))
    write_table(folder, "rollouts", columns)
    run.recorder.recorded("gradients").write(folder, "gradients")
    for plant in recipe.plants:
        run.recorder.recorded(f"spans_{plant.name}").write(folder, f"spans_{plant.name}")
        by_step = run.recorder.mean_span_by_step(plant.name, columns["step"])
        write_array(folder, f"targets_by_step_{plant.name}", by_step)


def _write_null(recipe: Recipe, run: TrainedRun, folder: Path) -> None:
    columns = dict(run.rows)
    write_array(folder, "null_loss_scale", np.asarray(columns.pop("loss_scale"), np.float64))
    write_table(folder, "null_rollouts", columns)
    run.recorder.recorded("gradients").write(folder, "null_gradients")
    for plant in recipe.plants:
        run.recorder.recorded(f"spans_{plant.name}").write(folder, f"null_spans_{plant.name}")


def _write_targets(recipe: Recipe, run: TrainedRun, folder: Path) -> dict[str, slice]:
    """Constructed and minimal-pair targets at the analysis policy; returns the sketch's blocks."""
    tokenizer, model = load_tokenizer(recipe.policy.location), placed(load_model(recipe.policy.location))
    model.load_state_dict(run.analysis_state)
    sketch = BlockSketch.for_model(model, recipe.sketch_width)
    engine = PerSampleGradients(model, sketch, temperature=recipe.grpo.temperature)
    for plant in recipe.plants:
        write_array(folder, f"target_constructed_{plant.name}", targets.constructed(engine, tokenizer, recipe, plant))
        write_array(folder, f"target_minimal_pair_{plant.name}", targets.minimal_pair(engine, tokenizer, plant))
    return sketch.blocks


def _write_policies(recipe: Recipe, run: TrainedRun, folder: Path) -> None:
    tokenizer, model = load_tokenizer(recipe.policy.location), load_model(recipe.policy.location)
    states: dict[str, Any] = {"start": run.start_state, "analysis": run.analysis_state, "end": run.end_state}
    for name, state in states.items():
        model.load_state_dict(state)
        save_policy(model, tokenizer, str(folder / "policies" / name))
