"""Labelled problems out of a store: what an estimator is asked, and beside it the labels it never sees."""

from __future__ import annotations

from pytest_behaviortrace.evidence import canaries, siblings, training
from pytest_behaviortrace.evidence.records import (
    CONTROL,
    MATCHED,
    TRIGGER,
    BlockProblem,
    Canaries,
    NullWindow,
    Rollouts,
    Siblings,
    Spans,
)
from pytest_behaviortrace.evidence.source import Source, kept

__all__ = [
    "CONTROL",
    "MATCHED",
    "TRIGGER",
    "BlockProblem",
    "Canaries",
    "EvidenceStore",
    "NullWindow",
    "Rollouts",
    "Siblings",
    "Spans",
]


class EvidenceStore(Source):
    """Every labelled problem of one store for one graded plant, each built once."""

    @kept
    def rollouts(self, seed: int, asked: str | None = None) -> Rollouts:
        """All training rollouts; `asked` names the plant the problem asks about (default: the graded one)."""
        return training.rollouts(self, seed, self.recipe.plant(asked or self.plant.name))

    @kept
    def null_window(self, seed: int) -> NullWindow:
        """The null run's rollouts that show the graded behaviour."""
        return training.null_window(self, seed)

    @kept
    def siblings(self, seed: int, draw: int) -> Siblings:
        """The siblings of one draw."""
        return siblings.siblings(self, seed, draw)

    @kept
    def spans(self, seed: int, draw: int) -> Spans:
        """Trigger and control spans of one draw's siblings."""
        return siblings.spans(self, seed, draw)

    @kept
    def canaries(self, seed: int, per_block: int, least_share: float) -> Canaries:
        """Training rollouts with canaries appended."""
        return canaries.canaries(self, seed, self.rollouts(seed), per_block, least_share)

    @kept
    def block_problems(self, seed: int, least_share: float, count: int) -> list[BlockProblem]:
        """Siblings on policies cut down to one block each."""
        return canaries.block_problems(self, seed, least_share, count)
