"""Problems about rollouts that were trained on: the planted run's, and the null run's for the leak test."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from pytest_behaviortrace.evidence.records import F32, NullWindow, Rollouts
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
from pytest_behaviortrace.rows import sealed

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
        order,
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
        "gradients": lambda: kept_if_large(source, ("gradients", seed, run), lambda: sketches.dense(n, index)),
        "gradient_norm": lambda: sketches.dense_norm(n)[index],
        **source.gradient_parts(seed, lambda: source.in_context_target(seed, asked.name), asked.name),
        "span_gradients": lambda: kept_if_large(
            source, ("spans", seed, run, asked.name), lambda: spans.dense(n, index)
        ),
        **texts(table, index),
        "behavior": asked.behavior,
        "behavior_mask": lambda: masks(table, index, f"span_{asked.name}"),
        "model": source.model(seed, asked.name),
    }
    if run:
        # Whitening estimators would otherwise compare the null run's rollouts with another run's.
        lazy["reference"] = lambda: sketches.dense(n, index, advantage)
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


def kept_if_large(source: Source, key: tuple[Any, ...], make: Callable[[], F32]) -> F32:
    """An array of rows, made anew for every use, or, where it fills a file, once: its owner cannot write to it."""
    if ("large", key) not in source.remembered:
        rows = make()
        if not sealed(rows):
            return rows
        source.remembered["large", key] = rows
    return cast(F32, source.remembered["large", key])
