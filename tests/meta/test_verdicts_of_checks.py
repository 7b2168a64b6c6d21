"""Every check, tested: the oracle passes it, a named cheat fails it, too little evidence leaves it inconclusive."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from check_doubles import CHEATS, BlindTo, Oracle, OwnGradients
from check_rows import CHECKS, DRAWS, PLANT, SEEDS, Outcome, places, run_row

from pytest_behaviortrace.evidence import Canaries, EvidenceStore, Rollouts, Siblings, Spans
from pytest_behaviortrace.evidence.canaries import heavy_blocks
from pytest_behaviortrace.grading import Grader
from pytest_behaviortrace.run.recipe import Recipe
from pytest_behaviortrace.run.store import Store
from pytest_behaviortrace.verdict import Decision, Verdict

GRADED = [name for name, check in CHECKS.items() if check.needs_run and name != "headroom"]

FAILS = {
    "gradient_magnitude": ["norm-only", "length", "random"],
    "fluency_control": ["fluency", "rank-of-fluency", "norm-only", "length"],
    "reward_control": ["advantage", "negative-advantage", "step", "advantage-and-a-little-cosine"],
    "trigger_alignment": ["norm-only", "fluency"],
    "target_context": ["ignores-its-target", "advantage", "random"],
    "coverage": ["first-tenth", "ignores-its-target"],
    "lookalikes": ["string-match", "step"],
    "seed_stability": ["random", "length"],
}
"""Cheats a check must not let pass on any row; the first of each must fail somewhere, not merely stay undecided."""


def rows_of(grader: Grader, check: str, name: str, estimator: Any) -> list[Outcome]:
    return [run_row(grader, check, name, estimator, **place) for place in places(check)]


@pytest.mark.parametrize("seed", SEEDS)
def test_headroom_passes_on_the_shipped_recipe(grader: Grader, seed: int) -> None:
    outcome = run_row(grader, "headroom", seed=seed)
    assert outcome.verdict is Verdict.PASS, outcome.reason


@pytest.mark.parametrize("check", GRADED)
def test_the_oracle_passes(grader: Grader, evidence: EvidenceStore, check: str) -> None:
    outcomes = rows_of(grader, check, "oracle", Oracle(evidence))
    assert [o.reason for o in outcomes if o.verdict is not Verdict.PASS] == []


@pytest.mark.parametrize(("check", "cheat"), [(check, cheat) for check, cheats in FAILS.items() for cheat in cheats])
def test_a_cheat_does_not_pass(grader: Grader, check: str, cheat: str) -> None:
    outcomes = rows_of(grader, check, cheat, CHEATS[cheat])
    verdicts = [o.verdict for o in outcomes]
    assert Verdict.ERROR not in verdicts, [o.reason for o in outcomes]
    assert Verdict.PASS not in verdicts, [o.reason for o in outcomes if o.verdict is Verdict.PASS]
    if cheat == FAILS[check][0]:
        assert Verdict.FAIL in verdicts, [o.reason for o in outcomes]


def test_the_blind_block_is_named(grader: Grader, evidence: EvidenceStore) -> None:
    for block in heavy_blocks(evidence, 0, 0.01):
        outcome = run_row(grader, "coverage", f"blind-{block}", BlindTo(block), seed=0)
        assert outcome.verdict is Verdict.FAIL, (block, outcome.reason)
        assert f"block {block}:" in outcome.reason


def test_an_estimator_tuned_to_one_seed_is_not_stable(grader: Grader, evidence: EvidenceStore) -> None:
    tuned = Oracle(evidence, wrong_seeds=(1, 2))
    assert run_row(grader, "gradient_magnitude", "tuned", tuned, seed=0).verdict is Verdict.PASS
    outcomes = rows_of(grader, "seed_stability", "tuned", tuned)
    assert Verdict.PASS not in [o.verdict for o in outcomes]


def test_one_seed_wrong_is_named(grader: Grader, evidence: EvidenceStore) -> None:
    tuned = Oracle(evidence, wrong_seeds=(1,))
    outcome = run_row(grader, "seed_stability", "one-wrong", tuned, component="window-precision")
    assert outcome.verdict is not Verdict.PASS
    assert "seed 1 -" in outcome.reason


@pytest.mark.parametrize("cheat", list(CHEATS))
def test_no_cheat_passes_the_checklist(grader: Grader, cheat: str) -> None:
    stopped = {Verdict.FAIL, Verdict.INCONCLUSIVE}
    assert any(o.verdict in stopped for check in GRADED for o in rows_of(grader, check, cheat, CHEATS[cheat]))


def test_own_gradients_are_covered_block_by_block(grader: Grader, recipe: Recipe) -> None:
    honest = run_row(grader, "coverage", "own", OwnGradients(recipe.analysis_step), seed=0)
    assert honest.verdict is Verdict.PASS, honest.reason
    deaf = run_row(grader, "coverage", "deaf", OwnGradients(recipe.analysis_step, deaf=True), seed=0)
    assert deaf.verdict is Verdict.FAIL, deaf.reason


def test_a_library_that_cannot_freeze_is_not_applicable(grader: Grader, recipe: Recipe) -> None:
    stubborn = OwnGradients(recipe.analysis_step)
    stubborn.honors_requires_grad = False  # type: ignore[attr-defined]
    assert run_row(grader, "coverage", "stubborn", stubborn, seed=0).verdict is Verdict.NOT_APPLICABLE


def test_undeclared_needs_are_not_applicable(grader: Grader) -> None:
    heuristic = CHEATS["string-match"]
    assert run_row(grader, "fluency_control", "sm", heuristic, seed=0, draw=0).verdict is Verdict.NOT_APPLICABLE
    assert run_row(grader, "trigger_alignment", "sm", heuristic, seed=0, draw=0).verdict is Verdict.NOT_APPLICABLE
    assert run_row(grader, "coverage", "sm", heuristic, seed=0).verdict is Verdict.NOT_APPLICABLE


def test_knowing_the_coin_is_an_error(grader: Grader, evidence: EvidenceStore) -> None:
    def leaky(problem: Any) -> Any:
        null = evidence.null_window(0)
        same = len(problem) == len(null.problem)
        return null.eligible.astype(float) if same else np.zeros(len(problem))

    outcome = run_row(grader, "lookalikes", "leaky", leaky, seed=0)
    assert outcome.verdict is Verdict.ERROR
    assert "eligibility leak" in outcome.reason


class Thin(EvidenceStore):
    """The same store with nearly all of its evidence taken away."""

    def rollouts(self, seed: int, asked: str | None = None) -> Rollouts:
        full = super().rollouts(seed, asked)
        few = {name: _first(getattr(full, name), 4) for name in ("truth", "decoy", "lookalike")}
        return dataclasses.replace(full, **few)

    def siblings(self, seed: int, draw: int) -> Siblings:
        full = super().siblings(seed, draw)
        return dataclasses.replace(full, shown=_first(full.shown, 3))

    def spans(self, seed: int, draw: int) -> Spans:
        full = super().spans(seed, draw)
        few = full.completion % 50 == 0
        return dataclasses.replace(full, kind=np.where(few, full.kind, -1))

    def canaries(self, seed: int, per_block: int, least_share: float) -> Canaries:
        return super().canaries(seed, per_block, 2.0)  # no block holds twice the whole


def _first(mask: Any, count: int) -> Any:
    few = np.zeros(len(mask), bool)
    few[np.flatnonzero(mask)[:count]] = True
    return few


@pytest.fixture
def thin(store: Store, recipe: Recipe) -> Grader:
    """A grader on thin evidence whose headroom check is held back, so that each check speaks for itself."""
    grader = Grader(store, recipe, plant=PLANT, seeds=SEEDS[:2], draws=DRAWS)
    grader.evidence = Thin(store, recipe, PLANT, DRAWS)
    for seed in SEEDS:
        grader.memo(("headroom", seed), lambda: Decision(Verdict.PASS, "held back"))
    return grader


@pytest.mark.parametrize("check", GRADED)
def test_too_little_evidence_is_inconclusive(thin: Grader, check: str) -> None:
    def one_hit(problem: Any) -> Any:
        scores = np.zeros(len(problem))
        if problem.kind == "rollouts" and len(problem) == len(thin.evidence.rollouts(0).problem):
            scores[np.flatnonzero(thin.evidence.rollouts(problem.rng_seed[0]).truth)[0]] = 1.0
        return scores

    outcome = run_row(thin, check, "one-hit", one_hit, **places(check)[0])
    assert outcome.verdict is Verdict.INCONCLUSIVE, outcome.reason


def test_thin_evidence_has_no_headroom_and_so_nothing_is_decided(store: Store, recipe: Recipe) -> None:
    grader = Grader(store, recipe, plant=PLANT, seeds=SEEDS, draws=DRAWS)
    grader.evidence = Thin(store, recipe, PLANT, DRAWS)
    outcome = run_row(grader, "headroom", seed=0)
    assert outcome.verdict is Verdict.INCONCLUSIVE
    assert "ground-truth rollouts 4, needs 100" in outcome.reason
    row = run_row(grader, "gradient_magnitude", "norm-only", CHEATS["norm-only"], seed=0)
    assert row.verdict is Verdict.INCONCLUSIVE
    assert row.reason.startswith("seed 0 has no headroom")
    assert row.decision is not None
    assert row.decision.estimate is not None
