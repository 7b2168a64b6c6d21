"""Three-way verdicts: the rule that turns gates into pass, fail or inconclusive, and the outcomes pytest sees."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import pytest

WIDTH_CAP = 0.15
"""Widest interval (AUC, precision or their differences) that still decides: PAPER.md, pre-registered bars."""


class Verdict(StrEnum):
    """What a row of the scorecard can say."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    ERROR = "error"
    NOT_APPLICABLE = "n/a"


class ClaimFailed(AssertionError):
    """The evidence contradicts the claim: pytest's failed."""


class Inconclusive(pytest.skip.Exception):  # type: ignore[misc, name-defined]
    """The evidence decides neither way: skipped underneath, with its own word in the summary."""


class NotApplicable(pytest.skip.Exception):  # type: ignore[misc, name-defined]
    """The estimator does not declare what this check needs: skipped underneath, shown as n/a."""


ENDS_THE_SESSION = (KeyboardInterrupt, SystemExit, GeneratorExit, pytest.exit.Exception)
"""What is raised to end more than a row, and is no way for one to end."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A point estimate with its 95 % interval."""

    estimate: float
    low: float
    high: float

    @property
    def width(self) -> float:
        """Upper end minus lower end."""
        return self.high - self.low


@dataclass(frozen=True, slots=True)
class Gate:
    """One inequality a claim must clear: the whole interval above `bar`.

    A gate with a `control` is a paired difference, estimator minus control, and its bar is 0.
    """

    name: str
    interval: Interval
    bar: float = 0.0
    cap: float = WIDTH_CAP
    control: str | None = None
    control_estimate: float | None = None
    least: float = -math.inf
    """The estimate itself must reach this too (target context: 0.10)."""

    @property
    def contradicted(self) -> bool:
        """The whole interval lies below the bar."""
        return self.interval.high < self.bar

    @property
    def holds(self) -> bool:
        """The whole interval lies above the bar, and the estimate reaches `least`."""
        return self.interval.low > self.bar and self.interval.estimate >= self.least

    @property
    def too_wide(self) -> bool:
        """Undecided, and so wide that more data could decide it."""
        return not self.contradicted and not self.holds and self.interval.width > self.cap

    def describe(self) -> str:
        """For example `above norm-only: +0.02 [-0.01, +0.05]`."""
        i = self.interval
        what = f"above {self.control}" if self.control else self.name
        sign = "+" if self.control else ""
        return f"{what}: {i.estimate:{sign}.3f} [{i.low:{sign}.3f}, {i.high:{sign}.3f}]"


@dataclass(frozen=True, slots=True)
class Floor:
    """A minimum of evidence without which a check decides nothing."""

    name: str
    have: float
    need: float

    @property
    def met(self) -> bool:
        """Whether there is enough."""
        return self.have >= self.need


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict with the numbers behind it; one row of the scorecard."""

    verdict: Verdict
    reason: str
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    chance: float | None = None
    control: str | None = None
    control_estimate: float | None = None
    margin_low: float | None = None
    n: int | None = None
    gates: tuple[Gate, ...] = ()
    floors: tuple[Floor, ...] = ()

    def but(self, verdict: Verdict, reason: str) -> Decision:
        """The same numbers under another verdict."""
        return replace(self, verdict=verdict, reason=reason)

    def remarking(self, remark: str) -> Decision:
        """The same decision with figures that are reported, not gated, behind its reason."""
        return replace(self, reason=f"{self.reason} ({remark})") if remark else self

    def raise_outcome(self) -> None:
        """Turn the verdict into pytest's outcome: return on pass, raise otherwise."""
        __tracebackhide__ = True
        if self.verdict is Verdict.FAIL:
            raise ClaimFailed(self.reason)
        if self.verdict is Verdict.INCONCLUSIVE:
            raise Inconclusive(self.reason)
        if self.verdict is Verdict.NOT_APPLICABLE:
            raise NotApplicable(self.reason)


def decide(gates: Sequence[Gate], floors: Sequence[Floor] = (), *, chance: float, n: int) -> Decision:
    """The verdict of one row (DESIGN, "The checks"). `gates[0]` is the statistic itself, measured against `chance`.

    * a floor of evidence that is not met: inconclusive, whatever the gates say;
    * a contradicted gate (its whole interval below the bar): fail;
    * every gate holds: pass;
    * an undecided gate wider than its cap: inconclusive;
    * otherwise the evidence was precise enough and the claim did not hold: fail.

    Raises `ValueError` on an empty list or a number that is not finite: a check must never decide on NaN.
    """
    if not gates:
        raise ValueError("a verdict needs at least one gate")
    for gate in gates:
        numbers = (gate.interval.estimate, gate.interval.low, gate.interval.high, gate.bar)
        if not all(math.isfinite(x) for x in numbers) and all(f.met for f in floors):
            raise ValueError(f"gate {gate.name!r} has a number that is not finite: {gate.interval}")
    verdict, reason = _rule(gates, floors)
    statistic = gates[0].interval
    against = [g for g in gates if g.control is not None]
    closest = min(against, key=lambda g: g.interval.low) if against else None
    return Decision(
        verdict,
        reason,
        _finite(statistic.estimate),
        _finite(statistic.low),
        _finite(statistic.high),
        chance,
        closest.control if closest else None,
        _finite(closest.control_estimate) if closest else None,
        _finite(closest.interval.low) if closest else None,
        n,
        tuple(gates),
        tuple(floors),
    )


def _finite(x: float | None) -> float | None:
    """The number as a plain float; None where there was too little evidence to compute one."""
    return float(x) if x is not None and math.isfinite(x) else None


def _rule(gates: Sequence[Gate], floors: Sequence[Floor]) -> tuple[Verdict, str]:
    short = [f for f in floors if not f.met]
    if short:
        return Verdict.INCONCLUSIVE, "too little evidence: " + "; ".join(
            f"{f.name} {f.have:g}, needs {f.need:g}" for f in short
        )
    contradicted = [g for g in gates if g.contradicted]
    if contradicted:
        return Verdict.FAIL, "contradicted: " + contradicted[0].describe()
    open_gates = [g for g in gates if not g.holds]
    if not open_gates:
        return Verdict.PASS, "every gate holds; closest: " + min(gates, key=lambda g: g.interval.low - g.bar).describe()
    wide = [g for g in open_gates if g.too_wide]
    if wide:
        return Verdict.INCONCLUSIVE, f"undecided, wider than {wide[0].cap:g}: " + wide[0].describe()
    return Verdict.FAIL, "not above: " + open_gates[0].describe()


def paper_verdict(interval: Interval, *, bar: float, control: float | None = None, cap: float = WIDTH_CAP) -> Verdict:
    """The paper's own order, for comparison with its tables: width first, then the bar and the control's estimate.

    `control` is norm-only's point estimate, which the paper asks the lower bound to exceed as well.
    """
    if interval.width > cap:
        return Verdict.INCONCLUSIVE
    above = interval.low > bar and (control is None or interval.low > control)
    return Verdict.PASS if above else Verdict.FAIL
