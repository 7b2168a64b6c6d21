"""The best mixture of some scores: what all controls together could say, in weights fitted to the labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pytest_behaviortrace.statistics.pairs import Pairs
from pytest_behaviortrace.statistics.ranking import average_ranks

RIDGE = 1e-3
"""Weight of the penalty that keeps weights finite where a mixture separates the labels perfectly."""
STEPS = 25
"""Newton steps; a handful suffices."""
ENOUGH = 1e-9


def ranked(columns: Sequence[ArrayLike]) -> NDArray[np.float64]:
    """(n, p): average ranks in [0, 1], so that scores of any scale can be mixed."""
    return np.column_stack([average_ranks(column) / max(1, np.size(column)) for column in columns])


def mixture_of_pairs(columns: Sequence[ArrayLike], pairs: Pairs) -> NDArray[np.float64]:
    """(n,): the ranks of the columns, weighted so that the pairs are ordered best (logistic fit on differences)."""
    table = ranked(columns)
    if not len(pairs):
        return np.zeros(len(table))
    differences = table[pairs.positive] - table[pairs.negative]
    return np.asarray(table @ _logistic(differences, np.ones(len(pairs))), np.float64)


def mixture_of_labels(columns: Sequence[ArrayLike], truth: ArrayLike) -> NDArray[np.float64]:
    """(n,): the ranks of the columns, weighted so that the items of `truth` stand out best (logistic fit)."""
    table, labels = ranked(columns), np.asarray(truth, bool)
    design = np.column_stack([table - table.mean(0), np.ones(len(table))])
    weights = _logistic(design, labels.astype(np.float64))
    return np.asarray(table @ weights[:-1], np.float64)


def _logistic(design: NDArray[np.float64], outcome: NDArray[np.float64]) -> NDArray[np.float64]:
    """(p,): weights of a logistic regression without intercept, by Newton's method."""
    found = np.zeros(design.shape[1])
    penalty = RIDGE * len(design) * np.eye(design.shape[1])
    for _ in range(STEPS):
        likely = 1.0 / (1.0 + np.exp(-np.clip(design @ found, -30, 30)))
        gradient = design.T @ (outcome - likely) - penalty @ found
        curvature = (design * (likely * (1 - likely))[:, None]).T @ design + penalty
        step = np.linalg.solve(curvature, gradient)
        found = found + step
        if float(np.abs(step).max()) < ENOUGH:
            break
    return found
