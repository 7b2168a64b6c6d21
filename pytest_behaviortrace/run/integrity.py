"""Whether a run is what its recipe says: a fresh start, every step once and in order, every rollout seen once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from pytest_behaviortrace.run.sketch import BlockSketch

LEAST_COVERED = 0.999
"""Share of the trainer's own squared gradient norm that the recorded rollouts must explain; the rest is rounding."""
ROUNDING = {True: 1e-6, False: 4e-4}
"""What rounding may leave, in squared norms of single rollouts: in float32, and in mixed or lower precision.

Where rollouts cancel each other, it is all that is left to compare.
"""


class IntegrityError(RuntimeError):
    """A run that cannot be trusted: not a fresh start, steps missing, rollouts not as many as expected, or gradients
    that are not the trainer's."""


def check_start(begun: Mapping[str, torch.Tensor] | None, start: Mapping[str, torch.Tensor]) -> None:
    """Raises `IntegrityError` unless training began at exactly the weights of the warm-up."""
    if begun is None:
        raise IntegrityError("the run never began")
    if begun.keys() != start.keys():
        raise IntegrityError("the run began with other parameters than the warm-up's policy has")
    changed = [name for name in start if not bool((begun[name] == start[name]).all())]
    if changed:
        raise IntegrityError(f"the run did not begin at the weights of the warm-up ({changed[0]} differs)")


def check_steps(made: Sequence[int], updates: int, expected: int) -> None:
    """Raises `IntegrityError` unless the steps made are 0, 1, ... `expected` - 1, with one optimizer update each."""
    if made and made[0] != 0:
        raise IntegrityError(f"the run began at step {made[0]}, not fresh at step 0")
    for place, step in enumerate(made):
        if step != place:
            raise IntegrityError(f"step {step} followed step {place - 1}: the run has a gap")
    if len(made) != expected:
        raise IntegrityError(f"the run made {len(made)} steps, expected {expected}")
    if updates != expected:
        raise IntegrityError(f"{updates} optimizer updates in {expected} steps")


def join_by_row_id(expected: int, **parts: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """Columns of all parts in the order of their `row_id`, which must be 0 ... `expected` - 1 in each part.

    Raises `IntegrityError` naming the part (`rewarded`, `recorded`, ...) that saw other rollouts.
    """
    joined: dict[str, list[Any]] = {}
    for name, columns in parts.items():
        ids = [int(row) for row in columns["row_id"]]
        if len(ids) != expected:
            raise IntegrityError(f"{len(ids)} rollouts were {name}, expected {expected}")
        if sorted(ids) != list(range(expected)):
            raise IntegrityError(f"the {expected} rollouts {name} have {len(set(ids))} different row ids")
        order = sorted(range(expected), key=ids.__getitem__)
        joined |= {column: [values[i] for i in order] for column, values in columns.items()}
    return joined


def everywhere(accelerator: Any, flag: bool) -> bool:
    """Whether a flag is set on all processes; each must ask."""
    if accelerator.num_processes == 1:
        return flag
    import torch

    count = accelerator.reduce(torch.tensor(float(flag), device=accelerator.device), "sum")
    return int(count) == int(accelerator.num_processes)


def check_sum(trainer: Any, sketch: BlockSketch, model: Any, shares: torch.Tensor) -> bool:
    """Whether `.grad` says anything yet; if so, that the recorded rollouts add up to it. All processes call it.

    `shares` (batch, K): what each of this process's rollouts contributes to the gradient of the loss over all
    processes, uphill. Raises `IntegrityError` with the share of the squared norm that is covered: something in the
    trainer's loss or in its model is not what the recorder takes it for.
    """
    return everywhere(trainer.accelerator, _adds_up(trainer, sketch, model, shares))


def _adds_up(trainer: Any, sketch: BlockSketch, model: Any, shares: torch.Tensor) -> bool:
    accelerator = trainer.accelerator
    each, shares = shares.double().square().sum(), shares.sum(0)
    if accelerator.num_processes > 1:
        # Before the last micro-batch of a step nothing is averaged over processes.
        together = accelerator.sync_gradients
        shares = accelerator.reduce(shares, "sum") if together else shares * accelerator.num_processes
        each = accelerator.reduce(each, "sum") if together else each * accelerator.num_processes**2
    own = {name: -p.grad[None].float() for name, p in model.named_parameters() if p.grad is not None}
    if not own:
        return False
    truth = sketch.sketch({name: own[name] for name in sketch.parameters if name in own})[0]
    size = float(truth.double().square().sum())
    exact = accelerator.mixed_precision == "no" and all(p.dtype == truth.dtype for p in model.parameters())
    noise = ROUNDING[exact] * float(each)
    if size <= noise:
        return False
    missing = float((truth - shares).double().square().sum())
    covered = 1.0 - missing / size
    if covered < LEAST_COVERED and missing > noise:
        raise IntegrityError(
            f"the recorded rollouts add up to {covered:.1%} of the trainer's own gradient (squared norm): its loss, or "
            f"its model, holds something that rollouts have no share in; it cannot be recorded"
        )
    return True
