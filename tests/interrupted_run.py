"""A recorded run that was interrupted in its fifth step, and what tests do to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import recording_process
from recording_process import BEHAVIORS, KILLED_AT, WIDTH
from transformers import TrainerCallback

from pytest_behaviortrace import record
from pytest_behaviortrace.run.formats import read_array
from pytest_behaviortrace.run.recorded import RecordedRun


def same(one: RecordedRun, other: RecordedRun, *, rows: int | None = None) -> bool:
    """Whether two records hold the same rollouts and gradients, to the last bit; of the first `rows` rollouts."""
    for name, values in one.table.items():
        for a, b in zip(list(values)[:rows], list(other.table[name])[:rows], strict=True):
            if not np.array_equal(a, b):
                return False
    arrays = [name for name in one.unit.files if name.endswith(".npy") and not name.startswith(("targets", "learning"))]
    for name in arrays if rows is None else ["gradients.npy", "gradients.norm.npy", "loss_scale.npy"]:
        a, b = (np.asarray(read_array(run.unit.file(name)))[:rows] for run in (one, other))
        if not np.array_equal(a, b):
            return False
    return True


class Interrupt(TrainerCallback):  # type: ignore[misc]
    """Ctrl-C once, in the middle of a step."""

    done = False

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        if state.global_step == KILLED_AT and not self.done:
            self.done = True
            raise KeyboardInterrupt


def again(base: Path, *, width: int = WIDTH, behaviors: Any = BEHAVIORS, **settings: Any) -> Any:
    trainer = recording_process.trainer(base / "work", **settings)
    record(trainer, base / "record", behaviors=behaviors, width=width)
    return trainer


def interrupt(base: Path) -> Path:
    """`record` holds four steps of a run that was interrupted in its fifth; `work` its checkpoints."""
    trainer = recording_process.trainer(base / "work")
    trainer.add_callback(Interrupt())
    with record(trainer, base / "record", behaviors=BEHAVIORS, width=WIDTH), pytest.raises(KeyboardInterrupt):
        trainer.train()
    return base
