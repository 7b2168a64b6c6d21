"""What keeps mixtures and functions of controls from winning: fitted mixtures, steps, and widened intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from sklearn.linear_model import LogisticRegression
from statistic_rows import example

from pytest_behaviortrace import statistics
from pytest_behaviortrace.statistics import ClusterBootstrap


def two_columns(seed=0, n=2000):
    """Two columns of which each says a little about the labels, and their difference a lot."""
    rng = np.random.default_rng(seed)
    labels, common = rng.random(n) < 0.3, rng.standard_normal(n)
    return labels, common + 0.6 * labels, np.exp(common + 0.2 * rng.standard_normal(n))


def test_a_mixture_of_labels_is_sklearns_logistic_regression():
    labels, first, second = two_columns()
    ranks = np.column_stack([statistics.average_ranks(c) / len(c) for c in (first, second)])
    found = statistics.mixture_of_labels([first, second], labels)
    theirs = LogisticRegression(C=1 / (1e-3 * len(labels)), tol=1e-10).fit(ranks - ranks.mean(0), labels)
    slope = np.polyfit(found, ranks @ theirs.coef_[0], 1)[0]
    assert np.corrcoef(found, ranks @ theirs.coef_[0])[0, 1] > 0.9999
    assert slope == pytest.approx(1.0, abs=0.02)


def test_a_mixture_beats_what_it_is_made_of():
    labels, first, second = two_columns()
    pairs = statistics.within_group_pairs(labels, np.arange(len(labels)) % 100)
    best = statistics.mixture_of_pairs([first, second], pairs)
    assert (
        statistics.auc(best, pairs) > max(statistics.auc(s * c, pairs) for c in (first, second) for s in (1, -1)) + 0.1
    )


def test_a_mixture_does_not_depend_on_scale_order_or_orientation():
    labels, first, second = two_columns(n=400)
    pairs = statistics.within_group_pairs(labels, np.arange(400) % 20)
    plain = statistics.mixture_of_pairs([first, second], pairs)
    turned = statistics.mixture_of_pairs([-(second**3), 1e6 * first], pairs)
    assert statistics.auc(plain, pairs) == pytest.approx(statistics.auc(turned, pairs), abs=1e-3)


def test_a_mixture_of_nothing_and_of_perfect_columns_is_finite():
    labels = np.arange(40) < 20
    nothing = statistics.within_group_pairs(np.zeros(40, bool), np.zeros(40))
    assert not statistics.mixture_of_pairs([labels, labels], nothing).any()
    perfect = statistics.mixture_of_labels([labels.astype(float), np.arange(40.0)], labels)
    assert np.isfinite(perfect).all()
    assert statistics.tie_aware_precision(perfect, labels) == 1.0


@pytest.mark.parametrize("shape", ["threshold", "band", "mixture"])
def test_no_function_of_the_columns_survives_their_steps(shape):
    rng = np.random.default_rng(1)
    groups = np.repeat(np.arange(100), 12)
    a, b = rng.standard_normal((2, 1200))
    labels = np.abs(a) + 0.3 * rng.standard_normal(1200) < 0.6  # a band of the first column
    score = {"threshold": a > 0.2, "band": -np.abs(a), "mixture": 0.7 * a - 0.3 * b}[shape]
    steps = np.column_stack([statistics.quantile_steps(column) for column in (a, b)])
    assert steps.shape == (1200, 2 * 19)
    pairs, bootstrap = statistics.within_group_pairs(labels, groups), ClusterBootstrap(groups)
    left = statistics.residual_auc_replicates(score, pairs, steps, groups, bootstrap)
    assert statistics.percentile(left)[0] < 0.55
    if shape == "band":
        basis = statistics.fluency_basis(a, groups)
        assert statistics.auc(score, pairs) > 0.9
        assert statistics.residual_auc(score, pairs, basis, groups) > 0.65  # what a polynomial leaves standing
    signal = labels + rng.standard_normal(1200)
    kept = statistics.residual_auc_replicates(signal, pairs, steps, groups, bootstrap)
    assert statistics.percentile(kept)[0] > 0.5


def test_steps_of_few_and_equal_values():
    assert statistics.quantile_steps([]).shape == (0, 19)
    assert not statistics.quantile_steps([2.0, 2.0, 2.0]).any()
    assert statistics.quantile_steps(np.arange(20.0), 4).sum(1).tolist() == sorted(
        [0] * 5 + [1] * 5 + [2] * 5 + [3] * 5
    )


def test_many_covariates_fit_as_a_regression_in_every_resample():
    scores, labels, groups, fluency = example(groups=14)
    steps = statistics.quantile_steps(fluency, 10)
    pairs, bootstrap = statistics.within_group_pairs(labels, groups), ClusterBootstrap(groups, 15)
    found = statistics.residual_auc_replicates(scores, pairs, steps, groups, bootstrap)
    for weights, ours in zip(bootstrap.weights, found, strict=True):
        items = np.concatenate([np.flatnonzero(groups == c) for c, times in enumerate(weights) for _ in range(times)])
        copies = np.repeat(
            np.arange(weights.sum()), [np.sum(groups == c) for c, w in enumerate(weights) for _ in range(w)]
        )
        within = statistics.within_group_pairs(labels[items], copies)
        assert ours == pytest.approx(statistics.residual_auc(scores[items], within, steps[items], copies), abs=1e-9)


# -- intervals ---------------------------------------------------------------------------------------------------------
def test_the_expanded_tail_is_hesterbergs():
    for n in (2, 8, 24, 300):
        wanted = scipy.stats.norm.cdf(-scipy.stats.t.ppf(0.975, n - 1) * math.sqrt(n / (n - 1)))
        assert statistics.expanded_tail(n) == pytest.approx(wanted)
    assert statistics.expanded_tail(24) == pytest.approx(0.0173, abs=1e-4)
    assert statistics.expanded_tail(10**6) == pytest.approx(0.025, abs=1e-5)
    assert statistics.expanded_tail(1) == statistics.expanded_tail(0) == 0.0


def test_few_clusters_widen_an_interval_and_many_do_not():
    values = np.random.default_rng(0).standard_normal(5000)
    plain, few, many = (statistics.percentile(values, clusters=c) for c in (None, 6, 10**6))
    assert few[0] < plain[0] < plain[1] < few[1]
    assert many == pytest.approx(plain, abs=1e-3)
    assert statistics.percentile(values, clusters=1) == (values.min(), values.max())


def test_the_widened_interval_of_a_mean_of_few_covers_better():
    rng, held = np.random.default_rng(0), {"plain": 0, "widened": 0}
    for _ in range(400):
        sample = rng.standard_normal(8)
        replicates = statistics.mean_replicates(sample, ClusterBootstrap(np.arange(8), 600))
        for name, clusters in (("plain", None), ("widened", 8)):
            low, high = statistics.percentile(replicates, clusters=clusters)
            held[name] += low <= 0 <= high
    assert held["plain"] < 0.92 * 400 < held["widened"]


def test_leaving_one_out_leaves_out_each_cluster_once():
    jackknife = ClusterBootstrap.leave_one_out(["a", "b", "a", "c"])
    assert jackknife.weights.tolist() == [[0, 1, 1], [1, 0, 1], [1, 1, 0]]
    np.testing.assert_allclose(statistics.mean_replicates([1.0, 2.0, 3.0, 6.0], jackknife), [4.0, 10 / 3, 2.0])


# -- where the spread comes from ---------------------------------------------------------------------------------------
def test_components_are_found_again():
    rng, sums = np.random.default_rng(0), np.zeros(3)
    for _ in range(400):
        seeds, draws = 0.3 * rng.standard_normal((20, 1)), 0.2 * rng.standard_normal((20, 4))
        found = statistics.variance_components(
            seeds + draws + 0.1 * rng.standard_normal((20, 4)), np.full((20, 4), 0.01)
        )
        sums += np.array([found.seed, found.draw, found.rollouts]) ** 2
    np.testing.assert_allclose(sums / 400, [0.09, 0.04, 0.01], rtol=0.1)


def test_components_by_hand():
    found = statistics.variance_components([[1.0, 3.0], [5.0, 7.0]], np.full((2, 2), 0.5))
    # draws differ by variance 2, of which 0.5 is sampling; seed means 2 and 6 by 8, of which 2 / 2 is the draws'
    assert (found.seed**2, found.draw**2, found.rollouts**2) == pytest.approx((7.0, 1.5, 0.5))
    assert sum(found.shares) == pytest.approx(1.0)
    assert found.describe() == "spread: seed 2.646 (78 %), draw 1.225 (17 %), rollouts 0.707 (6 %)"


def test_what_cannot_be_told_is_said():
    assert math.isnan(statistics.variance_components([[1.0], [2.0]], np.zeros((2, 1))).draw)
    assert math.isnan(statistics.variance_components([[1.0, 2.0]], np.zeros((1, 2))).seed)
    assert "draw unknown" in statistics.variance_components([[1.0], [2.0]], np.zeros((2, 1))).describe()
    for wrong in ([1.0, 2.0], np.zeros((0, 2))):
        with pytest.raises(ValueError, match="seeds, draws"):
            statistics.variance_components(wrong, wrong)
    with pytest.raises(ValueError, match="finite"):
        statistics.variance_components([[np.nan]], [[1.0]])
