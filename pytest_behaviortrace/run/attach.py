"""Puts a recorder between a TRL trainer and its methods. Loss, updates and random numbers stay TRL's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_behaviortrace.run.loss import Objective, UnsupportedLoss
from pytest_behaviortrace.run.recorded_facts import base_of
from pytest_behaviortrace.run.recorder import RolloutRecorder
from pytest_behaviortrace.run.rows import RecordingError


def attach(trainer: Any, recorder: RolloutRecorder) -> Callable[[], None]:
    """Has `recorder` watch a `GRPOTrainer` (or one of its subclasses) from now on; returns what undoes it.

    Methods of the object are wrapped, never replaced: what a subclass made of them runs as it did. Raises
    `UnsupportedLoss`, naming the settings, under which rollouts have no gradients of their own, and `RecordingError`
    for a recorder that was attached before.
    """
    check_recordable(trainer)
    if recorder.attached:
        raise RecordingError("a recorder records one run; make another one for this trainer")
    recorder.attached = True
    rewards: list[NDArray[np.float64]] = []

    def recording() -> bool:
        # TRL tells training from evaluation by the mode of its model.
        return bool(trainer.model and trainer.model.training)

    def calculate_rewards(own: Any, *args: Any, **named: Any) -> Any:
        found = own(*args, **named)
        rewards[:] = [found.detach().cpu().numpy().astype(np.float64)]
        return found

    def generate(own: Any, inputs: Any) -> Any:
        rewards.clear()
        output = own(inputs)
        if recording():
            count, rank = len(output["completion_ids"]), int(trainer.accelerator.process_index)
            mine = rewards[0][rank * count : (rank + 1) * count] if rewards else None
            recorder.generated(trainer, output, mine)
        return output

    def log_probabilities(own: Any, *args: Any, **named: Any) -> Any:
        result = own(*args, **named)
        recorder.predicted(result[0])
        return result

    def compute_loss(own: Any, model: Any, inputs: Any) -> Any:
        if recording():
            recorder.entering(trainer, model, inputs)
        return own(model, inputs)

    def training_step(own: Any, *args: Any, **named: Any) -> Any:
        try:
            loss = own(*args, **named)
        except BaseException:
            recorder.abandon()
            raise
        recorder.passed(trainer)
        return loss

    wrappers: dict[str, Callable[..., Any]] = {
        "_calculate_rewards": calculate_rewards,
        "_generate_and_score_completions": generate,
        "_get_per_token_logps_and_entropies": log_probabilities,
        "_compute_loss": compute_loss,
        "training_step": training_step,
    }
    before = {name: trainer.__dict__.get(name) for name in wrappers}
    for name, wrapper in wrappers.items():
        setattr(trainer, name, _around(wrapper, getattr(trainer, name)))

    def detach() -> None:
        for name, was in before.items():
            trainer.__dict__.pop(name, None)
            if was is not None:
                setattr(trainer, name, was)

    return detach


def check_recordable(trainer: Any) -> None:
    """Raises `UnsupportedLoss`, naming the settings, for a run whose rollouts have no gradients of their own, and
    `UnsupportedModel` for an adapter whose base nobody could load again.
    """
    base_of(trainer.accelerator.unwrap_model(trainer.model))
    Objective.of(trainer.args)
    if trainer.tools or trainer.environment_factories is not None or trainer.aux_loss_enabled:
        raise UnsupportedLoss("rollouts with tools, environments or a router's auxiliary loss cannot be recorded")
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        raise UnsupportedLoss("parameters sharded by DeepSpeed or FSDP cannot be watched; use plain data parallelism")
    if trainer.args.n_gpu > 1:
        raise UnsupportedLoss(
            "several GPUs in one process split a batch; start one process per GPU (accelerate launch)"
        )


def _around(wrapper: Callable[..., Any], own: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **named: Any) -> Any:
        return wrapper(own, *args, **named)

    return call
