"""The same problem, changed in one respect: other items, another order, other names, the opposite target.

What the stress tests compare an estimator's scores between, and what a printed counterexample calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_behaviortrace.problem import AttributionProblem, ModelAccess

COLUMNS = ("loss_scale", "step", "group", "advantage", "reward", "logprob", "length")
"""Columns of every problem that have one entry per item."""
SERVED = (
    "gradients", "gradient_norm", "span_gradients", "prompt_ids", "completion_ids", "prompt_text", "completion_text",
    "behavior_mask",
)  # fmt: skip
"""What is served by need and has one entry per item."""


def taken(problem: AttributionProblem, items: Sequence[int]) -> AttributionProblem:
    """The items at these places, in this order; one that is named twice is there twice."""
    index = np.asarray(items, np.intp)
    columns = {name: getattr(problem, name)[index] for name in COLUMNS}
    served = {name: _entries(value, index) for name, value in served_values(problem).items() if name in SERVED}
    return problem.replacing(**columns, **served)


def flipped(problem: AttributionProblem) -> AttributionProblem:
    """The opposite question: `target`, `targets_by_step` and `model.target_loss` with the other sign."""
    served = served_values(problem)
    changed: dict[str, Any] = {name: -served[name] for name in ("target", "targets_by_step") if name in served}
    if "model" in served:
        changed["model"] = OppositeTarget(served["model"])
    return problem.replacing(**changed)


def renamed(
    problem: AttributionProblem, groups: Mapping[int, int], prompts: Mapping[str, str] | None = None
) -> AttributionProblem:
    """Other ids of the prompt groups, and other prompts, one character a token (both: old -> new)."""
    changed: dict[str, Any] = {"group": np.array([groups[int(name)] for name in problem.group], np.int64)}
    if prompts:
        texts = tuple(prompts[text] for text in served_values(problem)["prompt_text"])
        changed |= {"prompt_text": texts, "prompt_ids": tuple(np.array([*map(ord, text)], np.int64) for text in texts)}
    return problem.replacing(**changed)


def relocated(problem: AttributionProblem, rows: int) -> AttributionProblem:
    """The same items cut out of a larger table, `rows` further down: ids count from there, arrays are strided views."""
    columns = {name: _cut_out(getattr(problem, name), rows) for name in COLUMNS}
    columns["group"] = _cut_out(problem.group + rows, rows)
    served = {
        name: _cut_out(value, rows)
        for name, value in served_values(problem).items()
        if name in SERVED and isinstance(value, np.ndarray)
    }
    return problem.replacing(**columns, **served)


def copied(problem: AttributionProblem) -> AttributionProblem:
    """The same problem in arrays of its own, so that nothing done to it reaches the original."""
    columns = {name: np.array(getattr(problem, name)) for name in (*COLUMNS, "learning_rate")}
    return problem.replacing(**columns, **{name: _copy(value) for name, value in served_values(problem).items()})


def contents(problem: AttributionProblem) -> dict[str, Any]:
    """Everything a problem says, as values that can be compared with ==."""
    found: dict[str, Any] = {name: _plain(getattr(problem, name)) for name in (*COLUMNS, "learning_rate")}
    found |= {name: getattr(problem, name) for name in ("kind", "loss_type", "rng_seed", "carried")}
    return found | {name: _plain(value) for name, value in served_values(problem).items()}


def served_values(problem: AttributionProblem) -> dict[str, Any]:
    """What the problem serves by need, by name; values made on first use are made."""
    return {name: value() if callable(value) else value for name, value in problem.lazy.items()}


class OppositeTarget:
    """`ModelAccess` whose target is to be avoided."""

    def __init__(self, access: ModelAccess) -> None:
        self._access = access

    def load_policy(self, step: int) -> Any:
        """The same policy."""
        return self._access.load_policy(step)

    def rollout_loss(self, model: Any, batch: Mapping[str, Any]) -> Any:
        """The same objective."""
        return self._access.rollout_loss(model, batch)

    def target_loss(self, model: Any) -> Any:
        """The target's with the other sign."""
        return -self._access.target_loss(model)


def _entries(value: Any, index: NDArray[np.intp]) -> Any:
    return value[index] if isinstance(value, np.ndarray) else tuple(value[i] for i in index)


def _copy(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_copy(entry) for entry in value)
    return np.array(value) if isinstance(value, np.ndarray) else value


def _cut_out(value: NDArray[Any], rows: int) -> NDArray[Any]:
    """The same values as a view into an array of ones that is larger on every side."""
    table = np.ones([rows + size + 1 for size in value.shape], value.dtype)
    window = tuple(slice(rows, rows + size) for size in value.shape)
    table[window] = value
    return table[window]


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_plain(entry) for entry in value)
    return (value.dtype.str, value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value
