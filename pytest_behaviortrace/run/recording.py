"""Records a GRPO run of the user's own: `record(trainer, path)`."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from transformers import TrainerCallback

from pytest_behaviortrace.run import capture
from pytest_behaviortrace.run.attach import attach
from pytest_behaviortrace.run.cache import library_versions
from pytest_behaviortrace.run.capture import without_adapters
from pytest_behaviortrace.run.integrity import IntegrityError
from pytest_behaviortrace.run.manifest import MANIFEST, seal
from pytest_behaviortrace.run.names import same_file
from pytest_behaviortrace.run.policy import save_policy
from pytest_behaviortrace.run.recorded_facts import described, plain_value
from pytest_behaviortrace.run.recorder import Capture, RolloutRecorder
from pytest_behaviortrace.run.rows import RecordingError
from pytest_behaviortrace.run.shards import ShardSink, check_complete, drop_from, merge, next_row, shards
from pytest_behaviortrace.run.sketch import BlockSketch, trainable
from pytest_behaviortrace.suite import SUITE

WIDTH = 8192
"""Buckets of a sketch, unless told otherwise."""
UNFINISHED = "recording.json"
"""What the run is that is being recorded; gone once the record is whole."""
SHARDS = "shards"
SETTINGS = (
    "seed", "learning_rate", "lr_scheduler_type", "warmup_steps", "optim", "weight_decay", "max_grad_norm", "bf16",
    "per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation", "num_iterations",
    "num_generations", "max_completion_length", "temperature", "top_p", "top_k", "min_p", "repetition_penalty",
    "generation_kwargs", "loss_type", "beta", "epsilon",
    "epsilon_high", "delta", "scale_rewards", "importance_sampling_level", "mask_truncated_completions", "use_vllm",
)  # fmt: skip
"""Settings of a trainer that a resumed run must share with its beginning."""


def record(
    trainer: Any, path: str | Path, *, behaviors: Mapping[str, str] | None = None, width: int = WIDTH
) -> Recording:
    """Records a `GRPOTrainer` (or a subclass) while it trains: call it before `trainer.train()`, or as a context.

    Every rollout, with the CountSketch (K = `width` numbers) and the exact norm of its gradient, goes to the folder
    `path` step by step; when training ends, the folder becomes one record, for `pytest --bt-run` and
    `python -m pytest_behaviortrace rank`. The trainer's weights, losses and random numbers stay what they were, to the
    last bit. `behaviors` (name -> regular expression) also keeps the gradient of the tokens that match, which cannot be
    computed later.

    After a crash, make the same call and let TRL resume (`trainer.train(resume_from_checkpoint=True)`): steps after the
    checkpoint are recorded again, those before it must all be there.

    A rollout's gradient is that of its own term of the loss at unit advantage, for the policy the loss first meets it
    with (ratio, clipping and masks included; a rollout of advantage zero as if unclipped); later passes of
    `num_iterations` are not recorded. A KL term's share is kept beside it (`kl_gradients`).

    Raises `RecordingError` if the folder holds another run or is not empty, `ValueError` for a bad pattern or width,
    `UnsupportedLoss` for settings under which rollouts have no gradients of their own, `UnsupportedModel` for a model
    whose gradients cannot be told apart here, and it or `IntegrityError` in the first step for a model or a loss that
    turns out to hold more than what is known here.
    """
    patterns = {name: _compiled(name, pattern) for name, pattern in (behaviors or {}).items()}
    if (alike := same_file(patterns)) is not None:
        raise ValueError(f"the behaviours {alike[0]!r} and {alike[1]!r} would be one file on some systems; rename one")
    return Recording(trainer, Path(path).absolute(), patterns, width)


class Recording:
    """A run that is being recorded; see `record`."""

    def __init__(self, trainer: Any, path: Path, behaviors: Mapping[str, re.Pattern[str]], width: int) -> None:
        self.trainer, self.path, self.behaviors, self.width = trainer, path, behaviors, width
        accelerator = trainer.accelerator
        self._plain = accelerator.unwrap_model(trainer.model)
        BlockSketch.for_model(self._plain, width)  # raises for too narrow a sketch
        capture.Capture(self._plain)  # raises for a model that is not known here
        self._identity = self._described()
        new = self._checked()  # on every process: all refuse, or none
        accelerator.wait_for_everyone()
        if new and accelerator.is_main_process:
            (self.path / SHARDS).mkdir(parents=True, exist_ok=True)
            self._write({"run": self._identity, "checkpoints": {}})
        accelerator.wait_for_everyone()
        self._sink = ShardSink(path / SHARDS, int(accelerator.process_index))
        self._recorder = RolloutRecorder(Capture(width, behaviors), self._sink)
        self._detach = attach(trainer, self._recorder)
        self._watch: _Watch | None = _Watch(self)
        self._finished = False
        trainer.add_callback(self._watch)

    def __enter__(self) -> Recording:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()

    def detach(self) -> None:
        """Stops recording; the trainer is as it was. What is on disk stays, and can be resumed."""
        if self._watch is not None:
            self._detach()
            self.trainer.remove_callback(self._watch)
            self._watch = None

    # -- the folder --------------------------------------------------------------------------------------------------
    def _described(self) -> dict[str, Any]:
        """What must be the same when a run is resumed."""
        args, plain = self.trainer.args, without_adapters(self._plain)
        return {
            "trainer": type(self.trainer).__name__,
            "model": type(plain).__name__,
            "parameters": {name: list(p.shape) for name, p in trainable(self._plain).items()},
            "settings": {name: plain_value(getattr(args, name)) for name in SETTINGS},
            "rewards": list(self.trainer.reward_func_names),
            "processes": int(self.trainer.accelerator.num_processes),
            "behaviors": {name: pattern.pattern for name, pattern in self.behaviors.items()},
            "width": self.width,
            "versions": library_versions(),
        }

    def _checked(self) -> bool:
        """Whether the folder is to be made; False if it holds the beginning of this very run. Else refuses it."""
        if (self.path / MANIFEST).exists():
            raise RecordingError(f"{self.path} holds a finished record; give another folder for this run")
        unfinished = self.path / UNFINISHED
        if unfinished.exists():
            known = json.loads(unfinished.read_text(encoding="utf-8"))["run"]
            mine = json.loads(json.dumps(self._identity))
            if different := [name for name in mine if known.get(name) != mine[name]]:
                raise RecordingError(
                    f"{self.path} holds the beginning of another run (different: {', '.join(different)}); two runs "
                    f"are never mixed: give another folder, or delete this one"
                )
            return False
        if self.path.is_dir() and any(self.path.iterdir()):
            raise RecordingError(f"{self.path} is not empty and no record; give a new folder")
        return True

    def _write(self, content: Mapping[str, Any]) -> None:
        making = self.path / f".{UNFINISHED}"
        making.write_text(json.dumps(content, indent=1, sort_keys=True), encoding="utf-8")
        making.replace(self.path / UNFINISHED)

    def _read(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.path / UNFINISHED).read_text(encoding="utf-8"))
        return content

    # -- what the trainer tells --------------------------------------------------------------------------------------
    def begun(self, step: int) -> None:
        """Training begins at a step: 0, or that of a checkpoint whose past must be on record."""
        if self._finished:
            raise RecordingError(
                f"{self.path} is the finished record of this trainer's last training; detach() before training again, "
                f"or record into another folder"
            )
        accelerator, folder = self.trainer.accelerator, self.path / SHARDS
        earlier = sorted({made for made, _ in shards(folder)})
        if step == 0 and earlier:
            raise RecordingError(
                f"{self.path} holds steps {earlier[0]}-{earlier[-1]} of an earlier start, and this run begins at step "
                f"0; resume it from its checkpoint, or delete the folder"
            )
        if step > 0 and self._read()["checkpoints"].get(str(step)) != _fingerprint(self._plain):
            raise IntegrityError(
                f"the run resumes at step {step} with weights that are not those of a checkpoint of the run in "
                f"{self.path}; resume from another one"
            )
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            drop_from(folder, step)
            if step == 0:
                save_policy(self._plain, self.trainer.processing_class, str(self.path / "policies" / "start"))
        accelerator.wait_for_everyone()
        check_complete(folder, step, int(accelerator.num_processes))
        self._sink.drop()
        self._recorder.restart(next_row(folder, int(self.trainer.args.generation_batch_size)))

    def stepped(self, step: int, learning_rate: float) -> None:
        """An optimizer step was made."""
        self._sink.commit(step, learning_rate)

    def saved(self, step: int) -> None:
        """TRL wrote a checkpoint; whoever resumes from it is known by its weights."""
        if self.trainer.accelerator.is_main_process:
            content = self._read()
            content["checkpoints"][str(step)] = _fingerprint(self._plain)
            self._write(content)

    def ended(self, steps: int) -> None:
        """Training is over: the shards become one record."""
        accelerator, folder = self.trainer.accelerator, self.path / SHARDS
        accelerator.wait_for_everyone()
        check_complete(folder, steps, int(accelerator.num_processes))
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            facts = described(self.trainer, self._plain, self.behaviors, self.width)
            facts |= merge(folder, self.path, list(self.behaviors))
            save_policy(self._plain, self.trainer.processing_class, str(self.path / "policies" / "end"))
            fingerprint = hashlib.sha256(json.dumps(self._identity, sort_keys=True).encode()).hexdigest()
            seal(
                self.path,
                {
                    "unit": self.path.name,
                    "recipe": {"name": "recorded", "hash": fingerprint},
                    "key": fingerprint,
                    "suite": SUITE,
                    "versions": library_versions(),
                    "facts": facts,
                    "timings": {},
                },
                without=(SHARDS, UNFINISHED),
            )
            # Only now: until the record is whole, this is all there is of it.
            shutil.rmtree(folder)
            (self.path / UNFINISHED).unlink()
        self._finished = True
        accelerator.wait_for_everyone()


class _Watch(TrainerCallback):
    """Tells a recording what TRL does."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self._rate = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        self.recording.begun(int(state.global_step))

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any = None, **unused: Any) -> None:
        self._rate = float(optimizer.param_groups[0]["lr"])

    def on_step_end(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        self.recording.stepped(int(state.global_step) - 1, self._rate)
        if control.should_save:  # before the checkpoint is there: a crash between the two would leave it unknown
            self.recording.saved(int(state.global_step))

    def on_save(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        self.recording.saved(int(state.global_step))

    def on_train_end(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        self.recording.ended(int(state.global_step))


def _compiled(name: str, pattern: str) -> re.Pattern[str]:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,80}", name):
        raise ValueError(f"{name!r} cannot name a behaviour: use letters, digits, - and _, at most 80")
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"the behaviour {name!r} is no regular expression: {error} in {pattern!r}") from None


def _fingerprint(model: Any) -> str:
    """Hex sha256 of the trainable parameters, in the order of their names."""
    digest = hashlib.sha256()
    for name, parameter in sorted(trainable(model).items()):
        digest.update(name.encode())
        flat = parameter.detach().cpu().contiguous().view(-1)
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
