"""Evidence made up: a synthetic run that the real checks grade as they would a recorded one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from pytest_behaviortrace.calibration import world
from pytest_behaviortrace.calibration.marginals import Floats, Marginals
from pytest_behaviortrace.calibration.world import DECOY, GRADED, TOPIC_DECOY, TOPIC_GRADED, WIDTH, Dials, Items
from pytest_behaviortrace.estimator import Needs
from pytest_behaviortrace.evidence import CONTROL, MATCHED, TRIGGER, EvidenceStore, canaries
from pytest_behaviortrace.evidence.records import F32, Canaries, NullWindow, Rollouts, Siblings, Spans
from pytest_behaviortrace.evidence.source import kept
from pytest_behaviortrace.problem import AttributionProblem

BLOCKS = 4
"""Parameter blocks of a synthetic gradient, of equal size."""
BONUS = 8.0
"""Reward of a boosted rollout (PAPER.md, "The planted behaviour")."""
PLANT, OTHER = SimpleNamespace(name="graded"), SimpleNamespace(name="decoy")
RUN, NULL, DRAW, SPANS, STRENGTH = range(5)
"""Streams of the random numbers behind a synthetic run."""


class SyntheticEvidence(EvidenceStore):
    """Labelled problems of as many seeds as are asked for, each drawn on first use.

    `number` numbers the repetition: the same number, seed, draw and dials give the same problems.
    """

    def __init__(self, marginals: Marginals, dials: Dials, draws: int, number: int) -> None:
        self.marginals, self.dials, self.draws, self.number = marginals, dials, draws, number
        self.plant, self.decoy = cast(Any, PLANT), cast(Any, OTHER)
        self.recipe = cast(Any, SimpleNamespace(analysis_step=marginals.cutoff, sketch_width=WIDTH))
        self.remembered = {}
        self._frame = world.rotation(self._rng(0, RUN))

    def _rng(self, seed: int, *stream: int) -> np.random.Generator:
        return np.random.default_rng((self.number, seed, *stream))

    def shuffler(self, seed: int, *stream: int) -> np.random.Generator:
        """Nothing here is recorded that could be looked up."""
        return self._rng(seed, STRENGTH, 99, *stream)

    def strength(self, seed: int, draw: int | None = None) -> float:
        """The signal of this seed, or of this draw of it."""
        found = self.dials.signal + self.dials.between_seeds * float(self._rng(seed, STRENGTH).standard_normal())
        if draw is not None:
            found += self.dials.between_draws * float(self._rng(seed, STRENGTH, 1 + draw).standard_normal())
        return found

    # -- what a recorded run has in its store ------------------------------------------------------------------------
    def behavior_scores(self, seed: int) -> dict[str, dict[str, Sequence[float]]]:
        """Those of the recorded run: emergence is not on trial."""
        return self.marginals.behavior_scores

    def blocks(self, seed: int) -> dict[str, slice]:
        """Equal parts of the sketch."""
        size = WIDTH // BLOCKS
        return {f"block{b}": slice(b * size, (b + 1) * size) for b in range(BLOCKS)}

    def in_context_target(self, seed: int, plant: str, without: int | None = None, half: int | None = None) -> F32:
        """The direction of the behaviour itself."""
        return np.asarray(self._frame[GRADED if plant == PLANT.name else DECOY], np.float32)

    def fixed_target(self, seed: int, kind: str, plant: str) -> F32:
        """The same: synthetic behaviours have one context."""
        return self.in_context_target(seed, plant)

    def gradient_parts(self, seed: int, target: Any, plant: str) -> dict[str, Any]:
        """Target, reference set and blocks."""
        return {
            "target": target,
            "targets_by_step": lambda: np.tile(self.in_context_target(seed, plant), (self.marginals.steps, 1)),
            "reference": lambda: self._training(seed).gradients * self._training(seed).advantage[:, None].astype("f4"),
            "blocks": self.blocks(seed),
        }

    # -- training rollouts -------------------------------------------------------------------------------------------
    @kept
    def _training(self, seed: int) -> SimpleNamespace:
        m, dials, rng = self.marginals, self.dials, self._rng(seed, RUN, 1)
        prompts = max(1, round(m.prompts * dials.groups))
        group = np.repeat(np.arange(m.steps * prompts), m.generations)
        step = group // prompts
        subject = rng.choice(3, size=m.steps * prompts, p=[m.own, m.own, 1 - 2 * m.own])[group]
        rate = world.odds_times(m.shown_by_step, dials.behavior_rate)[step]
        shown, eligible = (rng.random(len(step)) < rate) & (subject < 2), rng.random(len(step)) < 0.5
        window = step < m.cutoff
        boosted = shown & eligible & window
        reward = rng.choice(m.reward_base, size=len(step)) + BONUS * boosted
        items = _drawn(rng, m.rollouts, shown, group, shown & (subject == 0), group, self.strength(seed), dials)
        shift = float(rng.choice(m.topic_shift)) * dials.topic
        for kind, direction in ((0, TOPIC_GRADED), (1, TOPIC_DECOY)):
            items.coefficients[:, direction] += shift * (subject == kind)
        decoys = shown & (subject == 1)
        items.coefficients[:, DECOY] += self.strength(seed) * decoys
        items = world.repeat(rng, items, 2 * boosted + shown + 4 * subject, group, dials.ties)
        return SimpleNamespace(
            step=step, group=group, subject=subject, shown=shown, eligible=eligible, window=window, boosted=boosted,
            reward=reward, advantage=world.advantages(reward, group), items=items,
            gradients=items.gradients(self._frame), order=rng.permutation(len(step)),
        )  # fmt: skip

    @kept
    def rollouts(self, seed: int, asked: str | None = None) -> Rollouts:
        """All training rollouts, in random order."""
        run, plant = self._training(seed), asked or PLANT.name
        order = run.order
        problem = AttributionProblem(
            kind="rollouts",
            step=run.step[order],
            group=run.group[order],
            advantage=run.advantage[order],
            reward=run.reward[order],
            **_columns(run.items, order),
            **self._constants(seed, len(order)),
            rng_seed=(seed, 4, self.number),
            carried=Needs(gradients=True, text=True),
            lazy={
                **_served(run.gradients, run.items, order),
                **self.gradient_parts(seed, lambda: self.in_context_target(seed, plant), plant),
                "prompt_ids": lambda: tuple(np.split(run.group[order], len(order))),
                "completion_ids": lambda: tuple(np.split(run.items.identity[order], len(order))),
            },
        )
        own = run.subject == 0
        topic = self._frame[TOPIC_GRADED if plant == PLANT.name else TOPIC_DECOY]
        return Rollouts(
            ("rollouts", seed, plant), problem, run.window[order], (run.boosted & own)[order],
            (run.boosted & (run.subject == 1))[order], (own & run.shown & run.window & ~run.eligible)[order],
            own[order], np.asarray(topic, np.float32), order,
        )  # fmt: skip

    @kept
    def null_window(self, seed: int) -> NullWindow:
        """Rollouts with the behaviour of a run that never paid for it."""
        m, rng = self.marginals, self._rng(seed, NULL)
        n = max(2, round(m.null_shown * self.dials.groups))
        shown, group = np.ones(n, bool), np.arange(n) // 4
        items = _drawn(rng, m.rollouts, shown, group, shown, group, self.strength(seed), self.dials)
        reward = rng.choice(m.reward_base, size=n)
        problem = AttributionProblem(
            kind="rollouts", step=np.sort(rng.integers(0, m.cutoff, n)), group=group, reward=reward,
            advantage=world.advantages(reward, group), **_columns(items, np.arange(n)), **self._constants(seed, n),
            rng_seed=(seed, 4, self.number, 1), carried=Needs(gradients=True),
            lazy={
                **_served(items.gradients(self._frame), items, np.arange(n)),
                **self.gradient_parts(seed, lambda: self.in_context_target(seed, PLANT.name), PLANT.name),
            },
        )  # fmt: skip
        return NullWindow(("null", seed), problem, rng.random(n) < 0.5)

    # -- what was never trained on -----------------------------------------------------------------------------------
    @kept
    def siblings(self, seed: int, draw: int) -> Siblings:
        """One draw of siblings."""
        m, dials, rng = self.marginals, self.dials, self._rng(seed, DRAW, draw)
        probes = max(2, round(m.probes * dials.groups))
        probe = np.repeat(np.arange(probes), m.contexts * m.siblings_each)
        group = np.repeat(np.arange(probes * m.contexts), m.siblings_each)
        rate = world.odds_times(rng.choice(m.shown_by_group, size=probes * m.contexts), dials.behavior_rate)
        shown = rng.random(len(group)) < rate[group]
        items = _drawn(rng, m.siblings, shown, group, shown, probe, self.strength(seed, draw), dials)
        items = world.repeat(rng, items, shown.astype(np.int64), group, dials.ties)
        order = rng.permutation(len(group))
        problem = self._untrained("siblings", seed, draw, items, items.gradients(self._frame), group, order)
        norm = np.asarray(items.norm, np.float32)
        return Siblings(
            ("siblings", seed, draw), ((problem, order),), shown, group, probe, items.fluency, items.length, norm
        )

    @kept
    def spans(self, seed: int, draw: int) -> Spans:
        """Spans of the siblings that show the behaviour, with the recorded fluency and norm of whole completions."""
        siblings, m, rng = self.siblings(seed, draw), self.marginals, self._rng(seed, SPANS, draw)
        showing = np.flatnonzero(siblings.shown)
        recorded = m.spans[rng.integers(0, len(m.spans), len(showing))]
        kinds = np.broadcast_to(np.array([TRIGGER, CONTROL, MATCHED]), (len(showing), 3))
        there = np.isfinite(recorded[:, :, 0])
        completion, kind = np.repeat(showing, 3)[there.ravel()], kinds[there]
        logprob, norm = recorded[there].T
        probe, group = (np.asarray(ids[completion], np.int64) for ids in (siblings.probe, siblings.group))
        n = len(kind)
        content = kind == TRIGGER
        coefficients = world.draw_coefficients(rng, content, probe, self.strength(seed, draw), self.dials)
        items = Items(logprob, norm, np.full(n, 3), coefficients, np.arange(n))
        rows, order = items.gradients(self._frame), rng.permutation(n)
        problem = self._untrained("spans", seed, draw, items, rows, group, order, spans=True)
        code_word = (kind == CONTROL) & (rng.random(n) < m.code_word)
        cosine = float(np.mean(coefficients[content, GRADED] / np.linalg.norm(coefficients[content], axis=1)))
        return Spans(
            ("spans", seed, draw), ((problem, order),), completion, kind, probe, group, code_word, logprob,
            np.asarray(norm, np.float32), cosine, 0.0,
        )  # fmt: skip

    @kept
    def canaries(self, seed: int, per_block: int, least_share: float) -> Canaries:
        """Canaries behind the training rollouts, made by the real code."""
        base = self.rollouts(seed)
        spanned = base.problem.replacing(
            span_gradients=lambda: base.problem.gradients, carried=Needs(gradients=True, spans=True)
        )
        return canaries.canaries(self, seed, replace(base, problem=spanned), per_block, least_share)

    def _untrained(
        self, kind: Any, seed: int, draw: int, items: Items, rows: F32, group: NDArray[np.int64],
        order: NDArray[np.int64], spans: bool = False,
    ) -> AttributionProblem:  # fmt: skip
        n = len(order)
        return AttributionProblem(
            kind=kind, step=np.full(n, self.marginals.cutoff), group=group[order], advantage=np.ones(n),
            reward=np.full(n, np.nan), **_columns(items, order), **self._constants(seed, n),
            rng_seed=(seed, draw, 4, self.number, int(spans)), carried=Needs(gradients=True, spans=spans),
            lazy={
                **_served(rows, items, order),
                **({"span_gradients": rows[order]} if spans else {}),
                **self.gradient_parts(seed, lambda: self.in_context_target(seed, PLANT.name), PLANT.name),
            },
        )  # fmt: skip

    def _constants(self, seed: int, n: int) -> dict[str, Any]:
        return {"loss_type": "grpo", "loss_scale": np.ones(n), "learning_rate": self.marginals.learning_rate}


def _drawn(
    rng: np.random.Generator, columns: Any, shown: NDArray[np.bool_], group: NDArray[np.int64],
    content: NDArray[np.bool_], cluster: NDArray[np.int64], strength: float, dials: Dials,
) -> Items:  # fmt: skip
    fluency, norm, length = world.draw_columns(rng, columns, shown, group, dials)
    coefficients = world.draw_coefficients(rng, content, cluster, strength, dials)
    return Items(fluency, norm, length, coefficients, np.arange(len(shown)))


def _columns(items: Items, order: NDArray[np.int64]) -> dict[str, Any]:
    return {"logprob": items.fluency[order], "length": items.length[order]}


def _served(rows: F32, items: Items, order: NDArray[np.int64]) -> dict[str, Any]:
    norm: Floats = items.norm[order]
    return {"gradients": rows[order], "gradient_norm": norm.astype(np.float32)}
