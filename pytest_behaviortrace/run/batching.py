"""Which samples share a forward pass: little is to be spent on padding, on calls, on backward passes for nothing."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from numpy.typing import NDArray

MOST_TURNS = 3
"""Backward passes after one forward pass: a full gradient, a span and its control."""
ROWS_PER_PASS = 32
"""Most samples that share a forward pass: fewer waste nothing on padding, more nothing on calls."""
FEW_SAMPLES = 16
"""Samples that are cheaper to run forward once more, among others, than in a forward pass of their own."""
FEW_TOKENS = 8
"""Tokens with a weight, at most, of samples that may be kept apart from those with more (`packing`)."""
PASS = 100
"""Tokens that a pass costs as much as before it has any: calls (`tiny` recipe, one core)."""
WEIGHTED = 0.4
"""What a weighted token costs beside its share of a pass: the last MLP and the output embeddings see no others."""
TOKENS_PER_PASS = 2**13
"""Most tokens of a forward pass of several samples."""

Job = tuple[int, tuple[int, ...]]
"""A sample, and the sets of token weights that share a forward pass over it."""


def batches(weights: torch.Tensor, rows_per_pass: int = ROWS_PER_PASS) -> list[list[Job]]:
    """(sample, sets) jobs that share a forward pass, for token weights (sets, batch, tokens).

    Those of a pass are in equally many sets (most first), and the passes are those that cost least: rows times their
    longest, rows times their most weighted tokens, and something for each pass. A sample in more sets than `MOST_TURNS`
    makes several jobs: a second forward pass over it is cheaper than backward passes over all its companions.
    """
    weighted = weights != 0
    anywhere = weighted.any(0)
    length = (anywhere * torch.arange(1, weights.shape[2] + 1, device=weights.device)).amax(1).cpu().numpy()
    count = anywhere.sum(1).cpu().numpy()
    jobs: list[Job] = []
    for sample, wanted in enumerate(weighted.any(2).t().tolist()):
        sets = [number for number, is_wanted in enumerate(wanted) if is_wanted]
        jobs += [(sample, tuple(sets[k : k + MOST_TURNS])) for k in range(0, len(sets), MOST_TURNS)]
    by_sets: dict[int, list[Job]] = {}
    for job in _without_small_groups(jobs):
        by_sets.setdefault(len(job[1]), []).append(job)
    made: list[list[Job]] = []
    for _, group in sorted(by_sets.items(), reverse=True):
        rows = np.array([job[0] for job in group])
        # In order of length little is padded; with few weighted tokens apart, little is left in at the end.
        by_length = np.argsort(length[rows], kind="stable")
        by_count = by_length[np.argsort(count[rows[by_length]] > FEW_TOKENS, kind="stable")]
        found = [(*_cheapest(length[rows[o]], count[rows[o]], rows_per_pass), o) for o in (by_length, by_count)]
        _, stops, order = min(found, key=lambda division: division[0])
        made += [[group[job] for job in order[start:stop]] for start, stop in itertools.pairwise(stops)]
    return made


def _cheapest(length: NDArray[np.int64], count: NDArray[np.int64], rows_per_pass: int) -> tuple[float, list[int]]:
    """Cost in tokens, and where passes begin and the last one stops, of the cheapest division of jobs in their order.

    `length` and `count` of each: up to its last weighted token, and of weighted tokens.
    """
    cost, cut = np.zeros(len(length) + 1), [0]
    for stop in range(1, len(length) + 1):
        first = max(0, stop - rows_per_pass)
        longest, most = (np.maximum.accumulate(size[first:stop][::-1])[::-1] for size in (length, count))
        rows = np.arange(stop - first, 0, -1)
        found = cost[first:stop] + PASS + rows * (longest + WEIGHTED * most)
        found[:-1][rows[:-1] * longest[:-1] > TOKENS_PER_PASS] = np.inf
        best = int(found.argmin())
        cost[stop] = found[best]
        cut.append(first + best)
    stops = [len(length)]
    while stops[-1]:
        stops.append(cut[stops[-1]])
    return float(cost[-1]), stops[::-1]


def _without_small_groups(jobs: list[Job]) -> list[Job]:
    """Jobs of several sets become jobs of one where so few have as many that a pass of their own does not pay."""
    kept: list[Job] = []
    for count in sorted({len(sets) for _, sets in jobs}):
        group = [job for job in jobs if len(job[1]) == count]
        if count > 1 and len(group) * (count - 1) <= FEW_SAMPLES and len(group) < len(jobs):
            group = [(sample, (number,)) for sample, sets in group for number in sets]
        kept += group
    return kept
