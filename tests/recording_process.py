"""A recorded GRPO run in a process of its own, which may kill itself at a chosen moment:
`python recording_process.py WORK RECORD [--kill step|save|seal] [--resume]`."""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path
from typing import Any

import grpo_run
import torch
from transformers import TrainerCallback

from pytest_behaviortrace import record
from pytest_behaviortrace.run import recording

STEPS, SAVE_STEPS, KILLED_AT = 6, 2, 4
WIDTH, BEHAVIORS = 512, {"of": " of", "is": r"\bis\b"}


class Killer(TrainerCallback):  # type: ignore[misc]
    """Ends the process as a power cut would."""

    def __init__(self, where: str | None) -> None:
        self.where = where

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        if self.where == "step" and state.global_step == KILLED_AT:
            die()

    def on_save(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        if self.where == "save" and state.global_step == KILLED_AT:
            die()


def die(*args: Any, **named: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def trainer(work: Path, **settings: Any) -> Any:
    settings = {"max_steps": STEPS, "save_strategy": "steps", "save_steps": SAVE_STEPS, "temperature": 0.9} | settings
    return grpo_run.trainer(work, **settings)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("work", type=Path)
    parser.add_argument("record", type=Path)
    parser.add_argument("--kill", choices=["step", "save", "seal"])
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    made = trainer(args.work)
    made.add_callback(Killer(args.kill))
    if args.kill == "seal":
        recording.seal = die
    record(made, args.record, behaviors=BEHAVIORS, width=WIDTH)
    made.train(resume_from_checkpoint=args.resume)


if __name__ == "__main__":
    main()
