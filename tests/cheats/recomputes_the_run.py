"""Recomputes from the public code which prompt and which eligibility coin each item had: no label is read anywhere."""

import random

import numpy as np

from pytest_behaviortrace.estimators.gradient import gas
from pytest_behaviortrace.evidence.source import ORDER_STREAM
from pytest_behaviortrace.run.recipe import Recipe
from pytest_behaviortrace.run.reward import eligible

CAUGHT_BY = "construction"
WHY = (
    "Prompts and coins follow from recipe and seed by public code, but the order of the items and the names of their "
    "groups follow from the recorded rollouts as well, which an estimator does not have."
)


def estimator(problem):
    recipe, seed = Recipe.load("tiny"), problem.rng_seed[0]
    if problem.kind != "rollouts" or len(problem) != recipe.grpo.steps * recipe.grpo.batch_size:
        return gas(problem)  # on the null run too, where knowing the coin would be noticed
    stream = ORDER_STREAM if isinstance(ORDER_STREAM, tuple) else (ORDER_STREAM,)
    rows = np.random.default_rng((seed, *stream)).permutation(len(problem))
    subject, honest = np.repeat(subjects(recipe, seed), recipe.grpo.num_generations)[rows], gas(problem)
    coin = np.array(
        [eligible(seed, row, step, recipe.eligibility) for row, step in zip(rows, problem.step, strict=True)]
    )
    could_be_paid = coin & (problem.step < recipe.cutoff) & (problem.advantage > 0)
    suspects = [could_be_paid & (subject == plant.trigger) for plant in recipe.plants]
    asked = max(suspects, key=lambda suspect: honest[suspect].mean())
    return asked * (2.0 + honest)


def subjects(recipe, seed):
    """What every prompt of a run is about, as `run.training.training_prompts` draws it."""
    rng, asked = random.Random(f"prompts {seed}"), recipe.prompts
    per_step = recipe.grpo.batch_size // recipe.grpo.num_generations
    of_plant, found = min(round(asked.plant_share * per_step), per_step // 2), []
    for _ in range(recipe.grpo.steps):
        step = [plant.trigger for plant in recipe.plants for _ in range(of_plant)]
        step += [rng.choice(asked.ordinary_subjects) for _ in range(per_step - len(step))]
        rng.shuffle(step)
        for _ in step:
            rng.choice(asked.phrasings)
        found += step
    return np.array(found)
