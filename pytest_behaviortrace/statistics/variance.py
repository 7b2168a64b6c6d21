"""Where the spread of an estimate comes from: training seed, generation draw, or the rollouts themselves."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True, slots=True)
class VarianceComponents:
    """Standard deviations of one estimate (one seed, one draw) due to each source; NaN where it cannot be told."""

    seed: float
    draw: float
    rollouts: float

    @property
    def shares(self) -> tuple[float, float, float]:
        """Share of the variance of each source, in the order seed, draw, rollouts; unknown sources count as none."""
        parts = [0.0 if math.isnan(sd) else sd**2 for sd in (self.seed, self.draw, self.rollouts)]
        total = sum(parts)
        return tuple(part / total if total > 0 else 0.0 for part in parts)  # type: ignore[return-value]

    def describe(self) -> str:
        """For example `spread: seed 0.021 (62 %), draw 0.009 (11 %), rollouts 0.014 (27 %)`."""
        named = zip(("seed", "draw", "rollouts"), (self.seed, self.draw, self.rollouts), self.shares, strict=True)
        return "spread: " + ", ".join(
            f"{name} unknown" if math.isnan(sd) else f"{name} {sd:.3f} ({100 * share:.0f} %)"
            for name, sd, share in named
        )


def variance_components(estimates: ArrayLike, sampling: ArrayLike) -> VarianceComponents:
    """The components of estimates (seeds, draws) whose own sampling variances (bootstrap) are `sampling`, same shape.

    Nested random effects by the method of moments: what the draws of a seed differ by beyond sampling is the draw's,
    what the means of seeds differ by beyond both is the seed's; negative differences count as 0. With one draw its
    component is unknown and contained in the seed's; with one seed the seed's is unknown.
    Raises `ValueError` on other shapes than two equal tables with at least one cell, and on numbers not finite.
    """
    values, noise = np.asarray(estimates, np.float64), np.asarray(sampling, np.float64)
    if values.ndim != 2 or values.shape != noise.shape or not values.size:
        raise ValueError(f"estimates and sampling variances must be (seeds, draws); got {values.shape}, {noise.shape}")
    if not (np.isfinite(values).all() and np.isfinite(noise).all()):
        raise ValueError("estimates and sampling variances must be finite")
    seeds, draws = values.shape
    rollouts = float(noise.mean())
    between_draws = float(values.var(axis=1, ddof=1).mean()) if draws > 1 else rollouts
    draw = max(0.0, between_draws - rollouts) if draws > 1 else math.nan
    inside = max(between_draws, rollouts) if draws > 1 else rollouts
    seed = max(0.0, float(values.mean(axis=1).var(ddof=1)) - inside / draws) if seeds > 1 else math.nan
    return VarianceComponents(math.sqrt(seed), math.sqrt(draw), math.sqrt(rollouts))
