"""Returns the advantage, bent and with a trace of gradient, so that it looks like an attribution."""

import numpy as np

from pytest_behaviortrace.estimators.gradient import gas

CAUGHT_BY = "reward_control"
WHY = "Decoys are rewarded alike; what separates them from the ground truth must come from elsewhere."


def estimator(problem):
    return np.tanh(problem.advantage) ** 3 + 1e-6 * gas(problem)
