"""A synthetic run: labels, confounds and gradients drawn with dials, marginals from a recorded run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pytest_behaviortrace.calibration.marginals import Columns, Floats

WIDTH = 128
"""Buckets of a synthetic gradient."""
GRADED, DECOY, TOPIC_GRADED, TOPIC_DECOY = range(4)
"""Directions of a synthetic gradient that mean something; all others are noise."""
ADVANTAGE_EPS = 1e-4
"""What GRPO adds to a group's standard deviation of rewards."""


@dataclass(frozen=True, slots=True)
class Dials:
    """What a synthetic run is like. The defaults are the embedded recipe's sizes and its recorded confounds."""

    signal: float = 0.0
    """Standard deviations between the content of items that show the behaviour and of those that do not."""
    fluency: float = 1.0
    """Strength of the fluency confound, as a multiple of the recorded one."""
    magnitude: float = 1.0
    """The same for the gradient norm."""
    topic: float = 1.0
    """The same for the topic of the prompt."""
    ties: float = 0.0
    """Share of items that repeat the one before them in all they show."""
    between_seeds: float = 0.0
    """Standard deviation of `signal` between seeds."""
    between_draws: float = 0.0
    """The same between draws of one seed."""
    between_clusters: float = 0.25
    """The same between probes, and between prompt groups of training rollouts. Recorded: .07 for gas, .28 for trak."""
    behavior_rate: float = 1.0
    """Odds of the behaviour, as a multiple of the recorded ones."""
    groups: float = 1.0
    """Number of prompt groups and probes, as a multiple of the recorded ones."""


@dataclass(frozen=True, eq=False)
class Items:
    """Items as drawn: what any estimator may see, and the coefficients of their unit gradients."""

    fluency: Floats
    norm: Floats
    length: NDArray[np.int64]
    coefficients: Floats
    """(n, WIDTH): along the meaningful directions, then noise."""
    identity: NDArray[np.int64]
    """(n,): items with the same number are copies of each other."""

    def gradients(self, rotation: Floats) -> NDArray[np.float32]:
        """(n, WIDTH): of the drawn norm."""
        size = np.linalg.norm(self.coefficients, axis=1, keepdims=True)
        return np.asarray((self.coefficients / size * self.norm[:, None]) @ rotation, np.float32)


def rotation(rng: np.random.Generator) -> Floats:
    """(WIDTH, WIDTH): an orthonormal frame, so that every parameter block carries a part of every direction."""
    frame, _ = np.linalg.qr(rng.standard_normal((WIDTH, WIDTH)))
    return np.asarray(frame, np.float64)


def draw_columns(
    rng: np.random.Generator, columns: Columns, shown: NDArray[np.bool_], group: NDArray[np.int64], dials: Dials
) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Fluency, norm and length of items of these labels: a Gaussian copula under the recorded marginals."""
    n, factor = len(shown), np.linalg.cholesky(columns.correlation + 1e-9 * np.eye(3))
    share = columns.group_share
    own, common = rng.standard_normal((n, 3)), rng.standard_normal((int(group.max()) + 1, 3))[group]
    latent = (np.sqrt(1 - share) * own + np.sqrt(share) * common) @ factor.T
    latent += shown[:, None] * columns.shift * np.array([dials.fluency, dials.magnitude, 1.0])
    fluency, norm, length = (_as_recorded(z, values) for z, values in zip(latent.T, columns.values, strict=True))
    return fluency, norm, np.rint(length).astype(np.int64)


def _as_recorded(latent: Floats, recorded: Floats) -> Floats:
    """The recorded values in the order of `latent`."""
    rank = np.empty(len(latent))
    rank[np.argsort(latent)] = np.arange(len(latent))
    return np.interp((rank + 0.5) / len(latent), (np.arange(len(recorded)) + 0.5) / len(recorded), recorded)


def draw_coefficients(
    rng: np.random.Generator, content: NDArray[np.bool_], cluster: NDArray[np.int64], strength: float, dials: Dials
) -> Floats:
    """(n, WIDTH): standard normal noise, with the content of the graded behaviour along its direction."""
    coefficients = rng.standard_normal((len(content), WIDTH))
    effect = strength + dials.between_clusters * rng.standard_normal(int(cluster.max()) + 1)
    coefficients[:, GRADED] += content * effect[cluster]
    return coefficients


def repeat(
    rng: np.random.Generator, items: Items, label: NDArray[np.int64], group: NDArray[np.int64], share: float
) -> Items:
    """Some items become copies of the item before them, where that has their group and label."""
    n = len(label)
    identity = np.arange(n)
    if share > 0:
        copies = rng.random(n) < share
        copies[0] = False
        copies[1:] &= (label[1:] == label[:-1]) & (group[1:] == group[:-1])
        identity = np.maximum.accumulate(np.where(copies, 0, np.arange(n)))
    return Items(
        items.fluency[identity], items.norm[identity], items.length[identity], items.coefficients[identity], identity
    )


def advantages(reward: Floats, group: NDArray[np.int64]) -> Floats:
    """(n,): rewards standardised inside groups, as GRPO does (sample standard deviation)."""
    counts = np.bincount(group).astype(np.float64)
    mean = np.bincount(group, weights=reward) / counts
    centred = reward - mean[group]
    spread = np.sqrt(np.bincount(group, weights=centred**2) / np.maximum(counts - 1, 1))
    return np.asarray(centred / (spread[group] + ADVANTAGE_EPS), np.float64)


def odds_times(rate: Floats, factor: float) -> Floats:
    """The rates with their odds multiplied."""
    odds = rate / (1 - rate) * factor
    return np.asarray(odds / (1 + odds), np.float64)
