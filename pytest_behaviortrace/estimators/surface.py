"""Surface heuristics: no gradient, only the text. Reported beside the controls, never gated on (DESIGN, "Words").

With a behaviour of a few tokens, string match x advantage nearly reproduces the ground truth: reading the text and the
reward is enough when the cause is that simple.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pytest_behaviortrace.estimator import needs
from pytest_behaviortrace.problem import AttributionProblem

Scores = NDArray[np.float64]


@needs(text=True, behavior=True)
def string_match(problem: AttributionProblem) -> Scores:
    """1 where the completion contains the behaviour, else 0. Shape (n,)."""
    return np.array([problem.behavior in text for text in problem.completion_text], np.float64)


@needs(text=True, behavior=True)
def string_match_advantage(problem: AttributionProblem) -> Scores:
    """The advantage where the completion contains the behaviour, else 0. Shape (n,)."""
    return string_match(problem) * np.asarray(problem.advantage, np.float64)
