"""The statistics of the checks: plain arrays in (scores, labels, groups, fluency), plain numbers and arrays out.

Nothing here knows about runs or estimators, so rows of any other study can be fed to it. Point values, then intervals
from one cluster bootstrap that every score shares, so that differences between scores are paired:

    >>> import numpy as np
    >>> from pytest_behaviortrace import statistics
    >>> rng = np.random.default_rng(0)
    >>> groups = np.repeat(np.arange(60), 8)               # 60 prompts, 8 completions each
    >>> shown = rng.random(480) < 0.5                      # which completions show the behaviour
    >>> fluency = rng.normal(size=480) + 0.5 * shown       # mean log-probability, nats per token
    >>> score = shown + rng.normal(size=480)
    >>> pairs = statistics.within_group_pairs(shown, groups)
    >>> bootstrap = statistics.ClusterBootstrap(groups)
    >>> covariates = statistics.fluency_basis(fluency, groups)
    >>> estimate = statistics.residual_auc(score, pairs, covariates, groups)
    >>> replicates = statistics.residual_auc_replicates(score, pairs, covariates, groups, bootstrap)
    >>> above_chance = statistics.interval(estimate, replicates)
    >>> above_chance.low > 0.5
    True
    >>> raw = statistics.auc(score, pairs) - statistics.auc(fluency, pairs)
    >>> in_score, in_fluency = (statistics.auc_replicates(x, pairs, bootstrap) for x in (score, fluency))
    >>> statistics.interval(raw, in_score - in_fluency).low > 0
    True

Undefined resamples. A resample can hold no pair, or no ground truth; its replicate is then NaN, and that depends on
labels and clusters only, never on the score. `interval` and `percentile` leave such resamples out, `undefined` counts
them, and where fewer than half of the resamples are defined the interval itself is NaN, which `decide` refuses.
"""

from pytest_behaviortrace.statistics.fluency import (
    fluency_basis,
    quantile_steps,
    residual_auc,
    residual_auc_replicates,
    residualise,
    tie_tolerance,
)
from pytest_behaviortrace.statistics.mixture import mixture_of_labels, mixture_of_pairs
from pytest_behaviortrace.statistics.pairs import (
    MATCHED_WIDTH,
    Pairs,
    auc,
    auc_replicates,
    cross_pairs,
    matched_pairs,
    separation,
    within_group_pairs,
)
from pytest_behaviortrace.statistics.ranking import (
    PrecisionReplicates,
    average_ranks,
    ceiling,
    chance,
    lift,
    precision_replicates,
    spearman,
    spearman_interval,
    tie_aware_precision,
)
from pytest_behaviortrace.statistics.resampling import (
    LEVEL,
    RESAMPLES,
    SEED,
    ClusterBootstrap,
    expanded_tail,
    interval,
    mean_interval,
    mean_replicates,
    percentile,
    t_interval,
    undefined,
)
from pytest_behaviortrace.statistics.variance import VarianceComponents, variance_components

__all__ = [
    "LEVEL",
    "MATCHED_WIDTH",
    "RESAMPLES",
    "SEED",
    "ClusterBootstrap",
    "Pairs",
    "PrecisionReplicates",
    "VarianceComponents",
    "auc",
    "auc_replicates",
    "average_ranks",
    "ceiling",
    "chance",
    "cross_pairs",
    "expanded_tail",
    "fluency_basis",
    "interval",
    "lift",
    "matched_pairs",
    "mean_interval",
    "mean_replicates",
    "mixture_of_labels",
    "mixture_of_pairs",
    "percentile",
    "precision_replicates",
    "quantile_steps",
    "residual_auc",
    "residual_auc_replicates",
    "residualise",
    "separation",
    "spearman",
    "spearman_interval",
    "t_interval",
    "tie_aware_precision",
    "tie_tolerance",
    "undefined",
    "variance_components",
    "within_group_pairs",
]
