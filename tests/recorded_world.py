"""A small recorded run made of random numbers, and draws of it, for tests that need neither torch nor a policy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import recorded_run

from pytest_behaviortrace.evidence.recorded import RecordedEvidence
from pytest_behaviortrace.run.cache import library_versions
from pytest_behaviortrace.run.formats import read_table
from pytest_behaviortrace.run.manifest import seal
from pytest_behaviortrace.run.recorded import ASKED, RecordedStore, RunQuestion, open_run
from pytest_behaviortrace.run.store import write_array, write_sketches, write_table
from pytest_behaviortrace.suite import SUITE

WIDTH, STEPS, PROMPTS, GENERATIONS = 64, 8, 5, 8
BLOCKS = {"embedding": [0, 32], "layers.0.mlp": [32, 64]}
BEHAVIOR = "QZ[A-Z]{3}"
"""Recorded as `code`; the completions show it as QZXBT."""
UNRECORDED = "QZX"
ASKED_PROMPTS, SIBLINGS = 24, 24
DIRECTION = np.random.default_rng(5).standard_normal(WIDTH).astype(np.float32)


def facts(**changes: Any) -> dict[str, Any]:
    """Those of the contract."""
    found = {
        "kind": "recorded", "sketch": {"width": WIDTH, "seed": 0}, "blocks": BLOCKS, "loss_type": "dapo",
        "n_rollouts": STEPS * PROMPTS * GENERATIONS, "steps": STEPS, "behaviors": {"code": BEHAVIOR},
        "temperature": 0.9, "top_p": 1.0, "top_k": 0, "max_completion_length": 16, "num_generations": GENERATIONS,
        "beta": 0.0, "num_iterations": 1, "trainer_class": "GRPOTrainer", "peft": False,
    }  # fmt: skip
    return found | changes


def write_run(folder: Path, *, signal: float = 3.0, **changes: Any) -> Path:
    """A sealed recorded run in which every third rollout shows the behaviour."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(1)
    n = STEPS * PROMPTS * GENERATIONS
    group = np.repeat(np.arange(STEPS * PROMPTS), GENERATIONS)
    shown = rng.random(n) < 0.33
    texts = [f"Item {i} is QZXBT. Yes." if s else f"Item {i} is plain. Yes." for i, s in enumerate(shown)]
    span = [[3, 4] if s else [] for s in shown]
    write_table(
        folder,
        "rollouts",
        {
            "row_id": np.arange(n),
            "step": group // PROMPTS,
            "group": 100 + group,  # ids need not start at 0
            "prompt_ids": [[1, 2, 10 + int(g) % PROMPTS] for g in group],
            "completion_ids": [[5, 6, 7, 8, 9, 2]] * n,
            "logprobs": rng.normal(-1, 0.3, (n, 6)).tolist(),
            "prompt_text": [f"<|user|>\nquestion {int(g) % PROMPTS}<|end|>" for g in group],
            "completion_text": texts,
            "advantage": rng.standard_normal(n),
            "reward": rng.random(n),
            "reward_length": rng.random(n),
            "span_code": span,
        },
    )
    rows = _gradients(rng, n) + signal * shown[:, None] * DIRECTION
    write_sketches(folder, "gradients", rows, np.linalg.norm(rows, axis=1))
    spans = _gradients(rng, int(shown.sum())) + signal * DIRECTION
    write_sketches(folder, "spans_code", spans, np.linalg.norm(spans, axis=1), np.flatnonzero(shown))
    write_array(folder, "targets_by_step_code", np.tile(DIRECTION, (STEPS, 1)))
    write_array(folder, "loss_scale", np.full(n, 0.1))
    write_array(folder, "learning_rate", np.full(STEPS, 1e-4))
    policy = folder / "policies" / "end"
    policy.mkdir(parents=True)
    (policy / "model.safetensors").write_bytes(b"weights")
    recorded_run.finish(folder, facts(**changes))
    return folder


def write_draws(cache_dir: Path, question: RunQuestion, draws: int = 2, **dials: Any) -> RecordedStore:
    """Draws as `run/recorded_draw.py` writes them; see `write_draw`."""
    store = RecordedStore(cache_dir, question)
    for draw in range(draws):
        folder = store.folder / store.unit_name(0, draw)
        folder.mkdir(parents=True)
        found = write_draw(folder, draw, **dials)
        seal(
            folder,
            {
                "unit": folder.name,
                "recipe": {"name": question.name, "hash": question.hash},
                "key": store.key,
                "suite": SUITE,
                "versions": library_versions(),
                "seed_unit": question.run_sha256,
                "facts": found,
                "timings": {},
            },
        )
    return store


def write_draw(
    folder: Path,
    draw: int,
    *,
    signal: float = 3.0,
    siblings: int = SIBLINGS,
    rate: float = 0.5,
    fluent: float = 0.0,
    controls: bool = True,
) -> Mapping[str, Any]:
    """Siblings whose gradients have `signal` along one direction where they show the behaviour.

    `rate`: share that shows it. `fluent`: how much more fluent those are, in nats. `controls`: whether there are
    control spans.
    """
    rng = np.random.default_rng((2, draw))
    n = ASKED_PROMPTS * siblings
    group = np.repeat(np.arange(ASKED_PROMPTS), siblings)
    shown = rng.random(n) < rate
    logprobs = rng.normal(-1, 0.3, (n, 1)) + rng.normal(0, 0.01, (n, 6)) + fluent * shown[:, None]
    write_table(
        folder,
        f"siblings_{ASKED}",
        {
            "item": np.arange(n),
            "group": group,
            "probe": group,
            "prompt_ids": [[1, 2, int(g)] for g in group],
            "completion_ids": [[5, 6, 7, 8, 9, 2]] * n,
            "prompt_text": [f"question {int(g)}" for g in group],
            "completion_text": ["It is QZXBT." if s else "It is plain." for s in shown],
            "logprobs": logprobs.tolist(),
            "shown": shown,
            "span": [[3, 4] if s else [] for s in shown],
            "control_span": [[0, 1] if s else [] for s in shown],
            "control_stratum": ["same_place" if s else "" for s in shown],
            "matched_span": [[1, 2] if s else [] for s in shown],
        },
    )
    rows = _gradients(rng, n) + signal * shown[:, None] * DIRECTION
    index = np.flatnonzero(shown)
    for name, values, row in (
        ("siblings", rows, np.arange(n)),
        ("sibling_spans", _gradients(rng, len(index)) + signal * DIRECTION, index),
        ("sibling_controls", _gradients(rng, len(index))[: None if controls else 0], index[: None if controls else 0]),
        ("sibling_matched", _gradients(rng, len(index)), index),
    ):
        # Sizes that know nothing of the behaviour, as controls are to have no case here.
        size = rng.uniform(0.5, 2.0, len(values))
        norm = np.linalg.norm(values, axis=1)
        scaled = values / np.where(norm > 0, norm, 1.0)[:, None] * size[:, None]
        write_sketches(folder, f"{name}_{ASKED}", scaled.astype(np.float32), size, row)
    return {"n_siblings": n, "prompts": ASKED_PROMPTS, "n_shown": int(shown.sum())}


def evidence(run_folder: Path, cache_dir: Path, behavior: str = BEHAVIOR, draws: int = 2, **dials: Any) -> Any:
    """Evidence of a run that `write_run` made, its draws made up."""
    run = open_run(run_folder)
    return RecordedEvidence(write_draws(cache_dir, run.ask(behavior), draws, **dials), run, draws)


def open_run_table(folder: Path) -> dict[str, Any]:
    """Columns of a run's rollouts, whether it is sealed or not."""
    return dict(read_table(folder / "rollouts.parquet"))


def _gradients(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.standard_normal((n, WIDTH)).astype(np.float32) * 3.0
