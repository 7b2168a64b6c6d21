"""Turns bootstrapped statistics into gates: above chance, and above each named control in both orientations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pytest_behaviortrace import statistics
from pytest_behaviortrace.statistics import ClusterBootstrap, Pairs, percentile
from pytest_behaviortrace.verdict import WIDTH_CAP, Gate, Interval

MIXTURE = "mixture"
"""Name of a check's named controls taken together, in the weights that serve them best."""


@dataclass(frozen=True, eq=False)
class Replicated:
    """A statistic and its bootstrap replicates (R,); two of them are comparable when they share the resamples.

    `clusters`: how many clusters carry it, which sets how far its interval is widened for few of them.
    """

    estimate: float
    replicates: NDArray[np.float64]
    clusters: int

    @classmethod
    def auc(cls, scores: ArrayLike, pairs: Pairs, bootstrap: ClusterBootstrap, tolerance: float = 0.0) -> Replicated:
        """`statistics.auc`."""
        replicates = statistics.auc_replicates(scores, pairs, bootstrap, tolerance)
        return cls(statistics.auc(scores, pairs, tolerance), replicates, pairs.clusters(bootstrap))

    @classmethod
    def residual_auc(
        cls, scores: ArrayLike, pairs: Pairs, covariates: ArrayLike, groups: ArrayLike, bootstrap: ClusterBootstrap
    ) -> Replicated:
        """`statistics.residual_auc`."""
        replicates = statistics.residual_auc_replicates(scores, pairs, covariates, groups, bootstrap)
        estimate = statistics.residual_auc(scores, pairs, covariates, groups)
        return cls(estimate, replicates, pairs.clusters(bootstrap))

    @classmethod
    def excess_precision(cls, scores: ArrayLike, truth: NDArray[np.bool_], bootstrap: ClusterBootstrap) -> Replicated:
        """Tie-aware precision at the ground-truth count, minus chance."""
        estimate = statistics.tie_aware_precision(scores, truth) - statistics.chance(truth)
        replicates = statistics.precision_replicates(scores, truth, bootstrap).excess
        return cls(estimate, replicates, int(np.count_nonzero(np.bincount(bootstrap.codes[truth]))))

    def interval(self, level: float = statistics.LEVEL) -> Interval:
        """Percentile interval, widened for few clusters."""
        low, high = percentile(self.replicates, level, self.clusters)
        return Interval(self.estimate, low, high)

    def minus(self, other: Replicated) -> Replicated:
        """The paired difference, resample by resample."""
        return Replicated(
            self.estimate - other.estimate, self.replicates - other.replicates, min(self.clusters, other.clusters)
        )

    def flipped(self, total: float) -> Replicated:
        """The same statistic of the score's negative: `total` minus it (1 for an AUC, 0 for a difference of AUCs)."""
        return Replicated(total - self.estimate, total - self.replicates, self.clusters)


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
    return {name: auc, f"-{name}": auc.flipped(1.0)}
