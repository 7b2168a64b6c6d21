"""The paper's published rows through this project's own statistics. Skipped where ../shared/data is absent."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pytest_behaviortrace import statistics
from pytest_behaviortrace.verdict import Interval, Verdict, paper_verdict

DATA = Path(__file__).parents[2] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="published rows not found in ../shared/data")

GROUND_TRUTH = [(1509, 0.0943, 0.4716), (1497, 0.0936, 0.4678), (1383, 0.0864, 0.4322)]
"""Boosted rollouts of seeds 0-2, chance over all 16,000 and inside the window of 3,200."""

TOKEN_LEVEL = [
    ((0.230, 0.211, 0.248), (-0.027, -0.040, -0.012)),
    ((0.114, 0.104, 0.124), (0.002, -0.006, 0.011)),
    ((0.295, 0.257, 0.334), (-0.111, -0.139, -0.083)),
]
"""Cosine with the in-context and with the constructed target, seeds 0-2."""

ROLLOUT_LEVEL = [
    ((0.486, 0.415, 0.570), 0.726, Verdict.INCONCLUSIVE),
    ((0.624, 0.548, 0.700), 0.524, Verdict.INCONCLUSIVE),
    ((0.629, 0.573, 0.688), 0.737, Verdict.FAIL),
]
"""Residualised AUC of GAS, norm-only's estimate, and the paper's reading, seeds 0-2."""


@pytest.fixture(scope="module")
def table():
    return np.genfromtxt(DATA / "minimal_pair_rows_seed2.csv", delimiter=",", names=True)


@pytest.fixture(scope="module")
def pairs(table):
    return statistics.within_group_pairs(table["has_behavior"].astype(bool), table["group"])


@needs_data
@pytest.mark.parametrize(
    ("target", "published"), [("in_context", TOKEN_LEVEL[0][0]), ("constructed", TOKEN_LEVEL[0][1])]
)
def test_token_level_cosines(target, published):
    values = json.loads((DATA / "token_level_seed0.json").read_text(encoding="utf-8"))[target]
    found = statistics.mean_interval(values, np.arange(len(values)))
    assert (found.estimate, found.low, found.high) == pytest.approx(published, abs=0.003)


@needs_data
def test_pair_counts(table, pairs):
    assert len(table) == 1248
    assert len(pairs) == 882
    assert len(statistics.matched_pairs(pairs, table["fluency"])) == 136


@needs_data
@pytest.mark.parametrize(
    ("column", "published"),
    [("fluency", 0.7245), ("norm", 0.7211), ("cos_minimal_pair_centered", 0.6689), ("cos_minimal_pair", 0.6519)],
)
def test_raw_auc(table, pairs, column, published):
    assert round(statistics.auc(table[column], pairs), 4) == published


@needs_data
@pytest.mark.parametrize(
    ("column", "published", "ends"),
    [
        ("norm", 0.7370, (0.684, 0.789)),
        ("cos_minimal_pair_centered", 0.6293, (0.573, 0.688)),
        ("cos_minimal_pair", 0.6077, None),
    ],
)
def test_residualised_auc_with_its_interval(table, pairs, column, published, ends):
    groups, fluency = table["group"], table["fluency"]
    estimate = statistics.residual_auc(table[column], pairs, fluency, groups)
    assert round(estimate, 4) == published
    if ends:
        bootstrap = statistics.ClusterBootstrap(groups)
        found = statistics.residual_auc_replicates(table[column], pairs, fluency, groups, bootstrap)
        assert statistics.percentile(found) == pytest.approx(ends, abs=0.02)


@needs_data
def test_fluency_itself_is_all_ties_after_residualising(table, pairs):
    assert statistics.residual_auc(table["fluency"], pairs, table["fluency"], table["group"]) == 0.5


@needs_data
def test_why_the_basis_is_wider_than_the_papers(table, pairs):
    rank = statistics.average_ranks(table["fluency"])
    basis = statistics.fluency_basis(table["fluency"], table["group"])
    assert statistics.residual_auc(rank, pairs, table["fluency"], table["group"]) == pytest.approx(0.61, abs=0.005)
    assert statistics.residual_auc(rank, pairs, basis, table["group"]) == 0.5


@pytest.mark.parametrize(("count", "over_all", "in_window"), GROUND_TRUTH)
def test_chance_and_the_tie_identity_of_the_local_buffer(count, over_all, in_window):
    truth = np.arange(16_000) < count
    assert statistics.chance(truth) == pytest.approx(over_all, abs=6e-5)
    window = truth[:3200]
    assert statistics.chance(window) == pytest.approx(in_window, abs=6e-5)
    silent = np.zeros(3200)  # the last buffer lies after the window: nothing inside it scores
    assert statistics.tie_aware_precision(silent, window) == statistics.chance(window)
    assert statistics.ceiling(silent, window) == statistics.chance(window)


PUBLISHED_PRECISION = [(0.4042, 4.29), (0.3825, 4.09), (0.4210, 4.87)]
"""Step-level precision of GAS over all rollouts, seeds 0-2, and its lift."""


@pytest.mark.parametrize(("counts", "published"), list(zip(GROUND_TRUTH, PUBLISHED_PRECISION, strict=True)))
def test_lift_is_precision_over_chance(counts, published):
    count, (precision, lift) = counts[0], published
    truth, found = np.arange(16_000) < count, round(precision * count)
    scores = np.zeros(16_000)
    scores[:found] = 2.0  # so many of the ground truth on top, other rollouts next
    scores[count : count + count - found] = 1.0
    assert statistics.tie_aware_precision(scores, truth) == pytest.approx(precision, abs=5e-4)
    assert statistics.lift(scores, truth) == pytest.approx(lift, abs=0.01)
    assert statistics.lift(np.zeros(16_000), truth) == 1.0
    with pytest.raises(ValueError, match="ground truth"):
        statistics.lift(scores, np.zeros(16_000, bool), 5)


def test_a_buffer_larger_than_the_ground_truth_and_after_it_finds_none():
    truth, scores = np.arange(16_000) < 1509, np.zeros(16_000)
    scores[-1600:] = np.random.default_rng(0).random(1600)
    assert statistics.tie_aware_precision(scores, truth) == 0.0


@pytest.mark.parametrize("seed", range(3))
def test_token_level_bar_is_met_on_every_seed(seed):
    in_context, constructed = (Interval(*numbers) for numbers in TOKEN_LEVEL[seed])
    assert paper_verdict(in_context, bar=0.05) is Verdict.PASS
    assert constructed.high < 0.05


@pytest.mark.parametrize(("numbers", "norm_only", "verdict"), ROLLOUT_LEVEL)
def test_rollout_level_bar_is_met_on_no_seed(numbers, norm_only, verdict):
    assert paper_verdict(Interval(*numbers), bar=0.5, control=norm_only) is verdict
