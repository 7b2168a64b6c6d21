"""Marginals of no recorded run, for tests of the calibration that need none."""

from __future__ import annotations

import numpy as np

from pytest_behaviortrace.calibration.marginals import Columns, Marginals


def columns(rng, shift):
    values = (-rng.gamma(2.0, 0.4, 800), rng.lognormal(1.0, 0.5, 800), rng.integers(8, 33, 800).astype(float))
    correlation = np.array([[1.0, -0.5, 0.1], [-0.5, 1.0, 0.0], [0.1, 0.0, 1.0]])
    return Columns(tuple(np.sort(v) for v in values), np.array(shift), correlation, 0.1)


def toy_marginals(siblings_shift=(1.4, -1.0, 0.2)):
    """Sizes of the embedded recipe, made-up confounds."""
    rng = np.random.default_rng(0)
    trigger = np.column_stack([-0.25 + 0.05 * rng.standard_normal(400), rng.lognormal(1.0, 0.3, 400)])
    control = np.column_stack([-1.5 + 0.5 * rng.standard_normal(400), rng.lognormal(1.5, 0.3, 400)])
    matched = np.column_stack([trigger[:, 0] + 0.2 * rng.standard_normal(400), rng.lognormal(1.1, 0.3, 400)])
    s_b = {"planted": {"end": [0.7] * 24}, "null": {"end": [0.1] * 24}}
    return Marginals(
        columns(rng, (1.1, -0.5, 0.4)), columns(rng, siblings_shift), np.stack([trigger, control, matched], axis=1),
        0.7, np.sort(rng.choice([0.0, 0.5, 1.0], 500)), 0.375, np.linspace(0.35, 0.7, 40), rng.uniform(0.4, 0.9, 200),
        np.array([-0.4, -0.1, -0.1]), s_b, np.linspace(1e-3, 0, 40), 40, 36, 8, 8, 24, 4, 9, 184,
    )  # fmt: skip
