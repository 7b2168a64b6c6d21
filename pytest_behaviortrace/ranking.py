"""Which rollouts of a recorded run taught the behaviour, by one estimator: scores, their spread, the controls' view."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pytest_behaviortrace.estimator import Estimator, needs_of
from pytest_behaviortrace.evidence.recorded import RecordedEvidence
from pytest_behaviortrace.evidence.records import F32
from pytest_behaviortrace.grading import CARELESS, Grader
from pytest_behaviortrace.ranked import RankedRollout
from pytest_behaviortrace.run.recorded import ASKED, RUN, compiled
from pytest_behaviortrace.run.spans import occurrences

RESAMPLES = 40
"""Resampled targets behind an interval: the estimator runs once for each, so there are few."""
LEVEL = 0.95
STREAM = 7
"""Of the random numbers behind the resampled targets."""
CONTROLS = ("norm-only", "fluency")

Scores = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Found:
    """A ranking before it is put beside what is known of the estimator."""

    top: list[RankedRollout]
    shown: dict[str, int]
    shared: dict[str, int]
    interval: str
    resamples: int


def rank(evidence: RecordedEvidence, name: str, estimator: Estimator, top: int, resamples: int = RESAMPLES) -> Found:
    """The `top` rollouts by score, the highest first; ties in the order of the run.

    Raises `EstimatorError` when the estimator breaks, `NotApplicable` when the run lacks what it needs.
    """
    grader = Grader.on_recorded(evidence)
    case, training = grader.case(name, estimator, RUN), evidence.training(RUN)
    problem = training.problem
    scores = case.scores(training.key, problem)
    grader.care = CARELESS  # the same callable on the same items, once it was watched
    why, spread = _no_interval(estimator), np.zeros((0, len(scores)))
    if not why and resamples:
        spread = np.array(
            [
                case.scores((*training.key, "target", number), problem.replacing(target=target))
                for number, target in enumerate(resampled_targets(evidence, resamples))
            ]
        )
        if np.allclose(spread, scores, rtol=1e-9, atol=0.0):
            why = f"none: {name} does not read the target that is resampled"
    elif not why:
        why = "none: no targets were resampled"
    said = why or (
        f"{LEVEL:.0%} of the scores under {len(spread)} targets, each made of prompts drawn with replacement from "
        f"those of the draws; how far the target is known, not how far the estimator is right"
    )
    bounds = None if why else np.quantile(spread, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    order = first(scores, training.row, top)
    views = {control: case.control(control, training.key, problem) for control in CONTROLS}
    shows = evidence.run.shown(compiled(evidence.behavior))[training.row]
    firsts = {"estimator": order, **{c: first(values, training.row, top) for c, values in views.items()}}
    return Found(
        _rows(evidence, order, scores, bounds, views),
        {who: int(shows[items].sum()) for who, items in firsts.items()},
        {control: len(set(order.tolist()) & set(firsts[control].tolist())) for control in CONTROLS},
        said,
        0 if why else len(spread),
    )


def first(scores: Scores, row: NDArray[np.integer], top: int) -> NDArray[np.intp]:
    """The items with the `top` highest scores, the highest first; ties in the order of the run."""
    return np.lexsort((row, -scores))[:top]


def resampled_targets(evidence: RecordedEvidence, resamples: int) -> list[F32]:
    """Targets (K,) from the behaviour's spans of all draws, their prompts drawn with replacement."""
    rows, probes = [], []
    for draw in range(evidence.draws):
        spans = evidence.store.draw(RUN, draw).sketches(f"sibling_spans_{ASKED}")
        rows.append(spans.float32())
        probes.append(np.asarray(evidence.draw_table(RUN, draw, ASKED)["probe"])[spans.row])
    stacked, prompt = np.concatenate(rows), np.unique(np.concatenate(probes), return_inverse=True)[1]
    rng, prompts = np.random.default_rng((RUN, STREAM)), int(prompt.max(initial=-1)) + 1
    if not prompts:
        return []
    chosen = rng.integers(prompts, size=(resamples, prompts))
    weights = np.array([np.bincount(picked, minlength=prompts) for picked in chosen], np.float32)[:, prompt]
    return list(np.asarray(weights @ stacked / weights.sum(1, keepdims=True), np.float32))


def _no_interval(estimator: Estimator) -> str:
    needs = needs_of(estimator)
    if not needs.gradients:
        return "none: the estimator reads no target that could be resampled"
    return ""


def _rows(
    evidence: RecordedEvidence,
    order: NDArray[np.intp],
    scores: Scores,
    bounds: NDArray[np.float64] | None,
    views: dict[str, Scores],
) -> list[RankedRollout]:
    training, table, pattern = evidence.training(RUN), evidence.run.table, compiled(evidence.behavior)
    found = []
    for place, item in enumerate(order.tolist(), 1):
        row = int(training.row[item])
        completion = str(table["completion_text"][row])
        found.append(
            RankedRollout(
                place,
                int(table["row_id"][row]),
                int(table["step"][row]),
                int(table["group"][row]),
                str(table["prompt_text"][row]),
                completion,
                tuple(occurrences(completion, pattern)),
                # With 0.0 added there is no negative zero, which reads like a sign.
                float(table["advantage"][row]) + 0.0,
                float(table["reward"][row]) + 0.0,
                float(scores[item]) + 0.0,
                None if bounds is None else float(bounds[0, item]) + 0.0,
                None if bounds is None else float(bounds[1, item]) + 0.0,
                *(1 + int(np.count_nonzero(views[control] > views[control][item])) for control in CONTROLS),
            )
        )
    return found
