"""Who is put before the checks: scores that measure anything but cause, and one that measures it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from pytest_behaviortrace.calibration.synthetic import SyntheticEvidence
from pytest_behaviortrace.checklist import declared
from pytest_behaviortrace.estimator import Estimator
from pytest_behaviortrace.estimators import controls, gradient
from pytest_behaviortrace.evidence import MATCHED, TRIGGER
from pytest_behaviortrace.gates import MIXTURE
from pytest_behaviortrace.problem import AttributionProblem
from pytest_behaviortrace.statistics import (
    Pairs,
    average_ranks,
    cross_pairs,
    fluency_basis,
    mixture_of_labels,
    mixture_of_pairs,
    residualise,
    within_group_pairs,
)

Scores = NDArray[np.float64]
Maker = Callable[[SyntheticEvidence], Estimator]


def _named() -> dict[str, tuple[str, ...]]:
    checks = {check.name: check for check in declared() if check.needs_run and "bt_estimator" in check.arguments}
    own = {
        name: [*check.controls, *chain(*(checks[o].controls for o in check.origins))] for name, check in checks.items()
    }
    return {
        name.removeprefix("test_"): tuple(c for c in dict.fromkeys(found) if c != MIXTURE)
        for name, found in own.items()
    }


NAMED: Mapping[str, tuple[str, ...]] = _named()
"""Every check with the single controls that it declares, or those of the checks that its components come from."""

STEEPNESS = 4.0
"""Nats in which the steep score of fluency grows by a factor e, inverted."""


@dataclass(frozen=True)
class Contender:
    """A name, how to make it for a repetition's evidence, and the checks whose false passes it measures."""

    name: str
    make: Maker
    checks: tuple[str, ...] = tuple(NAMED)


def signal_of(auc: float) -> float:
    """Standard deviations between two normal distributions that a score orders with this AUC."""
    from scipy.special import ndtri

    return float(math.sqrt(2.0) * ndtri(auc))


# -- what measures the cause -------------------------------------------------------------------------------------------
def credited_cosine(problem: AttributionProblem) -> Scores:
    """The true signal: cosine of gradient and target, times the credit. Items never trained on have credit 1."""
    return np.asarray(problem.advantage * gradient.gas(problem), np.float64)


# -- what does not -----------------------------------------------------------------------------------------------------
def _topic(evidence: SyntheticEvidence) -> Estimator:
    """Cosine with the topic of whichever behaviour is asked."""

    def score(problem: AttributionProblem) -> Scores:
        asked = [p for p in ("graded", "decoy") if np.array_equal(problem.target, evidence.in_context_target(0, p))]
        topic = evidence.rollouts(problem.rng_seed[0], asked[0]).topic
        return gradient.gas(problem.replacing(target=topic))

    return score


def _step(problem: AttributionProblem) -> Scores:
    return problem.step.astype(np.float64)


def _control(name: str) -> Maker:
    if name == "topic":
        return _topic
    found: Estimator = _step if name == "step" else getattr(controls, name.replace("-", "_"))
    return lambda evidence: _plain(found)


def _plain(score: Estimator) -> Estimator:
    """Without declared needs: an estimator on gradients, so that no check is n/a for it."""
    return lambda problem: np.asarray(score(problem), np.float64)


def _flipped(make: Maker) -> Maker:
    def maker(evidence: SyntheticEvidence) -> Estimator:
        score = make(evidence)
        return lambda problem: -score(problem)

    return maker


def _ranked(values: Scores) -> Scores:
    """Ranks in [0, 1], so that scores of different scale can be mixed."""
    return average_ranks(values) / len(values)


def _mixture(weights: Mapping[str, float]) -> Maker:
    def maker(evidence: SyntheticEvidence) -> Estimator:
        parts = [(weight, _control(name)(evidence)) for name, weight in weights.items()]
        return lambda problem: np.sum([w * _ranked(np.asarray(s(problem), np.float64)) for w, s in parts], axis=0)

    return maker


def _rank_of_fluency(problem: AttributionProblem) -> Scores:
    return average_ranks(problem.logprob)


def _steep_fluency(problem: AttributionProblem) -> Scores:
    return np.asarray(np.exp(STEEPNESS * problem.logprob), np.float64)


def _fluent_half(problem: AttributionProblem) -> Scores:
    return (problem.logprob > np.median(problem.logprob)).astype(np.float64)


def _usual_fluency(problem: AttributionProblem) -> Scores:
    return np.asarray(-np.abs(problem.logprob - np.median(problem.logprob)), np.float64)


def _right_on_one_seed(evidence: SyntheticEvidence) -> Estimator:
    """The true signal on seed 0, random elsewhere: tuned to a lucky seed."""
    return lambda problem: credited_cosine(problem) if problem.rng_seed[0] == 0 else controls.random(problem)


def _fitted_magnitude(evidence: SyntheticEvidence, problem: AttributionProblem) -> Scores:
    rollouts = evidence.rollouts(problem.rng_seed[0])
    columns = [np.asarray(_control(name)(evidence)(problem), np.float64) for name in NAMED["gradient_magnitude"]]
    scores = np.zeros(len(problem))
    inside = rollouts.window
    scores[inside] = mixture_of_labels([column[inside] for column in columns], rollouts.truth[inside])
    return scores


def _fitted_decoys(evidence: SyntheticEvidence, problem: AttributionProblem) -> Scores:
    rollouts = evidence.rollouts(problem.rng_seed[0])
    columns = [np.asarray(_control(name)(evidence)(problem), np.float64) for name in NAMED["reward_control"]]
    return mixture_of_pairs(columns, cross_pairs(rollouts.truth, rollouts.decoy, problem.step))


def _fitted_siblings(evidence: SyntheticEvidence, problem: AttributionProblem) -> Scores:
    siblings = evidence.siblings(*problem.rng_seed[:2])
    pairs, basis = within_group_pairs(siblings.shown, siblings.group), fluency_basis(siblings.logprob, siblings.group)
    columns = [residualise(column, basis, siblings.group) for column in (siblings.norm, siblings.length)]
    ((_, order),) = siblings.problems
    return mixture_of_pairs(columns, pairs)[order]


def _fitted_spans(evidence: SyntheticEvidence, problem: AttributionProblem) -> Scores:
    spans = evidence.spans(*problem.rng_seed[:2])
    ((_, order),) = spans.problems
    return mixture_of_pairs([spans.norm, spans.logprob], Pairs(*spans.pairs(MATCHED)))[order]


FITTED: Mapping[str, Callable[[SyntheticEvidence, AttributionProblem], Scores]] = {
    "gradient_magnitude": _fitted_magnitude,
    "fluency_control": _fitted_siblings,
    "reward_control": _fitted_decoys,
    "trigger_alignment": _fitted_spans,
}


def _trigger_fluency(evidence: SyntheticEvidence) -> Estimator:
    """How near a span comes to the fluency of the behaviour's own tokens, which it knows."""

    def score(problem: AttributionProblem) -> Scores:
        spans = evidence.spans(*problem.rng_seed[:2])
        usual = np.median(spans.logprob[spans.kind == TRIGGER])
        return np.asarray(-np.abs(problem.logprob - usual), np.float64)

    return score


def _fitted(check: str) -> Maker:
    """The controls of one check in the weights that serve them best there, labels known: the strongest of mixtures."""
    return lambda evidence: lambda problem: FITTED[check](evidence, problem)


def _mixtures() -> list[Contender]:
    """0.7 of one control and 0.3 of another, in every orientation, before the checks that name both (or neither)."""
    found = []
    pairs = {
        ("fluency", "norm-only"): tuple(NAMED),
        ("norm-only", "length"): ("fluency_control", "seed_stability"),
        ("update-magnitude", "norm-only"): ("gradient_magnitude", "seed_stability"),
        ("norm-only", "update-magnitude"): ("gradient_magnitude", "seed_stability"),
        ("topic", "advantage"): ("reward_control", "target_context"),
        ("topic", "norm-only"): ("reward_control", "target_context"),
    }
    for (first, second), checks in pairs.items():
        for sign, mark in ((1.0, "+"), (-1.0, "-")):
            for turn, lead in ((1.0, ""), (-1.0, "-")):
                name = f"{lead}0.7 {first} {mark} 0.3 {second}"
                found.append(Contender(name, _mixture({first: 0.7 * turn, second: 0.3 * sign}), checks))
    return found


def worthless() -> list[Contender]:
    """Every worthless contender: none reads the direction of the target's gradient, or not on more than one seed."""
    found = [
        Contender("random", lambda evidence: _plain(controls.random)),
        Contender("rank(fluency)", lambda evidence: _plain(_rank_of_fluency)),
        Contender("exp(4 fluency)", lambda evidence: _plain(_steep_fluency)),
        Contender("fluency above median", lambda evidence: _plain(_fluent_half)),
        Contender("near the usual fluency", lambda evidence: _plain(_usual_fluency)),
        Contender("right on one seed", _right_on_one_seed),
    ]
    for control in sorted({name for names in NAMED.values() for name in names}):
        naming = tuple(check for check, names in NAMED.items() if control in names)
        found.append(Contender(control, _control(control), naming))
        found.append(Contender(f"-{control}", _flipped(_control(control)), naming))
    fitted = [Contender(f"best mixture of its controls ({check})", _fitted(check), (check,)) for check in FITTED]
    nearest = Contender("near the behaviour's own fluency", _trigger_fluency, ("trigger_alignment",))
    return [*found, *fitted, nearest, *_mixtures()]


TRUE_SIGNAL = Contender("true signal", lambda evidence: credited_cosine)
