"""Recorded runs for tests: a seed's unit of the embedded run in the layout that `record` writes."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_behaviortrace.run.cache import library_versions
from pytest_behaviortrace.run.manifest import seal
from pytest_behaviortrace.run.recipe import Recipe
from pytest_behaviortrace.run.store import Unit, write_table
from pytest_behaviortrace.suite import SUITE

ARRAYS = ("gradients", "gradients.scale", "gradients.norm", "gradients.row", "loss_scale", "learning_rate")


def convert(unit: Unit, recipe: Recipe, folder: Path, behaviors: Mapping[str, str]) -> Path:
    """Write what `record` would have written of a planted run; `behaviors`: plant name -> regex it is recorded as."""
    folder.mkdir(parents=True)
    names = [f"{name}.npy" for name in ARRAYS]
    for plant in behaviors:
        names += [f"spans_{plant}{part}.npy" for part in ("", ".scale", ".norm", ".row")]
        names.append(f"targets_by_step_{plant}.npy")
    for name in names:
        shutil.copyfile(unit.path / name, folder / name)
    for policy in ("start", "end"):
        shutil.copytree(unit.path / "policies" / policy, folder / "policies" / policy)
    table: dict[str, Any] = unit.table("rollouts")
    kept = ["row_id", "step", "group", "prompt_ids", "completion_ids", "logprobs", "prompt_text", "completion_text"]
    kept += ["advantage", "reward"]
    for plant in behaviors:
        kept.append(f"span_{plant}")
    columns = {name: table[name] for name in kept} | {"reward_total": table["reward"]}
    write_table(folder, "rollouts", columns)
    finish(folder, facts_of(unit, recipe, behaviors))
    return folder


def facts_of(unit: Unit, recipe: Recipe, behaviors: Mapping[str, str]) -> dict[str, Any]:
    """The facts of the contract."""
    grpo = recipe.grpo
    return {
        "kind": "recorded",
        "sketch": unit.facts["sketch"],
        "blocks": unit.facts["blocks"],
        "loss_type": grpo.loss_type,
        "n_rollouts": unit.facts["n_rollouts"],
        "steps": grpo.steps,
        "behaviors": dict(behaviors),
        "temperature": grpo.temperature,
        "top_p": 1.0,
        "top_k": 0,
        "max_completion_length": grpo.max_completion_length,
        "num_generations": grpo.num_generations,
        "beta": grpo.beta,
        "num_iterations": 1,
        "trainer_class": "GRPOTrainer",
        "peft": False,
    }


def finish(folder: Path, facts: Mapping[str, Any], **more: Any) -> None:
    """Seal a folder as a recorded run."""
    description = {
        "unit": folder.name,
        "recipe": {"name": "recorded", "hash": "0" * 64},
        "key": "recorded",
        "suite": SUITE,
        "versions": library_versions(),
        "facts": dict(facts),
        "timings": {},
    }
    seal(folder, description | more)
