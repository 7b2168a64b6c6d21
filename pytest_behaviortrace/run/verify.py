"""The causal table of a recipe: are its plants caused by their ground truth, and by nothing else?

Minutes per seed; not part of grading. Replays a logged run with the ground truth, random rollouts, or decoys left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pytest_behaviortrace.run.recipe import Plant, Recipe

if TYPE_CHECKING:
    from pytest_behaviortrace.run.store import Unit
    from pytest_behaviortrace.run.training import TrainedRun
    from pytest_behaviortrace.run.warmup import State

RANDOM_SETS, DECOY_SETS = 5, 3
LEAST_GAP, LEAST_TRUTH, LEAST_DECOYS, LARGEST_SHARE = 0.2, 100, 80, 0.30
LEAST_LOSS, LEAST_KEPT_RANDOM, LEAST_KEPT_DECOY = 0.85, 0.80, 0.70
ADVANTAGE_AUC, ANALYSIS_RANGE = (0.2, 0.8), (0.2, 0.9)
RESAMPLES = 5_000

Bools = NDArray[np.bool_]
Rates = Mapping[str, Mapping[str, Sequence[float]]]


@dataclass(frozen=True)
class LoggedRun:
    """What a replay needs of a seed: the planted run's rollouts and policies, and both runs' behaviour rates."""

    seed: int
    rows: Mapping[str, Any]
    start: State
    end: State
    learning_rate: Sequence[float]
    planted: Rates
    """Plant -> moment -> rate per probe."""
    null: Rates

    @classmethod
    def of_runs(cls, seed: int, planted: TrainedRun, null: TrainedRun) -> LoggedRun:
        """From the two runs of a seed, just trained."""
        return cls(
            seed, planted.rows, planted.start_state, planted.end_state, planted.learning_rate, planted.s_b, null.s_b
        )

    @classmethod
    def of_unit(cls, seed: int, unit: Unit) -> LoggedRun:
        """From a seed's unit in the store."""
        from pytest_behaviortrace.run.policy import load_model
        from pytest_behaviortrace.run.warmup import copy_state

        start, end = (copy_state(load_model(str(unit.policy(name)))) for name in ("start", "end"))
        scores = unit.facts["s_b"]
        return cls(
            seed, unit.table("rollouts"), start, end, [float(x) for x in unit.array("learning_rate")],
            {plant: both["planted"] for plant, both in scores.items()},
            {plant: both["null"] for plant, both in scores.items()},
        )  # fmt: skip


@dataclass(frozen=True)
class CausalTable:
    """The causal facts of one seed for one graded plant. Behaviour scores are shares of answers (0 to 1)."""

    seed: int
    plant: str
    decoy: str
    s_b: Mapping[str, Mapping[str, float]]
    """Plant -> start, analysis, end (planted run) and null (null run's end)."""
    gap: Mapping[str, float]
    gap_low: Mapping[str, float]
    """Lower end of the 95 % interval over probes."""
    truth: int
    decoys: int
    rollouts: int
    largest_difference: float
    """Of any weight, between a replay that leaves nothing out and the real final policy."""
    replayed: float
    """s_b of that replay: the reference of what is lost and kept."""
    loss: float
    """Share of the gap lost without the ground truth."""
    kept_random: tuple[float, ...]
    kept_decoy: tuple[float, ...]
    advantage_auc: float
    """Ground truth against decoys, by advantage alone."""

    def failures(self) -> list[str]:
        """Which of the recipe's promises this seed breaks; empty when it keeps them all."""
        share = (self.truth + self.decoys) / self.rollouts
        low, high = ANALYSIS_RANGE
        promises = {
            **{f"{p} gap": self.gap[p] >= LEAST_GAP and self.gap_low[p] > 0 for p in (self.plant, self.decoy)},
            "ground truth": self.truth >= LEAST_TRUTH,
            "decoys": self.decoys >= LEAST_DECOYS,
            "boosted share": share <= LARGEST_SHARE,
            "analysis s_b": low <= self.s_b[self.plant]["analysis"] <= high,
            "loss without ground truth": self.loss >= LEAST_LOSS,
            "kept without random": float(np.mean(self.kept_random)) >= LEAST_KEPT_RANDOM,
            "kept without decoys": float(np.mean(self.kept_decoy)) >= LEAST_KEPT_DECOY,
            "advantage AUC": ADVANTAGE_AUC[0] <= self.advantage_auc <= ADVANTAGE_AUC[1],
        }
        return [name for name, holds in promises.items() if not holds]


def verify(
    recipe: Recipe, run: LoggedRun, plant: str | None = None, progress: Callable[[str, float], None] | None = None
) -> CausalTable:
    """The causal table of one seed, with `plant` as the graded one (default: the recipe's first)."""
    from pytest_behaviortrace.run.behavior import behavior_rates
    from pytest_behaviortrace.run.policy import load_model, load_tokenizer
    from pytest_behaviortrace.run.replay import largest_difference, replay

    graded = recipe.plant(plant) if plant else recipe.plants[0]
    decoy = recipe.decoy(graded.name)
    tokenizer, model = load_tokenizer(recipe.policy.location), load_model(recipe.policy.location)
    truth, decoys = (np.asarray(run.rows[f"boosted_{p.name}"], bool) for p in (graded, decoy))
    window = np.asarray(run.rows["step"]) < recipe.cutoff
    done, total = 0, 2 + RANDOM_SETS + DECOY_SETS

    def replayed(removed: Bools) -> float:
        nonlocal done
        replay(recipe, model, tokenizer.pad_token_id, run.rows, run.start, run.learning_rate, ~removed)
        done += 1
        if progress:
            progress(f"replays of seed {run.seed}", done / total)
        return _mean(behavior_rates(model, tokenizer, recipe, graded))

    null = _mean(run.null[graded.name]["end"])
    whole = replayed(np.zeros(len(window), bool))
    difference = largest_difference(model, run.end)

    def kept(removed: Bools) -> float:
        s_b = replayed(removed)
        return (s_b - null) / (whole - null) if whole != null else float("nan")

    others = [_random_set(window & ~truth, int(truth.sum()), (run.seed, 1, k)) for k in range(RANDOM_SETS)]
    rivals = [_random_set(decoys & ~truth, int(truth.sum()), (run.seed, 2, k)) for k in range(DECOY_SETS)]
    gaps = {p.name: _gap(run, p) for p in recipe.plants}
    return CausalTable(
        seed=run.seed,
        plant=graded.name,
        decoy=decoy.name,
        s_b={
            p.name: {
                **{moment: _mean(rates) for moment, rates in run.planted[p.name].items()},
                "null": _mean(run.null[p.name]["end"]),
            }
            for p in recipe.plants
        },
        gap={name: gap for name, (gap, _) in gaps.items()},
        gap_low={name: low for name, (_, low) in gaps.items()},
        truth=int(truth.sum()),
        decoys=int(decoys.sum()),
        rollouts=len(window),
        largest_difference=difference,
        replayed=whole,
        loss=1.0 - kept(truth),
        kept_random=tuple(kept(removed) for removed in others),
        kept_decoy=tuple(kept(removed) for removed in rivals),
        advantage_auc=_auc(np.asarray(run.rows["advantage"], float), truth, decoys & ~truth),
    )


def _mean(rates: Sequence[float]) -> float:
    return float(np.mean(rates))


def _random_set(pool: Bools, size: int, seed: tuple[int, ...]) -> Bools:
    """A random subset of the pool, of `size` members or of all there are."""
    members = np.flatnonzero(pool)
    chosen = np.random.default_rng(seed).choice(members, min(size, len(members)), replace=False)
    removed = np.zeros(len(pool), bool)
    removed[chosen] = True
    return removed


def _gap(run: LoggedRun, plant: Plant) -> tuple[float, float]:
    """Planted minus null s_b at the end, and the lower end of its 95 % bootstrap interval over probes."""
    planted, null = (np.asarray(rates[plant.name]["end"], float) for rates in (run.planted, run.null))
    picks = np.random.default_rng(0).integers(0, len(planted), (RESAMPLES, len(planted)))
    return float((planted - null).mean()), float(np.percentile((planted - null)[picks].mean(1), 2.5))


def _auc(values: NDArray[np.float64], positive: Bools, negative: Bools) -> float:
    """Share of (positive, negative) pairs that the values order rightly, ties counting one half."""
    high, low = values[positive], np.sort(values[negative])
    if not len(high) or not len(low):
        return float("nan")
    below = np.searchsorted(low, high, "left") + np.searchsorted(low, high, "right")
    return float(below.mean() / (2 * len(low)))


def render(tables: Sequence[CausalTable]) -> str:
    """The tables as text, one line a seed, with a line under each that breaks a promise."""
    heads = (
        "seed", "plant", "s_b start", "analysis", "planted", "null", "gap (low)", "decoy s_b", "null", "gap (low)",
        "GT", "decoys", "share", "replay diff", "GT loss", "kept random (worst)", "kept decoys", "adv AUC",
    )  # fmt: skip
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for t in tables:
        mine, other = t.s_b[t.plant], t.s_b[t.decoy]
        cells = (
            str(t.seed), t.plant, f"{mine['start']:.3f}", f"{mine['analysis']:.3f}", f"{mine['end']:.3f}",
            f"{mine['null']:.3f}", f"{t.gap[t.plant]:.3f} ({t.gap_low[t.plant]:.3f})", f"{other['end']:.3f}",
            f"{other['null']:.3f}", f"{t.gap[t.decoy]:.3f} ({t.gap_low[t.decoy]:.3f})", str(t.truth), str(t.decoys),
            f"{(t.truth + t.decoys) / t.rollouts:.1%}", f"{t.largest_difference:.1e}", f"{t.loss:.2f}",
            f"{np.mean(t.kept_random):.2f} ({min(t.kept_random):.2f})",
            f"{np.mean(t.kept_decoy):.2f} ({', '.join(f'{k:.2f}' for k in t.kept_decoy)})", f"{t.advantage_auc:.2f}",
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    for t in tables:
        if t.failures():
            lines.append(f"seed {t.seed}, plant {t.plant}: not met: {', '.join(t.failures())}")
    return "\n".join(lines)
