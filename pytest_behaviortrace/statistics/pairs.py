"""AUC over pairs of items, one of each kind: inside prompt groups, across groups of nearby steps, or given outright."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pytest_behaviortrace.statistics.resampling import ClusterBootstrap, ratio

STEP_GAP = 2
"""Most steps between the two rollouts of a cross pair (DESIGN, test_reward_control)."""
MATCHED_WIDTH = 0.10
"""Most nats per token between the fluencies of a matched pair (PAPER.md, "Metrics")."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of items that a score should order: `positive[p]` above `negative[p]`. Item indices, shape (pairs,).

    `crossed`: the two items come from different clusters that are resampled independently, so a pair counts as often
    as the product of its clusters' multiplicities; otherwise both lie in one cluster and it counts as often as that.

    A trigger span against the control span of the same completion, items 2c and 2c + 1:

        >>> trigger = 2 * np.arange(3)
        >>> auc([1.0, 0.0, 2.0, 2.0, 5.0, 4.0], Pairs(trigger, trigger + 1))
        0.8333333333333334
    """

    positive: NDArray[np.intp]
    negative: NDArray[np.intp]
    crossed: bool = False

    def __post_init__(self) -> None:
        if self.positive.shape != self.negative.shape or self.positive.ndim != 1:
            raise ValueError(f"as many positives as negatives, please: {self.positive.shape}, {self.negative.shape}")

    def __len__(self) -> int:
        """Number of pairs."""
        return len(self.positive)

    def clusters(self, bootstrap: ClusterBootstrap) -> int:
        """How many clusters carry the pairs: those with an item of each kind, for crossed pairs the fewer of both."""
        sides = (bootstrap.codes[side] for side in (self.positive, self.negative))
        return min(int(np.count_nonzero(np.bincount(codes))) for codes in sides)

    def where(self, keep: NDArray[np.bool_]) -> Pairs:
        """The pairs that `keep` (pairs,) picks."""
        return Pairs(self.positive[keep], self.negative[keep], self.crossed)


def within_group_pairs(positive: ArrayLike, groups: ArrayLike, negative: ArrayLike | None = None) -> Pairs:
    """Every pair of a positive and a negative item of one prompt group (PAPER.md, "Metrics", within-group AUC).

    `positive`, `groups`, `negative` (n,): masks and group ids; negatives are all other items unless a mask is given.
    A group with one kind only gives no pair.
    """
    above = np.asarray(positive, bool)
    below = ~above if negative is None else np.asarray(negative, bool)
    names = np.asarray(groups)
    if not above.shape == below.shape == names.shape or above.ndim != 1:
        raise ValueError(f"one value per item, please: {above.shape}, {below.shape}, {names.shape}")
    if (above & below).any():
        raise ValueError("an item cannot be both positive and negative")
    order = np.argsort(names, kind="stable")
    starts = np.flatnonzero(np.append(True, names[order][1:] != names[order][:-1])) if len(order) else order
    left, right = [np.zeros(0, np.intp)], [np.zeros(0, np.intp)]
    for members in np.split(order, starts[1:]):
        ups, downs = members[above[members]], members[below[members]]
        left.append(np.repeat(ups, len(downs)))
        right.append(np.tile(downs, len(ups)))
    return Pairs(np.concatenate(left), np.concatenate(right))


def cross_pairs(positive: ArrayLike, negative: ArrayLike, steps: ArrayLike, gap: int = STEP_GAP) -> Pairs:
    """Every pair of a positive and a negative item at most `gap` steps apart, whatever their groups.

    `positive`, `negative` masks and `steps` (n,). DESIGN, test_reward_control: nearby steps, so that time is no clue.
    """
    above, below = np.asarray(positive, bool), np.asarray(negative, bool)
    when = np.asarray(steps)
    if not above.shape == below.shape == when.shape or above.ndim != 1:
        raise ValueError(f"one value per item, please: {above.shape}, {below.shape}, {when.shape}")
    if (above & below).any():
        raise ValueError("an item cannot be both positive and negative")
    ups, downs = np.flatnonzero(above), np.flatnonzero(below)
    order = np.argsort(when[downs], kind="stable")
    first = np.searchsorted(when[downs][order], when[ups] - gap, "left")
    count = np.searchsorted(when[downs][order], when[ups] + gap, "right") - first
    i = np.repeat(np.arange(len(ups)), count)
    j = order[np.arange(len(i)) + np.repeat(first - (np.cumsum(count) - count), count)]
    in_order = np.lexsort((j, i))
    return Pairs(ups[i[in_order]], downs[j[in_order]], crossed=True)


def matched_pairs(pairs: Pairs, fluency: ArrayLike, width: float = MATCHED_WIDTH) -> Pairs:
    """The pairs whose fluency (n,), nats per token, differs by at most `width` (PAPER.md, "Metrics")."""
    values = np.asarray(fluency, np.float64)
    # The last digits of a difference are rounding; 0.10 apart as written counts as 0.10 apart.
    return pairs.where(np.abs(values[pairs.positive] - values[pairs.negative]) <= width * (1 + 1e-12) + 1e-15)


def auc(scores: ArrayLike, pairs: Pairs, tolerance: float = 0.0) -> float:
    """Share of pairs whose positive item scores higher, ties 1/2; NaN when there are no pairs (check `len(pairs)`).

    Scores (n,) at most `tolerance` apart are tied. With no tolerance they are compared, never subtracted, so any
    scale is safe. The AUC of `-scores` is 1 minus this.
    """
    if not len(pairs):
        return float("nan")
    return float(_wins(scores, pairs, tolerance).sum() / (2.0 * len(pairs)))


def auc_replicates(
    scores: ArrayLike, pairs: Pairs, bootstrap: ClusterBootstrap, tolerance: float = 0.0
) -> NDArray[np.float64]:
    """(resamples,): `auc` in every resample of `bootstrap`, NaN where a resample holds none of the pairs.

    Crossed pairs: w'Mw / w'Pw, with M the wins and P the number of pairs between every two clusters and w the clusters'
    multiplicities. Otherwise sums over clusters weighted by w. Which resamples are NaN does not depend on the scores.
    Raises `ValueError` when a pair that is not crossed has its items in two clusters.
    """
    wins = _wins(scores, pairs, tolerance)
    above, below = bootstrap.codes[pairs.positive], bootstrap.codes[pairs.negative]
    if not len(pairs):
        return np.full(bootstrap.resamples, np.nan)
    if pairs.crossed:
        return _crossed_replicates(wins, above, below, bootstrap)
    require_nested(above, below)
    won = np.bincount(above, weights=wins, minlength=bootstrap.n_clusters)
    count = np.bincount(above, minlength=bootstrap.n_clusters).astype(np.float64)
    return ratio(bootstrap.weighted(won), 2.0 * bootstrap.weighted(count))


def _crossed_replicates(
    wins: NDArray[np.float64], above: NDArray[np.intp], below: NDArray[np.intp], bootstrap: ClusterBootstrap
) -> NDArray[np.float64]:
    """w'Mw / w'Pw. Pairs of nearby steps leave most of M and P empty, so they are sparse; all sums are of whole numbers
    and therefore exact in any order."""
    from scipy.sparse import csr_array

    rows, i = np.unique(above, return_inverse=True)
    columns, j = np.unique(below, return_inverse=True)
    shape, won, count = (len(rows), len(columns)), np.empty(bootstrap.resamples), np.empty(bootstrap.resamples)
    tables = [csr_array((values, (i, j)), shape=shape) for values in (wins, np.ones(len(wins)))]
    for part in bootstrap.parts(2 * sum(shape)):
        left, right = (bootstrap.by_cluster[side, part].astype(np.float64) for side in (rows, columns))
        won[part], count[part] = (np.einsum("ij,ij->j", left, table @ right) for table in tables)
    return ratio(won, 2.0 * count)


def separation(positive: ArrayLike, negative: ArrayLike) -> float:
    """AUC of two samples, the Mann-Whitney statistic over its largest value: P(positive > negative), ties 1/2.

    NaN where one of the samples is empty.
    """
    ups, downs = np.asarray(positive, np.float64), np.asarray(negative, np.float64)
    i, j = np.divmod(np.arange(len(ups) * len(downs)), max(len(downs), 1))
    return auc(np.concatenate([ups, downs]), Pairs(i, len(ups) + j))


def require_nested(above: NDArray[np.intp], below: NDArray[np.intp]) -> None:
    """Raise `ValueError` unless both items of every pair lie in the same cluster."""
    if not np.array_equal(above, below):
        raise ValueError("pairs that are not crossed need both items in one cluster; clusters must not split groups")


def _wins(scores: ArrayLike, pairs: Pairs, tolerance: float) -> NDArray[np.float64]:
    """(pairs,): 2 for a win, 1 for a tie, 0 for a loss."""
    values = np.asarray(scores, np.float64)
    if np.isnan(values).any():
        raise ValueError("NaN scores cannot be ordered")
    up, down = values[pairs.positive], values[pairs.negative]
    if tolerance == 0.0:
        return np.add(up > down, up >= down, dtype=np.float64)
    return np.add(up - down > tolerance, up - down >= -tolerance, dtype=np.float64)
