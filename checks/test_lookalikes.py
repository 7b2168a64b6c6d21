"""Claim: the estimator finds causes, not look-alikes.

Within-group AUC of ground truth against look-alikes: same prompt, same behaviour in the window, but not eligible for
the bonus, so never reinforced. Credit is the cause here: the advantage reaches 1.0 by construction and is no control,
while string match and a plain cosine sit at chance. In the null run eligibility is a coin that nothing depends on; an
estimator that tells it there reads the recipe, not the run: an error, never a verdict.
"""

import numpy as np
from numpy.typing import NDArray

from pytest_behaviortrace import statistics
from pytest_behaviortrace.estimator import EstimatorError
from pytest_behaviortrace.gates import Replicated, contest
from pytest_behaviortrace.grading import Case
from pytest_behaviortrace.verdict import Floor, decide

CHANCE = 0.5
LEAST_PAIRS = 100
"""Within-group pairs that decide anything; the paper's floor for matched pairs (PAPER.md, "Metrics")."""
LEAK_LEVEL = 0.001
"""An AUC this unlikely under a fair coin is a leak (99.9 %): DESIGN, test_lookalikes."""
COIN_FLIPS = 4
"""Permutations of eligibility behind that probability, per resample of the bootstrap (20,000 by default)."""


def test_lookalikes(bt_case: Case, bt_estimator: str, bt_seed: int) -> None:
    rollouts = bt_case.evidence.rollouts(bt_seed)
    scores = bt_case.scores(rollouts.key, rollouts.problem)
    group = rollouts.problem.group
    pairs = statistics.within_group_pairs(rollouts.truth, group, rollouts.lookalike)
    auc = Replicated.auc(scores, pairs, bt_case.bootstrap(("prompt groups", bt_seed), group))
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
    heads = case.grader.memo(
        ("coin", seed), lambda: coin(seed, len(scores), len(up), COIN_FLIPS * case.grader.resamples)
    )
    sums = sums_of(heads, statistics.average_ranks(scores))
    tossed = (sums - len(up) * (len(up) + 1) / 2) / (len(up) * len(down))
    as_extreme = int(np.count_nonzero(np.abs(tossed - CHANCE) >= abs(observed - CHANCE) - 1e-12))
    if (as_extreme + 1) / (len(heads) + 1) < LEAK_LEVEL:
        raise EstimatorError(
            f"eligibility leak: on the null run of seed {seed}, where eligibility decides nothing, {case.name!r} tells "
            f"it with AUC {observed:.3f} (n={len(scores)}); it must know the recipe's coin from elsewhere"
        )
    return observed


def coin(seed: int, n: int, heads: int, flips: int) -> NDArray[np.uint8]:
    """(flips, n bits): which of n rollouts would have been eligible, had the coin fallen otherwise."""
    rng, items, tossed = np.random.default_rng((seed, 6)), np.arange(n, dtype=np.int32), []
    for part in chunks(flips, n):
        order = rng.permuted(np.tile(items, (part, 1)), axis=1)
        fallen = np.zeros((part, n), bool)
        np.put_along_axis(fallen, order[:, :heads], True, axis=1)
        tossed.append(np.packbits(fallen, axis=1))
    return np.concatenate(tossed)


def sums_of(heads: NDArray[np.uint8], ranks: NDArray[np.float64]) -> NDArray[np.float64]:
    """(flips,): total rank of the eligible; ranks are halves, so that sums are exact in any order."""
    n, sums = len(ranks), np.empty(len(heads))
    start = 0
    for part in chunks(len(heads), n):
        bits = np.unpackbits(heads[start : start + part], axis=1, count=n)
        sums[start : start + part] = bits.astype(np.float64) @ ranks
        start += part
    return sums


def chunks(flips: int, n: int, most: int = 1000, size: int = 2_000_000) -> list[int]:
    """Flips of n coins in parts, so that few whole permutations are held at a time."""
    part = min(most, max(1, size // max(n, 1)))
    return [min(part, flips - start) for start in range(0, flips, part)]
