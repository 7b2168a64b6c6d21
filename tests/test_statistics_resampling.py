"""The cluster bootstrap and the intervals against their definition and scipy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from statistic_rows import prop

from pytest_behaviortrace import statistics
from pytest_behaviortrace.statistics import ClusterBootstrap


@prop
@given(st.lists(st.integers(0, 6), min_size=1, max_size=20), st.integers(0, 5))
def test_bootstrap_weights_are_draws_of_whole_clusters(clusters, seed):
    bootstrap = ClusterBootstrap(clusters, resamples=30, seed=seed)
    assert bootstrap.n_clusters == len(set(clusters))
    assert bootstrap.weights.shape == (bootstrap.resamples, bootstrap.n_clusters) == (30, len(set(clusters)))
    assert (bootstrap.weights >= 0).all()
    assert (bootstrap.weights.sum(1) == bootstrap.n_clusters).all()
    again = ClusterBootstrap([f"c{c}" for c in clusters], resamples=30, seed=seed)
    np.testing.assert_array_equal(again.weights, bootstrap.weights)  # only equality of cluster names counts


def test_bootstrap_draws_every_cluster_once_on_average():
    weights = ClusterBootstrap(np.arange(40), resamples=20_000).weights
    np.testing.assert_allclose(weights.mean(0), 1.0, atol=0.04)
    np.testing.assert_allclose(weights.var(0), 1 - 1 / 40, atol=0.06)


def test_bootstrap_refuses_nothing_to_draw_from():
    with pytest.raises(ValueError, match="at least one item"):
        ClusterBootstrap([])
    with pytest.raises(ValueError, match="at least one resample"):
        ClusterBootstrap([1], resamples=0)
    with pytest.raises(ValueError, match="level"):
        statistics.percentile(np.zeros(3), 95)


def test_mean_replicates_weigh_clusters_by_their_size():
    values, clusters = np.array([1.0, 2.0, 9.0]), np.array([0, 0, 1])
    bootstrap = ClusterBootstrap(clusters, 20)
    for r, (a, b) in enumerate(bootstrap.weights):
        assert statistics.mean_replicates(values, bootstrap)[r] == pytest.approx((3 * a + 9 * b) / (2 * a + b))
    with pytest.raises(ValueError, match="for 3 items"):
        statistics.mean_replicates([1.0], bootstrap)


def test_mean_interval_agrees_with_scipys_bootstrap():
    values = np.random.default_rng(0).gamma(2.0, size=120)
    ours = statistics.mean_interval(values, np.arange(120))
    theirs = scipy.stats.bootstrap((values,), np.mean, n_resamples=5000, method="percentile", rng=1).confidence_interval
    assert ours.estimate == pytest.approx(values.mean())
    assert ours.low == pytest.approx(theirs.low, abs=0.02)
    assert ours.high == pytest.approx(theirs.high, abs=0.02)


def test_the_interval_of_correlated_items_is_wider_by_cluster():
    values = np.repeat(np.random.default_rng(0).normal(size=30), 10)
    assert statistics.mean_interval(values, np.repeat(np.arange(30), 10)).width > (
        2 * statistics.mean_interval(values, np.arange(300)).width
    )


def test_percentile_interval_covers_about_as_often_as_it_says():
    rng, inside = np.random.default_rng(5), 0
    for _ in range(200):
        found = statistics.mean_interval(rng.normal(size=60), np.arange(60), resamples=500)
        inside += found.low <= 0 <= found.high
    assert 180 <= inside <= 198  # 95 % of 200, a little less for the percentile method


def test_t_interval_is_scipys():
    values = [0.61, 0.55, 0.70]
    found = statistics.t_interval(values, level=0.9)
    low, high = scipy.stats.t.interval(0.9, 2, np.mean(values), scipy.stats.sem(values))
    assert (found.estimate, found.low, found.high) == pytest.approx((np.mean(values), low, high))
    with pytest.raises(ValueError, match="at least two"):
        statistics.t_interval([0.5])
