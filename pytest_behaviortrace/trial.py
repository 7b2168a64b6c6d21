"""What every row of the scorecard has, with a training run behind it or without: an estimator, its cost, a decision."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

from pytest_behaviortrace.estimator import Estimator, EstimatorError
from pytest_behaviortrace.exhibit import Exhibit, FloorShown, GateShown, plain
from pytest_behaviortrace.verdict import Decision, Floor, Gate

_T = TypeVar("_T")

REMEMBERED = 64
"""Estimators of which a session remembers scores: twice as many as have rows that run side by side (`checklist.BLOCK`),
for a worker whose share of the rows begins inside of a block."""


class Bench:
    """What the rows of a session share: the time limit of estimators, and what need not be found out twice."""

    def __init__(self, timeout: float | None = None) -> None:
        self.timeout = timeout
        self.given_up: dict[str, EstimatorError] = {}
        """Estimators that were too slow once, and are not waited for again."""
        self._memo: dict[Any, Any] = {}
        self._memo_of: OrderedDict[str, dict[Any, Any]] = OrderedDict()

    def memo(self, key: Any, make: Callable[[], _T], of: str | None = None) -> _T:
        """`make()` on the first use of `key`, the same object afterwards.

        `of`: the estimator that it is about. Such things are forgotten when `REMEMBERED` others were met since, and
        made again if asked for: thousands of estimators need no more memory than a few.
        """
        kept = self._memo if of is None else self._kept_of(of)
        if key not in kept:
            kept[key] = make()
        return kept[key]  # type: ignore[no-any-return]

    def _kept_of(self, estimator: str) -> dict[Any, Any]:
        kept = self._memo_of.setdefault(estimator, {})
        self._memo_of.move_to_end(estimator)
        if len(self._memo_of) > REMEMBERED:
            self._memo_of.popitem(last=False)
        return kept

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
        self._offers: list[Callable[[], Exhibit]] = []

    @property
    def component(self) -> str:
        """The row's component."""
        assert self._component is not None, "this check has no components"
        return self._component

    def own(self, key: Any, make: Callable[[], _T]) -> _T:
        """`Bench.memo` of something that is about the estimator on trial."""
        return self.bench.memo(key, make, of=self.name)

    def spend(self, seconds: float, peak_bytes: int) -> None:
        """Count what the estimator itself cost for this row."""
        self.seconds += seconds
        self.peak_bytes = max(self.peak_bytes, peak_bytes)

    def show(self, make: Callable[[], Exhibit]) -> None:
        """Offer something to look at beside the numbers.

        `make` is called once the row has ended, and only if a report with pictures was asked for: nothing is decided
        from it. Gates it brings stand behind those of the decision.
        """
        self._offers.append(make)

    def exhibit(self, *, pictures: bool = True) -> Exhibit:
        """Gates and floors of the decision, and, with `pictures`, everything that the check offered to show."""
        gates = [gate_shown(gate) for gate in self.decision.gates] if self.decision is not None else []
        floors = [floor_shown(floor) for floor in self.decision.floors] if self.decision is not None else []
        found = Exhibit()
        for make in self._offers if pictures else ():
            offered = make()
            gates += offered.pop("gates", [])
            found.update(offered)
        if gates:
            found["gates"] = gates
        if floors:
            found["floors"] = floors
        return found

    def conclude(self, decision: Decision, *, remark: str = "") -> None:
        """Record the row's decision and end the check with it: return on pass, raise the outcome otherwise.

        `remark`: figures that are reported beside the reason without deciding anything.
        """
        __tracebackhide__ = True
        self.decision = decision.remarking(remark)
        self.decision.raise_outcome()


def gate_shown(gate: Gate) -> GateShown:
    """A gate as it is shown."""
    interval = gate.interval
    return GateShown(
        name=gate.name,
        estimate=plain(interval.estimate),
        low=plain(interval.low),
        high=plain(interval.high),
        bar=float(gate.bar),
        cap=float(gate.cap),
        least=plain(gate.least),
        control=gate.control,
        control_estimate=None if gate.control_estimate is None else plain(gate.control_estimate),
        holds=bool(gate.holds),
        contradicted=bool(gate.contradicted),
    )


def floor_shown(floor: Floor) -> FloorShown:
    """A floor as it is shown."""
    return FloorShown(name=floor.name, have=float(floor.have), need=float(floor.need))
