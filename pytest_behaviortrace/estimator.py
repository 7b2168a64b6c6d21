"""What an estimator is: a callable from an `AttributionProblem` to one score per item, and what it says it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pytest_behaviortrace.problem import AttributionProblem


@dataclass(frozen=True, slots=True)
class Needs:
    """What an estimator may read of a problem beside the columns every problem has.

    Reading anything undeclared raises `UndeclaredAccess`; a check whose problems do not carry a declared need is n/a.
    """

    gradients: bool = True
    """`gradients`, `gradient_norm`, `target`, `targets_by_step`, `reference`, `blocks`: sketches of loss gradients."""
    spans: bool = False
    """`span_gradients`: sketches of the gradient of the behaviour's tokens alone."""
    text: bool = False
    """`prompt_ids`, `completion_ids`, `prompt_text`, `completion_text`."""
    behavior: bool = False
    """`behavior` and `behavior_mask`: the pattern whose cause is sought and where it stands in each completion."""
    model: bool = False
    """`model`: policies and losses, for estimators that compute gradients of their own."""

    def names(self) -> tuple[str, ...]:
        """The declared needs by name, in the order of the fields."""
        return tuple(f.name for f in fields(self) if getattr(self, f.name))

    def without(self, name: str) -> Needs:
        """The same needs less one."""
        return replace(self, **{name: False})

    def missing_from(self, carried: Needs) -> tuple[str, ...]:
        """The needs declared here that a problem carrying only `carried` cannot serve."""
        return tuple(name for name in self.names() if not getattr(carried, name))


EVERYTHING = Needs(gradients=True, spans=True, text=True, behavior=True, model=True)


class UndeclaredAccess(RuntimeError):
    """An estimator read a part of the problem that its `Needs` does not declare."""


class EstimatorError(Exception):
    """The estimator broke (exception, wrong shape, NaN, mutated inputs, too slow): an error, never a failed claim."""


@runtime_checkable
class Estimator(Protocol):
    """One float per item of the problem, higher = more responsible for the behaviour."""

    def __call__(self, problem: AttributionProblem, /) -> NDArray[np.floating[Any]]: ...


_Callable = TypeVar("_Callable", bound=Callable[..., Any])


def needs(
    *, gradients: bool = False, spans: bool = False, text: bool = False, behavior: bool = False, model: bool = False
) -> Callable[[_Callable], _Callable]:
    """Decorator that states what a function reads of its problem; without it a function has `Needs()` (gradients)."""

    def mark(function: _Callable) -> _Callable:
        function.needs = Needs(gradients, spans, text, behavior, model)  # type: ignore[attr-defined]
        return function

    return mark


def needs_of(estimator: Estimator) -> Needs:
    """The needs an estimator declares through its `needs` attribute; `Needs()` where it declares none.

    Raises `EstimatorError` when the attribute is not a `Needs`.
    """
    declared = getattr(estimator, "needs", None)
    if declared is None:
        return Needs()
    if not isinstance(declared, Needs):
        raise EstimatorError(f"its attribute 'needs' must be a Needs, not {type(declared).__name__}")
    return declared
