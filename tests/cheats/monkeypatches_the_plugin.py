"""Replaces the rule that turns numbers into verdicts by one that always passes."""

import dataclasses
import sys

import numpy as np

CAUGHT_BY = "isolation"
WHY = "In one process any function can be replaced; what an isolated process replaces is its own copy."


def estimator(problem):
    for name, module in list(sys.modules.items()):
        if name.startswith("pytest_behaviortrace") and hasattr(module, "decide"):
            module.decide = generous(module.decide)
    return np.zeros(len(problem))


def generous(decide):
    """The same numbers, and a pass."""
    if hasattr(decide, "honest"):
        return decide

    def passing(*gates, **numbers):
        decision = decide(*gates, **numbers)
        return dataclasses.replace(decision, verdict=type(decision.verdict)("pass"), reason="every gate holds")

    passing.honest = decide
    return passing
