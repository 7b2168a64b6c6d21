"""Removing fluency inside groups against ordinary regression, and refitting it in every resample."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from statistic_rows import brute_auc, brute_within, example, expanded, prop, rows

from pytest_behaviortrace import statistics
from pytest_behaviortrace.statistics import ClusterBootstrap, Pairs

SCALES = [1e-300, 1e-9, 1.0, 1e9, 1e300]


def brute_residuals(scores, covariates, groups):
    """Least squares with one intercept a group, the textbook way to the same fit."""
    intercepts = (groups[:, None] == np.unique(groups)[None, :]).astype(float)
    design = np.column_stack([intercepts, covariates])
    return scores - design @ np.linalg.lstsq(design, scores, rcond=None)[0]


@pytest.mark.parametrize("wide", [False, True], ids=["linear", "basis"])
def test_residuals_are_those_of_a_regression_with_group_intercepts(wide):
    scores, _, groups, fluency = example()
    covariates = statistics.fluency_basis(fluency, groups) if wide else fluency
    np.testing.assert_allclose(
        statistics.residualise(scores, covariates, groups), brute_residuals(scores, covariates, groups), atol=1e-10
    )


@prop
@given(rows(least=2))
def test_residuals_are_uncorrelated_with_fluency_inside_groups(data):
    scores, _, groups, fluency = data
    for covariates in (fluency[:, None], statistics.fluency_basis(fluency, groups)):
        left = statistics.residualise(scores, covariates, groups) / (np.abs(scores).max() or 1.0)
        assert np.isfinite(left).all()
        for g in np.unique(groups):
            assert abs(left[groups == g].sum()) < 1e-9
        for column in covariates.T:
            inside = column - np.array([column[groups == g].mean() for g in groups])
            size = np.linalg.norm(inside)
            # A covariate constant up to rounding inside every group is not a covariate.
            if size > 1e-9:
                assert abs(left @ inside) / size < 1e-9


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_residual_auc_does_not_depend_on_scale_or_units(scale, shift):
    scores, labels, groups, fluency = example()
    pairs, bootstrap = statistics.within_group_pairs(labels, groups), ClusterBootstrap(groups, 50)
    basis = statistics.fluency_basis(fluency, groups)
    expected = statistics.residual_auc(scores, pairs, basis, groups)
    changed = (scores + shift) * scale
    other = statistics.fluency_basis(fluency * 7 - 3, groups)
    assert statistics.residual_auc(changed, pairs, other, groups) == pytest.approx(expected)
    np.testing.assert_allclose(
        statistics.residual_auc_replicates(changed, pairs, other, groups, bootstrap),
        statistics.residual_auc_replicates(scores, pairs, basis, groups, bootstrap),
    )


def test_residual_auc_does_change_under_a_monotone_transform():
    scores, labels, groups, fluency = example()
    pairs = statistics.within_group_pairs(labels, groups)
    assert statistics.residual_auc(np.exp(3 * scores), pairs, fluency, groups) != pytest.approx(
        statistics.residual_auc(scores, pairs, fluency, groups), abs=1e-3
    )


COPIES = {
    "f": lambda f, g: f,
    "-f": lambda f, g: -1e200 * f,
    "square": lambda f, g: (f - 1) ** 2,
    "cube": lambda f, g: f**3,
    "rank": lambda f, g: statistics.average_ranks(f),
    "group shift": lambda f, g: 5 * f + 1e3 * g,
    "rounding noise": lambda f, g: 0.7 + 1e-15 * f,
    "constant": lambda f, g: np.full(len(f), 0.1),
    "constant by group": lambda f, g: np.sqrt(2.0 + g),
}


@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize("size", [3, 7, 8])
def test_what_fluency_explains_entirely_is_all_ties_in_every_resample(copy, size):
    _, labels, groups, fluency = example(groups=30, size=size)
    score = COPIES[copy](fluency, groups)
    pairs, bootstrap = statistics.within_group_pairs(labels, groups), ClusterBootstrap(groups, 300)
    basis = statistics.fluency_basis(fluency, groups)
    assert statistics.residual_auc(score, pairs, basis, groups) == 0.5
    found = statistics.residual_auc_replicates(score, pairs, basis, groups, bootstrap)
    np.testing.assert_array_equal(found[~np.isnan(found)], 0.5)


def test_the_rank_of_fluency_survives_the_linear_fit_but_not_the_basis():
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(100), 8)
    fluency = -rng.gamma(0.5, size=800)
    labels = fluency + 0.05 * rng.normal(size=800) > -0.1
    rank, pairs = statistics.average_ranks(fluency), statistics.within_group_pairs(labels, groups)
    assert statistics.residual_auc(rank, pairs, fluency, groups) > 0.6
    assert statistics.residual_auc(rank, pairs, statistics.fluency_basis(fluency, groups), groups) == 0.5


@pytest.mark.parametrize("wide", [False, True], ids=["linear", "basis"])
@pytest.mark.parametrize("chunk", [1, 2_000_000])
def test_every_resample_fits_its_own_slopes(monkeypatch, wide, chunk):
    monkeypatch.setattr("pytest_behaviortrace.statistics.fluency.CHUNK", chunk)
    scores, labels, groups, fluency = example(groups=16, size=6)
    clusters = groups // 2
    covariates = statistics.fluency_basis(fluency, groups) if wide else fluency[:, None]
    pairs, bootstrap = statistics.within_group_pairs(labels, groups), ClusterBootstrap(clusters, 30)
    found = statistics.residual_auc_replicates(scores, pairs, covariates, groups, bootstrap)
    fixed = statistics.auc_replicates(statistics.residualise(scores, covariates, groups), pairs, bootstrap)
    for r in range(30):
        items, copies = expanded(bootstrap.weights[r], bootstrap.codes)
        # Each copy of a cluster brings its groups as groups of their own.
        names = {
            name: k for k, name in enumerate(sorted({(*c, g) for c, g in zip(copies, groups[items], strict=True)}))
        }
        drawn = np.array([names[(*c, g)] for c, g in zip(copies, groups[items], strict=True)])
        left = brute_residuals(scores[items], covariates[items], drawn)
        assert found[r] == pytest.approx(brute_auc(left, brute_within(labels[items], drawn)))
    assert not np.allclose(found, fixed)  # slopes held fixed would give other replicates


def test_covariates_that_repeat_each_other_or_say_nothing_are_harmless():
    scores, labels, groups, fluency = example(size=7)  # means of seven are rounded
    pairs, bootstrap = statistics.within_group_pairs(labels, groups), ClusterBootstrap(groups, 40)
    plain = statistics.residual_auc_replicates(scores, pairs, fluency, groups, bootstrap)
    padded = np.column_stack(
        [fluency, 2 * fluency - 1, np.full(len(fluency), 4.0), np.sqrt(2.0 + groups), 1e200 * fluency]
    )
    np.testing.assert_allclose(
        statistics.residual_auc_replicates(scores, pairs, padded, groups, bootstrap), plain, atol=1e-12
    )
    nothing = statistics.residual_auc_replicates(scores, pairs, np.ones(len(fluency)), groups, bootstrap)
    np.testing.assert_array_equal(nothing, statistics.auc_replicates(scores, pairs, bootstrap))


def test_a_resample_too_small_for_its_slopes_is_fitted_as_far_as_it_goes():
    scores, _, groups, fluency = example(groups=2, size=4, seed=2)
    pairs, bootstrap = statistics.within_group_pairs(np.arange(8) % 2 == 0, groups), ClusterBootstrap(groups, 50)
    basis = statistics.fluency_basis(fluency, groups)
    found = statistics.residual_auc_replicates(scores, pairs, basis, groups, bootstrap)
    twice = bootstrap.weights.max(1) == 2  # one group alone: four slopes explain its four items entirely
    assert 10 < twice.sum() < 40
    np.testing.assert_array_equal(found[twice], 0.5)


def test_a_resample_whose_fluency_never_varies_keeps_the_raw_score():
    groups, fluency = np.repeat([0, 1], 4), np.array([-1.0, -1, -1, -1, -3, -2, -1, 0])
    scores, labels = np.array([3.0, 1, 2, 0, 5, 1, 4, 4]), np.arange(8) % 2 == 0
    pairs, bootstrap = statistics.within_group_pairs(labels, groups), ClusterBootstrap(groups, 50)
    found = statistics.residual_auc_replicates(scores, pairs, fluency, groups, bootstrap)
    np.testing.assert_array_equal(found[bootstrap.weights[:, 0] == 2], 1.0)


def test_fluency_basis_is_what_it_says():
    basis = statistics.fluency_basis([-2.0, -1.0, -1.0, 0.0], [0, 0, 1, 1])
    z = np.array([-1.0, 0.0, 0.0, 1.0]) * math.sqrt(2)
    np.testing.assert_allclose(basis, np.column_stack([z, z**2, z**3, [0.25, 0.625, 0.625, 1.0]]))
    assert statistics.fluency_basis([-0.3] * 3, [0, 0, 1])[:, :3].tolist() == [[0.0] * 3] * 3
    assert statistics.fluency_basis([], []).shape == (0, 4)


def test_fluency_functions_refuse_what_they_cannot_fit():
    pairs, bootstrap = Pairs(np.array([0]), np.array([1])), ClusterBootstrap([0, 0, 1], 5)
    with pytest.raises(ValueError, match="must be finite"):
        statistics.residualise([1.0, math.inf], [1.0, 2.0], [0, 0])
    with pytest.raises(ValueError, match="covariates must be finite"):
        statistics.residualise([1.0, 2.0], [1.0, math.nan], [0, 0])
    with pytest.raises(ValueError, match="must not split groups"):
        statistics.residual_auc_replicates([1.0, 2, 3], pairs, [1.0, 2, 3], [0, 0, 0], bootstrap)
    with pytest.raises(ValueError, match="no common group"):
        statistics.residual_auc_replicates(
            [1.0, 2, 3], Pairs(np.array([0]), np.array([1]), crossed=True), [1.0, 2, 3], [0, 0, 1], bootstrap
        )
    with pytest.raises(ValueError, match="one fluency"):
        statistics.fluency_basis([1.0], [0, 1])


def test_residual_differences_within_the_tolerance_are_ties():
    scores = np.array([0.0, 1.0, 1.0, 1.0 + 1e-12])
    pairs = Pairs(np.array([3, 3]), np.array([2, 0]))
    assert statistics.auc(scores, pairs, statistics.tie_tolerance(scores)) == 0.75
    assert statistics.auc(scores, pairs) == 1.0
    assert statistics.tie_tolerance(scores * 1e300) == pytest.approx(1e300 * statistics.tie_tolerance(scores))
