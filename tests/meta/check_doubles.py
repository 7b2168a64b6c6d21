"""Estimators that only tests have: the oracle, which reads the labels from the test's own store, and named cheats."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_behaviortrace.estimator import Needs, needs
from pytest_behaviortrace.estimators import controls, gradient, surface
from pytest_behaviortrace.evidence import TRIGGER, EvidenceStore
from pytest_behaviortrace.problem import AttributionProblem

Scores = NDArray[np.float64]


class Oracle:
    """Knows the answer to every problem of one store: 1 for what the label calls responsible, plus a little noise.

    It tells problems apart by what any estimator sees (kind, size, stream of random numbers, target), then looks the
    labels up in its own evidence store.
    """

    needs = Needs(gradients=True)

    def __init__(self, evidence: EvidenceStore, wrong_seeds: tuple[int, ...] = (), noise: float = 1e-3) -> None:
        self.evidence, self.wrong_seeds, self.noise = evidence, wrong_seeds, noise

    def __call__(self, problem: AttributionProblem) -> Scores:
        scores = self._labels(problem) + self.noise * problem.rng.random(len(problem))
        return -scores if problem.rng_seed[0] in self.wrong_seeds else scores

    def _labels(self, problem: AttributionProblem) -> Scores:
        evidence, seed = self.evidence, problem.rng_seed[0]
        if problem.kind == "canaries":
            unit = problem.gradients / np.linalg.norm(problem.gradients, axis=1, keepdims=True).clip(1e-30)
            return np.asarray(unit @ problem.target, np.float64)
        if problem.kind == "siblings":
            siblings = evidence.siblings(seed, problem.rng_seed[1])
            return self._of_fold(problem, siblings.problems, siblings.shown)
        if problem.kind == "spans":
            spans = evidence.spans(seed, problem.rng_seed[1])
            return self._of_fold(problem, spans.problems, spans.kind == TRIGGER)
        rollouts = evidence.rollouts(seed)
        if len(problem) != len(rollouts.problem):
            return np.zeros(len(problem))  # the null run: nothing was taught there
        graded = evidence.in_context_target(seed, evidence.plant.name)
        topical = [rollouts.topic, evidence.topic(seed, evidence.decoy.name)]
        others = [evidence.fixed_target(seed, kind, evidence.plant.name) for kind in ("constructed", "minimal_pair")]
        asks_graded = any(np.array_equal(problem.target, t) for t in (graded, topical[0], *others))
        return np.asarray(rollouts.truth if asks_graded else rollouts.decoy, np.float64)

    @staticmethod
    def _of_fold(problem: AttributionProblem, folds: Any, labels: Any) -> Scores:
        for fold, items in folds:
            if len(fold) == len(problem) and np.array_equal(fold.logprob, problem.logprob):
                return np.asarray(labels[items], np.float64)
        raise AssertionError("a problem that the oracle's own store does not have")


def negative_advantage(problem: AttributionProblem) -> Scores:
    """The advantage turned round."""
    return -problem.advantage


negative_advantage.needs = Needs(gradients=False)  # type: ignore[attr-defined]


@needs()
def rank_of_fluency(problem: AttributionProblem) -> Scores:
    """Only the order of the fluencies."""
    return np.argsort(np.argsort(problem.logprob)).astype(np.float64)


@needs()
def step(problem: AttributionProblem) -> Scores:
    """Late rollouts first."""
    return problem.step.astype(np.float64)


def advantage_and_a_little_cosine(problem: AttributionProblem) -> Scores:
    """Reward in disguise: an attribution small enough to break ties only."""
    return controls.advantage(problem) + 1e-6 * gradient.gas(problem)


def prompt_topic(problem: AttributionProblem) -> Scores:
    """Cosine with the mean gradient of the training rollouts: what the run was about, not what was asked."""
    return gradient.gas(problem.replacing(target=np.asarray(problem.reference.mean(0))))


def ignores_its_target(problem: AttributionProblem) -> Scores:
    """A cosine with a fixed direction, whatever is asked."""
    fixed = np.random.default_rng(0).standard_normal(problem.gradients.shape[1]).astype(np.float32)
    return gradient.gas(problem.replacing(target=fixed))


def first_tenth(problem: AttributionProblem) -> Scores:
    """`dot` on the first tenth of the buckets: most parameter blocks are never looked at."""
    keep = problem.gradients.shape[1] // 10
    return problem.advantage * (problem.gradients[:, :keep] @ problem.target[:keep])


class BlindTo:
    """`dot` that leaves one parameter block out."""

    needs = Needs(gradients=True)

    def __init__(self, block: str) -> None:
        self.block = block

    def __call__(self, problem: AttributionProblem) -> Scores:
        rows, target = np.array(problem.gradients), np.array(problem.target)
        rows[:, problem.blocks[self.block]] = 0.0
        return problem.advantage * (rows @ target)


class OwnGradients:
    """`dot` by autograd on the policies a problem offers, over the parameters that require grad; no sketch.

    `deaf` gives a constant, as a library does that hooks other layers than the one left trainable.
    """

    needs = Needs(gradients=False, text=True, behavior=True, model=True)

    def __init__(self, analysis_step: int, deaf: bool = False) -> None:
        self.analysis_step, self.deaf = analysis_step, deaf

    def __call__(self, problem: AttributionProblem) -> Scores:
        import torch

        if self.deaf:
            return np.zeros(len(problem))
        access = problem.model
        policy = access.load_policy(self.analysis_step)
        trained = [p for p in policy.parameters() if p.requires_grad]
        target = torch.autograd.grad(access.target_loss(policy), trained, allow_unused=True)
        scores = []
        for prompt, completion in zip(problem.prompt_ids, problem.completion_ids, strict=True):
            loss = access.rollout_loss(policy, {"prompt_ids": [prompt], "completion_ids": [completion]}).sum()
            own = torch.autograd.grad(loss, trained, allow_unused=True)
            scores.append(sum(float((a * b).sum()) for a, b in zip(own, target, strict=True) if a is not None))
        return problem.advantage * np.array(scores)


CHEATS = {
    "norm-only": controls.norm_only,
    "fluency": controls.fluency,
    "rank-of-fluency": rank_of_fluency,
    "length": controls.length,
    "advantage": controls.advantage,
    "negative-advantage": negative_advantage,
    "step": step,
    "prompt-topic": prompt_topic,
    "advantage-and-a-little-cosine": advantage_and_a_little_cosine,
    "string-match": surface.string_match,
    "random": controls.random,
    "ignores-its-target": ignores_its_target,
    "first-tenth": first_tenth,
}
"""Worthless scores; none may pass the checklist, and each has a check that fails it."""
