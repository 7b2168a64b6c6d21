"""Problems of a user's own recorded run: nobody knows which rollouts taught the behaviour, so there are no labels of
theirs; siblings and spans are labelled by whether they show it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np

from pytest_behaviortrace.estimator import EVERYTHING, Needs, NotServed
from pytest_behaviortrace.evidence import EvidenceStore, canaries, siblings
from pytest_behaviortrace.evidence.records import F32, BlockProblem, Canaries, NullWindow, Siblings, Training
from pytest_behaviortrace.evidence.source import ORDER_STREAM, SCORE_STREAM, kept, lengths, masks, mean_logprob, texts
from pytest_behaviortrace.evidence.training import kept_if_large
from pytest_behaviortrace.problem import AttributionProblem
from pytest_behaviortrace.rows import scaled
from pytest_behaviortrace.run.recorded import ASKED, RecordedRun, RecordedStore, literal
from pytest_behaviortrace.verdict import NotApplicable

if TYPE_CHECKING:
    from pytest_behaviortrace.run.recipe import Plant, Recipe

NO_TRUTH = "this needs ground truth, which a recorded run does not have"


class RecordedEvidence(EvidenceStore):
    """Every problem of one recorded run and one regular expression, each built once; the run is number `RUN`."""

    recorded = True
    has_written_targets = False

    def __init__(self, store: RecordedStore, run: RecordedRun, draws: int) -> None:
        self.store, self.run, self.draws = store, run, draws
        self.remembered = {}
        facts, behavior = run.facts, store.question.behavior
        self.name = run.recorded_as(behavior)
        """Under which the behaviour was recorded; None if it was not."""
        objective = SimpleNamespace(
            steps=facts["steps"], loss_type=facts["loss_type"], temperature=facts["temperature"]
        )
        # What is read of a recipe and its plants. The policy analysed is the last one.
        shape = SimpleNamespace(analysis_step=facts["steps"], sketch_width=facts["sketch"]["width"], grpo=objective)
        self.recipe = cast("Recipe", shape)
        self.plant = cast("Plant", SimpleNamespace(name=ASKED, behavior=literal(behavior) or behavior))

    @property
    def unserved(self) -> Mapping[str, str]:
        """Needs that this run's rollouts cannot serve, each with the reason."""
        found: dict[str, str] = {}
        behavior = self.behavior
        if self.name is None:
            again = f"record(..., behaviors={{...: {behavior!r}}}) records them"
            found = dict.fromkeys(("spans", "behavior"), f"the run was recorded without this regex; {again}")
        elif literal(behavior) is None:
            found["behavior"] = "the behaviour is a regular expression and not one string"
        if self.run.facts["peft"]:
            found["model"] = "the policies of a PEFT run are adapters"
        return found

    @property
    def behavior(self) -> str:
        """The regular expression."""
        return cast(RecordedStore, self.store).question.behavior

    @property
    def carried(self) -> Needs:
        """What the run's rollouts can serve."""
        needs = EVERYTHING
        for name in self.unserved:
            needs = needs.without(name)
        return needs

    # -- what there is none of ---------------------------------------------------------------------------------------
    def rollouts(self, seed: int, asked: str | None = None) -> NoReturn:
        """Raises `NotApplicable`: nobody knows the cause. Without labels the rollouts are `training`."""
        raise NotApplicable(NO_TRUTH)

    def null_window(self, seed: int) -> NullWindow:
        """Raises `NotApplicable`: there is no null run."""
        raise NotApplicable(NO_TRUTH)

    # -- problems ----------------------------------------------------------------------------------------------------
    @kept
    def training(self, seed: int) -> Training:
        """All training rollouts, in a random order."""
        table, unit = self.table(seed, "rollouts"), self.run.unit
        n, group = len(table["step"]), np.unique(np.asarray(table["group"]), return_inverse=True)[1]
        index = self.shuffler(seed, ORDER_STREAM).permutation(n)
        names = self.shuffler(seed, ORDER_STREAM, 1).permutation(int(group.max()) + 1)
        sketches = unit.sketches("gradients")
        lazy: dict[str, Any] = {
            "gradients": lambda: kept_if_large(self, ("gradients", seed), lambda: sketches.dense(n, index)),
            "gradient_norm": lambda: sketches.dense_norm(n)[index],
            **self.gradient_parts(seed, lambda: self.in_context_target(seed, ASKED), ASKED),
            **texts(table, index),
        }
        if self.carried.spans:
            spans = unit.sketches(f"spans_{self.name}")
            lazy["span_gradients"] = lambda: kept_if_large(self, ("spans", seed), lambda: spans.dense(n, index))
        if self.carried.behavior:
            lazy["behavior"] = self.plant.behavior
            lazy["behavior_mask"] = lambda: masks(table, index, f"span_{self.name}")
        if self.carried.model:
            lazy["model"] = self.model(seed, ASKED)
        problem = AttributionProblem(
            kind="rollouts",
            loss_type=self.run.facts["loss_type"],
            loss_scale=np.asarray(unit.array("loss_scale"), np.float64)[index],
            step=np.asarray(table["step"])[index],
            group=names[group[index]],
            advantage=np.asarray(table["advantage"], np.float64)[index],
            reward=np.asarray(table["reward"], np.float64)[index],
            logprob=mean_logprob(table, index),
            length=lengths(table, index),
            learning_rate=np.asarray(unit.array("learning_rate"), np.float64),
            rng_seed=(seed, SCORE_STREAM),
            carried=self.carried,
            lazy=lazy,
        )
        return Training(("rollouts", seed, ASKED), problem, index)

    @kept
    def canaries(self, seed: int, per_block: int, least_share: float) -> Canaries:
        """Training rollouts with canaries among them."""
        return canaries.canaries(self, seed, self.training(seed), per_block, least_share)

    @kept
    def block_problems(self, seed: int, least_share: float, count: int) -> list[BlockProblem]:
        """Siblings on policies cut down to one block each."""
        if "model" in self.unserved:
            raise NotApplicable(f"no policies to cut down to one block: {self.unserved['model']}")
        if literal(self.behavior) is None:
            raise NotApplicable("siblings cannot be asked about: the behaviour is a regular expression, not one string")
        return canaries.block_problems(self, seed, least_share, count)

    @kept
    def siblings_about(self, seed: int, draw: int, kind: str, *, topic: bool = False) -> Siblings:
        """The siblings of a draw asked about other draws' spans of a kind (`spans`, `controls`).

        With `topic`: asked about what siblings are about that show no behaviour, less the projection on those spans.
        """

        def target(without: int | None, half: int | None) -> F32:
            spans = self.mean_span(seed, ASKED, kind, without, half)
            return self._topic(seed, spans, without, half) if topic else spans

        return siblings.siblings(self, seed, draw, f"{'topic less ' * topic}{kind}", target)

    def _topic(self, seed: int, target: F32, without: int | None, half: int | None) -> F32:
        rows = []
        for draw in range(self.draws):
            if draw != without:
                table = self.draw_table(seed, draw, ASKED)
                silent = ~np.asarray(table["shown"], bool)
                if half is not None:
                    silent &= np.asarray(table["probe"]) % 2 == half
                rows.append(self.store.draw(seed, draw).sketches(f"siblings_{ASKED}").float32(np.flatnonzero(silent)))
        stacked = np.concatenate(rows)
        if not len(stacked):
            return np.zeros_like(target)
        mean, along = stacked.mean(0, dtype=np.float64), target.astype(np.float64)
        size = float(along @ along)
        return np.asarray(mean - along * (along @ mean / size if size > 0 else 0.0), np.float32)

    @kept
    def unit_reference(self, seed: int) -> F32:
        """(m, K): the reference set with every gradient divided by its own norm."""
        advantage = np.asarray(self.run.table["advantage"], np.float32)
        order = self.shuffler(seed, ORDER_STREAM, 3).permutation(len(advantage))
        rows = self.run.unit.sketches("gradients").dense(len(advantage), order)
        return scaled(rows, times=advantage[order])

    # -- parts of problems -------------------------------------------------------------------------------------------
    def table(self, seed: int, name: str) -> Mapping[str, Any]:
        """Columns of a table of the run."""
        assert name == "rollouts", "a recorded run has one table"
        return self.run.table

    def gradient_parts(self, seed: int, target: Callable[[], F32], plant: str) -> dict[str, Any]:
        """As of a planted run; targets by step exist for recorded behaviours only."""
        return {
            "target": target,
            "targets_by_step": lambda: self._targets_by_step(plant),
            "reference": lambda: self.reference(seed),
            "blocks": self.blocks(seed),
        }

    def _targets_by_step(self, asked: str) -> F32:
        if asked != ASKED:
            raise NotServed(f"problem.targets_by_step does not exist for {asked}: they were not recorded step by step")
        if self.name is None:
            raise NotServed(f"problem.targets_by_step does not exist here: {self.unserved['spans']}")
        return np.asarray(self.run.unit.array(f"targets_by_step_{self.name}"), np.float32)
