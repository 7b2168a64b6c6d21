"""The three-way rule, line by line, and the paper's own order."""

import math

import pytest

from pytest_behaviortrace.verdict import (
    ClaimFailed,
    Floor,
    Gate,
    Inconclusive,
    Interval,
    NotApplicable,
    Verdict,
    decide,
    paper_verdict,
)


def gate(low: float, high: float, bar: float = 0.0, control: str | None = None, least: float = -math.inf) -> Gate:
    middle = (low + high) / 2
    return Gate("g", Interval(middle, low, high), bar, control=control, control_estimate=0.1, least=least)


@pytest.mark.parametrize(
    ("gates", "floors", "verdict"),
    [
        ([gate(0.1, 0.2)], [], Verdict.PASS),
        ([gate(0.1, 0.2), gate(0.01, 0.05, control="norm-only")], [], Verdict.PASS),
        ([gate(0.1, 0.2), gate(-0.05, -0.01, control="norm-only")], [], Verdict.FAIL),
        ([gate(0.3, 0.4, bar=0.5)], [], Verdict.FAIL),
        ([gate(0.1, 0.2), gate(-0.05, 0.05, control="norm-only")], [], Verdict.FAIL),
        ([gate(0.1, 0.2), gate(-0.10, 0.10, control="norm-only")], [], Verdict.INCONCLUSIVE),
        ([gate(-0.3, 0.3), gate(-0.4, -0.1, control="norm-only")], [], Verdict.FAIL),
        ([gate(0.1, 0.2)], [Floor("pairs", 9, 10)], Verdict.INCONCLUSIVE),
        ([gate(0.1, 0.2)], [Floor("pairs", 10, 10)], Verdict.PASS),
        ([gate(0.3, 0.4, bar=0.5)], [Floor("pairs", 9, 10)], Verdict.INCONCLUSIVE),
        ([gate(0.5, 0.5, bar=0.5)], [], Verdict.FAIL),
        ([gate(0.02, 0.08, least=0.10)], [], Verdict.FAIL),
        ([gate(0.02, 0.19, least=0.10)], [], Verdict.PASS),
        ([gate(0.01, 0.17, least=0.10)], [], Verdict.INCONCLUSIVE),
    ],
)
def test_rule(gates: list[Gate], floors: list[Floor], verdict: Verdict) -> None:
    assert decide(gates, floors, chance=0.5, n=10).verdict is verdict


def test_a_wide_interval_that_decides_is_not_inconclusive() -> None:
    assert decide([gate(0.1, 0.9)], chance=0.0, n=1).verdict is Verdict.PASS
    assert decide([gate(-0.9, -0.1)], chance=0.0, n=1).verdict is Verdict.FAIL


def test_the_closest_control_is_reported() -> None:
    gates = [gate(0.3, 0.4), gate(0.2, 0.3, control="length"), gate(0.01, 0.1, control="-norm-only")]
    decision = decide(gates, chance=0.25, n=7)
    assert (decision.control, decision.margin_low, decision.control_estimate) == ("-norm-only", 0.01, 0.1)
    assert (decision.estimate, decision.low, decision.high, decision.chance, decision.n) == (0.35, 0.3, 0.4, 0.25, 7)
    assert "-norm-only" in decision.reason


def test_a_failure_names_the_gate() -> None:
    decision = decide([gate(0.3, 0.4), gate(-0.2, -0.1, control="update-magnitude")], chance=0.0, n=1)
    assert decision.reason == "contradicted: above update-magnitude: -0.150 [-0.200, -0.100]"


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_never_decides_on_numbers_that_are_not_finite(bad: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        decide([Gate("g", Interval(bad, 0.0, 1.0))], chance=0.0, n=1)


def test_without_evidence_undefined_numbers_become_none() -> None:
    decision = decide([Gate("g", Interval(math.nan, math.nan, math.nan))], [Floor("pairs", 0, 1)], chance=0.0, n=0)
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert decision.estimate is None
    assert decision.low is None


def test_no_gates_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one gate"):
        decide([], chance=0.0, n=0)


def test_outcomes() -> None:
    decision = decide([gate(0.1, 0.2)], chance=0.0, n=1)
    assert decision.raise_outcome() is None
    for verdict, outcome in (
        (Verdict.FAIL, ClaimFailed),
        (Verdict.INCONCLUSIVE, Inconclusive),
        (Verdict.NOT_APPLICABLE, NotApplicable),
    ):
        with pytest.raises(outcome, match="because"):
            decision.but(verdict, "because").raise_outcome()


@pytest.mark.parametrize(
    ("low", "high", "bar", "control", "verdict"),
    [
        (0.211, 0.248, 0.05, None, Verdict.PASS),
        (0.415, 0.570, 0.5, 0.726, Verdict.INCONCLUSIVE),
        (0.573, 0.688, 0.5, 0.737, Verdict.FAIL),
        (0.45, 0.55, 0.5, None, Verdict.FAIL),
    ],
)
def test_paper_verdict_looks_at_the_width_first(
    low: float, high: float, bar: float, control: float | None, verdict: Verdict
) -> None:
    assert paper_verdict(Interval((low + high) / 2, low, high), bar=bar, control=control) is verdict
