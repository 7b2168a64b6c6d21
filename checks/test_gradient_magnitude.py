"""Claim: the estimator beats gradient size, and does not live on it.

(a) Tie-aware precision at k = ground-truth count inside the window lies above chance and above norm-only and
update-magnitude in both orientations. (b) The same after every gradient and span gradient is divided by its own norm:
an estimator that lived on size has nothing left. Pitfall P1 of the paper. How the ranking reacts to random positive
factors per gradient is reported, not gated: every first-order influence method scales with its gradient.

A recorded run has no ground truth. There the claim is (b) on siblings: within their groups, those that show the
behaviour score above the others once every gradient is divided by its norm, and better than norm-only tells them apart.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_behaviortrace import showing, statistics, viewer
from pytest_behaviortrace.evidence import Rollouts
from pytest_behaviortrace.evidence.recorded import RecordedEvidence
from pytest_behaviortrace.gates import MIXTURE, Replicated, both_ways, contest
from pytest_behaviortrace.grading import Case
from pytest_behaviortrace.problem import AttributionProblem, IntArray
from pytest_behaviortrace.rows import scaled
from pytest_behaviortrace.statistics import ClusterBootstrap, Pairs
from pytest_behaviortrace.verdict import Floor, decide

CONTROLS = ("norm-only", "update-magnitude", "mixture")
"""The mixture is that of those before it."""
CHANCE = 0.5
"""Of the AUC on siblings."""
FACTOR_EXPONENT = 2.0
"""Factors of the reported scale sensitivity are 10^U(-2, 2): DESIGN, test_gradient_magnitude."""


def test_gradient_magnitude(bt_case: Case, bt_estimator: str, bt_seed: int) -> None:
    if bt_case.recorded is not None:
        return without_truth(bt_case, bt_case.recorded, bt_seed)
    rollouts = bt_case.evidence.rollouts(bt_seed)
    flat, shaken = rescaled(rollouts.problem), rescaled(rollouts.problem, factors(rollouts.problem, bt_seed))
    plain_scores = bt_case.scores(rollouts.key, rollouts.problem)
    flat_scores = bt_case.scores(("unit norm", *rollouts.key), flat)
    sensitivity = statistics.spearman(plain_scores, bt_case.scores(("shaken", *rollouts.key), shaken))
    gates = contest("precision minus chance", window_precision(bt_case, bt_seed), 0.0, controls(bt_case, bt_seed))
    gates += contest(
        "precision minus chance at unit norm", excess(bt_case, rollouts, flat_scores), 0.0, controls(bt_case, bt_seed)
    )
    decision = decide(gates, chance=0.0, n=int(rollouts.window.sum()))
    bt_case.show(lambda: showing.precision(bt_case, rollouts, plain_scores, control_scores(bt_case, rollouts)))
    bt_case.show(lambda: viewer.top_rollouts(bt_case, rollouts, plain_scores))
    bt_case.conclude(decision, remark=f"rank correlation under random gradient scale {sensitivity:.2f}")


def without_truth(case: Case, evidence: RecordedEvidence, seed: int) -> None:
    """The check on a recorded run, over the siblings of all draws."""
    draws = [evidence.siblings(seed, draw) for draw in range(evidence.draws)]
    scores: dict[str, NDArray[np.float64]] = {}
    for name in ("plain", "unit norm", "shaken"):
        parts = []
        for siblings in draws:
            folds = [(varied(evidence, problem, name, seed), items) for problem, items in siblings.problems]
            key = siblings.key if name == "plain" else (name, *siblings.key)
            parts.append(case.fold_scores(key, folds, len(siblings.shown)))
        scores[name] = np.concatenate(parts)
    pairs, bootstrap = pooled(case, seed)
    norm = case.grader.memo(
        ("pooled norm", seed),
        lambda: Replicated.auc(np.concatenate([s.norm for s in draws]).astype(np.float64), pairs, bootstrap),
    )
    flat = Replicated.auc(scores["unit norm"], pairs, bootstrap)
    gates = contest("AUC of siblings at unit norm", flat, CHANCE, both_ways("norm-only", norm))
    decision = decide(gates, [Floor("within-group sibling pairs", len(pairs), 1)], chance=CHANCE, n=len(pairs))
    sensitivity = statistics.spearman(scores["plain"], scores["shaken"])
    plain = statistics.auc(scores["plain"], pairs) if len(pairs) else np.nan
    said = f"at their own norms {plain:.3f}, rank correlation under random gradient scale {sensitivity:.2f}"
    case.conclude(decision, remark=said)


def varied(evidence: RecordedEvidence, problem: AttributionProblem, name: str, seed: int) -> AttributionProblem:
    """The siblings' problem as it is, at unit norm, or under random factors (the reference set keeps its own size)."""
    if name == "plain":
        return problem
    if name == "unit norm":
        return rescaled(problem).replacing(reference=lambda: evidence.unit_reference(seed))
    return rescaled(problem, factors(problem, seed)).replacing(reference=lambda: problem.reference)


def pooled(case: Case, seed: int) -> tuple[Pairs, ClusterBootstrap]:
    """Within-group pairs of the siblings of all draws, one after the other, and the bootstrap over their prompts."""

    def make() -> tuple[Pairs, ClusterBootstrap]:
        draws = [case.evidence.siblings(seed, draw) for draw in range(case.evidence.draws)]
        shown, probe = (np.concatenate([getattr(s, name) for s in draws]) for name in ("shown", "probe"))
        apart = 1 + max(int(s.group.max()) for s in draws)
        group: IntArray = np.concatenate([s.group + apart * number for number, s in enumerate(draws)])
        return statistics.within_group_pairs(shown, group), case.bootstrap(("pooled probes", seed), probe)

    return case.grader.memo(("pooled siblings", seed), make)


def window_precision(case: Case, seed: int) -> Replicated:
    """Precision at the ground-truth count inside the window, minus chance, with its cluster-bootstrap replicates."""
    rollouts = case.evidence.rollouts(seed)
    scores = case.scores(rollouts.key, rollouts.problem)
    return case.own(("window precision", seed), lambda: excess(case, rollouts, scores))


def controls(case: Case, seed: int) -> dict[str, Replicated]:
    """The same statistic of gradient size and update size, each also flipped, and of their best mixture."""

    def make() -> dict[str, Replicated]:
        rollouts = case.evidence.rollouts(seed)
        found: dict[str, Replicated] = {}
        for name, values in control_scores(case, rollouts).items():
            found[name] = excess(case, rollouts, values)
            if name != MIXTURE:
                found[f"-{name}"] = excess(case, rollouts, -values)
        return found

    return case.grader.memo(("magnitude controls", seed), make)


def control_scores(case: Case, rollouts: Rollouts) -> dict[str, NDArray[np.float64]]:
    """Score of every rollout by each control, and by their best mixture (0 outside of the window)."""
    single = [name for name in CONTROLS if name != MIXTURE]
    window, found = rollouts.window, {n: case.control(n, rollouts.key, rollouts.problem) for n in single}
    best = np.zeros(len(window))
    best[window] = statistics.mixture_of_labels([v[window] for v in found.values()], rollouts.truth[window])
    return found | {MIXTURE: best}


def excess(case: Case, rollouts: Rollouts, scores: NDArray[np.float64]) -> Replicated:
    """Tie-aware precision minus chance among the window's rollouts; clusters are prompt groups."""
    window = rollouts.window
    bootstrap = case.bootstrap(("window", rollouts.key), rollouts.problem.group[window])
    return Replicated.excess_precision(scores[window], rollouts.truth[window], bootstrap)


def rescaled(problem: AttributionProblem, factor: NDArray[Any] | None = None) -> AttributionProblem:
    """The problem with every gradient and span gradient divided by its own norm, or multiplied by a factor each.

    Advantages stay; the reference set, which is made of the same rollouts, follows. Models cannot be rescaled.
    """

    norm = problem.gradient_norm
    return problem.replacing(
        gradients=lambda: scaled(problem.gradients, factor),
        span_gradients=lambda: scaled(problem.span_gradients, factor),
        gradient_norm=(norm > 0).astype(np.float32) if factor is None else norm * factor.astype(np.float32),
        reference=lambda: scaled(problem.gradients, factor, times=problem.advantage),
        carried=problem.carried.without("model"),
    )


def factors(problem: AttributionProblem, seed: int) -> NDArray[np.float64]:
    """Random positive factors 10^U(-2, 2), one per item."""
    return np.asarray(10.0 ** np.random.default_rng((seed, 5)).uniform(-FACTOR_EXPONENT, FACTOR_EXPONENT, len(problem)))
