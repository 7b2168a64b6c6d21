"""What a row shows beside its numbers, for reports with pictures: plain data that travels between processes.

All of it is JSON-ready; numbers are rounded and lists thinned (`POINTS`), because nothing is decided from them.
"""

from __future__ import annotations

import math
from typing import TypedDict

POINTS = 400
"""Most entries of a list of points."""
DIGITS = 4
"""Significant digits of a number."""
PICTURED = 15
"""Estimators that get pictures, in the order asked for: more would make a page that no browser likes to open, and a
session that carries all of them to its end."""


def plain(number: float) -> float | None:
    """The number as it travels; None where it is not finite."""
    return float(f"{number:.{DIGITS}g}") if math.isfinite(number) else None


def thinned(n: int, most: int = POINTS) -> list[int]:
    """At most so many places of a list of n, evenly spread, the first and the last among them."""
    return list(range(n)) if n <= most else [round(i * (n - 1) / (most - 1)) for i in range(most)]


class GateShown(TypedDict):
    """One gate of the row's decision; a gate with a control is a paired difference.

    Where every seed and draw must bear a claim out (seed_stability), each of them is shown as a gate too, and it is the
    estimate alone that must lie above the bar.
    """

    name: str
    estimate: float | None
    low: float | None
    high: float | None
    bar: float
    cap: float
    least: float | None
    """What the estimate itself must reach, where that is more than the bar."""
    control: str | None
    control_estimate: float | None
    holds: bool
    contradicted: bool


class FloorShown(TypedDict):
    """One floor of evidence."""

    name: str
    have: float
    need: float


class Curve(TypedDict):
    """How planted and null run learned the behaviour (headroom, per seed)."""

    what: str
    """What the numbers are."""
    step: list[int]
    planted: list[float]
    null: list[float]
    window: list[int]
    """First and last step in which boosts were paid."""
    s_b: dict[str, list[float]]
    """"planted" and "null": behaviour score of the first and of the last policy."""


class PrecisionAtK(TypedDict):
    """Share of ground truth among the k highest-ranked rollouts of the window (gradient_magnitude, per seed)."""

    k: list[int]
    precision: list[float]
    chance: float
    ceiling: list[float]
    """Of a perfect ranking."""
    at: int
    """The k that is graded: the number of ground-truth rollouts."""
    controls: dict[str, list[float]]
    """By control, in its better orientation ("-norm-only")."""


class Viewed(TypedDict):
    """One rollout as the viewer shows it."""

    rank: int
    score: float
    step: int
    advantage: float
    reward: float | None
    """None where the trainer had none."""
    fluency: float
    """Mean log-probability per token, nats."""
    prompt: str
    tokens: list[str]
    """Joined, they are the completion: special tokens are empty, and a character that takes several tokens stands in
    the first of them."""
    behavior: list[bool]
    """By token."""
    token_scores: list[float] | None
    truth: bool | None
    """Whether it is ground truth; None where nobody knows (a recorded run)."""
    decoy: bool | None
    lookalike: bool | None


class FluencyCloud(TypedDict):
    """Siblings: fluency against score, as it came and after fluency was removed (fluency_control, per draw)."""

    fluency: list[float]
    score: list[float]
    residual: list[float]
    shown: list[bool]
    """Whether the sibling shows the behaviour."""
    raw_auc: float | None
    residual_auc: float | None
    """None where there is nothing to compare."""


class SpanScores(TypedDict):
    """Scores of the trigger span and of another span of the same completion, side by side (trigger_alignment)."""

    trigger: list[float]
    other: list[float]
    kind: list[str]
    """"matched" (nearest in fluency) or "control" (another code word, or the same place elsewhere)."""


class Exhibit(TypedDict, total=False):
    """Everything a row shows."""

    gates: list[GateShown]
    floors: list[FloorShown]
    curve: Curve
    precision: PrecisionAtK
    rollouts: list[Viewed]
    rollouts_note: str
    """What is to be said about them: why token scores are missing, for example."""
    fluency: FluencyCloud
    spans: SpanScores
