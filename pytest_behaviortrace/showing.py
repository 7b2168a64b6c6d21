"""What checks offer to reports with pictures: curves, clouds, and the rollouts at the top of a ranking.

Everything here is called after a row was decided and decides nothing. Numbers are rounded and lists thinned.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pytest_behaviortrace import statistics
from pytest_behaviortrace.evidence import CONTROL, MATCHED, EvidenceStore, Rollouts, Siblings
from pytest_behaviortrace.evidence.source import flags
from pytest_behaviortrace.exhibit import (
    Curve,
    Exhibit,
    FluencyCloud,
    GateShown,
    PrecisionAtK,
    SpanScores,
    plain,
    thinned,
)
from pytest_behaviortrace.gates import Replicated
from pytest_behaviortrace.headroom import indistinguishable
from pytest_behaviortrace.statistics import Pairs
from pytest_behaviortrace.trial import gate_shown
from pytest_behaviortrace.verdict import Gate, Interval

if TYPE_CHECKING:
    from pytest_behaviortrace.grading import Case

Scores = NDArray[np.float64]

GRID = 60
"""Most values of k at which precision is shown."""


def learning(evidence: EvidenceStore, seed: int) -> Exhibit:
    """How planted and null run learned the behaviour. Nothing of a recorded run, which has no null run."""
    if evidence.recorded:
        return Exhibit()
    plant, shares = evidence.plant, {}
    for run, name in (("planted", "rollouts"), ("null", "null_rollouts")):
        table = evidence.table(seed, name)
        own = flags(table, "own", plant)
        step, shown = np.asarray(table["step"])[own], flags(table, "shown", plant)[own]
        asked = np.bincount(step, minlength=evidence.recipe.grpo.steps)
        with np.errstate(invalid="ignore"):
            shares[run] = np.bincount(step, weights=shown, minlength=len(asked)) / asked
    known = np.flatnonzero(np.isfinite(shares["planted"]) & np.isfinite(shares["null"]))
    step = known[thinned(len(known))]
    s_b = evidence.behavior_scores(seed)
    return Exhibit(
        curve=Curve(
            what=f"share of each step's rollouts on the behaviour's own prompts that show {plant.behavior!r}",
            step=step.tolist(),
            planted=numbers(shares["planted"][step]),
            null=numbers(shares["null"][step]),
            window=[0, evidence.recipe.cutoff - 1],
            s_b={run: numbers([np.mean(s_b[run][at]) for at in ("start", "end")]) for run in ("planted", "null")},
        )
    )


def precision(case: Case, rollouts: Rollouts, scores: Scores, controls: Mapping[str, Scores]) -> Exhibit:
    """Precision against k inside the window, of the estimator and of each control in its better orientation."""
    window, truth = rollouts.window, rollouts.truth[rollouts.window]
    at, n = int(truth.sum()), len(truth)
    grid = np.unique(np.append(np.round(np.geomspace(1, n, GRID - 1)).astype(int), at)).tolist()

    def along(values: Scores) -> list[float]:
        return numbers([statistics.tie_aware_precision(values, truth, k) for k in grid])

    best = {}
    for name, values in controls.items():
        both = {name: values[window], f"-{name}": -values[window]}
        better = max(both, key=lambda key: statistics.tie_aware_precision(both[key], truth))
        best[better] = along(both[better])
    looks = indistinguishable(case.evidence, case.seed)[window]
    return Exhibit(
        precision=PrecisionAtK(
            k=grid,
            precision=along(scores[window]),
            chance=round(statistics.chance(truth), 4),
            ceiling=numbers([statistics.ceiling(looks, truth, k) for k in grid]),
            at=at,
            controls=best,
        )
    )


def fluency_cloud(siblings: Siblings, scores: Scores, pairs: Pairs, controlled: Replicated) -> Exhibit:
    """Fluency against score, as it came and with fluency taken out."""
    basis = statistics.fluency_basis(siblings.logprob, siblings.group)
    residual = statistics.residualise(scores, basis, siblings.group)
    some = thinned(len(scores))
    return Exhibit(
        fluency=FluencyCloud(
            fluency=numbers(siblings.logprob[some]),
            score=numbers(scores[some]),
            residual=numbers(residual[some]),
            shown=siblings.shown[some].tolist(),
            raw_auc=plain(statistics.auc(scores, pairs)),
            residual_auc=plain(controlled.estimate),
        )
    )


def span_scores(scores: Scores, pairs: Mapping[int, Pairs]) -> Exhibit:
    """Scores of trigger spans beside those of the other spans of the same completions."""
    found = SpanScores(trigger=[], other=[], kind=[])
    for kind, name in ((MATCHED, "matched"), (CONTROL, "control")):
        some = thinned(len(pairs[kind]), most=200)
        found["trigger"] += numbers(scores[pairs[kind].positive[some]])
        found["other"] += numbers(scores[pairs[kind].negative[some]])
        found["kind"] += [name] * len(some)
    return Exhibit(spans=found)


def place(name: str, statistic: Replicated, chance: float, margins: Mapping[str, float]) -> list[GateShown]:
    """One seed or draw of a claim about each of them: above chance, and above the control that comes nearest.

    There the estimates decide, without an interval; that of the statistic is shown all the same. `margins`: the
    estimate minus each control's.
    """
    around = statistic.interval()
    above = Interval(around.estimate - chance, around.low - chance, around.high - chance)
    gates = [Gate(name, above)]
    if margins:
        margin, control = min((margin, control) for control, margin in margins.items())
        alone = Interval(margin, math.nan, math.nan)
        gates.append(Gate(name, alone, control=control, control_estimate=above.estimate - margin))
    shown = [gate_shown(gate) for gate in gates]
    for gate, entry in zip(gates, shown, strict=True):
        entry["holds"] = bool(gate.interval.estimate > gate.bar)
        entry["contradicted"] = not entry["holds"]
    return shown


def numbers(values: ArrayLike) -> list[Any]:
    """Numbers as they travel."""
    return [plain(float(value)) for value in np.asarray(values)]
