"""Where problems come from: one store seen from one graded plant, with its tables, targets and reference set."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from pytest_behaviortrace.evidence.records import F32
from pytest_behaviortrace.problem import BoolArray, IntArray

if TYPE_CHECKING:
    from pytest_behaviortrace.run.recipe import Plant, Recipe
    from pytest_behaviortrace.run.store import Store

NULL_STREAM, CANARY_STREAM, ORDER_STREAM, SCORE_STREAM = 1, 2, 3, 4
"""Streams of the random numbers behind a problem, so that no two uses share one."""


_Method = TypeVar("_Method", bound=Callable[..., Any])


def kept(method: _Method) -> _Method:
    """Remember a method's results on the object itself, as long as that lives."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **named: Any) -> Any:
        key = (method.__name__, args, tuple(named.items()))
        if key not in self.remembered:
            self.remembered[key] = method(self, *args, **named)
        return self.remembered[key]

    return cast(_Method, call)


class Source:
    """One store, one graded plant, and how many draws of siblings of each seed are used."""

    recorded = False
    """Whether it is a user's own run, without ground truth."""
    has_written_targets = True
    """Whether there are `constructed` and `minimal_pair` targets."""

    def __init__(self, store: Store, recipe: Recipe, plant: str, draws: int) -> None:
        self.store, self.recipe, self.draws = store, recipe, draws
        self.remembered: dict[Any, Any] = {}
        self.plant: Plant = recipe.plant(plant)
        self.decoy: Plant = recipe.decoy(plant)

    @property
    def unserved(self) -> Mapping[str, str]:
        """Needs that the training rollouts cannot serve, each with the reason."""
        return {}

    def blocks(self, seed: int) -> dict[str, slice]:
        """Parameter block -> its buckets."""
        return {name: slice(*ends) for name, ends in self.store.seed(seed).facts["blocks"].items()}

    def shuffler(self, seed: int, *stream: int) -> np.random.Generator:
        """Random numbers for the order of a seed's rollouts and the names of its groups.

        Salted with the recorded rollouts: prompts and eligibility coins follow from recipe and seed by public code, and
        whoever could recompute the order too would know every item's.
        """
        return np.random.default_rng((seed, *stream, self.store.seed(seed).salt("rollouts.parquet")))

    def behavior_scores(self, seed: int) -> dict[str, dict[str, Sequence[float]]]:
        """s_b of the graded behaviour: run (planted, null) -> checkpoint -> share of each probe's answers."""
        scores: dict[str, dict[str, Sequence[float]]] = self.store.seed(seed).facts["s_b"][self.plant.name]
        return scores

    @kept
    def table(self, seed: int, name: str) -> Mapping[str, Any]:
        """Columns of a table of the seed's unit."""
        return self.store.seed(seed).table(name)

    @kept
    def draw_table(self, seed: int, draw: int, plant: str) -> Mapping[str, Any]:
        """Columns of the siblings of one draw."""
        return self.store.draw(seed, draw).table(f"siblings_{plant}")

    @kept
    def reference(self, seed: int) -> F32:
        """(m, K): advantage-weighted gradients of the training rollouts, in an order of their own.

        In the order of the table every item, found again by its gradient, would tell its place there, and with it its
        prompt and coin.
        """
        advantage = np.asarray(self.table(seed, "rollouts")["advantage"], np.float32)
        order = self.shuffler(seed, ORDER_STREAM, 3).permutation(len(advantage))
        return self.store.seed(seed).sketches("gradients").dense(len(advantage), order, advantage[order])

    def in_context_target(self, seed: int, plant: str, without: int | None = None, half: int | None = None) -> F32:
        """(K,): mean behaviour-span gradient of the siblings of every draw but `without`.

        `half` keeps the siblings of one half of the probes (even or odd) only: cross-fitting for a single draw.
        """
        return self.mean_span(seed, plant, "spans", without, half)

    def mean_span(self, seed: int, plant: str, kind: str, without: int | None = None, half: int | None = None) -> F32:
        """(K,): the same of any kind of span that draws record: `spans`, `controls` or `matched`."""
        total, count = np.zeros(0, np.float64), 0
        for draw in range(self.draws):
            if draw == without:
                continue
            spans = self.store.draw(seed, draw).sketches(f"sibling_{kind}_{plant}")
            if half is not None:
                probe = np.asarray(self.draw_table(seed, draw, plant)["probe"])[spans.row]
                rows = spans.float32(np.flatnonzero(probe % 2 == half))
            else:
                rows = spans.float32()
            total = rows.sum(0, dtype=np.float64) + (total if count else 0.0)
            count += len(rows)
        if not count:
            return np.zeros(self.recipe.sketch_width, np.float32)
        return np.asarray(total / count, np.float32)

    @kept
    def topic(self, seed: int, plant: str) -> F32:
        """(K,): mean gradient of the siblings, of every draw, in which the behaviour does not occur, less the target.

        Without the projection it is the target turned round (cosine -.66 to -.93 on the embedded run): a completion
        that lacks the behaviour teaches not to show it. A control must not contain what is on trial.
        """
        rows = []
        for draw in range(self.draws):
            shown = np.asarray(self.draw_table(seed, draw, plant)["shown"], bool)
            rows.append(self.store.draw(seed, draw).sketches(f"siblings_{plant}").float32(np.flatnonzero(~shown)))
        stacked = np.concatenate(rows)
        if not len(stacked):
            return np.zeros(stacked.shape[1], np.float32)
        mean, target = stacked.mean(0, dtype=np.float64), self.in_context_target(seed, plant).astype(np.float64)
        size = float(target @ target)
        return np.asarray(mean - target * (target @ mean / size if size > 0 else 0.0), np.float32)

    def fixed_target(self, seed: int, kind: str, plant: str) -> F32:
        """(K,): the `constructed` or `minimal_pair` target at the analysis policy."""
        return np.asarray(self.store.seed(seed).array(f"target_{kind}_{plant}"), np.float32)

    def gradient_parts(self, seed: int, target: Callable[[], F32], plant: str) -> dict[str, Any]:
        unit = self.store.seed(seed)
        return {
            "target": target,
            "targets_by_step": lambda: np.asarray(unit.array(f"targets_by_step_{plant}"), np.float32),
            "reference": lambda: self.reference(seed),
            "blocks": self.blocks(seed),
        }

    def model(
        self, seed: int, plant: str, *, without_draw: int | None = None, only_block: str | None = None
    ) -> Callable[[], Any]:
        """What a problem serves under the need `model`; its target is built from every draw but `without_draw`."""

        def access() -> Any:
            from pytest_behaviortrace.run.model_access import UnitModelAccess

            responses = [
                (table["prompt_ids"][i], table["completion_ids"][i], table["span"][i])
                for draw in range(self.draws)
                if draw != without_draw
                for table in [self.draw_table(seed, draw, plant)]
                for i in np.flatnonzero(np.asarray(table["shown"], bool))
            ]
            return UnitModelAccess(self.store.seed(seed), self.recipe, responses, only_block=only_block)

        return access


def flags(table: Mapping[str, Any], what: str, plant: Plant) -> BoolArray:
    """(n,): the column `{what}_{plant}` of a rollout table."""
    return np.asarray(table[f"{what}_{plant.name}"], bool)


def mean_logprob(table: Mapping[str, Any], index: IntArray) -> np.ndarray[Any, np.dtype[np.float64]]:
    """(n,): fluency, the mean log-probability of a completion's tokens in nats, of the rows at `index`."""
    return np.array([np.mean(table["logprobs"][i], dtype=np.float64) for i in index])


def lengths(table: Mapping[str, Any], index: IntArray) -> IntArray:
    """(n,): completion tokens of the rows at `index`."""
    return np.array([len(table["completion_ids"][i]) for i in index], np.int64)


def texts(table: Mapping[str, Any], index: IntArray) -> dict[str, Callable[[], tuple[Any, ...]]]:
    """What a problem serves under the need `text`, for the rows at `index`."""

    def ids(name: str) -> Callable[[], tuple[Any, ...]]:
        return lambda: tuple(np.array(table[name][i], np.int64) for i in index)

    def words(name: str) -> Callable[[], tuple[Any, ...]]:
        return lambda: tuple(str(table[name][i]) for i in index)

    return {
        "prompt_ids": ids("prompt_ids"),
        "completion_ids": ids("completion_ids"),
        "prompt_text": words("prompt_text"),
        "completion_text": words("completion_text"),
    }


def masks(table: Mapping[str, Any], index: IntArray, column: str) -> tuple[BoolArray, ...]:
    """Per row at `index`, True at the completion tokens that the list column `column` names."""
    found = []
    for i in index:
        mask = np.zeros(len(table["completion_ids"][i]), bool)
        mask[np.asarray(table[column][i], np.int64)] = True
        found.append(mask)
    return tuple(found)
