"""However many resamples are held at a time, the statistics are the same to the last bit."""

import numpy as np
import pytest
from pytest_behaviortrace.checks import test_lookalikes as lookalikes

from pytest_behaviortrace import statistics
from pytest_behaviortrace.statistics import ClusterBootstrap, resampling


def replicates(chunk, monkeypatch):
    monkeypatch.setattr(resampling, "CHUNK", chunk)
    rng = np.random.default_rng(3)
    group = np.repeat(np.arange(40), 8)
    scores, step = np.round(rng.normal(size=320), 1), group // 2
    truth, decoy = rng.random(320) < 0.3, rng.random(320) < 0.3
    decoy &= ~truth
    bootstrap = ClusterBootstrap(group, resamples=300)
    crossed, nested = statistics.cross_pairs(truth, decoy, step), statistics.within_group_pairs(truth, group)
    basis = statistics.fluency_basis(rng.normal(size=320), group)
    return {
        "weights": bootstrap.weights,
        "precision": statistics.precision_replicates(scores, truth, bootstrap).excess,
        "crossed": statistics.auc_replicates(scores, crossed, bootstrap),
        "nested": statistics.auc_replicates(scores, nested, bootstrap),
        "residual": statistics.residual_auc_replicates(scores, nested, basis, group, bootstrap),
        "mean": statistics.mean_replicates(np.rint(scores), bootstrap),
    }


@pytest.mark.parametrize("chunk", [1, 777])
def test_whatever_is_held_at_a_time(chunk, monkeypatch):
    expected = replicates(10**9, monkeypatch)
    for name, values in replicates(chunk, monkeypatch).items():
        if name == "residual":  # slopes are no whole numbers: their sums may differ in the last place
            np.testing.assert_allclose(values, expected[name], atol=1e-12, err_msg=name)
        else:
            np.testing.assert_array_equal(values, expected[name], err_msg=name)


def test_a_cluster_drawn_more_often_than_a_byte_counts(monkeypatch):
    class Stuck:
        def integers(self, low, high, size):
            return np.zeros(size, np.int64)

    monkeypatch.setattr(np.random, "default_rng", lambda seed: Stuck())
    bootstrap = ClusterBootstrap(np.arange(300), resamples=3)
    assert bootstrap.weights[:, 0].tolist() == [300] * 3
    assert bootstrap.weights[:, 1:].sum() == 0
    assert bootstrap.weighted(np.full(300, 2.0)).tolist() == [600.0] * 3


def test_crossed_pairs_are_found_without_looking_at_all_of_them():
    rng = np.random.default_rng(0)
    step = rng.integers(0, 30, 200)
    kind = rng.integers(0, 3, 200)
    pairs = statistics.cross_pairs(kind == 0, kind == 1, step)
    brute = [
        (i, j) for i in np.flatnonzero(kind == 0) for j in np.flatnonzero(kind == 1) if abs(step[i] - step[j]) <= 2
    ]
    assert list(zip(pairs.positive.tolist(), pairs.negative.tolist(), strict=True)) == brute


@pytest.mark.parametrize("n", [7, 8, 61])
def test_tossed_coins_are_kept_as_bits(n, monkeypatch):
    ranks = statistics.average_ranks(np.round(np.random.default_rng(n).normal(size=n), 1))
    heads = lookalikes.coin(0, n, n // 3, 50)
    tossed = np.unpackbits(heads, axis=1, count=n).astype(bool)
    assert (tossed.sum(axis=1) == n // 3).all()
    assert len({row.tobytes() for row in tossed}) > 10
    sums = lookalikes.sums_of(heads, ranks)
    np.testing.assert_array_equal(sums, [ranks[row].sum() for row in tossed])
    plain = lookalikes.chunks
    monkeypatch.setattr(lookalikes, "chunks", lambda flips, n: plain(flips, n, most=3))
    np.testing.assert_array_equal(lookalikes.coin(0, n, n // 3, 50), heads)
    np.testing.assert_array_equal(lookalikes.sums_of(heads, ranks), sums)
