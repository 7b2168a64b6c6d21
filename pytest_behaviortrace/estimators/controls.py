"""Controls: scores that know no target, which an estimator must beat where a check names them (DESIGN, "Words").

Every function returns one float64 per item, (n,).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pytest_behaviortrace.estimator import claims, needs
from pytest_behaviortrace.problem import AttributionProblem

Scores = NDArray[np.float64]


@needs(gradients=True)
def norm_only(problem: AttributionProblem) -> Scores:
    """Size of the item's full gradient, exact (PAPER.md, P1)."""
    return np.asarray(problem.gradient_norm, np.float64)


@needs(gradients=True)
def update_magnitude(problem: AttributionProblem) -> Scores:
    """|advantage| x gradient size: how far the item moved the policy, whereto unasked."""
    return np.asarray(np.abs(problem.advantage) * np.asarray(problem.gradient_norm, np.float64), np.float64)


@needs()
def advantage(problem: AttributionProblem) -> Scores:
    """How much better than its group the item was rewarded."""
    return np.array(problem.advantage, np.float64)


@needs()
def fluency(problem: AttributionProblem) -> Scores:
    """Mean log-probability of the completion, nats per token (PAPER.md, P5)."""
    return np.array(problem.logprob, np.float64)


@needs()
def length(problem: AttributionProblem) -> Scores:
    """Completion tokens."""
    return np.array(problem.length, np.float64)


@needs()
@claims(permutation=False, duplicates=False)
def random(problem: AttributionProblem) -> Scores:
    """Uniform numbers from the problem's own generator: the same on every call."""
    return problem.rng.random(len(problem))
