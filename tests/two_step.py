"""The two-step recipe and its two runs, trained once per test process."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pytest_behaviortrace.run.recipe import Recipe

if TYPE_CHECKING:
    from pytest_behaviortrace.run.training import TrainedRun

FILE = str(Path(__file__).parent / "recipes" / "two-step.toml")
SEED = 3


class Runs(NamedTuple):
    """Both runs of the seed, each from a warm-up of its own, and what they told their progress callback."""

    planted: TrainedRun
    null: TrainedRun
    progress: list[tuple[str, float]]
    notes: list[str]


@functools.cache
def recipe() -> Recipe:
    """The recipe itself; loads in milliseconds."""
    return Recipe.load(FILE)


@functools.cache
def runs() -> Runs:
    """Trains on first use, on one thread: seconds."""
    import torch

    from pytest_behaviortrace.run.training import train

    torch.set_num_threads(1)
    seen: list[tuple[str, float]] = []
    notes: list[str] = []

    def progress(stage: str, done: float, note: str = "") -> None:
        seen.append((stage, done))
        notes.extend([note] * bool(note))

    planted, null = (train(recipe(), SEED, planted=flag, progress=progress) for flag in (True, False))
    return Runs(planted, null, seen, notes)
