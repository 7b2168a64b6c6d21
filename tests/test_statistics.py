"""The statistics as a whole: documented examples and speed at full size."""

from __future__ import annotations

import doctest
import importlib
import time

import numpy as np
import pytest

from pytest_behaviortrace import statistics
from pytest_behaviortrace.statistics import ClusterBootstrap


@pytest.mark.parametrize("module", ["", ".pairs", ".fluency", ".ranking", ".resampling"])
def test_the_examples_in_the_documentation_run(module):
    results = doctest.testmod(importlib.import_module("pytest_behaviortrace.statistics" + module))
    assert results.failed == 0
    if module in ("", ".pairs"):
        assert results.attempted > 0


def test_full_size_stays_well_under_a_second_a_statistic():
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(288), 8)
    scores, labels = rng.normal(size=2304), rng.random(2304) < 0.12
    bootstrap = ClusterBootstrap(groups)
    siblings = np.repeat(np.arange(96), 8)
    shown, fluency = rng.random(768) < 0.5, rng.normal(size=768)
    basis = statistics.fluency_basis(fluency, siblings)
    drawn = ClusterBootstrap(siblings)
    crossed = statistics.cross_pairs(labels, ~labels & (rng.random(2304) < 0.15), groups // 8)
    within = statistics.within_group_pairs(shown, siblings)
    for run in (
        lambda: statistics.precision_replicates(scores, labels, bootstrap),
        lambda: statistics.auc_replicates(scores, crossed, bootstrap),
        lambda: statistics.residual_auc_replicates(scores[:768], within, basis, siblings, drawn),
    ):
        seconds = []
        for _ in range(3):  # the best of three: another process may hold the core
            start = time.process_time()
            run()
            seconds.append(time.process_time() - start)
        assert min(seconds) < 1.0
