"""The synthetic problems do what their dials say, go through the real checks, and are counted rightly."""

from __future__ import annotations

import importlib
import json
from collections import Counter

import numpy as np
import pytest
import scipy.stats
from toy_marginals import toy_marginals

from pytest_behaviortrace import statistics
from pytest_behaviortrace.__main__ import main
from pytest_behaviortrace.calibration import command, contenders, intervals, repetition, sizes, study
from pytest_behaviortrace.calibration.contenders import NAMED, TRUE_SIGNAL, credited_cosine, signal_of
from pytest_behaviortrace.calibration.repetition import Plan, World
from pytest_behaviortrace.calibration.synthetic import SyntheticEvidence
from pytest_behaviortrace.calibration.world import Dials, advantages
from pytest_behaviortrace.run.progress import Silent
from pytest_behaviortrace.verdict import Verdict

TOY = toy_marginals()
SMALL = Plan(resamples=100, follow_up=0, compared=0)


def evidence(number=0, **dials):
    return SyntheticEvidence(TOY, Dials(**dials), 2, number)


def sibling_scores(siblings, estimator):
    scores = np.empty(len(siblings.shown))
    for problem, items in siblings.problems:
        scores[items] = estimator(problem)
    return scores


def sibling_auc(siblings, scores):
    return statistics.auc(scores, statistics.within_group_pairs(siblings.shown, siblings.group))


# -- dials -------------------------------------------------------------------------------------------------------------
def test_the_defaults_are_the_sizes_of_a_recorded_run_and_have_headroom():
    made = World(TOY, Dials(), SMALL, 0)
    assert len(made.evidence.rollouts(0).problem) == 40 * 8 * 8
    assert len(made.evidence.siblings(0, 0).shown) == 24 * 4 * 9
    assert {made.grader.headroom(seed).verdict for seed in range(3)} == {Verdict.PASS}


@pytest.mark.parametrize("auc", [0.5, 0.7, 0.8, 0.9])
def test_the_signal_is_as_strong_as_asked(auc):
    found = [
        sibling_auc(s, sibling_scores(s, credited_cosine))
        for n in range(6)
        for s in [evidence(n, signal=signal_of(auc)).siblings(0, 0)]
    ]
    assert np.mean(found) == pytest.approx(auc, abs=0.02)


@pytest.mark.parametrize(("dial", "column", "sign"), [("fluency", "logprob", 1), ("magnitude", "norm", -1)])
def test_a_confound_grows_with_its_dial(dial, column, sign):
    aucs = [
        np.mean([sibling_auc(s, sign * getattr(s, column)) for n in range(4) for s in [made(n).siblings(0, 0)]])
        for strength in (0.0, 1.0, 2.0)
        for made in [lambda n, k=strength: evidence(n, **{"fluency": 0.0, "magnitude": 0.0, dial: k})]
    ]
    assert aucs[0] == pytest.approx(0.5, abs=0.03)
    assert aucs[0] + 0.1 < aucs[1] < aucs[2]


def test_values_are_the_recorded_ones():
    siblings, recorded = evidence().siblings(0, 0), TOY.siblings.values
    for found, values in zip((siblings.logprob, siblings.norm, siblings.length), recorded, strict=True):
        at = [0.05, 0.25, 0.5, 0.75, 0.95]
        np.testing.assert_allclose(np.quantile(found, at), np.quantile(values, at), rtol=0.1, atol=0.1)


def test_the_topic_separates_prompts_by_its_dial():
    def auc(strength):
        made = evidence(topic=strength).rollouts(0)
        pairs = statistics.cross_pairs(made.truth, made.decoy, made.problem.step)
        return statistics.auc(made.problem.gradients @ made.topic, pairs)

    assert auc(0.0) == pytest.approx(0.5, abs=0.06)
    assert auc(5.0) < 0.4


def test_ties_are_items_alike_in_everything_they_show():
    plain, tied = evidence().siblings(0, 0), evidence(ties=0.5).siblings(0, 0)
    assert len(np.unique(plain.logprob)) == len(plain.logprob)
    ((problem, _),) = tied.problems
    rows = np.unique(np.column_stack([problem.gradients, problem.logprob]), axis=0)
    assert len(rows) == len(np.unique(tied.logprob)) < 0.8 * len(tied.logprob)


def test_rate_and_number_of_groups():
    assert evidence(behavior_rate=0.2).siblings(0, 0).shown.mean() < evidence().siblings(0, 0).shown.mean() - 0.1
    assert len(evidence(groups=2.0).siblings(0, 0).shown) == 2 * 24 * 4 * 9
    assert len(evidence(groups=2.0).rollouts(0).problem) == 2 * 40 * 8 * 8


def test_spread_between_seeds_and_draws():
    still, spread = evidence(signal=1.0), evidence(signal=1.0, between_seeds=0.5, between_draws=0.2)
    assert {still.strength(s, d) for s in range(3) for d in range(2)} == {1.0}
    assert len({spread.strength(s, d) for s in range(3) for d in range(2)}) == 6
    drawn = [evidence(n, between_seeds=0.5).strength(s) for n in range(60) for s in range(3)]
    assert np.std(drawn) == pytest.approx(0.5, abs=0.1)


def test_the_same_number_is_the_same_world_and_another_is_not():
    first, again, other = (evidence(n).siblings(1, 1) for n in (3, 3, 4))
    assert np.array_equal(first.logprob, again.logprob)
    assert np.array_equal(first.problems[0][0].gradients, again.problems[0][0].gradients)
    assert not np.array_equal(first.logprob, other.logprob)


def test_advantages_are_standardised_inside_groups():
    group = np.repeat(np.arange(3), 4)
    found = advantages(np.array([0.0, 0, 0, 8, 1, 1, 1, 1, 0, 2, 4, 6]), group).reshape(3, 4)
    np.testing.assert_allclose(found.mean(1), 0, atol=1e-12)
    np.testing.assert_allclose(found.std(1, ddof=1), [1, 0, 1], atol=1e-3)


def test_eligibility_says_nothing_in_a_null_run_and_ground_truth_is_boosted():
    made = evidence(signal=2.0)
    null, rollouts = made.null_window(0), made.rollouts(0)
    assert abs(null.eligible.mean() - 0.5) < 0.15
    assert (rollouts.problem.reward[rollouts.truth] >= 8).all()
    assert not (rollouts.truth & rollouts.decoy).any()
    assert (rollouts.problem.reward[rollouts.lookalike] < 8).all()


# -- contenders --------------------------------------------------------------------------------------------------------
def test_every_check_and_its_named_controls_are_covered():
    assert set(NAMED) | {"headroom"} == set(repetition.CHECKS)
    assert NAMED["gradient_magnitude"] == ("norm-only", "update-magnitude")
    assert set(NAMED["seed_stability"]) == {
        name for check in ("gradient_magnitude", "fluency_control", "reward_control") for name in NAMED[check]
    }
    for check, names in NAMED.items():
        before = {c.name for c in contenders.worthless() if check in c.checks}
        assert {*names, *(f"-{name}" for name in names)} <= before
        assert {"random", "rank(fluency)", "right on one seed", "0.7 fluency + 0.3 norm-only"} <= before


def test_the_controls_of_a_real_case_are_those_named():
    made = World(TOY, Dials(), SMALL, 0)
    fluency = importlib.import_module("pytest_behaviortrace.checks.test_fluency_control")
    found = fluency.controls(made.grader.case("x", credited_cosine, 0, 0), made.evidence.siblings(0, 0))
    assert {name.removeprefix("-") for name in found} == set(NAMED["fluency_control"])


@pytest.mark.parametrize("check", [c for c in NAMED if c != "coverage"])
def test_a_strong_signal_passes_and_random_does_not(check):
    made = World(TOY, Dials(signal=signal_of(0.95)), SMALL, 0)
    by_name = {c.name: c for c in contenders.worthless()}
    assert made.first_miss(TRUE_SIGNAL, check) is Verdict.PASS
    assert made.first_miss(by_name["random"], check) is not Verdict.PASS
    assert made.first_miss(by_name["right on one seed"], check) is not Verdict.PASS


def test_more_data_keeps_the_effects_of_its_seeds():
    made = World(TOY, Dials(signal=1.0, between_seeds=0.3), SMALL, 5)
    more = made.with_more()
    assert [made.evidence.strength(s) for s in range(3)] == [more.evidence.strength(s) for s in range(3)]
    assert len(more.evidence.siblings(0, 0).shown) == 4 * len(made.evidence.siblings(0, 0).shown)


# -- counting ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("happened", "n"), [(0, 20), (3, 20), (20, 20), (51, 1000)])
def test_binomial_intervals_are_exact(happened, n):
    ours, theirs = study.Rate(happened, n), scipy.stats.binomtest(happened, n).proportion_ci(method="exact")
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))


def test_targets_that_are_missed_are_named():
    counts = Counter({
        "worthless|bad|lookalikes|pass": 60, "worthless|bad|lookalikes|fail": 940,
        "worthless|fine|lookalikes|pass": 20, "worthless|fine|lookalikes|fail": 980,
        "worthless|bad|whole checklist|pass": 6, "worthless|bad|whole checklist|fail": 994,
        "power|0.80|coverage|pass": 880, "power|0.80|coverage|not": 120,
        "power|0.70|coverage|pass": 500, "power|0.70|coverage|not": 500,
    })  # fmt: skip
    found = study.Study(SMALL, 1000, counts)
    assert found.misses() == [
        "bad passes lookalikes 60 of 1000 times",
        "bad passes whole checklist 6 of 1000 times",
        "a true signal of AUC 0.80 passes coverage only 880 of 1000 times",
    ]
    assert "MISSED: bad passes lookalikes 60 of 1000 times" in study.render(found)
    assert json.loads(json.dumps(found.as_dict()))["missed"] == found.misses()


def few(counted=("random", "lucky seeds")):
    return [c for c in contenders.worthless() if c.name in counted]


def test_one_process_counts_what_two_do(monkeypatch):
    monkeypatch.setattr(repetition, "worthless", few)
    monkeypatch.setattr(repetition, "POWER", (0.8,))
    alone, both = (study.run(TOY, SMALL, 2, Silent(), workers) for workers in (1, 2))
    assert alone.counts == both.counts
    assert alone.repetitions == both.repetitions == 2
    assert alone.outcomes("worthless", "random", "lookalikes").total() == 2
    assert alone.outcomes("row", "0.80", "fluency_control").total() == 12
    lines = study.render(alone)
    assert any(line.startswith("random") for line in lines)


def test_what_is_inconclusive_gets_more_data_and_fewer_resamples_are_compared(monkeypatch):
    monkeypatch.setattr(repetition, "worthless", list)
    monkeypatch.setattr(repetition, "POWER", (0.7,))
    monkeypatch.setattr(repetition, "NAMED", {"fluency_control": NAMED["fluency_control"]})
    found = study.run(TOY, Plan(seeds=1, draws=1, resamples=100, follow_up=2, compared=1), 2, Silent(), 1)
    checks = {check for _, check in found.cells("row")}
    undecided = sum(found.outcomes("row", "0.70", check)["inconclusive"] for check in checks)
    assert sum(found.outcomes("more", "0.70", check).total() for check in checks) == undecided > 0
    assert found.outcomes("alike", "0.70", "fluency_control").total() == 1


def test_an_interrupted_study_tells_what_it_has(monkeypatch):
    def one(marginals, plan, number):
        if number == 2:
            raise KeyboardInterrupt
        return {"worthless|random|lookalikes|fail": 1}

    monkeypatch.setattr(study, "repetition", one)
    found = study.run(TOY, SMALL, 10, Silent(), 1)
    assert found.repetitions == 2
    assert found.outcomes("worthless", "random", "lookalikes") == {"fail": 2}


def test_wrong_arguments_are_refused_before_anything_is_trained(tmp_path, capsys):
    for wrong in (
        ["--repetitions", "0"],
        ["--out", str(tmp_path / "nowhere" / "x.json")],
        ["--out", str(tmp_path)],
        ["--recipe", "none"],
        ["--plant", "none"],
    ):
        with pytest.raises(SystemExit) as ended:
            main(["calibrate", "--cache-dir", str(tmp_path / "cache"), *wrong])
        assert ended.value.code == 2
        assert capsys.readouterr().err.count("error:") == 1
    assert not (tmp_path / "cache").exists()


def test_the_report_is_whole_or_not_there(tmp_path):
    class Recipe:
        name, hash = "tiny", "0" * 16

    command.write(tmp_path / "out.json", {"missed": []}, Recipe())  # type: ignore[arg-type]
    report = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert list(report)[:3] == ["schema", "suite", "recipe"]
    with pytest.raises(TypeError):
        command.write(tmp_path / "out.json", {"missed": {1, 2}}, Recipe())  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


# -- the smaller studies -----------------------------------------------------------------------------------------------
def test_intervals_are_compared_on_the_same_problems():
    lines = intervals.coverage(TOY, 3, resamples=100)
    methods = {"percentile", "expanded percentile", "BCa", "jackknife t", "permutation in groups"}
    assert methods == {m for line in lines[1:] for m in methods if f" {m} " in line}
    assert sum("permutation" in line for line in lines) == 1  # groups of training rollouts hold one kind only
    made = intervals.statistics_of(evidence(signal=1.5))["fluency-controlled AUC"]
    ends = made.ends(400)
    assert ends["expanded percentile"][0] <= ends["percentile"][0] < made.estimate < ends["percentile"][1]
    for low, high in ends.values():
        assert low < made.estimate < high
    assert made.above_permutations(0)
    nothing = [intervals.statistics_of(evidence(n))["fluency-controlled AUC"].above_permutations(n) for n in range(20)]
    assert sum(map(bool, nothing)) <= 3


def test_sizes_are_compared(monkeypatch):
    monkeypatch.setattr(sizes, "SIZES", ((3, 1), (4, 1)))
    header, *lines = sizes.needed(TOY, Plan(resamples=60), 2)
    assert header.split()[:3] == ["seeds", "x", "draws"]
    assert [line.split("  ")[0].strip() for line in lines] == ["3 x 1", "4 x 1"]


def test_a_study_broken_off_is_not_written_and_meets_nothing(monkeypatch, tmp_path, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(study, "repetition", interrupted)
    found = study.run(TOY, SMALL, 4, Silent(), 1)
    assert found.repetitions == 0
    assert "every target is met" not in study.render(found)
    for wrong in (["--between-seeds", "nan"], ["--between-draws", "-1"], ["--out", "/dev/null"]):
        with pytest.raises(SystemExit):
            main(["calibrate", "--cache-dir", str(tmp_path / "cache"), *wrong])
    assert capsys.readouterr().err.count("error:") == 3
