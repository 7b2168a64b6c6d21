"""Problems about rollouts that were trained on: the planted run's, and the null run's for the leak test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_behaviortrace.evidence.records import NullWindow, Rollouts
from pytest_behaviortrace.evidence.source import (
    NULL_STREAM,
    ORDER_STREAM,
    SCORE_STREAM,
    Source,
    flags,
    lengths,
    masks,
    mean_logprob,
    texts,
)
from pytest_behaviortrace.problem import AttributionProblem, IntArray

if TYPE_CHECKING:
    from pytest_behaviortrace.run.recipe import Plant


def rollouts(source: Source, seed: int, asked: Plant) -> Rollouts:
    """Every training rollout of a seed, asked about `asked`; the labels are always those of the graded plant.

    Items stand in a random order, the same for both plants, so that their place says nothing.
    """
    table = source.table(seed, "rollouts")
    n = len(table["step"])
    order = source.shuffler(seed, ORDER_STREAM).permutation(n)
    own, shown = flags(table, "own", source.plant), flags(table, "shown", source.plant)
    window = np.asarray(table["step"]) < source.recipe.cutoff
    eligible = np.asarray(table["eligible"], bool)
    return Rollouts(
        ("rollouts", seed, asked.name),
        _problem(source, seed, "", order, asked),
        window[order],
        flags(table, "boosted", source.plant)[order],
        flags(table, "boosted", source.decoy)[order],
        (own & shown & window & ~eligible)[order],
        own[order],
        source.topic(seed, asked.name),
    )


def null_window(source: Source, seed: int) -> NullWindow:
    """The null run's rollouts that show the graded behaviour on its own prompts inside the window."""
    table = source.table(seed, "null_rollouts")
    inside = np.asarray(table["step"]) < source.recipe.cutoff
    picked = flags(table, "own", source.plant) & flags(table, "shown", source.plant) & inside
    index = source.shuffler(seed, NULL_STREAM).permutation(np.flatnonzero(picked))
    problem = _problem(source, seed, "null_", index, source.plant)
    return NullWindow(("null", seed), problem, np.asarray(table["eligible"], bool)[index])


def _problem(source: Source, seed: int, run: str, index: IntArray, asked: Plant) -> AttributionProblem:
    """The rows at `index` of a run ("": planted, "null_": null)."""
    unit, table = source.store.seed(seed), source.table(seed, f"{run}rollouts")
    n, group = len(table["step"]), np.asarray(table["group"])
    advantage = np.asarray(table["advantage"], np.float64)[index]
    group_names = source.shuffler(seed, ORDER_STREAM, 1).permutation(int(group.max()) + 1)
    sketches, spans = unit.sketches(f"{run}gradients"), unit.sketches(f"{run}spans_{asked.name}")
    lazy: dict[str, Any] = {
        "gradients": lambda: sketches.dense(n)[index],
        "gradient_norm": lambda: sketches.dense_norm(n)[index],
        **source.gradient_parts(seed, lambda: source.in_context_target(seed, asked.name), asked.name),
        "span_gradients": lambda: spans.dense(n)[index],
        **texts(table, index),
        "behavior": asked.behavior,
        "behavior_mask": lambda: masks(table, index, f"span_{asked.name}"),
        "model": source.model(seed, asked.name),
    }
    if run:
        # Whitening estimators would otherwise compare the null run's rollouts with another run's.
        lazy["reference"] = lambda: sketches.dense(n)[index] * advantage[:, None].astype(np.float32)
    return AttributionProblem(
        kind="rollouts",
        loss_type=unit.facts["loss_type"],
        loss_scale=np.asarray(unit.array(f"{run}loss_scale"), np.float64)[index],
        step=np.asarray(table["step"])[index],
        group=group_names[group[index]],
        advantage=advantage,
        reward=np.asarray(table["reward"], np.float64)[index],
        logprob=mean_logprob(table, index),
        length=lengths(table, index),
        learning_rate=np.asarray(unit.array("learning_rate"), np.float64),
        rng_seed=(seed, SCORE_STREAM),
        lazy=lazy,
    )
