"""How far up a ranking the ground truth stands: tie-aware precision with its chance and ceiling, and Spearman's rho."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pytest_behaviortrace.statistics.resampling import LEVEL, ClusterBootstrap, ratio
from pytest_behaviortrace.verdict import Interval

Counts = NDArray[np.floating[Any]] | np.floating[Any]

CHUNK = 2_000_000
"""Most item weights held at once: bounds the memory of a bootstrap to some tens of megabytes."""
MOST_RHO = 1 - 1e-15
"""Fisher's z of a perfect correlation is infinite; this one stands for it."""


def tie_aware_precision(scores: ArrayLike, truth: ArrayLike, k: int | None = None) -> float:
    """Share of ground truth among the k best scores, k = |GT| by default (PAPER.md, "Metrics").

    Of the block of tied scores that straddles the cutoff, the slots left get the block's own share of ground truth, so
    the value does not depend on the order of tied items and equals chance when all are tied. `scores`, `truth` (n,).
    Raises `ValueError` without ground truth (no k given), for k outside 1..n, and for NaN scores.
    """
    blocks = _blocks(scores, truth)
    return _credit(blocks.size, blocks.hits, _cutoff(blocks, k))


def ceiling(scores: ArrayLike, truth: ArrayLike, k: int | None = None) -> float:
    """The best precision at k any ranker can reach that ties what `scores` ties (PAPER.md, "Metrics").

    Tied blocks ordered by their density of ground truth. Never below `chance` or `tie_aware_precision`.
    Raises as `tie_aware_precision` does.
    """
    blocks = _blocks(scores, truth)
    best = np.argsort(-blocks.hits / blocks.size, kind="stable")
    return _credit(blocks.size[best], blocks.hits[best], _cutoff(blocks, k))


def chance(truth: ArrayLike) -> float:
    """Expected precision of a random ranking: |GT| / n. Raises `ValueError` on no items."""
    labels = np.asarray(truth, bool)
    if not labels.size:
        raise ValueError("chance needs at least one item")
    return float(labels.mean())


def lift(scores: ArrayLike, truth: ArrayLike, k: int | None = None) -> float:
    """Tie-aware precision over chance (PAPER.md, "Metrics"): 1 for a score that ties everything.

    Raises as `tie_aware_precision` does, and `ValueError` without ground truth.
    """
    base = chance(truth)
    if base == 0:
        raise ValueError("lift needs ground truth: chance is 0")
    return tie_aware_precision(scores, truth, k) / base


class PrecisionReplicates(NamedTuple):
    """Precision and chance in every resample, NaN where it holds no ground truth."""

    precision: NDArray[np.float64]
    chance: NDArray[np.float64]

    @property
    def excess(self) -> NDArray[np.float64]:
        """Precision minus chance."""
        return self.precision - self.chance


def precision_replicates(scores: ArrayLike, truth: ArrayLike, bootstrap: ClusterBootstrap) -> PrecisionReplicates:
    """Tie-aware precision at k and chance in every resample; k is the resample's own ground-truth count.

    `scores`, `truth` (n,); an item drawn w times counts as w tied items. Memory is bounded by `CHUNK`; about
    resamples x n additions (2,300 items x 5,000 resamples: a fifth of a second).
    """
    values, labels = _columns(scores, truth)
    if len(values) != len(bootstrap.codes):
        raise ValueError(f"{len(values)} scores for a bootstrap of {len(bootstrap.codes)} items")
    order = np.argsort(-values, kind="stable")
    last = _block_ends(values[order])
    sizes = bootstrap.sums(np.ones(len(values)))
    k = bootstrap.weighted(bootstrap.sums(labels))
    total = bootstrap.weighted(sizes)
    codes, hit = bootstrap.codes[order], labels[order]
    precision = np.full(bootstrap.resamples, np.nan)
    top = min(len(values), 2 * int(k.max(initial=0.0)) + 1)
    for part in bootstrap.parts(top):
        precision[part] = _precision_at_k(bootstrap.by_cluster[:, part], codes, hit, last, k[part])
    return PrecisionReplicates(precision, np.where(k > 0, k / total, np.nan))


def _precision_at_k(
    weights: NDArray[np.integer[Any]],
    codes: NDArray[np.intp],
    hit: NDArray[np.bool_],
    last: NDArray[np.intp],
    k: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Precision of each resample; items stand best first, `last` is the last item of each tied block."""
    blocks, most = 0, float(k.max(initial=0.0))
    up_to = np.zeros((0, len(k)), np.int32)
    while not blocks or (up_to[-1].min() < most and blocks < len(last)):
        # Only the top of the ranking matters: as many whole blocks as hold k items in every resample.
        blocks = len(last) if blocks else min(len(last), int(np.searchsorted(last, 2 * most)) + 1)
        drawn = weights[codes[: last[blocks - 1] + 1]]  # (items, resamples): running sums are vector additions
        up_to = np.cumsum(drawn, axis=0, dtype=np.int32)[last[:blocks]]
    drawn[~hit[: len(drawn)]] = 0
    hits = np.cumsum(drawn, axis=0, dtype=np.int32)[last[:blocks]]
    block, column = np.count_nonzero(up_to < k, axis=0), np.arange(len(k))
    end, won = up_to[block, column].astype(np.float64), hits[block, column].astype(np.float64)
    begin = np.where(block > 0, up_to[block - 1, column], 0)
    before = np.where(block > 0, hits[block - 1, column], 0)
    return _exact_share(before, won - before, k - begin, end - begin, k)


def _exact_share(before: Counts, tied: Counts, slots: Counts, size: Counts, k: Counts) -> NDArray[np.float64]:
    """(before + tied x slots / size) / k in whole numbers up to the one division; NaN where k is 0.

    So that a score that ties everything has exactly chance, and not a rounding error more, as its precision.
    """
    above, below = before * size + tied * slots, size * k
    return ratio(np.atleast_1d(above).astype(np.float64), np.atleast_1d(below).astype(np.float64))


def average_ranks(values: ArrayLike) -> NDArray[np.float64]:
    """(n,): ranks from 1, tied values sharing the mean of theirs. Raises `ValueError` on NaN."""
    array = np.asarray(values, np.float64)
    if np.isnan(array).any():
        raise ValueError("NaN cannot be ranked")
    _, inverse, counts = np.unique(array, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2.0)[inverse.reshape(-1)], np.float64)


def spearman(x: ArrayLike, y: ArrayLike) -> float:
    """Spearman's rank correlation with average ranks; 0 (no association shown) where one of the two is constant."""
    a, b = average_ranks(x), average_ranks(y)
    if a.shape != b.shape:
        raise ValueError(f"{len(a)} values against {len(b)}")
    if len(a) < 2:
        return 0.0
    a, b = a - a.mean(), b - b.mean()
    size = float(np.sqrt((a @ a) * (b @ b)))
    return min(1.0, max(-1.0, float(a @ b) / size)) if size > 0 else 0.0


def spearman_interval(x: ArrayLike, y: ArrayLike, level: float = LEVEL) -> Interval:
    """Spearman's rho of independent items with the interval of Bonett and Wright (2000).

    Fisher's z with standard error sqrt((1 + rho^2 / 2) / (n - 3)). Fewer than four items: [-1, 1]. Where one of the two
    is constant no item is ordered at all, which is no matter of sampling: 0 with an interval of no width.
    """
    from scipy.special import ndtri

    a, b = average_ranks(x), average_ranks(y)
    rho = spearman(a, b)
    if len(a) and (np.ptp(a) == 0 or np.ptp(b) == 0):
        return Interval(0.0, 0.0, 0.0)
    if len(a) < 4:
        return Interval(rho, -1.0, 1.0)
    z = math.atanh(max(-MOST_RHO, min(MOST_RHO, rho)))
    half = float(ndtri((1 + level) / 2)) * math.sqrt((1 + rho**2 / 2) / (len(a) - 3))
    return Interval(rho, min(rho, math.tanh(z - half)), max(rho, math.tanh(z + half)))


class _Blocks(NamedTuple):
    """Blocks of tied scores, best first: how many items and how many hits each."""

    size: NDArray[np.float64]
    hits: NDArray[np.float64]


def _columns(scores: ArrayLike, truth: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    values, labels = np.asarray(scores, np.float64), np.asarray(truth, bool)
    if values.ndim != 1 or values.shape != labels.shape or not len(values):
        raise ValueError(f"scores and truth must be one value per item, got shapes {values.shape} and {labels.shape}")
    if np.isnan(values).any():
        raise ValueError("NaN scores cannot be ranked")
    return values, labels


def _block_ends(ordered: NDArray[np.float64]) -> NDArray[np.intp]:
    return np.append(np.flatnonzero(ordered[1:] != ordered[:-1]), len(ordered) - 1)


def _blocks(scores: ArrayLike, truth: ArrayLike) -> _Blocks:
    values, labels = _columns(scores, truth)
    order = np.argsort(-values, kind="stable")
    last = _block_ends(values[order])
    found = np.cumsum(labels[order])[last]
    return _Blocks(np.diff(last, prepend=-1).astype(np.float64), np.diff(found, prepend=0).astype(np.float64))


def _cutoff(blocks: _Blocks, k: int | None) -> int:
    n = int(blocks.size.sum())
    k = int(blocks.hits.sum()) if k is None else k
    if not 1 <= k <= n:
        raise ValueError(f"precision at k needs 1 <= k <= {n} (k defaults to the ground-truth count), got {k}")
    return k


def _credit(size: NDArray[Any], hits: NDArray[Any], k: int) -> float:
    end = np.cumsum(size)
    block = int(np.searchsorted(end, k))
    slots = k - (end[block] - size[block])
    return float(_exact_share(hits[:block].sum(), hits[block], slots, size[block], np.float64(k))[0])
