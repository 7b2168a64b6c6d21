"""Claim: the verdict does not depend on seed or draw.

Three components, one row each: window precision minus chance, fluency-controlled AUC, AUC against decoys. The t
interval over seed means (df = seeds - 1) lies above chance, and every single seed x draw estimate lies above chance and
above each of the component's own controls there (pitfall P6: one seed and one draw settle nothing). With three seeds a
bootstrap rejects a true null 8.6 % of the time, the t interval 2.1 %. Controls are compared seed by seed because their
own spread over seeds would hide even a perfect score. Fewer than three seeds with headroom: inconclusive.

A recorded run is one run, which says nothing about seeds. There only the fluency-controlled AUC can be asked, and it is
the draws that must bear it out, one by one; with a single draw nothing is said.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from pytest_behaviortrace.checks import test_fluency_control as fluency
from pytest_behaviortrace.checks import test_gradient_magnitude as magnitude
from pytest_behaviortrace.checks import test_reward_control as reward

from pytest_behaviortrace import showing, statistics
from pytest_behaviortrace.exhibit import Exhibit
from pytest_behaviortrace.gates import Replicated
from pytest_behaviortrace.grading import Case
from pytest_behaviortrace.verdict import Decision, Floor, Gate, Interval, Verdict, decide

LEAST_DRAWS = 2
"""Draws of a recorded run below which nothing is said about draws either."""
LEAST_SEEDS = 3
"""Decided seeds below which nothing is said about stability: DESIGN, test_seed_stability."""
COMPONENTS = {
    "window-precision": "test_gradient_magnitude",
    "fluency-controlled-auc": "test_fluency_control",
    "decoy-auc": "test_reward_control",
}
"""Each with the check whose statistic and controls it has."""


class Row(NamedTuple):
    """One seed's (or draw's) estimate."""

    seed: int
    draw: int
    name: str
    estimate: float
    """Above chance."""
    margins: dict[str, float]
    """The estimate minus each control's."""
    sampling: float
    """Bootstrap variance of the estimate."""
    statistic: Replicated
    """Chance still in it."""
    chance: float


def test_seed_stability(bt_case: Case, bt_estimator: str, bt_component: str) -> None:
    if bt_case.recorded is not None:
        return over_draws(bt_case, PARTS[bt_component])
    decided = [s for s in bt_case.grader.seeds if bt_case.grader.headroom(s).verdict is Verdict.PASS]
    rows = [row for row in PARTS[bt_component](bt_case) if row.seed in decided]
    means = [float(np.mean([row.estimate for row in rows if row.seed == seed])) for seed in decided]
    interval = statistics.t_interval(means) if len(means) > 1 else Interval(np.nan, np.nan, np.nan)
    floor = Floor("seeds with headroom", len(decided), LEAST_SEEDS)
    decision = decide([Gate("mean over seeds, above chance", interval)], [floor], chance=0.0, n=len(rows))
    decision = everywhere(decision, rows)
    bt_case.show(lambda: places(rows))
    found = [f"{row.name} {row.estimate:+.3f}" for row in rows]
    bt_case.conclude(decision, headroom=False, remark="; ".join([*found, *spread(rows)]))


def over_draws(case: Case, part: Callable[[Case], list[Row]]) -> None:
    """The check on a recorded run: the mean over its draws, and every draw."""
    (run,) = case.grader.seeds
    rows = part(case)
    draws = [fluency.fluency_controlled_auc(case, run, d) for d in range(case.grader.draws)]
    # The same prompts in every draw, and so the same resamples of them: the mean's replicates are those of a mean.
    mean = Replicated(
        float(np.mean([draw.estimate for draw in draws])) - fluency.CHANCE,
        np.mean([draw.replicates for draw in draws], axis=0) - fluency.CHANCE,
        min(draw.clusters for draw in draws),
    )
    gate = Gate("mean over draws, above chance", mean.interval())
    floors = [Floor("draws", len(draws), LEAST_DRAWS), Floor("prompts that tell siblings apart", mean.clusters, 1)]
    decision = everywhere(decide([gate], floors, chance=0.0, n=len(rows)), rows)
    room = case.grader.headroom(run)
    if room.verdict is not Verdict.PASS:
        decision = decision.but(Verdict.INCONCLUSIVE, f"the run has no headroom: {room.reason}")
    case.show(lambda: places(rows))
    found = [f"{row.name} {row.estimate:+.3f}" for row in rows]
    remark = "; ".join([*found, "one run says nothing about seeds", *spread(rows)])
    case.conclude(decision, headroom=False, remark=remark)


def everywhere(decision: Decision, rows: list[Row]) -> Decision:
    """The decision with its closest control, and a fail where one seed or draw does not bear the claim out."""
    margins = [(margin, control, row.estimate) for row in rows for control, margin in row.margins.items()]
    if margins:
        margin, control, estimate = min(margins)
        decision = replace(decision, control=control, control_estimate=estimate - margin, margin_low=margin)
    broken = [f"{row.name} {row.estimate:+.3f} is not above chance" for row in rows if row.estimate <= 0]
    broken += [f"{row.name} is {m:+.3f} from {c}" for row in rows for c, m in row.margins.items() if m <= 0]
    if broken and decision.verdict is Verdict.PASS:
        return decision.but(Verdict.FAIL, f"not on every seed and draw: {broken[0]}")
    return decision


def spread(rows: list[Row]) -> list[str]:
    """How much of the estimates' variance is due to seed, draw and rollouts."""
    seeds, draws = ({getattr(row, what) for row in rows} for what in ("seed", "draw"))
    if not rows or len(rows) != len(seeds) * len(draws) or not all(np.isfinite(row.sampling) for row in rows):
        return []
    table = np.array([[row.estimate, row.sampling] for row in rows]).reshape(len(seeds), len(draws), 2)
    return [statistics.variance_components(table[:, :, 0], table[:, :, 1]).describe()]


def places(rows: list[Row]) -> Exhibit:
    """Every seed and draw, as gates of their own."""
    return Exhibit(gates=[g for r in rows for g in showing.place(r.name, r.statistic, r.chance, r.margins)])


def row(seed: int, draw: int, name: str, statistic: Replicated, controls: dict[str, Replicated], chance: float) -> Row:
    """One seed's (or draw's) estimates."""
    margins = {control: statistic.estimate - theirs.estimate for control, theirs in controls.items()}
    known = statistic.replicates[np.isfinite(statistic.replicates)]
    sampling = float(np.var(known)) if len(known) else np.nan
    return Row(seed, draw, name, statistic.estimate - chance, margins, sampling, statistic, chance)


def window_precision(case: Case) -> list[Row]:
    """One row per seed."""
    return [
        row(s, 0, f"seed {s}", magnitude.window_precision(case, s), magnitude.controls(case, s), 0.0)
        for s in case.grader.seeds
    ]


def decoy_auc(case: Case) -> list[Row]:
    """One row per seed."""
    return [
        row(s, 0, f"seed {s}", reward.decoy_auc(case, s), reward.controls(case, s), reward.CHANCE)
        for s in case.grader.seeds
    ]


def fluency_controlled_auc(case: Case) -> list[Row]:
    """One row per seed and draw."""
    return [
        row(
            s, d, f"draw {d}" if case.recorded is not None else f"seed {s} draw {d}",
            fluency.fluency_controlled_auc(case, s, d), fluency.controls(case, case.evidence.siblings(s, d)),
            fluency.CHANCE,
        )
        for s in case.grader.seeds
        for d in range(case.grader.draws)
    ]  # fmt: skip


PARTS: dict[str, Callable[[Case], list[Row]]] = dict(
    zip(COMPONENTS, (window_precision, fluency_controlled_auc, decoy_auc), strict=True)
)
