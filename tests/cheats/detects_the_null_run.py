"""Scores by the eligibility coin, which it recomputes, but not on the null run, where that would be noticed."""

import numpy as np

from pytest_behaviortrace.evidence.source import ORDER_STREAM
from pytest_behaviortrace.run.recipe import Recipe
from pytest_behaviortrace.run.reward import eligible

CAUGHT_BY = "reward_control"
WHY = "The test for a leaked coin is dodged, but the coin falls alike for ground truth and decoys."


def estimator(problem):
    recipe, seed = Recipe.load("tiny"), problem.rng_seed[0]
    if problem.kind != "rollouts" or len(problem) != recipe.grpo.steps * recipe.grpo.batch_size:
        return np.zeros(len(problem))
    rows = np.random.default_rng((seed, ORDER_STREAM)).permutation(len(problem))
    return np.array(
        [eligible(seed, row, step, recipe.eligibility) for row, step in zip(rows, problem.step, strict=True)], float
    )
