"""Every check on a recorded run: who passes it, whom it fails, what it leaves undecided, and which rows are n/a."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import recorded_world as world
from check_rows import CHECKS, Outcome, run_row

from pytest_behaviortrace import checklist
from pytest_behaviortrace.estimator import UndeclaredAccess, needs
from pytest_behaviortrace.estimators import controls, gradient, surface
from pytest_behaviortrace.evidence.recorded import NO_TRUTH, RecordedEvidence
from pytest_behaviortrace.grading import Grader
from pytest_behaviortrace.run.recorded import open_run
from pytest_behaviortrace.verdict import NotApplicable, Verdict

PLACES: dict[str, dict[str, Any]] = {
    "gradient_magnitude": {"seed": 0},
    "fluency_control": {"seed": 0, "draw": 1},
    "trigger_alignment": {"seed": 0, "draw": 1},
    "target_context": {"seed": 0},
    "coverage": {"seed": 0},
    "seed_stability": {"component": "fluency-controlled-auc"},
}
"""The checks that a recorded run can be asked, and one row of each."""


def backwards(problem: Any) -> Any:
    """The opposite of an answer."""
    return -gradient.gas(problem)


def one_question(problem: Any) -> Any:
    """Answers about the recorded behaviour, whatever is asked."""
    return gradient.gas(problem.replacing(target=world.DIRECTION))


FAILS = {
    "gradient_magnitude": controls.norm_only,
    "fluency_control": backwards,
    "trigger_alignment": backwards,
    "target_context": one_question,
    "coverage": controls.norm_only,
    "seed_stability": backwards,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recorded")


@pytest.fixture(scope="module")
def evidence(folder: Path) -> RecordedEvidence:
    return world.evidence(world.write_run(folder / "run"), folder / "cache")


@pytest.fixture(scope="module")
def grader(evidence: RecordedEvidence) -> Grader:
    return Grader.on_recorded(evidence)


def row(grader: Grader, check: str, name: str, estimator: Any) -> Outcome:
    return run_row(grader, check, name, estimator, **PLACES[check])


@pytest.mark.parametrize("check", PLACES)
def test_an_answer_passes(grader: Grader, check: str) -> None:
    outcome = row(grader, check, "gas", gradient.gas)
    assert outcome.verdict is Verdict.PASS, outcome.reason


@pytest.mark.parametrize("check", PLACES)
def test_what_the_check_is_about_fails(grader: Grader, check: str) -> None:
    outcome = row(grader, check, FAILS[check].__name__, FAILS[check])
    assert outcome.verdict is Verdict.FAIL, outcome.reason


@pytest.mark.parametrize("check", PLACES)
def test_too_few_siblings_leave_everything_undecided(folder: Path, tmp_path: Path, check: str) -> None:
    thin = Grader.on_recorded(world.evidence(folder / "run", tmp_path, siblings=4))
    outcome = row(thin, check, "gas", gradient.gas)
    assert outcome.verdict is Verdict.INCONCLUSIVE
    assert "the run has no headroom: too little evidence" in outcome.reason


@pytest.mark.parametrize("rate", [0.0, 0.003, 1.0])
@pytest.mark.parametrize("check", PLACES)
def test_absent_or_universal_behaviour_is_undecided(folder: Path, tmp_path: Path, check: str, rate: float) -> None:
    grader = Grader.on_recorded(world.evidence(folder / "run", tmp_path, rate=rate))
    assert row(grader, check, "gas", gradient.gas).verdict is Verdict.INCONCLUSIVE


def test_headroom_says_how_much_there_is(grader: Grader, folder: Path, tmp_path: Path) -> None:
    outcome = run_row(grader, "headroom", seed=0)
    assert outcome.verdict is Verdict.PASS
    assert "siblings show the behaviour" in outcome.reason
    nobody = Grader.on_recorded(world.evidence(folder / "run", tmp_path, rate=0.0))
    outcome = run_row(nobody, "headroom", seed=0)
    assert outcome.verdict is Verdict.INCONCLUSIVE
    assert "siblings with the behaviour 0, needs 1" in outcome.reason


@pytest.mark.parametrize(
    ("check", "place"),
    [
        ("reward_control", {"seed": 0}),
        ("lookalikes", {"seed": 0}),
        ("seed_stability", {"component": "window-precision"}),
        ("seed_stability", {"component": "decoy-auc"}),
    ],
)
def test_what_needs_ground_truth_is_not_applicable(grader: Grader, check: str, place: dict[str, Any]) -> None:
    outcome = run_row(grader, check, "gas", gradient.gas, **place)
    assert (outcome.verdict, outcome.reason) == (Verdict.NOT_APPLICABLE, NO_TRUTH)


def test_every_check_was_thought_of() -> None:
    assert set(CHECKS) == {*PLACES, "headroom", "reward_control", "lookalikes", "stress"}


def test_fluency_in_disguise_fails_the_fluency_control(folder: Path, tmp_path: Path) -> None:
    fluent = Grader.on_recorded(world.evidence(folder / "run", tmp_path, fluent=0.3))
    assert row(fluent, "fluency_control", "fluency", controls.fluency).verdict is Verdict.FAIL
    assert row(fluent, "fluency_control", "gas", gradient.gas).verdict is Verdict.PASS


def test_one_draw_says_nothing_about_draws(folder: Path, tmp_path: Path) -> None:
    alone = Grader.on_recorded(world.evidence(folder / "run", tmp_path, draws=1))
    outcome = row(alone, "seed_stability", "gas", gradient.gas)
    assert outcome.verdict is Verdict.INCONCLUSIVE
    assert "draws 1, needs 2" in outcome.reason
    assert run_row(alone, "target_context", "gas", gradient.gas, seed=0).verdict is Verdict.PASS


def test_without_control_words_there_is_no_other_question(folder: Path, tmp_path: Path) -> None:
    grader = Grader.on_recorded(world.evidence(folder / "run", tmp_path, controls=False))
    outcome = row(grader, "target_context", "gas", gradient.gas)
    assert outcome.verdict is Verdict.INCONCLUSIVE
    assert "control spans to ask about instead 0, needs 100" in outcome.reason


def test_stability_says_that_one_run_says_nothing_about_seeds(grader: Grader) -> None:
    outcome = row(grader, "seed_stability", "gas", gradient.gas)
    assert "one run says nothing about seeds" in outcome.reason
    assert "draw 1 +" in outcome.reason


def test_an_estimator_that_lives_on_size_loses_it(folder: Path, tmp_path: Path) -> None:
    @needs(gradients=True)
    def size(problem: Any) -> Any:
        return problem.gradient_norm * (problem.gradients @ problem.target > 0)

    grader = Grader.on_recorded(world.evidence(folder / "run", tmp_path, signal=0.0))
    assert row(grader, "gradient_magnitude", "size", size).verdict is not Verdict.PASS


# -- what the estimator is shown ---------------------------------------------------------------------------------------
def test_the_target_comes_from_the_other_draw(evidence: RecordedEvidence) -> None:
    ((problem, _),) = evidence.siblings(0, 0).problems
    other = evidence.store.draw(0, 1).sketches("sibling_spans_asked").float32().mean(0)
    assert np.allclose(problem.target, other, rtol=1e-4, atol=1e-6)
    ((problem, _),) = evidence.siblings_about(0, 0, "controls").problems
    other = evidence.store.draw(0, 1).sketches("sibling_controls_asked").float32().mean(0)
    assert np.allclose(problem.target, other, rtol=1e-4, atol=1e-6)


def test_one_draw_is_cross_fitted_by_prompts(folder: Path, tmp_path: Path) -> None:
    alone = world.evidence(folder / "run", tmp_path, draws=1)
    sketches = alone.store.draw(0, 0).sketches("sibling_spans_asked")
    siblings = alone.siblings(0, 0)
    for problem, items in siblings.problems:
        (half,) = set((siblings.probe[items] % 2).tolist())
        others = np.flatnonzero(siblings.probe[sketches.row] % 2 != half)
        assert np.allclose(problem.target, sketches.float32(others).mean(0), rtol=1e-4, atol=1e-6)


def test_rollouts_stand_in_no_telling_order_and_carry_no_label(evidence: RecordedEvidence) -> None:
    training = evidence.training(0)
    problem = training.problem
    assert abs(np.corrcoef(np.arange(len(problem)), problem.step)[0, 1]) < 0.2
    assert sorted(training.row.tolist()) == list(range(len(problem)))
    assert np.array_equal(np.asarray(evidence.run.table["step"])[training.row], problem.step)
    assert not {"shown", "truth", "span", "reward_length"} & set(problem.lazy)
    with pytest.raises(ValueError, match="read-only"):
        problem.advantage[0] = 1.0


def test_siblings_carry_nothing_that_spells_the_behaviour(evidence: RecordedEvidence) -> None:
    ((problem, _),) = evidence.siblings(0, 0).problems
    for name in ("span_gradients", "completion_text", "behavior", "model"):
        with pytest.raises(UndeclaredAccess):
            getattr(problem, name)


def test_there_are_no_labels_of_rollouts(evidence: RecordedEvidence) -> None:
    for ask in (evidence.rollouts, evidence.null_window):
        with pytest.raises(NotApplicable, match="ground truth"):
            ask(0)


def test_the_unit_reference_is_the_reference_without_sizes(evidence: RecordedEvidence) -> None:
    reference, unit = evidence.reference(0), evidence.unit_reference(0)
    cosine = (reference * unit).sum(1) / np.linalg.norm(reference, axis=1) / np.linalg.norm(unit, axis=1)
    assert np.allclose(cosine, 1.0, atol=1e-5)
    advantage = np.abs(np.asarray(evidence.run.table["advantage"]))
    assert np.allclose(np.sort(np.linalg.norm(unit, axis=1)), np.sort(advantage), rtol=1e-4)


# -- what a run without the regex cannot serve -------------------------------------------------------------------------
@pytest.fixture(scope="module")
def unrecorded(folder: Path, evidence: RecordedEvidence) -> Grader:
    return Grader.on_recorded(world.evidence(folder / "run", folder / "cache2", world.UNRECORDED))


@pytest.mark.parametrize("estimator", [gradient.token_gas, gradient.tracincp])
def test_what_was_not_recorded_is_not_applicable_and_says_how_to_record_it(unrecorded: Grader, estimator: Any) -> None:
    outcome = row(unrecorded, "coverage", estimator.__name__, estimator)
    assert outcome.verdict is Verdict.NOT_APPLICABLE
    assert "the run was recorded without this regex; record(..., behaviors={...: 'QZX'})" in outcome.reason


def test_estimators_that_need_neither_are_graded(unrecorded: Grader) -> None:
    assert row(unrecorded, "coverage", "gas", gradient.gas).verdict is Verdict.PASS


def test_a_regular_expression_is_no_string_to_match(evidence: RecordedEvidence, unrecorded: Grader) -> None:
    assert evidence.unserved == {"behavior": "the behaviour is a regular expression and not one string"}
    assert set(unrecorded.evidence.unserved) == {"spans", "behavior"}
    assert not evidence.training(0).problem.carried.behavior
    case = Grader.on_recorded(evidence).case("sm", surface.string_match, 0)
    with pytest.raises(NotApplicable, match="the behaviour is a regular expression and not one string"):
        case.scores(("k",), evidence.training(0).problem)


def test_targets_by_step_of_control_words_do_not_exist(grader: Grader) -> None:
    outcome = row(grader, "target_context", "tracincp", gradient.tracincp)
    assert outcome.verdict is Verdict.NOT_APPLICABLE
    assert "targets_by_step does not exist for controls" in outcome.reason
    assert row(grader, "coverage", "tracincp", gradient.tracincp).verdict is Verdict.PASS


def test_a_recorded_literal_is_served(tmp_path: Path) -> None:
    run = world.write_run(tmp_path / "run", behaviors={"code": "QZXBT"})
    found = world.evidence(run, tmp_path / "cache", "QZXBT")
    assert found.unserved == {}
    problem = found.training(0).problem
    assert problem.behavior == "QZXBT"
    assert [int(mask.sum()) for mask in problem.behavior_mask] == [2 * ("QZXBT" in t) for t in problem.completion_text]


def test_policies_of_a_peft_run_are_not_served(tmp_path: Path) -> None:
    run = world.write_run(tmp_path / "run", peft=True)
    assert "adapters" in world.evidence(run, tmp_path / "cache").unserved["model"]
    assert open_run(run).facts["peft"]


def test_rows_say_run_and_not_seed() -> None:
    check = next(c for c in checklist.declared() if c.name == "test_fluency_control")
    names = [spec.name for spec in check.rows(["gas"], (0,), 2, recorded=True)]
    assert names == ["test_fluency_control[gas-run-draw0]", "test_fluency_control[gas-run-draw1]"]
