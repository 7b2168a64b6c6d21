"""What a row shows: plain data, gathered only when asked for, and never in the way of the verdict."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from pytest_behaviortrace.exhibit import POINTS, Exhibit, plain, thinned
from pytest_behaviortrace.gates import Replicated
from pytest_behaviortrace.showing import place
from pytest_behaviortrace.trial import Bench, gate_shown
from pytest_behaviortrace.verdict import ClaimFailed, Decision, Floor, Gate, Interval, Verdict, decide


@pytest.mark.parametrize(
    ("number", "travels"),
    [(0.123456, 0.1235), (-123456.0, -123500.0), (0.0, 0.0), (1e-300, 1e-300), (math.nan, None), (math.inf, None)],
)
def test_numbers_travel_with_four_digits(number: float, travels: float | None) -> None:
    assert plain(number) == travels


@pytest.mark.parametrize("n", [0, 1, 2, POINTS - 1, POINTS, POINTS + 1, 2 * POINTS, 10_001])
def test_thinned_places_are_distinct_and_reach_both_ends(n: int) -> None:
    places = thinned(n)
    assert len(places) == min(n, POINTS)
    assert places == sorted(set(places))
    if n:
        assert (places[0], places[-1]) == (0, n - 1)


GATES = [
    Gate("AUC", Interval(0.71234567, 0.65, 0.78), bar=0.5, least=0.6),
    Gate("AUC", Interval(-0.02, -0.06, 0.02), control="norm-only", control_estimate=0.7323),
]


def test_a_decision_keeps_what_it_was_made_of_and_the_row_shows_it() -> None:
    trial = Bench().trial("mine", None)
    decision = decide(GATES, [Floor("pairs", 120, 100)], chance=0.5, n=120)
    assert decision.gates == tuple(GATES)
    with pytest.raises(ClaimFailed):
        trial.conclude(decision.but(Verdict.FAIL, "no"), remark="by the way")
    shown = trial.exhibit()
    assert shown["floors"] == [{"name": "pairs", "have": 120.0, "need": 100.0}]
    first, second = shown["gates"]
    assert (first["estimate"], first["bar"], first["least"], first["control"], first["holds"]) == (
        0.7123, 0.5, 0.6, None, True,
    )  # fmt: skip
    assert (second["control"], second["control_estimate"], second["holds"], second["contradicted"]) == (
        "norm-only", 0.7323, False, False,
    )  # fmt: skip
    json.dumps(shown, allow_nan=False)


def test_numbers_that_are_not_there_are_none() -> None:
    shown = gate_shown(Gate("AUC", Interval(math.nan, math.nan, math.nan), bar=0.5))
    assert [shown[name] for name in ("estimate", "low", "high", "least", "control_estimate")] == [None] * 5  # type: ignore[literal-required]


def test_offers_are_taken_up_only_when_asked_for_and_their_gates_come_last() -> None:
    called = []

    def make() -> Exhibit:
        called.append(1)
        return Exhibit(gates=[gate_shown(Gate("mine", Interval(1.0, 1.0, 1.0)))], rollouts=[])

    trial = Bench().trial("mine", None)
    trial.show(make)
    trial.conclude(decide(GATES[:1], chance=0.5, n=1))
    assert called == []
    assert [gate["name"] for gate in trial.exhibit()["gates"]] == ["AUC", "mine"]
    assert [gate["name"] for gate in trial.exhibit()["gates"]] == ["AUC", "mine"]  # and no more the second time


def test_a_row_without_gates_shows_nothing() -> None:
    trial = Bench().trial("mine", None)
    assert trial.exhibit() == {}
    trial.conclude(Decision(Verdict.PASS, "all properties hold"))
    assert trial.exhibit() == {}


def test_a_place_shows_its_estimate_above_chance_and_the_nearest_control() -> None:
    replicates = np.random.default_rng(0).normal(0.7, 0.02, 500)
    plainly, control = place("seed 1", Replicated(0.7, replicates, 100), 0.5, {"step": 0.3, "topic": -0.1})
    assert (plainly["name"], plainly["control"], plainly["estimate"], plainly["holds"]) == ("seed 1", None, 0.2, True)
    low, high = plainly["low"] or 0.0, plainly["high"] or 1.0
    assert 0.1 < low < 0.2 < high < 0.3
    assert (control["control"], control["estimate"], control["control_estimate"]) == ("topic", -0.1, 0.3)
    assert (control["low"], control["holds"], control["contradicted"]) == (None, False, True)
    (alone,) = place("seed 1", Replicated(0.5, replicates, 100), 0.5, {})
    assert (alone["estimate"], alone["holds"], alone["contradicted"]) == (0.0, False, True)
