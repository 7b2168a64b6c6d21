"""What an estimator is: a callable from an `AttributionProblem` to one score per item, and what it says it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from pytest_behaviortrace.attributes import Unreadable, attribute, require_readable

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


class NotServed(LookupError):
    """Something of a problem that the run at hand cannot serve at all, though it belongs to a declared need."""


@dataclass(frozen=True, slots=True)
class Claims:
    """Which properties an estimator claims beside those that none can do without (`checks/test_stress.py`).

    A property that is not claimed is n/a for the estimator, and the scorecard says so.
    """

    permutation: bool = True
    """Items put in another order keep their scores."""
    duplicates: bool = True
    """Identical items get identical scores."""
    renaming: bool = True
    """Other ids of prompt groups and other words in the prompts change nothing (with need `model`: ids alone)."""
    batches: bool = True
    """With need `model`: a score depends neither on the items scored beside it nor on padding."""
    target_sign: bool = False
    """Turning the target round (`target`, `targets_by_step`, `target_loss`) turns the scores round."""


class EstimatorError(Exception):
    """The estimator broke (exception, wrong shape, NaN, mutated inputs, too slow): an error, never a failed claim."""


class InputsChanged(EstimatorError):
    """The estimator wrote to the arrays it was given, or tried to (then `__cause__` is the refusal)."""


class TooSlow(EstimatorError):
    """The estimator took longer than --bt-estimator-timeout allows."""


@runtime_checkable
class Estimator(Protocol):
    """One float per item of the problem, higher = more responsible for the behaviour.

    An estimator may have a method `token_scores(problem)` as well: one array per item, a finite number per completion
    token. Reports that show rollouts shade their tokens with it, and nothing is decided from it. It is called once a
    seed, only when such a report was asked for, with a problem of the few rollouts shown (the target and the reference
    set are the whole run's), under the same `needs` and time limit; not under --bt-isolate.
    """

    def __call__(self, problem: AttributionProblem, /) -> NDArray[np.floating[Any]]: ...


_Callable = TypeVar("_Callable", bound=Callable[..., Any])
_Declared = TypeVar("_Declared", Needs, Claims)


def needs(
    *, gradients: bool = False, spans: bool = False, text: bool = False, behavior: bool = False, model: bool = False
) -> Callable[[_Callable], _Callable]:
    """Decorator that states what a function reads of its problem; without it a function has `Needs()` (gradients)."""

    def mark(function: _Callable) -> _Callable:
        function.needs = Needs(gradients, spans, text, behavior, model)  # type: ignore[attr-defined]
        return function

    return mark


def claims(
    *,
    permutation: bool = True,
    duplicates: bool = True,
    renaming: bool = True,
    batches: bool = True,
    target_sign: bool = False,
) -> Callable[[_Callable], _Callable]:
    """Decorator that states which optional properties a function claims; without it a function has `Claims()`."""

    def mark(function: _Callable) -> _Callable:
        function.claims = Claims(permutation, duplicates, renaming, batches, target_sign)  # type: ignore[attr-defined]
        return function

    return mark


def needs_of(estimator: Estimator) -> Needs:
    """The needs an estimator declares through its `needs` attribute; `Needs()` where it declares none.

    Raises `EstimatorError` when the attribute is not a `Needs`, or reading it raises.
    """
    return _declared(estimator, "needs", Needs)


def claims_of(estimator: Estimator) -> Claims:
    """The properties an estimator claims through its `claims` attribute; `Claims()` where it declares none.

    Raises `EstimatorError` when the attribute is not a `Claims`, or reading it raises.
    """
    return _declared(estimator, "claims", Claims)


def _declared(estimator: Estimator, name: str, kind: type[_Declared]) -> _Declared:
    try:
        declared = attribute(estimator, name)
        require_readable(declared)
    except Unreadable as error:
        raise EstimatorError(str(error)) from error
    if declared is None:
        return kind()
    if not isinstance(declared, kind):
        raise EstimatorError(f"its attribute {name!r} must be a {kind.__name__}, not {type(declared).__name__}")
    return declared
