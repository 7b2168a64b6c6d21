"""Precision, chance, ceiling and ranks against brute force and scipy, on tied and degenerate rankings."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from statistic_rows import example, expanded, few_values, prop, rows

from pytest_behaviortrace import statistics
from pytest_behaviortrace.statistics import ClusterBootstrap


def brute_precision(scores, labels, k):
    """Mean precision at k over every order of the items that the scores allow (sampled by exact counting)."""
    total = 0.0
    above = {s: sum(t > s for t in scores) for s in set(scores)}
    for s, label in zip(scores, labels, strict=True):
        tied = sum(t == s for t in scores)
        total += label * min(1.0, max(0.0, (k - above[s]) / tied))  # chance of the item to be among the first k
    return total / k


def all_orders_ceiling(scores, labels, k):
    blocks = [(sum(scores == s), sum(labels[scores == s])) for s in np.unique(scores)]
    best = 0.0
    for order in itertools.permutations(blocks):
        left, hits = k, 0.0
        for size, found in order:
            take = min(left, size)
            hits, left = hits + found * take / size, left - take
        best = max(best, hits / k)
    return best


@prop
@given(rows(), st.integers(1, 24))
def test_precision_is_the_mean_over_all_orders_of_tied_items(data, k):
    scores, labels, _, _ = data
    k = min(k, len(scores))
    assert statistics.tie_aware_precision(scores, labels, k) == pytest.approx(
        brute_precision(scores, labels, k), abs=1e-12
    )


@prop
@given(rows(values=few_values), st.integers(1, 24))
def test_ceiling_is_the_best_of_all_orders_of_the_blocks(data, k):
    scores, labels, _, _ = data
    k = min(k, len(scores))
    assert statistics.ceiling(scores, labels, k) == pytest.approx(all_orders_ceiling(scores, labels, k), abs=1e-12)


@prop
@given(rows())
def test_neither_chance_nor_precision_exceeds_the_ceiling(data):
    scores, labels, _, _ = data
    if labels.any():
        best = statistics.ceiling(scores, labels) + 1e-12
        assert statistics.chance(labels) <= best
        assert statistics.tie_aware_precision(scores, labels) <= best


@prop
@given(rows(values=st.integers(-50, 50).map(float)))
def test_precision_and_auc_do_not_change_under_monotone_transforms(data):
    scores, labels, groups, _ = data
    pairs = statistics.within_group_pairs(labels, groups)
    for changed in (np.exp(scores), scores**3, scores * 1e300 / 50, scores * 1e-300, np.arctan(scores)):
        if labels.any():
            assert statistics.tie_aware_precision(changed, labels) == statistics.tie_aware_precision(scores, labels)
        assert statistics.auc(changed, pairs) == pytest.approx(statistics.auc(scores, pairs), abs=0, nan_ok=True)


@pytest.mark.parametrize("constant", [0.0, -3.0, 1e300, 5e-324])
def test_a_constant_score_has_exactly_chance_as_precision_and_ceiling(constant):
    labels = np.arange(30) % 7 == 0
    scores = np.full(30, constant)
    assert statistics.tie_aware_precision(scores, labels) == statistics.chance(labels) == 5 / 30
    assert statistics.ceiling(scores, labels) == statistics.chance(labels)


def test_precision_by_hand():
    # the block of three 1s takes the one slot left after the 2: 1/3 of its single hit
    assert statistics.tie_aware_precision([2, 1, 1, 1, 0], [True, True, False, False, False]) == pytest.approx(
        (1 + 1 / 3) / 2
    )
    assert statistics.ceiling([2, 1, 1, 1, 0], [True, True, False, False, True], k=2) == 1.0
    assert statistics.tie_aware_precision([3, 2, 1], [True, True, True]) == 1.0


@pytest.mark.parametrize(
    ("scores", "labels", "k"),
    [([1.0], [False], None), ([1.0], [True], 2), ([1.0], [True], 0), ([math.nan], [True], None), ([], [], None),
     ([1.0, 2.0], [True], None), ([[1.0]], [[True]], None)],
)  # fmt: skip
def test_precision_refuses_what_it_cannot_rank(scores, labels, k):
    for function in (statistics.tie_aware_precision, statistics.ceiling):
        with pytest.raises(ValueError, match=r"k <= |NaN|per item"):
            function(scores, labels, k)


def test_chance_refuses_no_items():
    with pytest.raises(ValueError, match="at least one"):
        statistics.chance([])


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("chunk", [1, 1000, 2_000_000])
def test_precision_replicates_are_precision_of_the_items_drawn(monkeypatch, ties, chunk):
    monkeypatch.setattr("pytest_behaviortrace.statistics.ranking.CHUNK", chunk)
    scores, labels, groups, _ = example(ties=ties)
    bootstrap = ClusterBootstrap(groups, resamples=60, seed=3)
    found = statistics.precision_replicates(scores, labels, bootstrap)
    for r in range(60):
        items, _ = expanded(bootstrap.weights[r], bootstrap.codes)
        assert found.precision[r] == pytest.approx(
            statistics.tie_aware_precision(scores[items], labels[items]), abs=1e-12
        )
        assert found.chance[r] == pytest.approx(labels[items].mean(), abs=1e-12)
    np.testing.assert_array_equal(found.excess, found.precision - found.chance)


@prop
@given(rows(), st.integers(0, 3))
def test_precision_replicates_of_adversarial_rows(data, seed):
    scores, labels, groups, _ = data
    bootstrap = ClusterBootstrap(groups, resamples=8, seed=seed)
    found = statistics.precision_replicates(scores, labels, bootstrap)
    for r in range(8):
        items, _ = expanded(bootstrap.weights[r], bootstrap.codes)
        if labels[items].any():
            assert found.precision[r] == pytest.approx(
                brute_precision(scores[items], labels[items], labels[items].sum())
            )
        else:
            assert np.isnan(found.precision[r])
            assert np.isnan(found.chance[r])


def test_precision_replicates_refuse_another_number_of_items():
    with pytest.raises(ValueError, match="bootstrap of 3"):
        statistics.precision_replicates([1.0, 2.0], [True, False], ClusterBootstrap([0, 1, 2], 5))


@prop
@given(rows())
def test_average_ranks_are_scipys(data):
    np.testing.assert_array_equal(statistics.average_ranks(data[0]), scipy.stats.rankdata(data[0]))


@prop
@given(rows(least=2))
def test_spearman_is_scipys(data):
    scores, _, _, fluency = data
    if len(set(scores)) > 1 and len(set(fluency)) > 1:
        assert statistics.spearman(scores, fluency) == pytest.approx(scipy.stats.spearmanr(scores, fluency).statistic)
    else:
        assert statistics.spearman(scores, fluency) == 0.0


def test_spearman_at_the_edges():
    assert statistics.spearman([1, 2, 3], [1e-300, 1, 1e300]) == 1.0
    assert statistics.spearman([1, 2, 3], [5, 4, 3]) == -1.0
    assert statistics.spearman([1], [2]) == 0.0
    with pytest.raises(ValueError, match="2 values against 1"):
        statistics.spearman([1, 2], [1])
    with pytest.raises(ValueError, match="NaN"):
        statistics.spearman([1, math.nan], [1, 2])


def test_spearman_interval_covers_about_as_often_as_it_says():
    rng, inside, truth = np.random.default_rng(1), 0, 6 / math.pi * math.asin(0.6 / 2)
    for _ in range(400):
        x = rng.normal(size=64)
        found = statistics.spearman_interval(x, 0.6 * x + 0.8 * rng.normal(size=64))
        inside += found.low <= truth <= found.high
    assert 366 <= inside <= 394  # 380 of 400, three standard deviations either way


def test_spearman_interval_at_the_edges():
    x = np.arange(10.0)
    perfect = statistics.spearman_interval(x, x**3)
    assert perfect.estimate == perfect.high == 1.0
    assert perfect.low > 0.999
    assert statistics.spearman_interval(x, -x).high < -0.999
    none = statistics.spearman_interval(x, np.ones(10))
    assert (none.estimate, none.low, none.high) == (0.0, 0.0, 0.0)
    few = statistics.spearman_interval([1, 2, 3], [1, 2, 3])
    assert (few.estimate, few.low, few.high) == (1.0, -1.0, 1.0)
    assert (
        statistics.spearman_interval(x, np.sin(x), level=0.5).width < statistics.spearman_interval(x, np.sin(x)).width
    )
