"""Turns bootstrapped statistics into gates: above chance, and above each named control in both orientations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pytest_behaviortrace.statistics import percentile
from pytest_behaviortrace.verdict import WIDTH_CAP, Gate, Interval


@dataclass(frozen=True, eq=False)
class Replicated:
    """A statistic and its bootstrap replicates (R,); two of them are comparable when they share the resamples."""

    estimate: float
    replicates: NDArray[np.float64]

    def interval(self, level: float = 0.95) -> Interval:
        """Percentile interval."""
        low, high = percentile(self.replicates, level)
        return Interval(self.estimate, low, high)

    def minus(self, other: Replicated) -> Replicated:
        """The paired difference, resample by resample."""
        return Replicated(self.estimate - other.estimate, self.replicates - other.replicates)


def contest(
    name: str, statistic: Replicated, bar: float, controls: Mapping[str, Replicated], cap: float = WIDTH_CAP
) -> list[Gate]:
    """The gates of a statistic that must lie above `bar` and above every control (`-name` marks a flipped one)."""
    gates = [Gate(name, statistic.interval(), bar=bar, cap=cap)]
    for control, theirs in controls.items():
        margin = statistic.minus(theirs).interval()
        gates.append(Gate(name, margin, bar=0.0, cap=cap, control=control, control_estimate=theirs.estimate))
    return gates


def both_ways(name: str, auc: Replicated) -> dict[str, Replicated]:
    """A control's AUC as it is and with its score flipped (1 - AUC): a control competes in both orientations."""
    return {name: auc, f"-{name}": Replicated(1.0 - auc.estimate, 1.0 - auc.replicates)}
