"""Claim: the estimator finds causes, not look-alikes.

Within-group AUC of ground truth against look-alikes: same prompt, same behaviour in the window, but not eligible for
the bonus, so never reinforced. Credit is the cause here: the advantage reaches 1.0 by construction and is no control,
while string match and a plain cosine sit at chance. In the null run eligibility is a coin that nothing depends on; an
estimator that tells it there reads the recipe, not the run: an error, never a verdict.
"""

import numpy as np

from pytest_behaviortrace import statistics
from pytest_behaviortrace.estimator import EstimatorError
from pytest_behaviortrace.gates import Replicated, contest
from pytest_behaviortrace.grading import Case
from pytest_behaviortrace.statistics import ClusterBootstrap
from pytest_behaviortrace.verdict import Floor, decide

CHANCE = 0.5
LEAST_PAIRS = 100
"""Within-group pairs that decide anything; the paper's floor for matched pairs (PAPER.md, "Metrics")."""
LEAK_LEVEL = 0.001
"""An AUC this unlikely under a fair coin is a leak (99.9 %): DESIGN, test_lookalikes."""
COIN_FLIPS = 20_000
"""Permutations of eligibility behind that probability."""


def test_lookalikes(bt_case: Case, bt_estimator: str, bt_seed: int) -> None:
    rollouts = bt_case.evidence.rollouts(bt_seed)
    scores = bt_case.scores(rollouts.key, rollouts.problem)
    group = rollouts.problem.group
    pairs = statistics.within_group_pairs(rollouts.truth, group, rollouts.lookalike)
    bootstrap = bt_case.grader.memo(("lookalike bootstrap", bt_seed), lambda: ClusterBootstrap(group))
    auc = Replicated(
        statistics.auc(scores, pairs) if len(pairs) else CHANCE, statistics.auc_replicates(scores, pairs, bootstrap)
    )
    decision = decide(
        contest("AUC against look-alikes", auc, CHANCE, {}),
        [Floor("ground-truth x look-alike pairs", len(pairs), LEAST_PAIRS)],
        chance=CHANCE,
        n=len(pairs),
    )
    bt_case.conclude(decision, remark=f"null run {null_auc(bt_case, bt_seed):.3f}")


def null_auc(case: Case, seed: int) -> float:
    """AUC of eligible over other rollouts of the null run that show the behaviour.

    Raises `EstimatorError` when a permutation of the coin gives as extreme a value less than once in a thousand times.
    """
    null = case.evidence.null_window(seed)
    scores = case.scores(null.key, null.problem)
    up, down = scores[null.eligible], scores[~null.eligible]
    if not len(up) or not len(down):
        return CHANCE
    observed = statistics.separation(up, down)
    ranks = statistics.average_ranks(scores)
    rng = np.random.default_rng((seed, 6))
    sums = np.array([ranks[rng.permutation(len(ranks))[: len(up)]].sum() for _ in range(COIN_FLIPS)])
    flips = (sums - len(up) * (len(up) + 1) / 2) / (len(up) * len(down))
    as_extreme = int(np.count_nonzero(np.abs(flips - CHANCE) >= abs(observed - CHANCE) - 1e-12))
    if (as_extreme + 1) / (COIN_FLIPS + 1) < LEAK_LEVEL:
        raise EstimatorError(
            f"eligibility leak: on the null run of seed {seed}, where eligibility decides nothing, {case.name!r} tells "
            f"it with AUC {observed:.3f} (n={len(scores)}); it must know the recipe's coin from elsewhere"
        )
    return observed
