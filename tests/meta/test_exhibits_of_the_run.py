"""What the rows of the real run show: true to the store, and for free where verdicts and estimators are concerned."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import numpy as np
import pytest
from check_rows import CHECKS, DRAWS, PLANT, SEEDS, places

from pytest_behaviortrace import checklist, grade
from pytest_behaviortrace.estimator import Needs
from pytest_behaviortrace.estimators import gradient
from pytest_behaviortrace.exhibit import Exhibit
from pytest_behaviortrace.gates import MIXTURE
from pytest_behaviortrace.grading import Grader
from pytest_behaviortrace.reports import html
from pytest_behaviortrace.reports.viewer import rankings, script_json
from pytest_behaviortrace.run.recipe import Recipe
from pytest_behaviortrace.run.store import Store
from pytest_behaviortrace.session import describe_seeds
from pytest_behaviortrace.token_scores import ISOLATED
from pytest_behaviortrace.verdict import ClaimFailed, Decision, Inconclusive

ROWS: list[tuple[str, dict[str, Any]]] = [
    ("headroom", {"seed": 0}),
    ("gradient_magnitude", {"seed": 0}),
    ("fluency_control", {"seed": 0, "draw": 1}),
    ("trigger_alignment", {"seed": 0, "draw": 1}),
    *(("seed_stability", place) for place in places("seed_stability")),
]


class Counted:
    """`gas` that counts how often it is asked; its tokens' scores rise from left to right, or break."""

    needs = Needs(gradients=True)

    def __init__(self, broken: bool = False) -> None:
        self.calls, self.token_calls, self.broken = 0, 0, broken

    def __call__(self, problem: Any) -> Any:
        self.calls += 1
        return gradient.gas(problem)

    def token_scores(self, problem: Any) -> Any:
        self.token_calls += 1
        if self.broken:
            raise RuntimeError("no tokens today")
        return [np.arange(length) + score for length, score in zip(problem.length, gradient.gas(problem), strict=True)]


def graded(store: Store, recipe: Recipe, estimator: Any, *, showing: bool) -> list[tuple[Decision, Exhibit]]:
    """The rows on a grader of their own, each followed by its exhibit if wanted."""
    grader, found = Grader(store, recipe, plant=PLANT, seeds=SEEDS, draws=DRAWS), []
    for check, place in ROWS:
        on = (None, None) if check == "headroom" else ("mine", estimator)
        case = grader.case(*on, place.get("seed"), place.get("draw"), place.get("component"))
        with contextlib.suppress(ClaimFailed, Inconclusive):
            CHECKS[check].run(checklist.RowSpec(f"test_{check}", on[0], **place), case)
        assert case.decision is not None
        found.append((case.decision, case.exhibit() if showing else Exhibit()))
    return found


@pytest.fixture(scope="module")
def counted() -> Counted:
    return Counted()


@pytest.fixture(scope="module")
def shown(store: Store, recipe: Recipe, counted: Counted) -> dict[str, tuple[Decision, Exhibit]]:
    """By check (of seed_stability: its component)."""
    rows = graded(store, recipe, counted, showing=True)
    return {place.get("component") or check: row for (check, place), row in zip(ROWS, rows, strict=True)}


def test_verdicts_and_calls_are_those_of_a_session_that_shows_nothing(
    store: Store, recipe: Recipe, counted: Counted, shown: dict[str, tuple[Decision, Exhibit]]
) -> None:
    silent = Counted()
    without = graded(store, recipe, silent, showing=False)
    assert [decision for decision, _ in without] == [decision for decision, _ in shown.values()]
    assert (silent.calls, silent.token_calls) == (counted.calls, 0)
    assert counted.token_calls == 1  # gradient_magnitude has one row here


def test_every_row_shows_the_gates_it_was_decided_by(shown: dict[str, tuple[Decision, Exhibit]]) -> None:
    for decision, exhibit in shown.values():
        assert decision.gates
        for gate, entry in zip(decision.gates, exhibit["gates"], strict=False):
            assert entry["estimate"] == pytest.approx(gate.interval.estimate, rel=1e-3, abs=1e-9)
            assert (entry["holds"], entry["control"]) == (gate.holds, gate.control)
        json.dumps(exhibit, allow_nan=False)


def test_the_curve_is_that_of_the_store(
    store: Store, recipe: Recipe, shown: dict[str, tuple[Decision, Exhibit]]
) -> None:
    curve = shown["headroom"][1]["curve"]
    table = store.seed(0).table("null_rollouts")
    step, own, has = (np.asarray(table[name]) for name in ("step", f"own_{PLANT}", f"shown_{PLANT}"))
    assert curve["step"] == list(range(recipe.grpo.steps))
    assert curve["null"] == pytest.approx([has[own & (step == s)].mean() for s in curve["step"]], abs=1e-3)
    paid = np.asarray(store.seed(0).table("rollouts")["step"])[store.seed(0).table("rollouts")[f"boosted_{PLANT}"]]
    assert curve["window"][0] <= paid.min() <= paid.max() <= curve["window"][1]
    settings: Any = type("S", (), {"recorded": None, "cache_dir": store.cache_dir, "recipe": recipe, "plant": PLANT})
    (facts,) = describe_seeds(settings, [0])
    assert [curve["s_b"][run][1] for run in ("planted", "null")] == pytest.approx(
        [facts.s_b_planted, facts.s_b_null], abs=1e-3
    )


def test_precision_agrees_with_the_row(shown: dict[str, tuple[Decision, Exhibit]]) -> None:
    decision, exhibit = shown["gradient_magnitude"]
    precision = exhibit["precision"]
    at = precision["k"].index(precision["at"])
    assert precision["precision"][at] - precision["chance"] == pytest.approx(decision.estimate, abs=1e-3)
    theirs = {
        g.control: g.control_estimate + precision["chance"] for g in decision.gates if g.control_estimate is not None
    }
    for name, values in precision["controls"].items():
        assert values[at] == pytest.approx(theirs[name], abs=1e-3)
        if name != MIXTURE:
            assert theirs[name] >= theirs[name.removeprefix("-") if name.startswith("-") else f"-{name}"]


def test_the_viewer_shows_the_top_of_the_ranking(
    grader: Grader, store: Store, shown: dict[str, tuple[Decision, Exhibit]]
) -> None:
    rollouts, labelled = shown["gradient_magnitude"][1]["rollouts"], grader.evidence.rollouts(0)
    scores = gradient.gas(labelled.problem)
    order = np.lexsort((labelled.row, -scores))[:20]
    table = store.seed(0).table("rollouts")
    assert len(rollouts) == 20
    for place, (one, item) in enumerate(zip(rollouts, order, strict=True)):
        row = labelled.row[item]
        assert one["rank"] == place + 1
        assert one["score"] == pytest.approx(scores[item], rel=1e-3)
        assert "".join(one["tokens"]) == table["completion_text"][row]
        assert one["prompt"] == table["prompt_text"][row]
        assert (one["step"], one["truth"]) == (table["step"][row], table[f"boosted_{PLANT}"][row])
        assert len(one["behavior"]) == len(one["tokens"]) == len(table["completion_ids"][row])
        spelled = "".join(token for token, mark in zip(one["tokens"], one["behavior"], strict=True) if mark)
        assert spelled.replace(" ", "") == "QZXBT" * one["tokens"].count("XB")
        assert one["token_scores"] == pytest.approx(np.arange(len(one["tokens"])) + scores[item], rel=1e-3, abs=1e-3)
    assert "rollouts_note" not in shown["gradient_magnitude"][1]
    assert any(one["truth"] for one in rollouts)


def test_broken_token_scores_are_told_and_change_nothing(
    store: Store, recipe: Recipe, shown: dict[str, tuple[Decision, Exhibit]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.ROWS", [("gradient_magnitude", {"seed": 0})])
    ((decision, exhibit),) = graded(store, recipe, Counted(broken=True), showing=True)
    assert decision == shown["gradient_magnitude"][0]
    assert exhibit["rollouts_note"] == (
        "token_scores failed: estimator 'mine' on 20 rollouts raised RuntimeError: no tokens today"
    )
    assert {one["token_scores"] for one in exhibit["rollouts"]} == {None}


def test_clouds_and_pairs_agree_with_their_rows(shown: dict[str, tuple[Decision, Exhibit]]) -> None:
    decision, exhibit = shown["fluency_control"]
    assert exhibit["fluency"]["residual_auc"] == pytest.approx(decision.estimate, abs=1e-3)
    decision, exhibit = shown["trigger_alignment"]
    spans = exhibit["spans"]
    won = [
        t > o for t, o, kind in zip(*(spans[n] for n in ("trigger", "other", "kind")), strict=True) if kind == "matched"
    ]  # type: ignore[literal-required]
    assert np.mean(won) == pytest.approx(decision.estimate, abs=0.05)  # some of them only
    assert set(spans["kind"]) == {"matched", "control"}


def test_stability_shows_every_seed_and_draw(shown: dict[str, tuple[Decision, Exhibit]]) -> None:
    for component, names in (
        ("window-precision", [f"seed {s}" for s in SEEDS]),
        ("fluency-controlled-auc", [f"seed {s} draw {d}" for s in SEEDS for d in range(DRAWS)]),
        ("decoy-auc", [f"seed {s}" for s in SEEDS]),
    ):
        decision, exhibit = shown[component]
        alone = [gate for gate in exhibit["gates"] if gate["control"] is None]
        assert [gate["name"] for gate in alone] == ["mean over seeds, above chance", *names]
        for name, gate in zip(names, alone[1:], strict=True):
            assert f"{name} {gate['estimate']:+.3f}"[:-1] in decision.reason  # four digits there, three decimals here
            assert (gate["low"] or 0) < (gate["estimate"] or 0) < (gate["high"] or 0)
        nearest = min(gate["estimate"] or 0.0 for gate in exhibit["gates"] if gate["control"] is not None)
        assert nearest == pytest.approx(decision.margin_low, abs=1e-3)


def test_the_viewer_says_why_an_isolated_estimator_has_no_token_scores(store: Store) -> None:
    """In the place of the scores, below the rollouts, which are shown all the same."""
    row = "checks/test_gradient_magnitude.py::test_gradient_magnitude[mine-seed0]"
    asked = {"cache_dir": store.cache_dir, "checks": [row], "exhibits": True, "progress": False}
    card = grade("pytest_behaviortrace.estimators.gradient:gas", name="mine", isolate=True, **asked)
    (ranking,) = rankings(card)
    assert ranking["note"] == ISOLATED
    assert len(ranking["rollouts"]) == 20
    assert {rollout["scores"] for rollout in ranking["rollouts"]} == {None}
    assert script_json(ISOLATED)[1:-1] in html.render(card)
    (open_ranking,) = rankings(grade(gradient.gas, name="mine", **asked))
    assert open_ranking["note"] == "no scores of single tokens: mine has no method token_scores(problem)"
    assert [one["prompt"] for one in open_ranking["rollouts"]] == [one["prompt"] for one in ranking["rollouts"]]
