"""Gradient estimators (PAPER.md, "Estimators and controls it grades").

A = advantage, g = gradient of an item's objective term, s = gradient of its behaviour tokens, t = in-context target.
Every function returns one float64 per item, (n,), higher = more responsible. Rows without a gradient score 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_behaviortrace.estimator import claims, needs
from pytest_behaviortrace.estimators.whitening import doubled, products, whitened
from pytest_behaviortrace.problem import AttributionProblem
from pytest_behaviortrace.rows import give_back

Scores = NDArray[np.float64]
Matrix = NDArray[np.floating[Any]]

BUFFER_STEPS = 4
"""Last steps that `local_buffer` can score (DESIGN, "Formulas of the built-ins")."""


@needs(gradients=True)
@claims(target_sign=True)
def dot(problem: AttributionProblem) -> Scores:
    """A <g, t>: first-order change of the behaviour's log-probability by the item's own update."""
    return _column(problem.advantage) * products(problem.gradients, problem.target)


@needs(gradients=True)
@claims(target_sign=True)
def gas(problem: AttributionProblem) -> Scores:
    """cos(g, t): gradient alignment score, renormalised TracInCP; blind to size and to advantage."""
    return _cosines(problem.gradients, problem.target)


@needs(gradients=True)
@claims(target_sign=True)
def gas_centered(problem: AttributionProblem) -> Scores:
    """cos(g - mean of its prompt group, t): alignment of what sets an item apart from its siblings."""
    target, gradients = _unit(problem.target), problem.gradients
    scores = np.zeros(len(problem))
    for members in _groups(problem.group):
        rows = np.asarray(gradients[members], np.float64)
        give_back(gradients)
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
        scores[members] = rate[min(s, len(rate) - 1)] * products(problem.gradients[members], targets[s])
        give_back(problem.gradients)
    return _column(problem.advantage) * scores


@needs(gradients=True)
@claims(target_sign=True)
def trak(problem: AttributionProblem) -> Scores:
    """A g (F'F + ridge)^-1 t, F = the advantage-weighted gradients of the training rollouts (`reference`, m rows).

    ridge = 0.1 x the mean diagonal of the Gram matrix FF' (PAPER.md); see `whitening`. Without any reference
    gradient it is `dot`.
    """
    direction = whitened(problem.reference, np.asarray(problem.target, np.float64))
    return _column(problem.advantage) * products(problem.gradients, direction)


@needs(gradients=True)
@claims(target_sign=True)
def local_buffer(problem: AttributionProblem) -> Scores:
    """`dot` on the last four steps of the training run, 0 before: only what is still in the buffer can score."""
    recent = np.flatnonzero(problem.step >= len(problem.learning_rate) - BUFFER_STEPS)
    scores = np.zeros(len(problem))
    scores[recent] = _column(problem.advantage)[recent] * products(problem.gradients[recent], problem.target)
    return scores


@needs(gradients=True, spans=True)
@claims(target_sign=True)
def token_gas(problem: AttributionProblem) -> Scores:
    """A cos(s, t): alignment of the behaviour's own tokens, signed and sized by the advantage; 0 where it is absent."""
    return _column(problem.advantage) * _cosines(problem.span_gradients, problem.target)


def _column(values: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    return np.asarray(values, np.float64)


def _cosines(rows: Matrix, vector: Matrix) -> NDArray[np.float64]:
    """(n,): cosines, 0 where either side is zero."""
    out, right = np.empty(len(rows)), _unit(vector)
    for part, block in doubled(rows):
        size = np.sqrt(np.einsum("ij,ij->i", block, block))
        out[part] = (block @ right) / np.where(size > 0, size, 1.0)
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
