"""The bytes that a budget counts are those of the units that were really trained."""

from __future__ import annotations

import numpy as np
import pytest
from check_rows import SEEDS

from pytest_behaviortrace.run.architecture import architecture_of
from pytest_behaviortrace.run.footprint import seed_bytes, sketch_set_bytes
from pytest_behaviortrace.run.recipe import Recipe
from pytest_behaviortrace.run.store import Store, Unit


def items(unit: Unit) -> dict[str, int]:
    """Name -> items of every sketch set of a unit."""
    ending = ".row.npy"
    return {f.removesuffix(ending): len(np.load(unit.file(f))) for f in unit.files if f.endswith(ending)}


def bytes_of(unit: Unit) -> int:
    return sum(unit.file(name).stat().st_size for name in unit.files)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_takes_the_bytes_that_are_counted(store: Store, recipe: Recipe, seed: int) -> None:
    unit = store.seed(seed)
    rows = [unit.table(name) for name in ("rollouts", "null_rollouts")]
    tokens = sum(len(ids) for table in rows for kind in ("prompt_ids", "completion_ids") for ids in table[kind])
    counted = seed_bytes(architecture_of(recipe.policy), recipe, items(unit), tokens)
    assert counted == pytest.approx(bytes_of(unit), rel=0.02)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_draw_takes_the_bytes_that_are_counted(store: Store, recipe: Recipe, seed: int) -> None:
    unit = store.draw(seed, 0)
    counted = sum(sketch_set_bytes(number, recipe.sketch_width) for number in items(unit).values())
    tables = sum(unit.file(name).stat().st_size for name in unit.files if name.endswith(".parquet"))
    assert counted == bytes_of(unit) - tables
    assert tables < 0.02 * counted
