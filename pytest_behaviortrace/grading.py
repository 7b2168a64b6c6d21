"""Grades estimators on a store: the session's memo of scores and controls, and one `Case` per row of the scorecard."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pytest_behaviortrace.estimator import Estimator, EstimatorError, Needs, NotServed, needs_of
from pytest_behaviortrace.evidence import EvidenceStore
from pytest_behaviortrace.headroom import headroom
from pytest_behaviortrace.isolation import NO_MODEL, Isolated
from pytest_behaviortrace.problem import AttributionProblem, IntArray
from pytest_behaviortrace.run.recorded import RUN
from pytest_behaviortrace.scoring import Scored, score
from pytest_behaviortrace.statistics import RESAMPLES, ClusterBootstrap
from pytest_behaviortrace.trial import Bench, Trial
from pytest_behaviortrace.verdict import Decision, NotApplicable, Verdict

if TYPE_CHECKING:
    from pytest_behaviortrace.evidence.recorded import RecordedEvidence
    from pytest_behaviortrace.run.recipe import Recipe
    from pytest_behaviortrace.run.store import Store

Scores = NDArray[np.float64]

CARELESS: Mapping[str, bool] = {"watch_memory": False, "compare_inputs": False}
"""How scores of our own are called: controls, and contenders of a calibration."""


class Grader(Bench):
    """One store, one graded plant. Remembers scores and the controls' statistics, so that each is computed once."""

    def __init__(
        self,
        store: Store,
        recipe: Recipe,
        *,
        plant: str,
        seeds: Sequence[int],
        draws: int,
        timeout: float | None = None,
    ) -> None:
        self._open(EvidenceStore(store, recipe, plant, draws), seeds, timeout, RESAMPLES)

    @classmethod
    def on_recorded(cls, evidence: RecordedEvidence, timeout: float | None = None) -> Grader:
        """A grader on a user's own run."""
        grader = cls.__new__(cls)
        grader._open(evidence, (RUN,), timeout, RESAMPLES)
        return grader

    @classmethod
    def on(cls, evidence: EvidenceStore, seeds: Sequence[int], *, resamples: int = RESAMPLES) -> Grader:
        """A grader on evidence that is there already; `resamples` of every bootstrap. Scores are not watched."""
        grader = cls.__new__(cls)
        grader._open(evidence, seeds, None, resamples)
        grader.care = CARELESS
        return grader

    def _open(self, evidence: EvidenceStore, seeds: Sequence[int], timeout: float | None, resamples: int) -> None:
        super().__init__(timeout)
        self.evidence, self.seeds, self.draws = evidence, tuple(seeds), evidence.draws
        self.resamples = resamples
        self.care: Mapping[str, bool] = {}
        """What `score` is to leave out."""
        self.told: Callable[[tuple[Any, ...]], None] = lambda key: None
        """Told which problem an estimator is asked next, by its key (`questions`)."""

    def headroom(self, seed: int) -> Decision:
        """Whether this seed's run can tell estimators apart: pass or inconclusive (see `checks/test_headroom.py`)."""
        return self.memo(("headroom", seed), lambda: headroom(self.evidence, seed))

    def case(
        self,
        name: str | None = None,
        estimator: Estimator | None = None,
        seed: int | None = None,
        draw: int | None = None,
        component: str | None = None,
    ) -> Case:
        """The row of one estimator (none for headroom) on one seed, draw or component."""
        return Case(self, name, estimator, seed, draw, component)


class Case(Trial):
    """What a check of a run works with: the evidence of its row, the estimator's scores on it, and `conclude`."""

    def __init__(
        self,
        grader: Grader,
        name: str | None,
        estimator: Estimator | None,
        seed: int | None,
        draw: int | None,
        component: str | None,
    ) -> None:
        super().__init__(grader, name, estimator, component)
        self.grader, self.evidence = grader, grader.evidence
        self.recorded = cast("RecordedEvidence", grader.evidence) if grader.evidence.recorded else None
        """The evidence of a recorded run, which has no ground truth; None of a planted run."""
        self._seed, self._draw = seed, draw

    @property
    def seed(self) -> int:
        """The row's seed."""
        assert self._seed is not None, "this check has no rows per seed"
        return self._seed

    @property
    def draw(self) -> int:
        """The row's draw."""
        assert self._draw is not None, "this check has no rows per draw"
        return self._draw

    def bootstrap(self, key: Any, clusters: ArrayLike) -> ClusterBootstrap:
        """The cluster bootstrap of that key, shared by every score so that differences between scores are paired."""
        return self.grader.memo(("bootstrap", key), lambda: ClusterBootstrap(clusters, resamples=self.grader.resamples))

    # -- scores ------------------------------------------------------------------------------------------------------
    def require(self, carried: Needs, what: str, unserved: Mapping[str, str] | None = None) -> None:
        """Raise `NotApplicable` when the estimator declares a need that the items of this check do not carry.

        `unserved`: why this run has none, where that is a matter of the run and not of the check.
        """
        assert self.estimator is not None
        if isinstance(self.estimator, Isolated) and self.estimator.needs.model:
            raise NotApplicable(f"{self.name} needs model; {NO_MODEL}")
        missing = needs_of(self.estimator).missing_from(carried)
        if missing:
            reason = (unserved or {}).get(missing[0])
            why = f" ({reason})" if reason else ""
            raise NotApplicable(f"{self.name} needs {' and '.join(missing)}; {what} carry none{why}")

    def scores(self, key: tuple[Any, ...], problem: AttributionProblem) -> Scores:
        """The estimator's score of every item of a problem; the same problem (same key) is scored once (see `own`).

        Raises `EstimatorError` when the estimator breaks, `NotApplicable` when the problem lacks what it needs.
        """
        assert self.estimator is not None
        assert self.name is not None
        name, estimator, timeout, recorded = self.name, self.estimator, self.grader.timeout, self.evidence.recorded
        of_training = problem.kind in ("rollouts", "canaries")
        unserved = self.evidence.unserved if of_training else None
        self.require(problem.carried, f"the {problem.kind} of this check", unserved)

        def attempt() -> Scored | EstimatorError | NotServed:
            self.grader.told(key)
            try:
                scored = score(name, estimator, problem, timeout, **self.grader.care)
            except EstimatorError as error:  # remembered too: a slow or broken estimator breaks once, not per row
                cause = error.__cause__
                return cause.with_traceback(None) if isinstance(cause, NotServed) and recorded else error
            except NotServed as error:  # an isolated one
                if not recorded:
                    return EstimatorError(f"{name!r} raised NotServed: {error}")
                return error.with_traceback(None)
            self.spend(scored.seconds, scored.peak_bytes)
            return scored

        outcome = self.own(("scores", key), attempt)
        if isinstance(outcome, NotServed):
            raise NotApplicable(f"{name} reads what this run does not have: {outcome}")
        if isinstance(outcome, EstimatorError):
            raise outcome.with_traceback(None)  # each raise would add to it
        return outcome.scores

    def fold_scores(self, key: tuple[Any, ...], folds: Sequence[tuple[AttributionProblem, IntArray]], n: int) -> Scores:
        """Scores of n items spread over one or two problems, back in the items' own order."""
        out = np.full(n, np.nan)
        for k, (problem, items) in enumerate(folds):
            out[items] = self.scores((*key, k), problem)
        return out

    def control(self, name: str, key: tuple[Any, ...], problem: AttributionProblem) -> Scores:
        """Scores of a shipped control, called through the public protocol like any estimator."""
        from pytest_behaviortrace.estimators import controls, gradient

        estimator: Estimator = getattr(gradient if name == "gas" else controls, name.replace("-", "_"))
        return self.grader.memo(("control", name, key), lambda: score(name, estimator, problem, **CARELESS).scores)

    # -- the end of a check --------------------------------------------------------------------------------------------
    def conclude(self, decision: Decision, *, remark: str = "", headroom: bool = True) -> None:
        """Record the row's decision and end the check with it: return on pass, raise the outcome otherwise.

        On a seed without headroom every decision is inconclusive, with its numbers kept. `remark`: figures that are
        reported beside the reason without deciding anything.
        """
        __tracebackhide__ = True
        if headroom and self._seed is not None:
            room = self.grader.headroom(self._seed)
            if room.verdict is not Verdict.PASS:
                place = "the run" if self.recorded else f"seed {self._seed}"
                reason = f"{place} has no headroom: {room.reason}"
                decision = decision.but(Verdict.INCONCLUSIVE, reason)
        super().conclude(decision, remark=remark)
