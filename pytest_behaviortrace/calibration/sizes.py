"""How many seeds and draws a study needs: power and false passes over seeds, for several sizes of a session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pytest_behaviortrace.calibration.contenders import NAMED, TRUE_SIGNAL, Contender, signal_of
from pytest_behaviortrace.calibration.marginals import Marginals
from pytest_behaviortrace.calibration.repetition import ACROSS_SEEDS, LUCK, STRONG, Plan, World
from pytest_behaviortrace.calibration.study import Rate, table
from pytest_behaviortrace.calibration.world import Dials
from pytest_behaviortrace.verdict import Verdict

SIZES = ((3, 1), (3, 2), (3, 4), (5, 2), (8, 2))
"""Seeds and draws."""
BETWEEN_SEEDS, BETWEEN_DRAWS = 0.3, 0.15
"""Spread of the true signal, in standard deviations of its noise; a third and a sixth of a signal of AUC 0.75."""


def needed(
    marginals: Marginals, plan: Plan, repetitions: int, tell: Callable[[str, float], None] | None = None
) -> list[str]:
    """Lines of a table.

    A true signal (AUC 0.8 on average) that differs between seeds and draws: how often seed stability and the whole
    checklist pass. A score that lives on lucky seeds (mean effect 0): how often seed stability passes it.
    """
    rows = [["seeds x draws", "true signal: seed stability %", "whole checklist %", "lucky seeds: seed stability %"]]
    for s, (seeds, draws) in enumerate(SIZES):
        sized, counts = replace(plan, seeds=seeds, draws=draws), [0, 0, 0]
        for number in range(repetitions):
            for k, passed in enumerate(_one(marginals, sized, number)):
                counts[k] += passed
            if tell is not None:
                tell(f"{seeds} seeds x {draws} draws", (s + (number + 1) / repetitions) / len(SIZES))
        shown = [Rate(count, repetitions) for count in counts]
        cells = [f"{100 * r.rate:.1f} [{100 * r.low:.1f}, {100 * r.high:.1f}]" for r in shown]
        rows.append([f"{seeds} x {draws}", *cells])
    return table(rows)


def _one(marginals: Marginals, plan: Plan, number: int) -> tuple[bool, bool, bool]:
    dials = Dials(signal_of(STRONG), between_seeds=BETWEEN_SEEDS, between_draws=BETWEEN_DRAWS)
    strong = World(marginals, dials, plan, number)
    stable = strong.first_miss(TRUE_SIGNAL, "seed_stability") is Verdict.PASS
    everything = stable and all(strong.first_miss(TRUE_SIGNAL, check) is Verdict.PASS for check in NAMED)
    lucky = World(marginals, Dials(between_seeds=LUCK), plan, number)
    contender = Contender("lucky seeds", TRUE_SIGNAL.make)
    return stable, everything, all(lucky.first_miss(contender, check) is Verdict.PASS for check in ACROSS_SEEDS)
