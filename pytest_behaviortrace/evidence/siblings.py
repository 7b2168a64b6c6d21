"""Problems about fresh siblings and their token spans: never trained on, so advantage 1 and no reward."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from pytest_behaviortrace.estimator import Needs
from pytest_behaviortrace.evidence.records import F32, Siblings, Spans
from pytest_behaviortrace.evidence.source import ORDER_STREAM, SCORE_STREAM, Source, lengths, mean_logprob
from pytest_behaviortrace.problem import AttributionProblem, IntArray, Kind

Folds = tuple[tuple[AttributionProblem, IntArray], ...]


def siblings(source: Source, seed: int, draw: int) -> Siblings:
    """The siblings of one draw; their problem carries nothing that spells the behaviour (it is the label)."""
    table = source.draw_table(seed, draw, source.plant.name)
    sketches = source.store.draw(seed, draw).sketches(f"siblings_{source.plant.name}")
    group, probe = np.asarray(table["group"]), np.asarray(table["probe"])
    n, everyone = len(group), np.arange(len(group))
    logprob, length, norm = mean_logprob(table, everyone), lengths(table, everyone), sketches.dense_norm(n)

    def problem(items: IntArray, target: Callable[[], F32]) -> AttributionProblem:
        lazy = {
            "gradients": lambda: sketches.dense(n)[items],
            "gradient_norm": norm[items],
            **source.gradient_parts(seed, target, source.plant.name),
        }
        columns = {"group": group[items], "logprob": logprob[items], "length": length[items]}
        return untrained(source, "siblings", (seed, draw), lazy, Needs(gradients=True), **columns)

    shown = np.asarray(table["shown"], bool)
    folds = _folds(source, seed, draw, probe, (seed, draw, ORDER_STREAM), problem)
    return Siblings(("siblings", seed, draw), folds, shown, group, probe, logprob, length, norm)


def spans(source: Source, seed: int, draw: int) -> Spans:
    """Trigger and control spans of the siblings that have both; item 2c is the trigger span of completion c."""
    plant = source.plant.name
    table, unit = source.draw_table(seed, draw, plant), source.store.draw(seed, draw)
    trigger, control = unit.sketches(f"sibling_spans_{plant}"), unit.sketches(f"sibling_controls_{plant}")
    both, at_trigger, at_control = np.intersect1d(trigger.row, control.row, return_indices=True)
    rows = np.empty((2 * len(both), trigger.width), np.float32)
    rows[0::2], rows[1::2] = trigger.float32(at_trigger), control.float32(at_control)
    norm = np.empty(2 * len(both), np.float32)
    norm[0::2], norm[1::2] = trigger.norm[at_trigger], control.norm[at_control]
    logprob, length = np.empty(2 * len(both)), np.empty(2 * len(both), np.int64)
    for c, i in enumerate(both):
        for k, column in enumerate(("span", "control_span")):
            where = np.asarray(table[column][i], np.int64)
            logprob[2 * c + k] = np.mean(np.asarray(table["logprobs"][i])[where], dtype=np.float64)
            length[2 * c + k] = len(where)
    probe, group = np.asarray(table["probe"])[both], np.repeat(np.asarray(table["group"])[both], 2)

    def problem(items: IntArray, target: Callable[[], F32]) -> AttributionProblem:
        lazy = {
            "gradients": rows[items],
            "span_gradients": rows[items],
            "gradient_norm": norm[items],
            **source.gradient_parts(seed, target, plant),
        }
        columns = {"group": group[items], "logprob": logprob[items], "length": length[items]}
        return untrained(source, "spans", (seed, draw), lazy, Needs(gradients=True, spans=True), **columns)

    folds = _folds(source, seed, draw, np.repeat(probe, 2), (seed, draw, ORDER_STREAM, 2), problem)
    code_word = np.array([table["control_stratum"][i] == "code_word" for i in both], bool)
    in_context = [_cosines(rows[items][items % 2 == 0], fold.target) for fold, items in folds]
    constructed = _cosines(rows[0::2], source.fixed_target(seed, "constructed", plant))
    return Spans(
        ("spans", seed, draw), folds, probe, code_word, logprob, norm,
        _mean(np.concatenate(in_context)), _mean(constructed),
    )  # fmt: skip


def _folds(
    source: Source,
    seed: int,
    draw: int,
    probe: IntArray,
    stream: tuple[int, ...],
    problem: Callable[[IntArray, Callable[[], F32]], AttributionProblem],
) -> Folds:
    """Items in random order with a target they had no part in: other draws', or with one draw the other half's."""
    plant = source.plant.name
    if source.draws > 1:
        items = np.random.default_rng(stream).permutation(len(probe))
        return ((problem(items, lambda: source.in_context_target(seed, plant, without=draw)), items),)
    folds = []
    for half in (0, 1):
        items = np.random.default_rng((*stream, half)).permutation(np.flatnonzero(probe % 2 == half))
        target = functools.partial(source.in_context_target, seed, plant, half=1 - half)
        folds.append((problem(items, target), items))
    return tuple(folds)


def untrained(
    source: Source, kind: Kind, place: tuple[int, int], lazy: dict[str, Any], carried: Needs, **columns: Any
) -> AttributionProblem:
    """A problem about items generated at the analysis policy; `place` is their seed and draw."""
    unit, n = source.store.seed(place[0]), len(columns["group"])
    return AttributionProblem(
        kind=kind,
        loss_type=unit.facts["loss_type"],
        loss_scale=np.full(n, float(np.mean(unit.array("loss_scale")))),
        step=np.full(n, source.recipe.analysis_step),
        advantage=np.ones(n),
        reward=np.full(n, np.nan),
        learning_rate=np.asarray(unit.array("learning_rate"), np.float64),
        rng_seed=(*place, SCORE_STREAM),
        carried=carried,
        lazy=lazy,
        **columns,
    )


def _cosines(rows: F32, target: F32) -> F32:
    scale = np.linalg.norm(rows, axis=1) * np.linalg.norm(target)
    return np.asarray(np.divide(rows @ target, scale, out=np.zeros(len(rows), np.float32), where=scale > 0))


def _mean(values: F32) -> float:
    return float(values.mean()) if len(values) else 0.0
