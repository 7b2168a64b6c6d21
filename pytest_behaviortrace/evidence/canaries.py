"""Problems that show which parameters an estimator sees: synthetic gradients, and policies cut down to one block."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_behaviortrace.estimator import Needs
from pytest_behaviortrace.evidence.records import F32, BlockProblem, Canaries, Rollouts, Training
from pytest_behaviortrace.evidence.siblings import untrained
from pytest_behaviortrace.evidence.source import (
    CANARY_STREAM,
    SCORE_STREAM,
    Source,
    lengths,
    masks,
    mean_logprob,
    texts,
)
from pytest_behaviortrace.problem import AttributionProblem
from pytest_behaviortrace.rows import picked


def heavy_blocks(source: Source, seed: int, least_share: float) -> tuple[str, ...]:
    """Blocks that hold at least `least_share` of the in-context target's squared norm."""
    target = source.in_context_target(seed, source.plant.name)
    total = float(target @ target)
    return tuple(
        name
        for name, part in source.blocks(seed).items()
        if total > 0 and float(target[part] @ target[part]) >= least_share * total
    )


def canaries(source: Source, seed: int, base: Rollouts | Training, per_block: int, least_share: float) -> Canaries:
    """Training rollouts plus `per_block` positive and negative canaries for every heavy block.

    Positive: the target's own gradient in the block, plus noise of that norm elsewhere. Negative: a random direction of
    the same norm in the block, plus the same noise. Advantage 1, span gradient = gradient, one group of their own.
    """
    target, blocks = source.in_context_target(seed, source.plant.name), source.blocks(seed)
    heavy = heavy_blocks(source, seed, least_share)
    rng = np.random.default_rng((seed, CANARY_STREAM))
    made, norms = np.zeros((len(heavy), 2, per_block, len(target))), np.zeros((len(heavy), 2, per_block))
    for b, name in enumerate(heavy):
        part = blocks[name]
        size = float(np.linalg.norm(target[part]))
        noise = rng.standard_normal((per_block, len(target)))
        noise[:, part] = 0.0
        made[b] = noise * size / np.linalg.norm(noise, axis=1, keepdims=True)
        made[b, 0][:, part] = target[part]
        made[b, 1][:, part] = _direction(rng, per_block, part) * size
        norms[b] = size * np.sqrt(2.0)
    order = source.shuffler(seed, CANARY_STREAM, 2).permutation(len(base.problem) + norms.size)  # place says nothing
    rows = made.reshape(-1, len(target)).astype(np.float32)
    problem = _appended(source, seed, base.problem, rows, norms.ravel(), order)
    base_place, place = np.split(np.argsort(order), [len(base.problem)])
    place = place.reshape(norms.shape)
    return Canaries(("canaries", seed), problem, heavy, place[:, 0], place[:, 1], base_place)


def _direction(rng: np.random.Generator, count: int, part: slice) -> NDArray[np.float64]:
    """(count, buckets of the block): random unit vectors."""
    rows = rng.standard_normal((count, part.stop - part.start))
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def _appended(
    source: Source,
    seed: int,
    old: AttributionProblem,
    rows: F32,
    norms: NDArray[np.float64],
    order: NDArray[np.int64],
) -> AttributionProblem:
    """The training rollouts' problem with more gradients among it, at the analysis step, in the order given."""

    def join(values: Any, fill: float) -> Any:
        return np.concatenate([values, np.full(len(rows), fill, values.dtype)])[order]

    target = source.in_context_target(seed, source.plant.name)
    return AttributionProblem(
        kind="canaries",
        loss_type=old.loss_type,
        loss_scale=join(old.loss_scale, float(old.loss_scale.mean())),
        step=join(old.step, source.recipe.analysis_step),
        group=join(old.group, int(old.group.max()) + 1),
        advantage=join(old.advantage, 1.0),
        reward=join(old.reward, np.nan),
        logprob=join(old.logprob, float(old.logprob.mean())),
        length=join(old.length, int(old.length.mean())),
        learning_rate=old.learning_rate,
        rng_seed=(seed, CANARY_STREAM, SCORE_STREAM),
        carried=Needs(gradients=True, spans=old.carried.spans),
        lazy={
            "gradients": lambda: picked(old.gradients, rows, order),
            "span_gradients": lambda: picked(old.span_gradients, rows, order),
            "gradient_norm": lambda: np.concatenate([old.gradient_norm, norms.astype(np.float32)])[order],
            **source.gradient_parts(seed, lambda: target, source.plant.name),
        },
    )


def block_problems(source: Source, seed: int, least_share: float, count: int) -> list[BlockProblem]:
    """For each heavy block: `count` siblings with their text, and policies in which only that block requires grad."""
    plant, draw = source.plant, 0
    table = source.draw_table(seed, draw, plant.name)
    index = np.random.default_rng((seed, CANARY_STREAM, 1)).permutation(len(table["group"]))[:count]
    problems = []
    for block in heavy_blocks(source, seed, least_share):
        access = source.model(seed, plant.name, without_draw=draw, only_block=block)
        lazy = {
            **texts(table, index),
            "behavior": plant.behavior,
            "behavior_mask": masks(table, index, "span"),
            "model": access,
        }
        columns = {
            "group": np.asarray(table["group"])[index],
            "logprob": mean_logprob(table, index),
            "length": lengths(table, index),
        }
        carried = Needs(gradients=False, text=True, behavior=True, model=True)
        problem = untrained(source, "siblings", (seed, draw), lazy, carried, **columns)
        exact = access().block_dots(problem.prompt_ids, problem.completion_ids)
        problems.append(BlockProblem(("block", block, seed), problem, block, np.asarray(exact, np.float64)))
    return problems
