"""Walks up the frames of its callers to the evidence of the session, and returns the labels it finds there."""

import sys

import numpy as np

from pytest_behaviortrace.estimators.gradient import gas

CAUGHT_BY = "isolation"
WHY = "In one process every object is in reach; an isolated process has no such callers."


def estimator(problem):
    evidence = above("evidence")
    if evidence is None or problem.kind != "rollouts":
        return gas(problem)
    rollouts = evidence.rollouts(problem.rng_seed[0])
    if len(problem) != len(rollouts.truth):
        return np.zeros(len(problem))
    honest = gas(problem)
    asked = max((rollouts.truth, rollouts.decoy), key=lambda label: honest[label].mean())
    return asked + 1e-3 * problem.rng.random(len(problem))


def above(name):
    """The attribute of that name of any `self` up the stack."""
    frame = sys._getframe()
    while frame is not None:
        found = getattr(frame.f_locals.get("self"), name, None)
        if found is not None:
            return found
        frame = frame.f_back
    return None
