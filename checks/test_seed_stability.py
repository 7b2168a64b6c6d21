"""Claim: the verdict does not depend on seed or draw.

Three components, one row each: window precision minus chance, fluency-controlled AUC, AUC against decoys. The t
interval over seed means (df = seeds - 1) lies above chance and above each of the component's own controls, and every
single seed x draw estimate lies above chance (pitfall P6: one seed and one draw settle nothing). With three seeds a
bootstrap rejects a true null 8.6 % of the time, the t interval 2.1 %. Fewer than three seeds with headroom:
inconclusive.
"""

from collections.abc import Callable

import numpy as np
from pytest_behaviortrace.checks import test_fluency_control as fluency
from pytest_behaviortrace.checks import test_gradient_magnitude as magnitude
from pytest_behaviortrace.checks import test_reward_control as reward

from pytest_behaviortrace import statistics
from pytest_behaviortrace.gates import Replicated
from pytest_behaviortrace.grading import Case
from pytest_behaviortrace.verdict import Floor, Gate, Interval, Verdict, decide

LEAST_SEEDS = 3
"""Decided seeds below which nothing is said about stability: DESIGN, test_seed_stability."""
COMPONENTS = ("window-precision", "fluency-controlled-auc", "decoy-auc")

Row = tuple[int, str, float, dict[str, float]]
"""Seed, name, estimate above chance, and the estimate minus each control's."""


def test_seed_stability(bt_case: Case, bt_estimator: str, bt_component: str) -> None:
    rows = PARTS[bt_component](bt_case)
    decided = [s for s in bt_case.grader.seeds if bt_case.grader.headroom(s).verdict is Verdict.PASS]
    rows = [row for row in rows if row[0] in decided]
    floor = Floor("seeds with headroom", len(decided), LEAST_SEEDS)
    decision = decide(gates(rows, decided), [floor], chance=0.0, n=len(rows))
    below = [f"{name} {estimate:+.3f}" for _, name, estimate, _ in rows if estimate <= 0]
    if below and decision.verdict is Verdict.PASS:
        decision = decision.but(Verdict.FAIL, f"not above chance everywhere: {', '.join(below)}")
    bt_case.conclude(decision, headroom=False, remark="; ".join(f"{name} {e:+.3f}" for _, name, e, _ in rows))


def gates(rows: list[Row], seeds: list[int]) -> list[Gate]:
    """t intervals over seed means: above chance, and above each control."""

    def over_seeds(values: Callable[[Row], float]) -> Interval:
        means = [float(np.mean([values(r) for r in rows if r[0] == s])) for s in seeds]
        return statistics.t_interval(means) if len(means) > 1 else Interval(np.nan, np.nan, np.nan)

    found = [Gate("mean over seeds, above chance", over_seeds(lambda r: r[2]))]
    for control in rows[0][3] if rows else ():
        margin = over_seeds(lambda r, c=control: r[3][c])  # type: ignore[misc]
        theirs = found[0].interval.estimate - margin.estimate
        found.append(Gate("mean over seeds", margin, control=control, control_estimate=theirs))
    return found


def row(seed: int, name: str, statistic: Replicated, controls: dict[str, Replicated], chance: float) -> Row:
    """One seed's (or draw's) estimates."""
    margins = {control: statistic.estimate - theirs.estimate for control, theirs in controls.items()}
    return seed, name, statistic.estimate - chance, margins


def window_precision(case: Case) -> list[Row]:
    """One row per seed."""
    return [
        row(s, f"seed {s}", magnitude.window_precision(case, s), magnitude.controls(case, s), 0.0)
        for s in case.grader.seeds
    ]


def decoy_auc(case: Case) -> list[Row]:
    """One row per seed."""
    return [
        row(s, f"seed {s}", reward.decoy_auc(case, s), reward.controls(case, s), reward.CHANCE)
        for s in case.grader.seeds
    ]


def fluency_controlled_auc(case: Case) -> list[Row]:
    """One row per seed and draw."""
    return [
        row(
            s, f"seed {s} draw {d}", fluency.fluency_controlled_auc(case, s, d),
            fluency.controls(case, case.evidence.siblings(s, d)), fluency.CHANCE,
        )
        for s in case.grader.seeds
        for d in range(case.grader.draws)
    ]  # fmt: skip


PARTS: dict[str, Callable[[Case], list[Row]]] = dict(
    zip(COMPONENTS, (window_precision, fluency_controlled_auc, decoy_auc), strict=True)
)
