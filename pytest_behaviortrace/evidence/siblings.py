"""Problems about fresh siblings and their token spans: never trained on, so advantage 1 and no reward."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from pytest_behaviortrace.estimator import Needs
from pytest_behaviortrace.evidence.records import CONTROL, F32, MATCHED, TRIGGER, Siblings, Spans
from pytest_behaviortrace.evidence.source import ORDER_STREAM, SCORE_STREAM, Source, lengths, mean_logprob
from pytest_behaviortrace.problem import AttributionProblem, IntArray, Kind

Folds = tuple[tuple[AttributionProblem, IntArray], ...]
Target = Callable[[int | None, int | None], F32]
"""(K,) from every draw but one (None: from all), and from the siblings of one half of the probes (None: of all)."""


def siblings(source: Source, seed: int, draw: int, about: str | None = None, target: Target | None = None) -> Siblings:
    """The siblings of one draw; their problem carries nothing that spells the behaviour (it is the label).

    `target`: what they are asked about, where that is not the behaviour; `about` then names it.
    """
    table = source.draw_table(seed, draw, source.plant.name)
    sketches = source.store.draw(seed, draw).sketches(f"siblings_{source.plant.name}")
    group, probe = np.asarray(table["group"]), np.asarray(table["probe"])
    n, everyone = len(group), np.arange(len(group))
    logprob, length, norm = mean_logprob(table, everyone), lengths(table, everyone), sketches.dense_norm(n)

    def problem(items: IntArray, asked: Callable[[], F32]) -> AttributionProblem:
        lazy = {
            "gradients": lambda: sketches.dense(n, items),
            "gradient_norm": norm[items],
            **source.gradient_parts(seed, asked, about or source.plant.name),
        }
        columns = {"group": group[items], "logprob": logprob[items], "length": length[items]}
        return untrained(source, "siblings", (seed, draw), lazy, Needs(gradients=True), **columns)

    shown = np.asarray(table["shown"], bool)
    folds = _folds(source, seed, draw, probe, (seed, draw, ORDER_STREAM), problem, target)
    key = ("siblings", seed, draw) if about is None else ("siblings", about, seed, draw)
    return Siblings(key, folds, shown, group, probe, logprob, length, norm)


def spans(source: Source, seed: int, draw: int) -> Spans:
    """The spans of the siblings that show the behaviour: trigger, control and fluency-matched."""
    plant = source.plant.name
    table, unit = source.draw_table(seed, draw, plant), source.store.draw(seed, draw)
    sets = {
        TRIGGER: (unit.sketches(f"sibling_spans_{plant}"), "span"),
        CONTROL: (unit.sketches(f"sibling_controls_{plant}"), "control_span"),
        MATCHED: (unit.sketches(f"sibling_matched_{plant}"), "matched_span"),
    }
    rows = np.concatenate([sketches.float32() for sketches, _ in sets.values()])
    norm = np.concatenate([np.asarray(sketches.norm) for sketches, _ in sets.values()])
    completion = np.concatenate([np.asarray(sketches.row) for sketches, _ in sets.values()])
    kind = np.concatenate([np.full(len(sketches), k) for k, (sketches, _) in sets.items()])
    tokens = [np.asarray(table[sets[k][1]][i], np.int64) for k, i in zip(kind, completion, strict=True)]
    logprob = np.array(
        [
            np.mean(np.asarray(table["logprobs"][i])[t], dtype=np.float64)
            for i, t in zip(completion, tokens, strict=True)
        ]
    )
    length = np.array([len(t) for t in tokens], np.int64)
    probe, group = np.asarray(table["probe"])[completion], np.asarray(table["group"])[completion]

    def problem(items: IntArray, target: Callable[[], F32]) -> AttributionProblem:
        lazy = {
            "gradients": rows[items],
            "span_gradients": rows[items],
            "gradient_norm": norm[items],
            **source.gradient_parts(seed, target, plant),
        }
        columns = {"group": group[items], "logprob": logprob[items], "length": length[items]}
        return untrained(source, "spans", (seed, draw), lazy, Needs(gradients=True, spans=True), **columns)

    folds = _folds(source, seed, draw, probe, (seed, draw, ORDER_STREAM, 2), problem)
    stratum = table["control_stratum"]
    code_word = np.array(
        [k == CONTROL and stratum[i] == "code_word" for k, i in zip(kind, completion, strict=True)], bool
    )
    in_context = [_cosines(rows[items][kind[items] == TRIGGER], fold.target) for fold, items in folds]
    constructed = None
    if source.has_written_targets:
        constructed = _mean(_cosines(rows[kind == TRIGGER], source.fixed_target(seed, "constructed", plant)))
    return Spans(
        ("spans", seed, draw), folds, completion, kind, probe, group, code_word, logprob, norm,
        _mean(np.concatenate(in_context)), constructed,
    )  # fmt: skip


def _folds(
    source: Source,
    seed: int,
    draw: int,
    probe: IntArray,
    stream: tuple[int, ...],
    problem: Callable[[IntArray, Callable[[], F32]], AttributionProblem],
    target: Target | None = None,
) -> Folds:
    """Items in random order with a target they had no part in: other draws', or with one draw the other half's."""
    plant = source.plant.name
    made = target or (lambda without, half: source.in_context_target(seed, plant, without, half))
    if source.draws > 1:
        items = source.shuffler(*stream).permutation(len(probe))
        return ((problem(items, lambda: made(draw, None)), items),)
    folds = []
    for half in (0, 1):
        items = source.shuffler(*stream, half).permutation(np.flatnonzero(probe % 2 == half))
        folds.append((problem(items, functools.partial(made, None, 1 - half)), items))
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
