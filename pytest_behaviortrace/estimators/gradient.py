"""Gradient estimators (PAPER.md, "Estimators and controls it grades").

A = advantage, g = gradient of an item's objective term, s = gradient of its behaviour tokens, t = in-context target.
Every function returns one float64 per item, (n,), higher = more responsible. Rows without a gradient score 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_behaviortrace.estimator import claims, needs
from pytest_behaviortrace.problem import AttributionProblem

Scores = NDArray[np.float64]
Matrix = NDArray[np.floating[Any]]

RIDGE = 0.1
"""Ridge of `trak` as a share of the mean diagonal of the Gram matrix (PAPER.md)."""
BUFFER_STEPS = 4
"""Last steps that `local_buffer` can score (DESIGN, "Formulas of the built-ins")."""
CHUNK = 512
"""Rows (or columns) turned into float64 at a time, so that no second copy of all gradients is ever held."""


@needs(gradients=True)
@claims(target_sign=True)
def dot(problem: AttributionProblem) -> Scores:
    """A <g, t>: first-order change of the behaviour's log-probability by the item's own update."""
    return _column(problem.advantage) * _products(problem.gradients, problem.target)


@needs(gradients=True)
@claims(target_sign=True)
def gas(problem: AttributionProblem) -> Scores:
    """cos(g, t): gradient alignment score, renormalised TracInCP; blind to size and to advantage."""
    return _cosines(problem.gradients, problem.target)


@needs(gradients=True)
@claims(target_sign=True)
def gas_centered(problem: AttributionProblem) -> Scores:
    """cos(g - mean of its prompt group, t): alignment of what sets an item apart from its siblings."""
    target = _unit(problem.target)
    scores = np.zeros(len(problem))
    for members in _groups(problem.group):
        rows = np.asarray(problem.gradients[members], np.float64)
        apart = rows - rows.mean(0)
        # What is left of identical rows is the rounding of their mean, not a direction.
        noise = len(rows) * np.finfo(np.float64).eps * np.abs(rows).max(initial=0.0)
        apart[np.abs(apart).max(axis=1, initial=0.0) <= noise] = 0.0
        scores[members] = _unit(apart) @ target
    return scores


@needs(gradients=True)
@claims(target_sign=True)
def tracincp(problem: AttributionProblem) -> Scores:
    """lr(step) A <g, t(step)>: `dot` with the step's learning rate and the target of the policy of that step."""
    rate, targets, step = _column(problem.learning_rate), problem.targets_by_step, problem.step
    scores = np.zeros(len(problem))
    # A step after the last recorded one (siblings of the final policy) meets the last target.
    place = np.minimum(step, len(targets) - 1)
    for s in np.unique(place):
        members = np.flatnonzero(place == s)
        scores[members] = rate[min(s, len(rate) - 1)] * _products(problem.gradients[members], targets[s])
    return _column(problem.advantage) * scores


@needs(gradients=True)
@claims(target_sign=True)
def trak(problem: AttributionProblem) -> Scores:
    """A g (F'F + ridge)^-1 t, F = the advantage-weighted gradients of the training rollouts (`reference`, m rows).

    ridge = 0.1 x the mean diagonal of the Gram matrix FF' (PAPER.md). Solved in the dual, by the m x m Gram matrix,
    when the sketch is at least as wide as F has rows, (F'F + r)^-1 t = (t - F'(FF' + r)^-1 F t) / r; else in the
    primal. Both are exact and agree. Without any reference gradient it is `dot`.
    """
    whitened = _whiten(problem.reference, np.asarray(problem.target, np.float64))
    return _column(problem.advantage) * _products(problem.gradients, whitened)


@needs(gradients=True)
@claims(target_sign=True)
def local_buffer(problem: AttributionProblem) -> Scores:
    """`dot` on the last four steps of the training run, 0 before: only what is still in the buffer can score."""
    recent = np.flatnonzero(problem.step >= len(problem.learning_rate) - BUFFER_STEPS)
    scores = np.zeros(len(problem))
    scores[recent] = _column(problem.advantage)[recent] * _products(problem.gradients[recent], problem.target)
    return scores


@needs(gradients=True, spans=True)
@claims(target_sign=True)
def token_gas(problem: AttributionProblem) -> Scores:
    """A cos(s, t): alignment of the behaviour's own tokens, signed and sized by the advantage; 0 where it is absent."""
    return _column(problem.advantage) * _cosines(problem.span_gradients, problem.target)


def _whiten(reference: Matrix, target: NDArray[np.float64]) -> NDArray[np.float64]:
    """(F'F + ridge)^-1 t, (K,), for F (m, K)."""
    m, width = reference.shape
    dual = width >= m
    gram = np.zeros((m, m) if dual else (width, width))
    for start in range(0, width if dual else m, CHUNK):
        part = slice(start, start + CHUNK)
        block = np.asarray(reference[:, part] if dual else reference[part].T, np.float64)
        gram += block @ block.T
    ridge = RIDGE * float(np.trace(gram)) / max(m, 1)
    if ridge == 0.0:
        return target
    gram[np.diag_indices_from(gram)] += ridge
    if not dual:
        return np.asarray(np.linalg.solve(gram, target), np.float64)
    inner = np.linalg.solve(gram, _products(reference, target))
    explained = np.zeros(width)
    for part, block in _chunks(reference):
        explained += inner[part] @ block
    return np.asarray((target - explained) / ridge, np.float64)


def _column(values: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    return np.asarray(values, np.float64)


def _chunks(rows: Matrix) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    for start in range(0, len(rows), CHUNK):
        part = slice(start, start + CHUNK)
        yield part, np.asarray(rows[part], np.float64)


def _products(rows: Matrix, vector: Matrix) -> NDArray[np.float64]:
    """(n,): inner products in double precision."""
    out, right = np.empty(len(rows)), np.asarray(vector, np.float64)
    for part, block in _chunks(rows):
        out[part] = block @ right
    return out


def _cosines(rows: Matrix, vector: Matrix) -> NDArray[np.float64]:
    """(n,): cosines, 0 where either side is zero."""
    out, right = np.empty(len(rows)), _unit(vector)
    for part, block in _chunks(rows):
        out[part] = _unit(block) @ right
    return out


def _unit(rows: Matrix) -> NDArray[np.float64]:
    """Rows of unit length, zero rows left zero. Double precision holds the square of any float32."""
    values = np.asarray(rows, np.float64)
    size = np.sqrt(np.square(values).sum(axis=-1, keepdims=True))
    return np.asarray(values / np.where(size > 0, size, 1.0), np.float64)


def _groups(group: NDArray[np.integer[Any]]) -> list[NDArray[np.intp]]:
    """Item indices of every prompt group."""
    order = np.argsort(group, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(group[order])) + 1) if len(order) else []
