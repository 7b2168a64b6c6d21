"""What a recorded run looks like: the marginals of fluency, norm, length and reward, and how they hang together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pytest_behaviortrace import statistics
from pytest_behaviortrace.evidence import CONTROL, MATCHED, TRIGGER, EvidenceStore, Rollouts, Siblings

Floats = NDArray[np.float64]

COLUMNS = ("fluency", "norm", "length")
RARE = 0.01
"""Least rate of the behaviour of a step's prompts: no step is left without any chance."""


@dataclass(frozen=True, eq=False)
class Columns:
    """Fluency, norm and length of recorded items: sorted values, and their dependence on normal scores."""

    values: tuple[Floats, ...]
    """Sorted recorded values of each column: the marginals that synthetic items get."""
    shift: Floats
    """(3,): by how many standard deviations items that show the behaviour lie above those that do not."""
    correlation: Floats
    """(3, 3): of normal scores inside the two kinds of items."""
    group_share: float
    """Share of the fluency's variance between groups."""


@dataclass(frozen=True, eq=False)
class Marginals:
    """Everything a synthetic run takes over from recorded ones."""

    rollouts: Columns
    siblings: Columns
    spans: Floats
    """(completions, 3 kinds, 2): log-probability and norm of the trigger, control and matched span; NaN where none."""
    code_word: float
    """Share of control spans that are code words."""
    reward_base: Floats
    own: float
    """Share of a step's prompts that are the graded behaviour's; the decoy has as many."""
    shown_by_step: Floats
    """(steps,): rate of the behaviour on its own prompts."""
    shown_by_group: Floats
    """(groups,): rate of the behaviour in each recorded group of siblings."""
    topic_shift: Floats
    """(seeds,): by how many standard deviations the topic's cosine of ground truth lies above that of decoys."""
    behavior_scores: dict[str, dict[str, Sequence[float]]]
    learning_rate: Floats
    steps: int
    cutoff: int
    prompts: int
    generations: int
    probes: int
    contexts: int
    siblings_each: int
    null_shown: int


def measure(evidence: EvidenceStore, seeds: Sequence[int]) -> Marginals:
    """The marginals of these seeds' recorded runs, pooled."""
    runs = [evidence.rollouts(seed) for seed in seeds]
    draws = [evidence.siblings(seed, draw) for seed in seeds for draw in range(evidence.draws)]
    table, recipe = evidence.table(seeds[0], "rollouts"), evidence.recipe
    first, steps = draws[0], len(runs[0].problem.learning_rate)
    return Marginals(
        rollouts=_columns([_of_rollouts(evidence, seed) for seed in seeds]),
        siblings=_columns([_of_siblings(draw) for draw in draws]),
        spans=np.concatenate([_spans(evidence, seed, draw) for seed in seeds for draw in range(evidence.draws)]),
        code_word=_code_words(evidence, seeds),
        reward_base=np.sort(np.asarray(table["reward_base"], np.float64)),
        own=float(np.mean([run.own_prompt.mean() for run in runs])),
        shown_by_step=_rate_by_step(evidence, seeds, steps),
        shown_by_group=np.concatenate([_rate_by_group(draw) for draw in draws]),
        topic_shift=np.array([_topic_shift(run) for run in runs]),
        behavior_scores=evidence.behavior_scores(seeds[0]),
        learning_rate=np.asarray(runs[0].problem.learning_rate, np.float64),
        steps=steps,
        cutoff=recipe.cutoff,
        prompts=_groups_a_step(runs[0]),
        generations=len(runs[0].problem) // len(np.unique(runs[0].problem.group)),
        probes=len(np.unique(first.probe)),
        contexts=len(np.unique(first.group)) // len(np.unique(first.probe)),
        siblings_each=len(first.shown) // len(np.unique(first.group)),
        null_shown=int(np.mean([len(evidence.null_window(seed).eligible) for seed in seeds])),
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Items:
    columns: Floats
    shown: NDArray[np.bool_]
    group: NDArray[np.int64]


def _of_rollouts(evidence: EvidenceStore, seed: int) -> _Items:
    problem = evidence.rollouts(seed).problem
    columns = np.column_stack([problem.logprob, problem.gradient_norm, problem.length]).astype(np.float64)
    # Either behaviour, read from the problem's own masks, which stand in its order.
    decoy = evidence.rollouts(seed, evidence.decoy.name).problem
    shown = np.array([a.any() or b.any() for a, b in zip(problem.behavior_mask, decoy.behavior_mask, strict=True)])
    return _Items(columns, shown, np.asarray(problem.group, np.int64))


def _of_siblings(siblings: Siblings) -> _Items:
    columns = np.column_stack([siblings.logprob, siblings.norm, siblings.length]).astype(np.float64)
    return _Items(columns, siblings.shown, np.asarray(siblings.group, np.int64))


def normal_scores(values: Floats) -> Floats:
    """(n,): what a standard normal sample of these ranks would be."""
    from scipy.special import ndtri

    return np.asarray(ndtri((statistics.average_ranks(values) - 0.5) / len(values)), np.float64)


def _columns(sets: Sequence[_Items]) -> Columns:
    z = [np.column_stack([normal_scores(column) for column in items.columns.T]) for items in sets]
    shift = np.mean([scores[s.shown].mean(0) - scores[~s.shown].mean(0) for scores, s in zip(z, sets, strict=True)], 0)
    inside, shares = [], []
    for scores, items in zip(z, sets, strict=True):
        rest = scores.copy()
        for kind in (items.shown, ~items.shown):
            rest[kind] -= rest[kind].mean(0)
        inside.append(rest)
        shares.append(_between(rest[:, 0], items.group))
    spread = np.concatenate(inside)
    return Columns(
        tuple(np.sort(np.concatenate([items.columns[:, c] for items in sets])) for c in range(len(COLUMNS))),
        np.asarray(shift / spread.std(0), np.float64),
        np.asarray(np.corrcoef(spread.T), np.float64),
        float(np.clip(np.mean(shares), 0.0, 0.9)),
    )


def _between(values: Floats, groups: NDArray[np.int64]) -> float:
    """Share of the variance between groups (one-way random effects, groups of about one size)."""
    _, codes, counts = np.unique(groups, return_inverse=True, return_counts=True)
    means = np.bincount(codes, weights=values) / counts
    within = float(np.sum((values - means[codes]) ** 2) / max(1, len(values) - len(means)))
    between = max(0.0, float(means.var(ddof=1)) - within / float(counts.mean()))
    return between / (between + within)


def _spans(evidence: EvidenceStore, seed: int, draw: int) -> Floats:
    spans = evidence.spans(seed, draw)
    completions, place = np.unique(spans.completion, return_inverse=True)
    found = np.full((len(completions), 3, 2), np.nan)
    for kind in (TRIGGER, CONTROL, MATCHED):
        of = spans.kind == kind
        found[place[of], kind] = np.column_stack([spans.logprob[of], spans.norm[of]])
    return np.asarray(found[np.isfinite(found[:, TRIGGER, 0])])


def _code_words(evidence: EvidenceStore, seeds: Sequence[int]) -> float:
    spans = [evidence.spans(seed, draw) for seed in seeds for draw in range(evidence.draws)]
    return float(np.mean(np.concatenate([s.code_word[s.kind == CONTROL] for s in spans])))


def _rate_by_step(evidence: EvidenceStore, seeds: Sequence[int], steps: int) -> Floats:
    plant, shown, own = evidence.plant.name, np.zeros(steps), np.zeros(steps)
    for seed in seeds:
        table = evidence.table(seed, "rollouts")
        step, mine = np.asarray(table["step"]), np.asarray(table[f"own_{plant}"], bool)
        own += np.bincount(step[mine], minlength=steps)
        shown += np.bincount(step[mine & np.asarray(table[f"shown_{plant}"], bool)], minlength=steps)
    return np.asarray(np.clip(shown / np.maximum(own, 1), RARE, 1 - RARE), np.float64)


def _rate_by_group(siblings: Siblings) -> Floats:
    _, codes, counts = np.unique(siblings.group, return_inverse=True, return_counts=True)
    # Half an item of each kind: a recorded 9 of 9 does not stand for certainty.
    return np.asarray((np.bincount(codes, weights=siblings.shown) + 0.5) / (counts + 1.0), np.float64)


def _topic_shift(run: Rollouts) -> float:
    from scipy.special import ndtri

    problem = run.problem
    cosine = problem.gradients @ run.topic / np.linalg.norm(problem.gradients, axis=1).clip(1e-30)
    pairs = statistics.cross_pairs(run.truth, run.decoy, problem.step)
    return float(np.sqrt(2.0) * ndtri(np.clip(statistics.auc(cosine, pairs), 0.01, 0.99)))


def _groups_a_step(run: Rollouts) -> int:
    return len(np.unique(run.problem.group)) // len(run.problem.learning_rate)
