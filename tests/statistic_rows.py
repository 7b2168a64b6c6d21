"""Rows to try statistics on, and the slow, obvious way to compute them."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

prop = settings(deadline=None, derandomize=True)
"""Property tests here depend neither on the speed of the machine nor on luck."""

few_values = st.sampled_from([-1.5, 0.0, 0.25, 2.0])
any_values = st.floats(-1e300, 1e300)


@st.composite
def rows(draw, values=few_values | any_values, least=1):
    """Scores, labels, groups and fluency of a few items."""
    n = draw(st.integers(least, 24))
    scores = np.array(draw(st.lists(values, min_size=n, max_size=n)))
    labels = np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    groups = np.array(draw(st.lists(st.integers(0, 4), min_size=n, max_size=n)))
    fluency = np.array(draw(st.lists(st.floats(-3, 0, width=32), min_size=n, max_size=n)))
    return scores, labels, groups, fluency


def example(seed=0, groups=12, size=8, ties=False):
    """A data set of some realism: fluency depends on the label, the score on both, groups shift both."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(groups), size)
    labels = rng.random(len(group)) < rng.random(groups)[group]
    fluency = -1 + rng.normal(size=groups)[group] + 0.3 * labels + 0.4 * rng.normal(size=len(group))
    score = rng.normal(size=groups)[group] + 0.5 * labels + fluency + rng.normal(size=len(group))
    return (np.round(score) if ties else score), labels, group, fluency


def expanded(weights, codes):
    """Items of one resample, repeated as often as their cluster was drawn, and which copy of the cluster each is."""
    items, copies = [], []
    for cluster, times in enumerate(weights):
        members = np.flatnonzero(codes == cluster)
        for copy in range(times):
            items += list(members)
            copies += [(cluster, copy)] * len(members)
    return np.array(items, int), copies


def brute_auc(scores, pairs):
    won = [1.0 if scores[p] > scores[n] else 0.5 if scores[p] == scores[n] else 0.0 for p, n in pairs]
    return sum(won) / len(won) if won else math.nan


def brute_within(labels, groups):
    n = len(labels)
    return [(i, j) for i in range(n) for j in range(n) if labels[i] and not labels[j] and groups[i] == groups[j]]
