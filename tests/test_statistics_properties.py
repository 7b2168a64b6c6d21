"""What holds for every data set: nothing depends on the order of rows or on names, and what changes what does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from statistic_rows import brute_auc, brute_within, expanded, few_values, prop, rows

from pytest_behaviortrace import statistics
from pytest_behaviortrace.statistics import ClusterBootstrap

whole = st.integers(-20, 20).map(float)
"""Scores whose sums are exact, so that another order of summation gives the same number."""


def residual_auc(scores, labels, groups, fluency):
    """As `test_fluency_control` computes it."""
    pairs = statistics.within_group_pairs(labels, groups)
    return statistics.residual_auc(scores, pairs, statistics.fluency_basis(fluency, groups), groups)


# -- order and names ---------------------------------------------------------------------------------------------------
@prop
@given(rows(values=whole), st.randoms(use_true_random=False))
def test_the_order_of_the_rows_does_not_matter(data, random):
    scores, labels, groups, fluency = data
    order = np.array(random.sample(range(len(scores)), len(scores)))
    again = scores[order], labels[order], groups[order], fluency[order]
    if labels.any():
        assert statistics.tie_aware_precision(*again[:2]) == statistics.tie_aware_precision(scores, labels)
        assert statistics.ceiling(*again[:2]) == statistics.ceiling(scores, labels)
    assert statistics.chance(again[1]) == statistics.chance(labels)
    first, second = (statistics.within_group_pairs(*row) for row in ((labels, groups), again[1:3]))
    assert statistics.auc(again[0], second) == pytest.approx(statistics.auc(scores, first), nan_ok=True)
    assert statistics.spearman(again[0], again[3]) == pytest.approx(statistics.spearman(scores, fluency), abs=1e-12)
    assert residual_auc(*again) == pytest.approx(residual_auc(*data), nan_ok=True)


@prop
@given(rows(), st.permutations(range(5)))
def test_the_names_of_groups_do_not_matter(data, names):
    scores, labels, groups, fluency = data
    others = np.array([f"prompt {names[g]}" for g in groups])
    first, second = (statistics.within_group_pairs(labels, g) for g in (groups, others))
    assert statistics.auc(scores, first) == pytest.approx(statistics.auc(scores, second), abs=0, nan_ok=True)
    np.testing.assert_allclose(
        statistics.residualise(scores, fluency, others) / (np.abs(scores).max() or 1),
        statistics.residualise(scores, fluency, groups) / (np.abs(scores).max() or 1),
        atol=1e-12,
    )


# -- AUC ---------------------------------------------------------------------------------------------------------------
@prop
@given(rows(), st.integers(0, 3))
def test_auc_of_cross_pairs_is_brute_force(data, gap):
    scores, labels, steps, _ = data
    pairs = statistics.cross_pairs(labels, ~labels, steps, gap)
    n = range(len(labels))
    expected = [(i, j) for i in n for j in n if labels[i] and not labels[j] and abs(steps[i] - steps[j]) <= gap]
    assert statistics.auc(scores, pairs) == pytest.approx(brute_auc(scores, expected), nan_ok=True)


@prop
@given(rows(), st.integers(0, 3))
def test_auc_replicates_of_adversarial_rows(data, seed):
    scores, labels, groups, _ = data
    bootstrap = ClusterBootstrap(groups, resamples=8, seed=seed)
    within = statistics.auc_replicates(scores, statistics.within_group_pairs(labels, groups), bootstrap)
    crossed = statistics.auc_replicates(scores, statistics.cross_pairs(labels, ~labels, groups, 1), bootstrap)
    for r in range(8):
        drawn = [p for p in brute_within(labels, groups) for _ in range(bootstrap.weights[r, bootstrap.codes[p[0]]])]
        assert within[r] == pytest.approx(brute_auc(scores, drawn), nan_ok=True)
        items, _ = expanded(bootstrap.weights[r], bootstrap.codes)
        near = [(i, j) for i in items for j in items if labels[i] and not labels[j] and abs(groups[i] - groups[j]) <= 1]
        assert crossed[r] == pytest.approx(brute_auc(scores, near), nan_ok=True)


@prop
@given(rows(), rows())
def test_scores_of_the_same_rows_are_compared_on_the_same_resamples(data, others):
    scores, labels, groups, _ = data
    pairs, bootstrap = statistics.within_group_pairs(labels, groups), ClusterBootstrap(groups, resamples=20)
    one = statistics.auc_replicates(scores, pairs, bootstrap)
    two = statistics.auc_replicates(np.resize(others[0], len(scores)), pairs, bootstrap)
    np.testing.assert_array_equal(np.isnan(one), np.isnan(two))
    np.testing.assert_array_equal(one, statistics.auc_replicates(scores, pairs, bootstrap))


@prop
@given(rows(), st.floats(0, 1))
def test_matched_pairs_are_the_pairs_of_like_fluency(data, width):
    _, labels, groups, fluency = data
    pairs = statistics.within_group_pairs(labels, groups)
    matched = statistics.matched_pairs(pairs, fluency, width)
    found = set(zip(matched.positive.tolist(), matched.negative.tolist(), strict=True))
    gaps = {(i, j): abs(fluency[i] - fluency[j]) for i, j in brute_within(labels, groups)}
    assert {pair for pair, gap in gaps.items() if gap <= width} <= found
    assert found <= {pair for pair, gap in gaps.items() if gap <= width + 1e-9}


# -- precision ---------------------------------------------------------------------------------------------------------
@prop
@given(rows(), st.integers(1, 24))
def test_precision_lies_between_the_worst_and_the_best_order(data, k):
    scores, labels, _, _ = data
    k = min(k, len(scores))
    best = statistics.ceiling(scores, labels, k)
    assert 0 <= statistics.tie_aware_precision(scores, labels, k) <= best + 1e-12
    assert best <= min(1.0, labels.sum() / k) + 1e-12
    assert statistics.ceiling(labels.astype(float), labels, k) == pytest.approx(min(1.0, labels.sum() / k))


@prop
@given(rows(), st.integers(1, 24))
def test_the_first_and_the_last_items_hold_the_truth_between_them(data, k):
    scores, labels, _, _ = data
    k, n = min(k, len(scores)), len(scores)
    top = k * statistics.tie_aware_precision(scores, labels, k)
    rest = (n - k) * statistics.tie_aware_precision(-scores, labels, n - k) if k < n else 0.0
    assert top + rest == pytest.approx(labels.sum())


# -- fluency -----------------------------------------------------------------------------------------------------------
@prop
@given(rows(values=whole))
def test_reversing_a_score_mirrors_its_residual_auc(data):
    scores, labels, groups, fluency = data
    mirrored = 1 - residual_auc(-scores, labels, groups, fluency)
    assert residual_auc(*data) == pytest.approx(mirrored, nan_ok=True)


@prop
@given(rows(values=whole, least=2), st.integers(-3, 3), st.integers(-3, 3))
def test_adding_what_is_removed_leaves_the_residuals_alone(data, slope, shift):
    scores, _, groups, fluency = data
    basis = statistics.fluency_basis(fluency, groups)
    plain = statistics.residualise(scores, basis, groups)
    for extra in (slope * fluency, slope * fluency**2, slope * statistics.average_ranks(fluency), shift * groups):
        changed = statistics.residualise(scores + extra, basis, groups)
        np.testing.assert_allclose(changed, plain, atol=1e-9 * (1 + np.abs(scores).max() + np.abs(extra).max()))
    np.testing.assert_allclose(
        statistics.residualise(plain, basis, groups), plain, atol=1e-9 * (1 + np.abs(scores).max())
    )


@prop
@given(rows(), st.integers(0, 3))
def test_residual_auc_is_undefined_where_raw_auc_is_and_a_share_elsewhere(data, seed):
    scores, labels, groups, fluency = data
    pairs, bootstrap = statistics.within_group_pairs(labels, groups), ClusterBootstrap(groups, resamples=8, seed=seed)
    basis = statistics.fluency_basis(fluency, groups)
    found = statistics.residual_auc_replicates(scores, pairs, basis, groups, bootstrap)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(statistics.auc_replicates(scores, pairs, bootstrap)))
    assert ((found[~np.isnan(found)] >= 0) & (found[~np.isnan(found)] <= 1)).all()


def test_a_monotone_transform_changes_residual_auc_but_neither_auc_nor_precision():
    """Where a cube moves the residual AUC, the raw AUC and the precision of the same rows stay as they were."""

    def changed(data):
        scores, labels, groups, fluency = data
        before, after = residual_auc(*data), residual_auc(scores**3, labels, groups, fluency)
        return np.isfinite(before) and abs(before - after) > 0.1

    search = settings(prop, max_examples=2000, database=None, phases=(Phase.generate, Phase.shrink))
    scores, labels, groups, _ = find(rows(values=whole, least=6), changed, settings=search)
    pairs = statistics.within_group_pairs(labels, groups)
    assert statistics.auc(scores, pairs) == statistics.auc(scores**3, pairs)
    assert statistics.tie_aware_precision(scores, labels) == statistics.tie_aware_precision(scores**3, labels)


# -- ranks and intervals -----------------------------------------------------------------------------------------------
@prop
@given(rows(values=whole, least=2))
def test_spearman_is_symmetric_odd_and_blind_to_monotone_transforms(data):
    scores, _, _, fluency = data
    rho = statistics.spearman(scores, fluency)
    assert -1 <= rho <= 1
    assert statistics.spearman(fluency, scores) == pytest.approx(rho, abs=1e-15)
    assert statistics.spearman(-scores, fluency) == pytest.approx(-rho, abs=1e-12)
    assert statistics.spearman(np.exp(scores), fluency) == rho
    found = statistics.spearman_interval(scores, fluency)
    assert found.low <= found.estimate <= found.high


@prop
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.floats(0.5, 0.99))
def test_a_percentile_interval_lies_within_the_replicates_and_grows_with_its_level(replicates, level):
    values = np.array(replicates)
    low, high = statistics.percentile(values, level)
    assert values.min() <= low <= high <= values.max()
    wide_low, wide_high = statistics.percentile(values, (1 + level) / 2)
    assert wide_low <= low + 1e-9 * abs(low)
    assert wide_high >= high - 1e-9 * abs(high)


@prop
@given(rows(values=few_values), st.integers(0, 3))
def test_the_mean_of_a_constant_is_that_constant_in_every_resample(data, seed):
    _, _, groups, _ = data
    bootstrap = ClusterBootstrap(groups, resamples=10, seed=seed)
    np.testing.assert_allclose(statistics.mean_replicates(np.full(len(groups), 0.1), bootstrap), 0.1)


@prop
@given(st.lists(whole, min_size=2, max_size=6), whole)
def test_a_t_interval_is_centred_on_the_mean_and_moves_with_the_values(values, shift):
    found, moved = statistics.t_interval(values), statistics.t_interval([v + shift for v in values])
    assert found.estimate == pytest.approx(np.mean(values), abs=1e-12)
    assert found.estimate - found.low == pytest.approx(found.high - found.estimate, abs=1e-9)
    assert moved.low == pytest.approx(found.low + shift, abs=1e-9)
    assert moved.width == pytest.approx(found.width, abs=1e-9)
