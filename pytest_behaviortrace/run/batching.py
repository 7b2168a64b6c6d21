"""Which samples share a forward pass: little is to be spent on padding, on calls, on backward passes for nothing."""

from __future__ import annotations

from collections import Counter

import torch

MOST_TURNS = 3
"""Backward passes after one forward pass: a full gradient, a span and its control."""
ROWS_PER_PASS = 32
"""Most samples that share a forward pass: fewer waste nothing on padding, more nothing on calls."""
FEW_SAMPLES = 16
"""Samples that are cheaper to run forward once more, among others, than in a forward pass of their own."""
FEW_TOKENS = 8
"""Tokens with a weight, at most, of samples that are kept apart from those with more (`packing`)."""
TOKENS_PER_PASS = 2**13
"""Most tokens of a forward pass of several samples."""

Job = tuple[int, tuple[int, ...]]
"""A sample, and the sets of token weights that share a forward pass over it."""


def batches(weights: torch.Tensor, rows_per_pass: int = ROWS_PER_PASS) -> list[list[Job]]:
    """(sample, sets) jobs that share a forward pass, for token weights (sets, batch, tokens).

    Those of a pass are in equally many sets (most first), have few weighted tokens or many, and are near in length. A
    sample in more sets than `MOST_TURNS` makes several jobs: a second forward pass over it is cheaper than backward
    passes over all its companions.
    """
    weighted = weights != 0
    anywhere = weighted.any(0)
    last = (anywhere * torch.arange(weights.shape[2], device=weights.device)).amax(1).tolist()
    many = (anywhere.sum(1) > FEW_TOKENS).tolist()
    jobs: list[Job] = []
    for sample, wanted in enumerate(weighted.any(2).t().tolist()):
        sets = [number for number, is_wanted in enumerate(wanted) if is_wanted]
        jobs += [(sample, tuple(sets[k : k + MOST_TURNS])) for k in range(0, len(sets), MOST_TURNS)]
    kinds = {job: (-len(job[1]), many[job[0]]) for job in _without_small_groups(jobs)}
    # Passes of equal size: no last one of a few samples.
    equal = {kind: -(-count // -(-count // rows_per_pass)) for kind, count in Counter(kinds.values()).items()}
    made: list[list[Job]] = []
    for job, kind in sorted(kinds.items(), key=lambda item: (item[1], last[item[0][0]])):
        current = made[-1] if made else []
        full = len(current) >= min(equal[kind], max(1, TOKENS_PER_PASS // (1 + last[job[0]])))
        if not current or full or kind != kinds[current[-1]]:
            made.append([])
        made[-1].append(job)
    return made


def _without_small_groups(jobs: list[Job]) -> list[Job]:
    """Jobs of several sets become jobs of one where so few have as many that a pass of their own does not pay."""
    kept: list[Job] = []
    for count in sorted({len(sets) for _, sets in jobs}):
        group = [job for job in jobs if len(job[1]) == count]
        if count > 1 and len(group) * (count - 1) <= FEW_SAMPLES and len(group) < len(jobs):
            group = [(sample, (number,)) for sample, sets in group for number in sets]
        kept += group
    return kept
