"""Labelled problems: what an estimator is asked, and beside it the labels it never sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_behaviortrace.problem import AttributionProblem, BoolArray, IntArray

F32 = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Rollouts:
    """All training rollouts of a planted run, and who was boosted. Arrays of length n = len(problem)."""

    key: tuple[Any, ...]
    problem: AttributionProblem
    window: BoolArray
    """Generated before the cutoff, while boosts were paid."""
    truth: BoolArray
    """Boosted for the graded behaviour: the ground truth (GT)."""
    decoy: BoolArray
    """Boosted for the other behaviour: equally rewarded, another cause."""
    lookalike: BoolArray
    """On the graded behaviour's own prompts, in the window, behaviour shown, not eligible for its bonus."""
    own_prompt: BoolArray
    topic: F32
    """(K,): mean gradient of behaviour-free siblings of the probes of the behaviour asked for, less the target."""
    row: IntArray
    """Row of each item in the run's table."""


@dataclass(frozen=True, eq=False)
class Training:
    """All training rollouts of a run of which nothing is known beside what was recorded."""

    key: tuple[Any, ...]
    problem: AttributionProblem
    row: IntArray
    """(n,): row of each item in the run's table."""


@dataclass(frozen=True, eq=False)
class Siblings:
    """Fresh siblings of one draw and which of them show the behaviour; `half` pairs a problem with its items."""

    key: tuple[Any, ...]
    problems: tuple[tuple[AttributionProblem, IntArray], ...]
    """Problems with the sibling index of their items: one, or two halves when the target is cross-fitted."""
    shown: BoolArray
    group: IntArray
    probe: IntArray
    logprob: NDArray[np.float64]
    length: IntArray
    norm: F32


@dataclass(frozen=True, eq=False)
class Spans:
    """Trigger spans and spans of the same length in the same completions, scored as one problem.

    A completion has up to three: the behaviour's tokens (`TRIGGER`); another code word, else the same place in another
    sentence (`CONTROL`); the stretch nearest in fluency (`MATCHED`).
    """

    key: tuple[Any, ...]
    problems: tuple[tuple[AttributionProblem, IntArray], ...]
    """As in `Siblings`."""
    completion: IntArray
    """(items,): sibling index."""
    kind: IntArray
    """(items,): `TRIGGER`, `CONTROL` or `MATCHED`."""
    probe: IntArray
    group: IntArray
    """(items,): of their siblings."""
    code_word: BoolArray
    """(items,): a control that is another code word."""
    logprob: NDArray[np.float64]
    norm: F32
    cosine_in_context: float
    cosine_constructed: float | None
    """None where there is no constructed target."""

    def pairs(self, kind: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Item indices of trigger spans, and of the spans of `kind` in the same completions."""
        trigger = {int(self.completion[i]): int(i) for i in np.flatnonzero(self.kind == TRIGGER)}
        other = np.flatnonzero(self.kind == kind).astype(np.int64)
        return np.array([trigger[int(self.completion[i])] for i in other], np.int64), other


TRIGGER, CONTROL, MATCHED = 0, 1, 2
"""Kinds of span."""


@dataclass(frozen=True, eq=False)
class NullWindow:
    """Rollouts of the null run that show the behaviour on its own prompts; eligibility there decides nothing."""

    key: tuple[Any, ...]
    problem: AttributionProblem
    eligible: BoolArray


@dataclass(frozen=True, eq=False)
class Canaries:
    """The training rollouts with synthetic gradients appended: the target's in one block, or a random one."""

    key: tuple[Any, ...]
    problem: AttributionProblem
    blocks: tuple[str, ...]
    positive: IntArray
    """(blocks, canaries): item index of the canaries that carry the target's gradient in their block."""
    negative: IntArray
    """(blocks, canaries): the same noise with a random direction in the block."""
    base: IntArray
    """(n,): item index of each training rollout, in the order of the rollouts' own problem."""


@dataclass(frozen=True, eq=False)
class BlockProblem:
    """Siblings to be scored on policies in which one block alone requires grad, and the exact answer there."""

    key: tuple[Any, ...]
    problem: AttributionProblem
    block: str
    exact: NDArray[np.float64]
    """(n,): inner product of each item's gradient with the target's, over this block's parameters only."""
