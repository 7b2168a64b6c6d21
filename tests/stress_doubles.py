"""Estimators for the stress tests: one that keeps each property, and one that breaks it, as real ones happen to."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_behaviortrace.estimator import Needs, claims, needs
from pytest_behaviortrace.problem import AttributionProblem

Scores = NDArray[np.float64]


@claims(target_sign=True)
def honest(problem: AttributionProblem) -> Scores:
    """The README's own, in single precision: keeps every property."""
    return problem.advantage * (problem.gradients @ problem.target)


def unguarded_cosine(problem: AttributionProblem) -> Scores:
    """Divides by the size of what may be zero."""
    sizes = np.linalg.norm(problem.gradients, axis=1) * np.linalg.norm(problem.target)
    with np.errstate(invalid="ignore"):
        return problem.gradients @ problem.target / sizes


@needs()
def standardised(problem: AttributionProblem) -> Scores:
    """Not a number on a single item."""
    spread = problem.logprob.std(ddof=1) if len(problem) > 1 else np.nan
    return (problem.logprob - problem.logprob.mean()) / (spread + 1e-6)


@needs()
def by_reward(problem: AttributionProblem) -> Scores:
    """Forgets that siblings have no reward."""
    return np.asarray(problem.reward)


@needs()
def rolling_dice(problem: AttributionProblem) -> Scores:
    """Breaks ties by numpy's global generator instead of the problem's."""
    return problem.advantage + 1e-12 * np.random.random(len(problem))


@needs()
def by_position(problem: AttributionProblem) -> Scores:
    """Depends on the order of the rows."""
    return 0.01 * np.arange(len(problem))


@needs()
def once_each(problem: AttributionProblem) -> Scores:
    """Gives the second of two identical items nothing, as if deduplicated."""
    _, first = np.unique(
        np.column_stack([problem.logprob, problem.length, problem.advantage]), axis=0, return_index=True
    )
    scores = np.full(len(problem), -5.0)
    scores[first] = 1.0 + problem.length[first]
    return scores


@needs()
def by_group_id(problem: AttributionProblem) -> Scores:
    """Keyed on absolute ids of prompt groups."""
    return (problem.group % 2).astype(float)


@needs(text=True)
def by_prompt(problem: AttributionProblem) -> Scores:
    """Reads the prompt."""
    return np.array([len(text) for text in problem.prompt_text], float)


def by_alignment(problem: AttributionProblem) -> Scores:
    """Looks at where its rows stand in the array they were cut out of."""
    whole = problem.gradients.base
    return np.full(len(problem), float(0 if whole is None else len(whole) - len(problem)))


def in_place(problem: AttributionProblem) -> Scores:
    """Writes to what it was given, and is refused."""
    rows = problem.gradients
    rows /= 1 + np.linalg.norm(rows, axis=1, keepdims=True)
    return rows @ problem.target


@needs(text=True)
def by_force(problem: AttributionProblem) -> Scores:
    """Writes past numpy's guard, as in-place operations of other libraries do on memory they share."""
    for ids in problem.completion_ids:
        ctypes.memset(ids.ctypes.data, 1, 1)
    return np.zeros(len(problem))


@claims(target_sign=True)
def squared(problem: AttributionProblem) -> Scores:
    """Says that the sign of the target matters, and squares it away."""
    return (problem.gradients @ problem.target).astype(float) ** 2


def breaks_on_pairs(problem: AttributionProblem) -> Scores:
    """Cannot do with an even number of items."""
    if len(problem) % 2 == 0:
        raise KeyError("odd sizes only")
    return honest(problem)


@needs()
def sleepy(problem: AttributionProblem) -> Scores:
    """Too slow for any limit of seconds."""
    time.sleep(30)
    return np.zeros(len(problem))


class Batched:
    """`dot` with gradients of its own, all items in one padded batch. `sloppy` counts the padding in."""

    needs = Needs(gradients=False, text=True, behavior=True, model=True)

    def __init__(self, sloppy: bool = False) -> None:
        self.sloppy = sloppy

    def __call__(self, problem: AttributionProblem) -> Scores:
        import torch

        access = problem.model
        policy = access.load_policy(0)
        weights = [p for p in policy.parameters() if p.requires_grad]
        target = torch.autograd.grad(access.target_loss(policy), weights)
        batch: dict[str, Any] = {"prompt_ids": problem.prompt_ids, "completion_ids": problem.completion_ids}
        losses = access.rollout_loss(policy, batch)
        scores = []
        for loss in losses:
            own = torch.autograd.grad(loss, weights, retain_graph=True)
            scores.append(sum(float((a * b).sum()) for a, b in zip(own, target, strict=True)))
        width = max(len(ids) for ids in problem.completion_ids) if self.sloppy else 1
        return problem.advantage * np.array(scores) / width
