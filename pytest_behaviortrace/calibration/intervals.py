"""Which interval covers: percentile, expanded percentile, BCa, jackknife t; and permutation where it is possible."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pytest_behaviortrace import statistics
from pytest_behaviortrace.calibration.contenders import credited_cosine, signal_of
from pytest_behaviortrace.calibration.marginals import Floats, Marginals
from pytest_behaviortrace.calibration.study import table
from pytest_behaviortrace.calibration.synthetic import SyntheticEvidence
from pytest_behaviortrace.calibration.world import Dials
from pytest_behaviortrace.statistics import ClusterBootstrap, expanded_tail

Replicates = Callable[[ClusterBootstrap], Floats]
Ends = tuple[float, float]

PERMUTATIONS = 199
NOTHING = 0.5
STRENGTHS = (NOTHING, 0.8)
"""AUCs of the content: nothing at all, and a strong signal."""


class Statistic:
    """One statistic of one synthetic problem: its value, how to replicate it, and how many clusters carry it."""

    def __init__(
        self,
        estimate: float,
        replicates: Replicates,
        clusters: ArrayLike,
        carrying: int,
        permuted: Callable[[np.random.Generator], float] | None = None,
    ) -> None:
        self.estimate, self._replicates, self.carrying = estimate, replicates, carrying
        self._clusters, self._permuted = clusters, permuted

    def above_permutations(self, number: int) -> bool | None:
        """Whether at most 2.5 % of permutations inside groups give as much; None where groups hold one kind only."""
        if self._permuted is None:
            return None
        rng = np.random.default_rng(number)
        as_much = sum(self._permuted(rng) >= self.estimate for _ in range(PERMUTATIONS))
        return (as_much + 1) / (PERMUTATIONS + 1) <= 0.025

    def ends(self, resamples: int) -> dict[str, Ends]:
        """The ends of every interval."""
        values = self._replicates(ClusterBootstrap(self._clusters, resamples))
        without = self._replicates(ClusterBootstrap.leave_one_out(self._clusters))
        values, without = values[np.isfinite(values)], without[np.isfinite(without)]
        tail = expanded_tail(self.carrying)
        return {
            "percentile": _quantiles(values, 0.025, 0.975),
            "expanded percentile": _quantiles(values, tail, 1 - tail),
            "BCa": _bca(self.estimate, values, without),
            "jackknife t": _jackknife_t(self.estimate, without, self.carrying),
        }


def _quantiles(values: Floats, low: float, high: float) -> Ends:
    ends = np.quantile(values, [low, high])
    return float(ends[0]), float(ends[1])


def _bca(estimate: float, values: Floats, without: Floats) -> Ends:
    """Bias-corrected and accelerated (Efron 1987)."""
    from scipy.special import ndtr, ndtri

    below = np.clip((np.sum(values < estimate) + 0.5 * np.sum(values == estimate)) / len(values), 1e-3, 1 - 1e-3)
    bias, gap = float(ndtri(below)), without.mean() - without
    spread = float(np.sum(gap**2))
    acceleration = float(np.sum(gap**3)) / (6 * spread**1.5) if spread > 0 else 0.0

    def level(z: float) -> float:
        return float(ndtr(bias + (bias + z) / (1 - acceleration * (bias + z))))

    return _quantiles(values, level(float(ndtri(0.025))), level(float(ndtri(0.975))))


def _jackknife_t(estimate: float, without: Floats, carrying: int) -> Ends:
    """Student's t with the jackknife's standard error."""
    from scipy.special import stdtrit

    n = len(without)
    error = math.sqrt((n - 1) / n * float(np.sum((without - without.mean()) ** 2)))
    half = float(stdtrit(max(1, carrying - 1), 0.975)) * error
    return estimate - half, estimate + half


def statistics_of(evidence: SyntheticEvidence) -> dict[str, Statistic]:
    """The three kinds of statistic the checks bootstrap, for the true signal on seed 0."""
    siblings, rollouts = evidence.siblings(0, 0), evidence.rollouts(0)
    ((problem, order),) = siblings.problems
    scores = np.empty(len(order))
    scores[order] = credited_cosine(problem)
    basis = statistics.fluency_basis(siblings.logprob, siblings.group)
    pairs = statistics.within_group_pairs(siblings.shown, siblings.group)
    left = statistics.residualise(scores, basis, siblings.group)
    trained, inside = credited_cosine(rollouts.problem), rollouts.window
    crossed = statistics.cross_pairs(rollouts.truth, rollouts.decoy, rollouts.problem.step)
    truth, groups = rollouts.truth[inside], rollouts.problem.group[inside]
    return {
        "fluency-controlled AUC": Statistic(
            statistics.residual_auc(scores, pairs, basis, siblings.group),
            lambda b: statistics.residual_auc_replicates(scores, pairs, basis, siblings.group, b),
            siblings.probe, len(np.unique(siblings.probe)),
            lambda rng: statistics.auc(left[_within(rng, siblings.group)], pairs),
        ),
        "AUC against decoys": Statistic(
            statistics.auc(trained, crossed),
            lambda b: statistics.auc_replicates(trained, crossed, b),
            rollouts.problem.group, crossed.clusters(ClusterBootstrap(rollouts.problem.group, 1)),
        ),
        "window precision": Statistic(
            statistics.tie_aware_precision(trained[inside], truth) - statistics.chance(truth),
            lambda b: statistics.precision_replicates(trained[inside], truth, b).excess,
            groups, len(np.unique(groups[truth])),
        ),
    }  # fmt: skip


def _within(rng: np.random.Generator, groups: ArrayLike) -> NDArray[np.intp]:
    """(n,): items in an order shuffled inside each group."""
    names = np.asarray(groups)
    shuffled = np.lexsort((rng.random(len(names)), names))
    order = np.empty(len(names), np.intp)
    order[np.argsort(names, kind="stable")] = shuffled
    return order


def coverage(
    marginals: Marginals, repetitions: int, resamples: int = 1000, tell: Callable[[str, float], None] | None = None
) -> list[str]:
    """Lines of a table: how often each interval holds the truth, and how often its lower end lies above it.

    The truth is the mean of the estimates over all repetitions of a strength.
    """
    rows = [["statistic", "content AUC", "interval", "covers %", "low end above %"]]
    for s, auc in enumerate(STRENGTHS):
        estimates: dict[str, list[float]] = {}
        ends: dict[tuple[str, str], list[Ends]] = {}
        beyond: dict[str, list[bool]] = {}
        for number in range(repetitions):
            evidence = SyntheticEvidence(marginals, Dials(signal=signal_of(auc)), 2, number)
            for name, statistic in statistics_of(evidence).items():
                estimates.setdefault(name, []).append(statistic.estimate)
                if auc == NOTHING and (above := statistic.above_permutations(number)) is not None:
                    beyond.setdefault(name, []).append(above)
                for method, found in statistic.ends(resamples).items():
                    ends.setdefault((name, method), []).append(found)
            if tell is not None:
                tell(f"content AUC {auc}", (s + (number + 1) / repetitions) / len(STRENGTHS))
        for (name, method), found_ends in ends.items():
            truth = float(np.mean(estimates[name]))
            rows.append([name, f"{auc}", method, *_shares(found_ends, truth)])
        rows += [
            [name, f"{auc}", "permutation in groups", "", f"{100 * sum(found) / len(found):.1f}"]
            for name, found in beyond.items()
        ]
    return table(rows)


def _shares(ends: Sequence[Ends], truth: float) -> list[str]:
    count: Counter[str] = Counter()
    for low, high in ends:
        count["covers"] += low <= truth <= high
        count["above"] += low > truth
    return [f"{100 * count[key] / len(ends):.1f}" for key in ("covers", "above")]
