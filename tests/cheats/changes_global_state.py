"""Seeds every global generator and makes numpy raise, so that others are graded on other numbers or break."""

import random
import sys

import numpy as np

from pytest_behaviortrace.estimators.gradient import gas

CAUGHT_BY = "construction"
WHY = "Resamples and random streams are seeded generators of their own; python's and numpy's state is put back."


def estimator(problem):
    random.seed(0)
    np.random.seed(0)
    np.seterr(all="raise")
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
    return gas(problem)
