"""Records a GRPO run of the user's own: `record(trainer, path)`."""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from transformers import TrainerCallback

from pytest_behaviortrace.run import capture
from pytest_behaviortrace.run.attach import attach, check_recordable
from pytest_behaviortrace.run.cache import library_versions
from pytest_behaviortrace.run.capture import without_adapters
from pytest_behaviortrace.run.formats import NotFinite
from pytest_behaviortrace.run.manifest import seal
from pytest_behaviortrace.run.policy import save_policy
from pytest_behaviortrace.run.record_arguments import check_trainer, checked_behaviors, checked_path, checked_width
from pytest_behaviortrace.run.record_folder import NO_PART, RecordFolder, together, writing
from pytest_behaviortrace.run.recorded_facts import described, plain_value
from pytest_behaviortrace.run.recorder import Capture, RolloutRecorder
from pytest_behaviortrace.run.rows import RecordingError
from pytest_behaviortrace.run.shard_files import SHARDS, check_complete, check_whole, drop_from, shards, steps_on_record
from pytest_behaviortrace.run.shards import ShardSink, merge, next_row, shown
from pytest_behaviortrace.run.sketch import BlockSketch, trainable
from pytest_behaviortrace.suite import SUITE

WIDTH = 8192
"""Buckets of a sketch, unless told otherwise."""
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

    One process (or launch of several) records into a folder at a time. What a resumed run finds damaged, it refuses.

    Raises `RecordingError` if the folder holds another run, is not empty, is being recorded into or is the trainer's
    `output_dir`, `TypeError` for another trainer and for behaviours that are no strings, `ValueError` for a bad pattern
    or width, `UnsupportedLoss` for settings under which rollouts have no gradients of their own, `UnsupportedModel` for
    a model whose gradients cannot be told apart here, and it or `IntegrityError` in the first step for a model or a
    loss that turns out to hold more than what is known here. Warns at the end of a behaviour that no rollout shows.
    """
    check_trainer(trainer)
    patterns = checked_behaviors(behaviors)
    return Recording(trainer, checked_path(path, trainer.args.output_dir), patterns, checked_width(width))


class Recording:
    """A run that is being recorded; see `record`."""

    def __init__(self, trainer: Any, path: Path, behaviors: Mapping[str, re.Pattern[str]], width: int) -> None:
        self.trainer, self.path, self.behaviors, self.width = trainer, path, behaviors, width
        accelerator = trainer.accelerator
        self._plain = accelerator.unwrap_model(trainer.model)
        BlockSketch.for_model(self._plain, width)  # raises for too narrow a sketch
        capture.Capture(self._plain)  # raises for a model that is not known here
        check_recordable(trainer)
        self._identity = self._described()
        self._folder = RecordFolder(path, self._identity)
        together(accelerator, self._folder.claim)
        self._sink = ShardSink(path / SHARDS, int(accelerator.process_index))
        self._recorder = RolloutRecorder(Capture(width, behaviors), self._sink)
        self._detach = attach(trainer, self._recorder)
        self._own_train: Callable[..., Any] | None = trainer.__dict__.get("train")
        trainer.train = self._unlocking(trainer.train)
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
            del self.trainer.train
            if self._own_train is not None:
                self.trainer.train = self._own_train
            self._folder.release()
            self.trainer.remove_callback(self._watch)
            self._watch = None

    # -- the run -----------------------------------------------------------------------------------------------------
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

    def _unlocking(self, own: Callable[..., Any]) -> Callable[..., Any]:
        """`trainer.train` that, when it breaks off, lets others resume the run."""

        def train(*args: Any, **named: Any) -> Any:
            try:
                return own(*args, **named)
            finally:
                self._folder.release()

        return train

    # -- what the trainer tells --------------------------------------------------------------------------------------
    def begun(self, step: int) -> None:
        """Training begins at a step: 0, or that of a checkpoint whose past must be on record."""
        if self._finished:
            raise RecordingError(
                f"{self.path} is the finished record of this trainer's last training; detach() before training again, "
                f"or record into another folder"
            )
        together(self.trainer.accelerator, lambda: self._prepare(step))
        self._sink.drop()
        batch = int(self.trainer.args.generation_batch_size)
        self._recorder.restart(next_row(self.path / SHARDS, batch))
        self.trainer.accelerator.wait_for_everyone()  # nobody adds a shard while another still counts rows

    def _prepare(self, step: int) -> None:
        """Holds the folder, checks the past of a step in it, and drops what came later. For the first process alone."""
        folder, processes = self.path / SHARDS, int(self.trainer.accelerator.num_processes)
        with writing(self.path, step):
            self._folder.hold()
            if step == 0:
                if shards(folder):
                    raise RecordingError(
                        f"{self.path} holds an earlier start ({steps_on_record(folder)}), and this run begins at step "
                        f"0; resume it from its checkpoint, or delete the folder"
                    )
                drop_from(folder, step)
                save_policy(self._plain, self.trainer.processing_class, str(self.path / "policies" / "start"))
                self._folder.note_start()
                return
            self._folder.check_resumed(step, _fingerprint(self._plain))
            self._folder.check_start()
            check_whole(folder, step, processes)
            drop_from(folder, step)
            check_complete(folder, step, processes)

    def stepped(self, step: int, learning_rate: float) -> None:
        """An optimizer step was made."""
        try:
            with writing(self.path, step):
                self._sink.commit(step, learning_rate)
        except NotFinite:
            raise RecordingError(
                f"gradients of step {step} are not finite (NaN or infinity), and are not recorded in {self.path}: look "
                f"at the learning rate (here {learning_rate:g}), max_grad_norm, the precision (bf16, fp16) and the "
                f"rewards of this step, and record the run again in another folder"
            ) from None

    def saved(self, step: int) -> None:
        """TRL wrote a checkpoint; whoever resumes from it is known by its weights."""
        if self.trainer.accelerator.is_main_process:
            with writing(self.path, step):
                self._folder.note_checkpoint(step, _fingerprint(self._plain))

    def ended(self, steps: int) -> None:
        """Training is over: the shards become one record."""
        self.trainer.accelerator.wait_for_everyone()
        together(self.trainer.accelerator, lambda: self._close(steps))
        self._finished = True

    def _close(self, steps: int) -> None:
        """Puts the record together. For the first process alone."""
        folder, processes = self.path / SHARDS, int(self.trainer.accelerator.num_processes)
        with writing(self.path, steps):
            self._folder.check_start()
            check_whole(folder, steps, processes)
            check_complete(folder, steps, processes)
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
                without=NO_PART,
            )
            found = shown(self.path, list(self.behaviors))
            self._folder.finished()
        for name, count in found.items():
            if count == 0:
                warnings.warn(
                    f"the behaviour {name!r}, {self.behaviors[name].pattern!r}, matches none of the "
                    f"{facts['n_rollouts']} rollouts recorded in {self.path}: no gradient of it is there",
                    stacklevel=2,
                )


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


def _fingerprint(model: Any) -> str:
    """Hex sha256 of the trainable parameters, in the order of their names."""
    digest = hashlib.sha256()
    for name, parameter in sorted(trainable(model).items()):
        digest.update(name.encode())
        flat = parameter.detach().cpu().contiguous().view(-1)
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
