"""AUC over pairs and its replicates against brute force and scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from statistic_rows import brute_auc, brute_within, example, expanded, prop, rows

from pytest_behaviortrace import statistics
from pytest_behaviortrace.statistics import ClusterBootstrap, Pairs


def as_set(pairs):
    return set(zip(pairs.positive.tolist(), pairs.negative.tolist(), strict=True))


@prop
@given(rows())
def test_within_group_auc_is_brute_force(data):
    scores, labels, groups, _ = data
    pairs = statistics.within_group_pairs(labels, groups)
    expected = brute_within(labels, groups)
    assert as_set(pairs) == set(expected)
    assert len(pairs) == len(expected)
    assert statistics.auc(scores, pairs) == pytest.approx(brute_auc(scores, expected), nan_ok=True)


@prop
@given(rows(least=2))
def test_auc_of_one_group_is_scikit_learns(data):
    scores, labels, _, _ = data
    if labels.any() and not labels.all():
        pairs = statistics.within_group_pairs(labels, np.zeros(len(labels)))
        assert statistics.auc(scores, pairs) == pytest.approx(roc_auc_score(labels, scores))
        assert statistics.separation(scores[labels], scores[~labels]) == pytest.approx(roc_auc_score(labels, scores))


def test_separation_is_the_mann_whitney_statistic():
    rng = np.random.default_rng(2)
    a, b = np.round(rng.normal(0.4, 1, 30), 1), np.round(rng.normal(size=17), 1)
    u = scipy.stats.mannwhitneyu(a, b).statistic
    assert statistics.separation(a, b) == pytest.approx(u / (30 * 17))
    assert math.isnan(statistics.separation([], b))
    assert math.isnan(statistics.separation(a, []))


@prop
@given(rows())
def test_reversing_a_score_mirrors_its_auc(data):
    scores, labels, groups, _ = data
    pairs = statistics.within_group_pairs(labels, groups)
    assert statistics.auc(-scores, pairs) == pytest.approx(1 - statistics.auc(scores, pairs), nan_ok=True)


def test_a_mask_of_negatives_leaves_the_other_items_out():
    positive, negative = np.array([1, 0, 0, 1], bool), np.array([0, 1, 0, 0], bool)
    assert as_set(statistics.within_group_pairs(positive, ["a", "a", "a", "b"], negative)) == {(0, 1)}


@prop
@given(rows(), st.integers(0, 3))
def test_cross_pairs_are_all_pairs_of_nearby_steps(data, gap):
    _, labels, steps, _ = data
    other = ~labels & (np.arange(len(labels)) % 3 > 0)
    pairs = statistics.cross_pairs(labels, other, steps, gap)
    n = range(len(labels))
    assert as_set(pairs) == {(i, j) for i in n for j in n if labels[i] and other[j] and abs(steps[i] - steps[j]) <= gap}
    assert pairs.crossed


@pytest.mark.parametrize("make", [
    lambda p, n: statistics.within_group_pairs(p, np.zeros(3), n),
    lambda p, n: statistics.cross_pairs(p, n, np.zeros(3)),
])  # fmt: skip
def test_pairs_refuse_contradictory_or_misshapen_labels(make):
    with pytest.raises(ValueError, match="both positive and negative"):
        make([True, False, True], [True, True, False])
    with pytest.raises(ValueError, match="one value per item"):
        make([True, False], [False, True])
    with pytest.raises(ValueError, match="as many positives"):
        Pairs(np.arange(2), np.arange(3))


def test_matched_pairs_count_the_width_itself_despite_rounding():
    pairs = Pairs(np.array([0, 0, 0]), np.array([1, 2, 3]))
    assert as_set(statistics.matched_pairs(pairs, [-0.3, -0.4, -0.40001, -0.2], width=0.1)) == {(0, 1), (0, 3)}


def test_no_pairs_is_nan_and_counted_never_silent():
    pairs = statistics.within_group_pairs([True, True, False], [0, 0, 1])
    bootstrap = ClusterBootstrap([0, 0, 1], resamples=50)
    assert len(pairs) == 0
    assert math.isnan(statistics.auc([1, 2, 3], pairs))
    for found in (
        statistics.auc_replicates([1, 2, 3], pairs, bootstrap),
        statistics.residual_auc_replicates([1, 2, 3], pairs, [1, 2, 3], [0, 0, 1], bootstrap),
    ):
        assert statistics.undefined(found) == 50
        assert math.isnan(statistics.interval(math.nan, found).low)


def test_nan_scores_are_refused():
    with pytest.raises(ValueError, match="NaN"):
        statistics.auc([math.nan, 1.0], Pairs(np.array([0]), np.array([1])))


@pytest.mark.parametrize("ties", [False, True])
def test_within_group_replicates_are_the_auc_of_the_items_drawn(ties):
    scores, labels, groups, _ = example(ties=ties)
    clusters = groups // 2  # clusters may hold several groups
    pairs, bootstrap = statistics.within_group_pairs(labels, groups), ClusterBootstrap(clusters, 40, 1)
    found = statistics.auc_replicates(scores, pairs, bootstrap)
    for r in range(40):
        drawn = [p for p in brute_within(labels, groups) for _ in range(bootstrap.weights[r, clusters[p[0]]])]
        assert found[r] == pytest.approx(brute_auc(scores, drawn))


def test_crossed_replicates_are_the_auc_of_the_items_drawn():
    scores, labels, groups, _ = example(ties=True)
    steps = groups // 3
    pairs, bootstrap = statistics.cross_pairs(labels, ~labels, steps, 1), ClusterBootstrap(groups, 40, 1)
    found = statistics.auc_replicates(scores, pairs, bootstrap)
    for r in range(40):
        items, _ = expanded(bootstrap.weights[r], bootstrap.codes)
        drawn = [(i, j) for i in items for j in items if labels[i] and not labels[j] and abs(steps[i] - steps[j]) <= 1]
        assert found[r] == pytest.approx(brute_auc(scores, drawn))


def test_span_replicates_over_completions_of_a_probe():
    rng = np.random.default_rng(4)
    probe = np.array([0, 0, 1, 2, 2, 2])
    scores = rng.integers(0, 3, 12).astype(float)
    trigger = 2 * np.arange(6)
    bootstrap = ClusterBootstrap(np.repeat(probe, 2), 30)
    found = statistics.auc_replicates(scores, Pairs(trigger, trigger + 1), bootstrap)
    for r in range(30):
        drawn = [(2 * c, 2 * c + 1) for c in range(6) for _ in range(bootstrap.weights[r, probe[c]])]
        assert found[r] == pytest.approx(brute_auc(scores, drawn))


def test_undefined_resamples_are_the_same_for_every_score_and_dropped_from_the_interval():
    labels, groups = np.array([1, 0, 1, 1, 1, 1], bool), np.array([0, 0, 1, 1, 2, 2])
    pairs, bootstrap = statistics.within_group_pairs(labels, groups), ClusterBootstrap(groups, 400)
    one = statistics.auc_replicates(np.arange(6.0), pairs, bootstrap)
    two = statistics.auc_replicates(-np.arange(6.0), pairs, bootstrap)
    missing = bootstrap.weights[:, 0] == 0
    assert statistics.undefined(one) == missing.sum() > 50
    np.testing.assert_array_equal(np.isnan(one), missing)
    np.testing.assert_array_equal(np.isnan(two), missing)
    assert statistics.interval(0.0, one).low == statistics.interval(0.0, one).high == 0.0


def test_an_interval_of_mostly_undefined_resamples_is_nan():
    replicates = np.array([0.5] * 49 + [math.nan] * 51)
    assert all(math.isnan(end) for end in statistics.percentile(replicates))
    assert statistics.percentile(replicates[1:-1]) != (0.5, 0.5)
    assert statistics.percentile(replicates[:-2]) == (0.5, 0.5)


def test_pairs_within_clusters_must_not_cross_them():
    with pytest.raises(ValueError, match="one cluster"):
        statistics.auc_replicates([1.0, 2.0], Pairs(np.array([0]), np.array([1])), ClusterBootstrap([0, 1], 5))
