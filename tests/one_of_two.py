"""What each of two launched processes runs in `test_processes`: `python one_of_two.py TASK FOLDER`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import grpo_run
import numpy as np
import torch
from transformers import TrainerCallback

from pytest_behaviortrace.run import launch
from pytest_behaviortrace.run.distributed import ensure_together
from pytest_behaviortrace.run.formats import write_array, write_table
from pytest_behaviortrace.run.ranks import joined
from pytest_behaviortrace.run.recipe import Recipe
from pytest_behaviortrace.run.recorder import Capture, RolloutRecorder
from pytest_behaviortrace.run.recording import record
from pytest_behaviortrace.run.rows import RecordingError

WIDTH = 512
COMMON = {"of": " of"}
STEP: dict[str, Any] = {"optim": "sgd", "learning_rate": 0.5, "max_completion_length": 8}
"""Plain gradient descent: Adam divides what rounding leaves of a gradient by its own size."""
RUNS: dict[str, dict[str, Any]] = {
    # Each process computes two micro-batches of two; groups of eight lie across both.
    "grpo": STEP | {"loss_type": "grpo", "gradient_accumulation_steps": 2, "per_device_train_batch_size": 2},
    "dapo": STEP | {"loss_type": "dapo", "per_device_train_batch_size": 4, "num_generations": 8},
}
PATIENT: dict[str, Any] = {
    "per_device_train_batch_size": 4, "max_steps": 3, "save_strategy": "steps", "save_steps": 1,
    "max_completion_length": 8,
}  # fmt: skip


def rollouts(folder: Path) -> None:
    """Records both runs in memory and writes each process's share down as it is, in float32."""
    for name, settings in RUNS.items():
        recorder = RolloutRecorder(Capture(WIDTH, COMMON))
        trainer = grpo_run.trainer(folder / "trainer", recorder, **settings)
        trainer.train()
        rank = trainer.accelerator.process_index
        out = folder / f"{name}-{rank}"
        out.mkdir()
        write_table(out, "rollouts", recorder.columns())
        for kind in ("gradients", "spans_of"):
            made = recorder.recorded(kind)
            for what in ("rows", "norm", "row"):
                write_array(out, f"{kind}-{what}", getattr(made, what))
        write_array(out, "checked", np.array(recorder._sum_checked))
        weights = torch.cat(
            [p.detach().flatten() for p in trainer.accelerator.unwrap_model(trainer.model).parameters()]
        )
        write_array(out, "weights", weights.numpy())


class Crash(TrainerCallback):  # type: ignore[misc]
    """Ends both processes once two checkpoints were written."""

    def on_save(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        if state.global_step == 2:
            torch.distributed.barrier()
            os._exit(3)


def begin(folder: Path) -> None:
    """Records a run that breaks off in the middle."""
    trainer = grpo_run.trainer(folder / "trainer", **PATIENT)
    record(trainer, folder / "record", width=WIDTH)
    trainer.add_callback(Crash())
    trainer.train()


def resume(folder: Path) -> None:
    """Goes on with it, and notes what a second record in the same place is told."""
    trainer = grpo_run.trainer(folder / "trainer", **PATIENT)
    record(trainer, folder / "record", width=WIDTH)
    trainer.train(resume_from_checkpoint=True)
    rank = trainer.accelerator.process_index
    try:
        record(trainer, folder / "record", width=WIDTH)
    except RecordingError as error:
        (folder / f"refused-{rank}").write_text(str(error), encoding="utf-8")


def build_seed(recipe: Any, seed: int, folder: Path, progress: Any, ranks: Any) -> None:
    """A builder that fails in one process while the other waits for it."""
    if ranks.rank == 1:
        raise ValueError("no luck")
    ranks.wait()


def fail(folder: Path) -> None:
    """Builds a unit with that builder."""
    recipe = Recipe.load(str(Path(__file__).parent / "recipes" / "two-step.toml")).trained_by(2)
    sys.exit(ensure_together(recipe, [0], [], folder / "cache", builder="one_of_two"))


def talk(folder: Path) -> None:
    """What the processes tell each other."""
    with joined() as ranks:
        told = ranks.tell({"from": 0, "text": "ö"} if ranks.first else None)
        shared = ranks.share({"b": torch.full((2,), float(ranks.rank)), "a": torch.tensor([7 - ranks.rank])})
        divided = ranks.divide([3, 4, 5], lambda n: [ranks.rank, n / 10] * n)
        ranks.check_same({"w": torch.ones(2)})
        try:
            ranks.check_same({"w": torch.full((2,), float(ranks.rank))})
            different = "none"
        except Exception as error:
            different = f"{type(error).__name__}: {error}"
        lines = [repr(told), repr({k: v.tolist() for k, v in shared.items()}), repr(divided), different]
        (folder / f"told-{ranks.rank}").write_text("\n".join(lines), encoding="utf-8")
        ranks.wait()


if __name__ == "__main__":
    torch.set_num_threads(1)
    globals()[sys.argv[1]](Path(sys.argv[2]))
    launch.leave(0)
