"""Claim: the estimator sees the parameters that carry the behaviour.

For every parameter block with at least 1 % of the target's squared norm: canaries that carry the target's gradient in
that block, among equal noise elsewhere, score above canaries with a random direction in it. A block the estimator does
not look at gives ties, AUC 0.5: pitfall P3. Estimators that compute gradients of their own are put before policies in
which only that block requires grad, and must follow the exact block dots. Text-only estimators are n/a.
"""

import numpy as np
from numpy.typing import NDArray

from pytest_behaviortrace import statistics, viewer
from pytest_behaviortrace.estimator import Needs, needs_of
from pytest_behaviortrace.gates import Replicated
from pytest_behaviortrace.grading import Case
from pytest_behaviortrace.statistics import Pairs
from pytest_behaviortrace.verdict import Decision, Gate, NotApplicable, Verdict, decide

CHANCE = 0.5
LEAST_SHARE = 0.01
"""Share of the target's squared norm that makes a block matter: DESIGN, test_coverage."""
CANARIES = 8
"""Positive and as many negative canaries per block: DESIGN, test_coverage."""
OWN_ROLLOUTS = 32
"""Rollouts scored per block by estimators with gradients of their own; each block costs them one more pass."""


def test_coverage(bt_case: Case, bt_estimator: str, bt_seed: int) -> None:
    assert bt_case.estimator is not None
    needs = needs_of(bt_case.estimator)
    if needs.gradients:
        gates = canary_gates(bt_case, bt_seed)
    elif needs.model and getattr(bt_case.estimator, "honors_requires_grad", True):
        gates = own_gradient_gates(bt_case, bt_seed)
    else:
        raise NotApplicable(f"{bt_case.name} reads no gradients that could be restricted to one block")
    bt_case.conclude(verdict_of(gates))


def verdict_of(gates: list[Gate]) -> Decision:
    """The decision over all blocks; its numbers are those of the worst one, which the reason names."""
    if not gates:
        return Decision(Verdict.INCONCLUSIVE, "the target is zero: no parameter block carries the behaviour", n=0)
    worst = sorted(gates, key=lambda gate: gate.interval.low)
    return decide(worst, chance=worst[0].bar, n=len(gates))


def canary_gates(case: Case, seed: int) -> list[Gate]:
    """One gate per block: AUC of positive over negative canaries, bootstrapped over the noise they share."""
    case.require(Needs(gradients=True, spans=True), "canaries")
    canaries = case.grader.memo(
        ("canaries", seed), lambda: case.evidence.canaries(seed, per_block=CANARIES, least_share=LEAST_SHARE)
    )
    scores = case.scores(canaries.key, canaries.problem)
    if case.recorded is not None:  # the only place where a recorded run's rollouts are scored
        training = case.recorded.training(seed)
        case.show(lambda: viewer.top_rollouts(case, training, scores[canaries.base]))
    gates = []
    for name, positive, negative in zip(canaries.blocks, canaries.positive, canaries.negative, strict=True):
        auc = canary_auc(case, scores[positive], scores[negative])
        gates.append(Gate(f"canaries of block {name}", auc.interval(), bar=CHANCE))
    return gates


def canary_auc(case: Case, positive: NDArray[np.float64], negative: NDArray[np.float64]) -> Replicated:
    """AUC over all pairs of one positive and one negative canary; canaries with the same noise are one cluster."""
    count = len(positive)
    i, j = np.divmod(np.arange(count * count), count)
    pairs, scores = Pairs(i, count + j, crossed=True), np.concatenate([positive, negative])
    return Replicated.auc(scores, pairs, case.bootstrap(("canaries", count), np.tile(np.arange(count), 2)))


def own_gradient_gates(case: Case, seed: int) -> list[Gate]:
    """One gate per block: rank correlation with the exact inner products of the block alone."""
    gates = []
    for restricted in case.evidence.block_problems(seed, LEAST_SHARE, OWN_ROLLOUTS):
        scores = case.scores(restricted.key, restricted.problem)
        rho = statistics.spearman_interval(scores, restricted.exact)
        gates.append(Gate(f"rank correlation in block {restricted.block}", rho, bar=0.0))
    return gates
