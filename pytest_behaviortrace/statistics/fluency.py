"""What is left of a score once fluency is taken out of it inside prompt groups."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pytest_behaviortrace.statistics.pairs import Pairs, auc, require_nested
from pytest_behaviortrace.statistics.ranking import CHUNK, average_ranks
from pytest_behaviortrace.statistics.resampling import ClusterBootstrap, ratio

TIE_TOLERANCE = 1e-9
"""Residuals closer than this share of the score's standard deviation are ties (DESIGN, test_fluency_control)."""
ROUNDING = 1e-14
"""Share of the largest score below which a difference is rounding error."""
STEPS = 20
"""Parts of equal size in which `quantile_steps` divides the values."""
RIDGE = 1e-10
"""Penalty on slopes, as a share of the covariates' squared size."""
REFINEMENTS = 3
"""Rounds that undo the penalty where slopes are determined: each leaves this share of what the last one left."""
RANK_CUTOFF = 1e-12
"""Directions of the covariates weaker than this, relative to the strongest, are linear combinations of the others."""


def fluency_basis(fluency: ArrayLike, groups: ArrayLike) -> NDArray[np.float64]:
    """(n, 4): f, f^2, f^3 and rank f, for `residualise` (DESIGN, test_fluency_control).

    f is standardised over all items first, so that the powers stay comparable; the rank is the average rank over all
    items, scaled to [0, 1].
    """
    f, names = np.asarray(fluency, np.float64), np.asarray(groups)
    if f.shape != names.shape or f.ndim != 1:
        raise ValueError(f"one fluency and one group per item, please: {f.shape}, {names.shape}")
    if not len(f):
        return np.zeros((0, 4))
    z = _unit(f)
    z = z - z.mean()
    spread = float(z.std())
    z = z / spread if spread > ROUNDING else np.zeros(len(z))
    return np.column_stack([z, z**2, z**3, average_ranks(f) / len(f)])


def quantile_steps(values: ArrayLike, steps: int = STEPS) -> NDArray[np.float64]:
    """(n, steps - 1): whether a value lies above each quantile, for `residualise`.

    Takes out any function of the values that is flat between quantiles, and nearly all of any other: thresholds and
    bands, which a polynomial leaves standing.
    """
    array = np.asarray(values, np.float64)
    if not len(array):
        return np.zeros((0, steps - 1))
    return np.asarray(array[:, None] > np.quantile(array, np.arange(1, steps) / steps), np.float64)


def residualise(scores: ArrayLike, covariates: ArrayLike, groups: ArrayLike) -> NDArray[np.float64]:
    """(n,): the score minus what one pooled within-group least-squares fit on the covariates explains of it.

    Scores (n,) and covariates (n,) or (n, p) are centred inside each group, one slope per covariate is fitted over all
    items, the fit is subtracted (PAPER.md, "Metrics", fluency control 1: covariates = fluency). The residuals are
    uncorrelated with every covariate inside groups. Covariates that depend linearly on others are harmless.
    Compare residuals with the tolerance `tie_tolerance(scores)`; `residual_auc` does.
    """
    values, groups_of = _scores(scores), np.asarray(groups)
    scale = _scale(values)
    centred = _centre(values / scale, groups_of)
    directions = _directions(covariates, groups_of)
    return np.asarray((centred - directions @ (directions.T @ centred)) * scale, np.float64)


def tie_tolerance(scores: ArrayLike) -> float:
    """Residuals of `scores` (n,) closer than this are ties: 1e-9 standard deviations, and never below rounding error.

    A score that fluency explains entirely leaves rounding noise, which must not be ranked.
    """
    values = _scores(scores)
    scale = _scale(values)
    return (TIE_TOLERANCE * float((values / scale).std()) + ROUNDING) * scale


def residual_auc(scores: ArrayLike, pairs: Pairs, covariates: ArrayLike, groups: ArrayLike) -> float:
    """`auc` of the residuals over the pairs, near-equal residuals tied; NaN when there are no pairs."""
    return auc(residualise(scores, covariates, groups), pairs, tie_tolerance(scores))


def residual_auc_replicates(
    scores: ArrayLike, pairs: Pairs, covariates: ArrayLike, groups: ArrayLike, bootstrap: ClusterBootstrap
) -> NDArray[np.float64]:
    """(resamples,): `residual_auc` in every resample with the slopes fitted anew in each; NaN where it holds no pair.

    The fit needs sums of products only, which add up over clusters: each resample solves its own normal equations, and
    a pair's residuals differ by ds - db @ slopes. The columns of `covariates` (ranks included) are computed once.
    Raises `ValueError` for crossed pairs and for clusters that split groups.
    """
    values, groups_of = _scores(scores), np.asarray(groups)
    if pairs.crossed:
        raise ValueError("fluency is removed inside groups: crossed pairs have no common group")
    _require_whole_groups(bootstrap.codes, groups_of)
    if not len(pairs):
        return np.full(bootstrap.resamples, np.nan)
    scale = _scale(values)
    unit = values / scale
    centred, directions = _centre(unit, groups_of), _directions(covariates, groups_of)
    slopes = _slopes(centred, directions, bootstrap)
    order = np.argsort(bootstrap.codes[pairs.positive], kind="stable")
    up, down = pairs.positive[order], pairs.negative[order]
    cluster = bootstrap.codes[up]
    require_nested(cluster, bootstrap.codes[down])
    starts = np.flatnonzero(np.append(True, cluster[1:] != cluster[:-1]))
    gap, lever = unit[up] - unit[down], directions[up] - directions[down]
    tolerance = tie_tolerance(values) / scale
    drawn = bootstrap.real_weights()[:, cluster[starts]]
    won = np.empty(bootstrap.resamples)
    rows = max(1, CHUNK // len(up))
    for start in range(0, bootstrap.resamples, rows):
        part = slice(start, start + rows)
        difference = gap[:, None] - lever @ slopes[part].T
        wins = np.add(difference > tolerance, difference >= -tolerance, dtype=np.int32)
        won[part] = np.einsum("rc,cr->r", drawn[part], np.add.reduceat(wins, starts, axis=0))
    return ratio(won, 2.0 * (drawn @ np.diff(np.append(starts, len(up))).astype(np.float64)))


def _slopes(
    centred: NDArray[np.float64], directions: NDArray[np.float64], bootstrap: ClusterBootstrap
) -> NDArray[np.float64]:
    """(resamples, p): least-squares slopes of every resample, the shortest solution where one is not determined.

    By a ridge too small to move any slope that is determined: p is near 40 for steps, and 5,000 pseudo-inverses of that
    size take seconds.
    """
    p = directions.shape[1]
    if not p:
        return np.zeros((bootstrap.resamples, 0))
    order = np.argsort(bootstrap.codes, kind="stable")
    starts = np.flatnonzero(np.diff(bootstrap.codes[order], prepend=-1))
    gram, moment = np.empty((bootstrap.n_clusters, p, p)), np.empty((bootstrap.n_clusters, p))
    for cluster, members in enumerate(np.split(order, starts[1:])):
        inside = directions[members]
        gram[cluster], moment[cluster] = inside.T @ inside, inside.T @ centred[members]
    grams = bootstrap.weighted(gram.reshape(-1, p * p)).reshape(-1, p, p)
    trace = np.trace(grams, axis1=1, axis2=2)[:, None, None]
    penalty = (RIDGE * trace + np.finfo(np.float64).tiny) * np.eye(p)
    moments = bootstrap.weighted(moment)[:, :, None]
    found = np.zeros_like(moments)
    for _ in range(REFINEMENTS):
        found = found + np.linalg.solve(grams + penalty, moments - grams @ found)
    return np.asarray(found[:, :, 0])


def _directions(covariates: ArrayLike, groups: NDArray[np.generic]) -> NDArray[np.float64]:
    """(n, rank): an orthonormal basis of the covariates centred inside groups."""
    table = np.asarray(covariates, np.float64)
    table = table[:, None] if table.ndim == 1 else table
    if table.ndim != 2 or len(table) != len(groups) or not np.isfinite(table).all():
        raise ValueError(f"covariates must be finite, (n,) or (n, p) for n = {len(groups)}; got shape {table.shape}")
    columns = []
    for column in table.T:
        unit = _unit(column)
        inside = _centre(unit, groups)
        size = float(np.linalg.norm(inside))
        if size > ROUNDING * max(1.0, float(np.linalg.norm(unit))):
            columns.append(inside / size)
    if not columns:
        return np.zeros((len(groups), 0))
    left, strength, _ = np.linalg.svd(np.column_stack(columns), full_matrices=False)
    return np.asarray(left[:, strength > RANK_CUTOFF * strength[0]], np.float64)


def _centre(column: NDArray[np.float64], groups: NDArray[np.generic]) -> NDArray[np.float64]:
    """(n,): values minus the mean of their group."""
    _, inverse, counts = np.unique(groups, return_inverse=True, return_counts=True)
    codes = inverse.reshape(-1)
    return np.asarray(column - (np.bincount(codes, weights=column) / counts)[codes], np.float64)


def _scores(scores: ArrayLike) -> NDArray[np.float64]:
    values = np.asarray(scores, np.float64)
    if values.ndim != 1 or not np.isfinite(values).all():
        raise ValueError(f"scores must be finite, one per item; got shape {values.shape}")
    return values


def _scale(values: NDArray[np.float64]) -> float:
    """Largest magnitude, 1 for zeros: dividing by it keeps squares of 1e300 and of 1e-300 within range."""
    return float(np.abs(values).max(initial=0.0)) or 1.0


def _unit(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values / _scale(values)


def _require_whole_groups(codes: NDArray[np.intp], groups: NDArray[np.generic]) -> None:
    if codes.shape != groups.shape:
        raise ValueError(f"{len(groups)} items, but a bootstrap of {len(codes)}")
    order = np.argsort(groups, kind="stable")
    same = groups[order][1:] == groups[order][:-1]
    if np.any(same & (codes[order][1:] != codes[order][:-1])):
        raise ValueError("clusters must not split groups")
