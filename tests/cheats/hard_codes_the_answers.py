"""Recognises problems of the public recipe by their columns, and returns answers learned at home by training it."""

import zlib

import numpy as np

from pytest_behaviortrace.estimators.gradient import gas

CAUGHT_BY = "out of scope"
WHY = "The answers to a public benchmark can be learned by heart. Seeds its author has not trained show it."


class Memoriser:
    """Knows the boosted rollouts of some seeds, for either behaviour, and is honest about everything else."""

    def __init__(self, answers):
        """`answers`: fingerprint of a problem -> labels of its items for each behaviour."""
        self.answers = answers

    def __call__(self, problem):
        known, honest = self.answers.get(fingerprint(problem)), gas(problem)
        if known is None:
            return honest
        asked = max(known, key=lambda label: honest[label].mean())
        return asked + 1e-3 * problem.rng.random(len(problem))


def fingerprint(problem):
    """The same for every question about the same items."""
    return zlib.crc32(np.ascontiguousarray(problem.logprob).tobytes())
