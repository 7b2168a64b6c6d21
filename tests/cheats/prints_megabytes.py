"""Prints megabytes on every call, to drown the scorecard."""

import numpy as np

from pytest_behaviortrace.estimators import controls

CAUGHT_BY = "construction"
WHY = "Output is captured, shown for rows that failed only, and cut to its last 10,000 characters."


def estimator(problem):
    shout()
    return -np.arange(len(problem), dtype=float)


def passing(problem):
    """The same from a row that passes."""
    shout()
    return controls.advantage(problem)


def shout():
    for i in range(40_000):
        print(f"{i:>6} all is well, all is well, all is well, all is well, all is well, all is well, all is well")
