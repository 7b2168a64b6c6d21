"""What checks offer to reports with pictures, computed from labels and scores written out by hand."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from problems import make_problem

from pytest_behaviortrace import showing, statistics
from pytest_behaviortrace.evidence import CONTROL, MATCHED, Rollouts
from pytest_behaviortrace.exhibit import POINTS
from pytest_behaviortrace.gates import Replicated
from pytest_behaviortrace.statistics import Pairs

RNG = np.random.default_rng(3)


# -- learning ----------------------------------------------------------------------------------------------------------
def a_run(own: list[int], shown: list[int], step: list[int]) -> dict[str, Any]:
    return {"own_frob": np.array(own), "shown_frob": np.array(shown), "step": np.array(step)}


def an_evidence(planted: dict[str, Any], null: dict[str, Any], steps: int = 4, recorded: bool = False) -> Any:
    tables = {"rollouts": planted, "null_rollouts": null}
    s_b = {run: {"start": [0.0, 0.5], "analysis": [9.0], "end": [end, end]} for run, end in
           (("planted", 0.75), ("null", 0.125))}  # fmt: skip
    return SimpleNamespace(
        recorded=recorded,
        plant=SimpleNamespace(name="frob", behavior="QZ"),
        recipe=SimpleNamespace(cutoff=3, grpo=SimpleNamespace(steps=steps)),
        table=lambda seed, name: tables[name],
        behavior_scores=lambda seed: s_b,
    )


def test_the_curve_is_the_share_of_own_prompt_rollouts_and_leaves_out_steps_without_any() -> None:
    planted = a_run([1, 1, 0, 1, 0, 1, 1], [1, 0, 1, 1, 1, 0, 1], [0, 0, 0, 1, 2, 3, 3])
    null = a_run([1, 1, 1, 1], [0, 0, 1, 0], [0, 0, 1, 3])
    curve = showing.learning(an_evidence(planted, null), 0)["curve"]
    assert curve["step"] == [0, 1, 3]  # nobody's own prompt came up in step 2
    assert curve["planted"] == [0.5, 1.0, 0.5]
    assert curve["null"] == [0.0, 1.0, 0.0]
    assert curve["window"] == [0, 2]
    assert curve["s_b"] == {"planted": [0.25, 0.75], "null": [0.25, 0.125]}
    assert "own prompts that show 'QZ'" in curve["what"]


def test_a_long_run_is_thinned() -> None:
    steps = 3 * POINTS
    table = a_run([1] * steps, [0, 1, 1] * POINTS, list(range(steps)))
    curve = showing.learning(an_evidence(table, table, steps), 0)["curve"]
    assert len(curve["step"]) == len(curve["planted"]) == len(curve["null"]) == POINTS
    assert curve["planted"] == [float(step % 3 > 0) for step in curve["step"]]


def test_a_recorded_run_has_no_curve() -> None:
    assert showing.learning(an_evidence({}, {}, recorded=True), 0) == {}


# -- precision ---------------------------------------------------------------------------------------------------------
N = 300


def labelled() -> Rollouts:
    truth = np.zeros(N, bool)
    truth[:60] = True
    window = np.arange(N) < 250
    none = np.zeros(N, bool)
    problem = make_problem(RNG.standard_normal((N, 2)), step=np.arange(N) // 40)
    return Rollouts(("rollouts", 0, "frob"), problem, window, truth, none, none, none, np.zeros(2), np.arange(N))


def test_precision_against_k_is_that_of_the_window() -> None:
    rollouts = labelled()
    scores, size = rollouts.truth + RNG.standard_normal(N), np.arange(N, dtype=np.float64)
    case: Any = SimpleNamespace(evidence=SimpleNamespace(rollouts=lambda seed: rollouts), seed=0)
    shown = showing.precision(case, rollouts, scores, {"norm-only": size})["precision"]
    inside, truth = scores[:250], rollouts.truth[:250]
    assert shown["at"] == 60
    assert shown["at"] in shown["k"]
    assert shown["k"] == sorted(set(shown["k"]))
    assert (shown["k"][0], shown["k"][-1]) == (1, 250)
    assert len(shown["k"]) <= showing.GRID
    assert shown["chance"] == 60 / 250
    order = truth[np.argsort(-inside)]
    assert shown["precision"] == pytest.approx([order[:k].mean() for k in shown["k"]], abs=1e-4)
    # Ground truth comes first in the table, so the control finds it turned round.
    assert shown["controls"] == {"-norm-only": pytest.approx([min(1.0, 60 / k) for k in shown["k"]], abs=1e-4)}
    assert all(best >= found - 1e-4 for best, found in zip(shown["ceiling"], shown["precision"], strict=True))
    # Step 1 is ground truth by half, and nobody can tell its items apart: same texts, same advantages.
    assert shown["ceiling"][shown["k"].index(60)] == pytest.approx((40 + 20 * 0.5) / 60, abs=1e-4)


# -- clouds and pairs --------------------------------------------------------------------------------------------------
def test_the_cloud_keeps_points_together_and_says_both_aucs() -> None:
    group, fluency = np.repeat(np.arange(100), 9), RNG.normal(-1.0, 0.3, 900)
    shown = RNG.random(900) < 0.5
    scores = shown + 2.0 * fluency
    siblings: Any = SimpleNamespace(logprob=fluency, group=group, shown=shown)
    pairs = statistics.within_group_pairs(shown, group)
    cloud = showing.fluency_cloud(siblings, scores, pairs, Replicated(0.91234, np.zeros(3), 9))["fluency"]
    assert len(cloud["fluency"]) == len(cloud["score"]) == len(cloud["residual"]) == len(cloud["shown"]) == POINTS
    for f, s, label in zip(cloud["fluency"], cloud["score"], cloud["shown"], strict=True):
        assert s - 2.0 * f == pytest.approx(float(label), abs=0.01)
    assert cloud["residual_auc"] == 0.9123
    assert cloud["raw_auc"] == pytest.approx(statistics.auc(scores, pairs), abs=1e-4)
    residual = np.array(cloud["residual"])
    assert abs(np.corrcoef(residual, cloud["fluency"])[0, 1]) < 0.2 < np.corrcoef(residual, cloud["shown"])[0, 1]


def test_aucs_of_nothing_are_none() -> None:
    siblings: Any = SimpleNamespace(logprob=np.zeros(2), group=np.zeros(2, int), shown=np.ones(2, bool))
    nothing = Pairs(np.zeros(0, int), np.zeros(0, int))
    cloud = showing.fluency_cloud(siblings, np.arange(2.0), nothing, Replicated(np.nan, np.zeros(3), 0))["fluency"]
    assert (cloud["raw_auc"], cloud["residual_auc"]) == (None, None)
    json.dumps(cloud, allow_nan=False)


@pytest.mark.parametrize("many", [3, 5_000])
def test_spans_stand_side_by_side(many: int) -> None:
    scores = np.arange(3.0 * many)
    place = np.arange(many)
    pairs = {MATCHED: Pairs(place, place + many), CONTROL: Pairs(place[:2], place[:2] + 2 * many)}
    spans = showing.span_scores(scores, pairs)["spans"]
    assert spans["kind"] == ["matched"] * min(many, 200) + ["control"] * 2
    gap = [other - trigger for trigger, other in zip(spans["trigger"], spans["other"], strict=True)]
    wanted = [many if kind == "matched" else 2 * many for kind in spans["kind"]]
    assert gap == pytest.approx(wanted, abs=2.0 if many > 1000 else 0.0)
    assert max(len(values) for values in spans.values()) <= POINTS  # type: ignore[arg-type, misc]
