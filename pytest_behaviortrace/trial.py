"""What every row of the scorecard has, with a training run behind it or without: an estimator, its cost, a decision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pytest_behaviortrace.estimator import Estimator, EstimatorError
from pytest_behaviortrace.verdict import Decision

_T = TypeVar("_T")


class Bench:
    """What the rows of a session share: the time limit of estimators, and what need not be found out twice."""

    def __init__(self, timeout: float | None = None) -> None:
        self.timeout = timeout
        self.given_up: dict[str, EstimatorError] = {}
        """Estimators that were too slow once, and are not waited for again."""
        self._memo: dict[Any, Any] = {}

    def memo(self, key: Any, make: Callable[[], _T]) -> _T:
        """`make()` on the first use of `key`, the same object afterwards."""
        if key not in self._memo:
            self._memo[key] = make()
        return self._memo[key]  # type: ignore[no-any-return]

    def trial(self, name: str | None, estimator: Estimator | None, component: str | None = None) -> Trial:
        """A row that needs no run."""
        return Trial(self, name, estimator, component)


class Trial:
    """One row: the estimator on trial, what it cost, and the decision it ends with."""

    def __init__(self, bench: Bench, name: str | None, estimator: Estimator | None, component: str | None) -> None:
        self.bench, self.name, self.estimator = bench, name, estimator
        self._component = component
        self.decision: Decision | None = None
        self.seconds = 0.0
        self.peak_bytes = 0

    @property
    def component(self) -> str:
        """The row's component."""
        assert self._component is not None, "this check has no components"
        return self._component

    def spend(self, seconds: float, peak_bytes: int) -> None:
        """Count what the estimator itself cost for this row."""
        self.seconds += seconds
        self.peak_bytes = max(self.peak_bytes, peak_bytes)

    def conclude(self, decision: Decision, *, remark: str = "") -> None:
        """Record the row's decision and end the check with it: return on pass, raise the outcome otherwise.

        `remark`: figures that are reported beside the reason without deciding anything.
        """
        __tracebackhide__ = True
        self.decision = decision.remarking(remark)
        self.decision.raise_outcome()
