"""Whether a run is what its recipe says: a fresh start, every step once and in order, every rollout seen once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class IntegrityError(RuntimeError):
    """A run that cannot be trusted: not a fresh start, steps missing, or rollouts not as many as expected."""


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
