"""Which samples share a pass: the cheapest division of them, within bounds, and none is lost."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch

from pytest_behaviortrace.run.batching import FEW_SAMPLES, PASS, ROWS_PER_PASS, TOKENS_PER_PASS, WEIGHTED, batches


def weighted(lengths, counts, tokens=200):
    """(1, batch, tokens) token weights: the last `count` tokens of each `length`."""
    weights = torch.zeros(1, len(lengths), tokens)
    for row, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        weights[0, row, length - count : length] = 1.0
    return weights


def cost(passes, lengths, counts):
    samples = [[sample for sample, _ in jobs] for jobs in passes]
    return sum(PASS + len(s) * (max(lengths[i] for i in s) + WEIGHTED * max(counts[i] for i in s)) for s in samples)


def test_samples_of_few_weighted_tokens_have_passes_of_their_own_where_that_pays():
    lengths, counts = [60] * 30, [2, 50] * 15
    found = batches(weighted(lengths, counts))
    assert [{sample % 2 for sample, _ in jobs} for jobs in found] == [{0}, {1}]
    assert sorted(job for jobs in found for job in jobs) == [(sample, (0,)) for sample in range(30)]
    # Of six samples, none is worth a pass of its own.
    assert len(batches(weighted(lengths[:6], counts[:6]))) == 1


@given(st.lists(st.tuples(st.integers(2, 190), st.integers(1, 60)), min_size=1, max_size=7))
def test_no_division_of_samples_in_the_order_of_their_length_is_cheaper(sizes):
    lengths = [length for length, _ in sizes]
    counts = [min(count, length - 1) for length, count in sizes]
    found = batches(weighted(lengths, counts), rows_per_pass=4)
    assert sorted(sample for jobs in found for sample, _ in jobs) == list(range(len(sizes)))
    assert max(len(jobs) for jobs in found) <= 4
    order = [(sample, (0,)) for sample in sorted(range(len(sizes)), key=lengths.__getitem__)]
    for cuts in itertools.product([False, True], repeat=len(order) - 1):
        stops = [0, *(k for k, cut in enumerate(cuts, 1) if cut), len(order)]
        division = [order[a:b] for a, b in itertools.pairwise(stops)]
        if max(len(jobs) for jobs in division) <= 4:
            assert cost(found, lengths, counts) <= cost(division, lengths, counts) + 1e-6


def test_long_samples_share_passes_of_bounded_tokens():
    tokens = TOKENS_PER_PASS // 3
    assert sorted(len(jobs) for jobs in batches(weighted([tokens] * 7, [1] * 7, tokens))) in ([1, 3, 3], [2, 2, 3])
    longer = TOKENS_PER_PASS + 1
    assert [len(jobs) for jobs in batches(weighted([longer] * 2, [1] * 2, longer))] == [1, 1]


def test_samples_in_as_many_sets_share_passes_and_none_is_above_the_most():
    weights = torch.zeros(2, 70, 6)
    weights[0, :, 3] = 1.0
    weights[1, : FEW_SAMPLES + 1, 4] = 1.0
    found = batches(weights)
    assert [len(jobs) for jobs in found[:1]] == [FEW_SAMPLES + 1]
    assert [{len(sets) for _, sets in jobs} for jobs in found] == [{2}, {1}, {1}]
    assert max(len(jobs) for jobs in found) <= ROWS_PER_PASS
    assert sorted(sample for jobs in found[1:] for sample, _ in jobs) == list(range(FEW_SAMPLES + 1, 70))
