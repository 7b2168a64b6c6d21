"""A ranking of a recorded run's rollouts as data: what `rank` found, for whoever prints it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_behaviortrace.scorecard import RunFacts


@dataclass(frozen=True, slots=True)
class RankedRollout:
    """One rollout in its place."""

    rank: int
    row_id: int
    step: int
    group: int
    prompt: str
    completion: str
    spans: tuple[tuple[int, int], ...]
    """Where the behaviour stands in `completion`: first character, and the one after the last."""
    advantage: float
    reward: float
    score: float
    low: float | None
    high: float | None
    """Interval of the score; None where there is none (see `Ranking.interval`)."""
    rank_norm_only: int
    rank_fluency: int
    """Its rank had gradient size, or fluency, been the score; the best of tied ones."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of an estimator from the embedded run."""

    verdict: str | None
    """Of the checklist; None where it was not graded."""
    checks: Mapping[str, str]
    """Check -> the worst verdict among its rows that apply."""
    command: str
    """What grades it there."""
    reason: str = ""
    """Why it was not graded."""

    @property
    def failed(self) -> tuple[str, ...]:
        """The checks it failed, or broke on."""
        return tuple(check for check, verdict in self.checks.items() if verdict in ("fail", "error"))


@dataclass(frozen=True)
class Ranking:
    """The first of a run's rollouts by the scores of one estimator, and what to hold against them."""

    suite: str
    run: RunFacts
    estimator: str
    top: Sequence[RankedRollout]
    shown: Mapping[str, int]
    """Of as many first rollouts by estimator, norm-only and fluency: how many show the behaviour."""
    shared: Mapping[str, int]
    """How many of the estimator's first ones norm-only, and fluency, would have named too."""
    interval: str
    """What the intervals are, or why there are none."""
    resamples: int
    standing: Standing
    warnings: tuple[str, ...]
