"""The state of one grading session: what is graded, the evidence once it is there, and the rows so far."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib import metadata
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pytest_behaviortrace.baseline import Comparison, compare
from pytest_behaviortrace.checklist import Check, RowSpec, planned
from pytest_behaviortrace.exhibit import PICTURED, Exhibit
from pytest_behaviortrace.expected import ExpectedFailures, Refuted
from pytest_behaviortrace.scorecard import Cost, Row, RunFacts, Scorecard, SeedFacts, row_of
from pytest_behaviortrace.suite import SUITE

if TYPE_CHECKING:
    from pytest_behaviortrace.estimator import Estimator
    from pytest_behaviortrace.grading import Grader
    from pytest_behaviortrace.run.progress import Display
    from pytest_behaviortrace.run.recorded import AskedRun
    from pytest_behaviortrace.settings import Settings
    from pytest_behaviortrace.snapshot import Snapshot
    from pytest_behaviortrace.trial import Bench

LIBRARIES = ("numpy", "pytest-behaviortrace", "torch", "transformers", "trl")
"""Libraries whose versions are in the report."""

DEAD_WORKER = "the process that ran this row died; run it alone, with -p no:xdist, to see why"


TOLD = "_behaviortrace_told"
"""Name of the mark on an exception that has been shown in full."""


class GradingSession:
    """One per pytest process, created only when an estimator is graded.

    Two attributes are seams for tests, which replace them in `pytest_sessionstart`: `make_grader(session, seeds,
    display)` gives the object whose `case(...)` a row works with, `describe_seeds(settings, seeds)` the facts of runs.
    """

    def __init__(
        self,
        settings: Settings,
        checks: Sequence[Check],
        estimators: Mapping[str, Estimator],
        expected_failures: ExpectedFailures | None = None,
    ) -> None:
        self.settings, self.checks, self.estimators = settings, checks, estimators
        self.expected_failures = expected_failures or ExpectedFailures()
        self.selected: frozenset[str] | None = None
        """Ids of rows asked for on the command line; None: all."""
        self.own_tests = False
        """Whether the user's tests run as well."""
        self.specs = planned(
            checks, settings.estimators, settings.seeds, settings.draws, recorded=settings.recorded is not None
        )
        self.rows: dict[str, Row] = {}
        self.costs: dict[str, Cost] = {}
        self.exhibits: dict[str, Exhibit] = {}
        self.make_grader: Callable[[GradingSession, Sequence[int], Display], Grader] = make_grader
        self.describe_seeds: Callable[[Settings, Sequence[int]], list[SeedFacts]] = describe_seeds
        self._seeds: tuple[int, ...] = settings.seeds
        self._grader: Grader | BaseException | None = None
        self._broke_at: TracebackType | None = None
        self._bench: Bench | None = None
        self._run_free = frozenset(check.name for check in checks if not check.needs_run)
        self._expected: dict[str | None, set[str]] = {}
        for spec in self.specs.values():
            self._expected.setdefault(spec.estimator, set()).add(spec.id)
        self._facts: dict[tuple[int, ...], list[SeedFacts]] = {}
        self.baseline: Snapshot | None = None
        """The report that this session is compared with."""
        self.deselected = False
        """Whether rows may be missing although nobody named others: -k, -m, --lf, --deselect, -x."""
        self.report_problems: list[str] = []
        """Why reports that were asked for could not be written."""

    # -- before anything runs ----------------------------------------------------------------------------------------
    def wants(self, spec: RowSpec) -> bool:
        """Whether a row was asked for."""
        return self.selected is None or spec.id in self.selected

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that rows are about; none of a recorded run, whose number is no seed."""
        return self.settings.seeds if self.settings.recorded is None else ()

    @property
    def needs_run(self) -> bool:
        """Whether any row that was asked for by name is about a run."""
        return any(self.wants(spec) and spec.check not in self._run_free for spec in self.specs.values())

    def will_run(self, specs: Iterable[RowSpec]) -> None:
        """Only the seeds of these rows are trained."""
        self._seeds = self._seeds_of(specs)

    def _seeds_of(self, specs: Iterable[RowSpec]) -> tuple[int, ...]:
        """The seeds that rows are about: all of them if one goes over seeds, none if none is about a run."""
        seeds = {spec.seed for spec in specs if spec.check not in self._run_free}
        return self.settings.seeds if None in seeds else tuple(sorted(s for s in seeds if s is not None))

    def pictured(self, spec: RowSpec) -> bool:
        """Whether a report with pictures has some of this row."""
        return spec.estimator is None or spec.estimator in self.settings.estimators[:PICTURED]

    # -- while rows run ----------------------------------------------------------------------------------------------
    def case(self, spec: RowSpec, showing: Callable[[], AbstractContextManager[Display]]) -> Any:
        """The `Case` of a row, or a `Trial` where its check needs no run.

        The first call for a `Case` trains what is missing, shown on the display `showing` opens. Raises what training
        raised, in every row, after one attempt only.
        """
        estimator = None if spec.estimator is None else self.estimators[spec.estimator]
        if spec.check in self._run_free:
            return self._bench_without_run().trial(spec.estimator, estimator, spec.component)
        if self._grader is None:
            with showing() as display:
                try:
                    self._grader = self.make_grader(self, self._seeds, display)
                except Exception as error:
                    self._grader, self._broke_at = error, error.__traceback__
        if isinstance(self._grader, BaseException):
            raise self._grader.with_traceback(self._broke_at)  # or it would grow with every row
        return self._grader.case(spec.estimator, estimator, spec.seed, spec.draw, spec.component)

    @property
    def broken(self) -> BaseException | None:
        """What training raised, which every row about a run then ends with."""
        return self._grader if isinstance(self._grader, BaseException) else None

    def _bench_without_run(self) -> Bench:
        from pytest_behaviortrace.trial import Bench

        if self._bench is None:
            self._bench = Bench(self.settings.estimator_timeout)
        return self._bench

    def first_time(self, error: BaseException) -> bool:
        """Whether an exception has not been shown in full yet: many rows can end with the same one."""
        first = TOLD not in vars(error)
        vars(error)[TOLD] = True  # on the exception itself: a list would keep every one of them
        return first

    # -- as reports arrive -------------------------------------------------------------------------------------------
    def record(self, id: str, properties: Mapping[str, Any], exhibit: Exhibit | None = None) -> None:
        """Take in the row that a report's properties describe, and what it shows."""
        spec = self.specs[id]
        self.rows[id] = row_of(spec, properties)
        if exhibit is not None:
            self.exhibits[id] = exhibit
        if spec.estimator is not None and "bt_seconds" in properties:
            cost = Cost(properties["bt_seconds"], properties["bt_peak_bytes"])
            self.costs[spec.estimator] = self.costs.get(spec.estimator, Cost()).plus(cost)

    def record_death(self, id: str) -> None:
        """Take in a row whose process died."""
        self.rows[id] = row_of(self.specs[id], {"bt_verdict": "error", "bt_reason": DEAD_WORKER})

    # -- at the end --------------------------------------------------------------------------------------------------
    def refuted(self) -> list[Refuted]:
        """Expected failures that did not happen, as far as the rows that ran can tell."""
        verdicts: dict[tuple[str | None, str], list[str | None]] = {}
        for spec in self.specs.values():
            row = self.rows.get(spec.id)
            verdicts.setdefault((spec.estimator, spec.check), []).append(row.verdict if row is not None else None)
        return self.expected_failures.refuted(verdicts)

    def comparison(self) -> Comparison | None:
        """What became of the baseline's rows; None without a baseline."""
        if self.baseline is None or self.settings.baseline is None:
            return None
        whole = self.selected is None and not self.deselected
        shown = self.settings.baseline.given
        return compare(self.baseline, self.rows.values(), self.settings.estimators, shown, self.seeds, whole=whole)

    def scorecard(self) -> Scorecard:
        """The scorecard of the rows so far."""
        settings = self.settings
        seeds = self._seeds_of(self.specs[id] for id in self.rows)
        if seeds not in self._facts:
            self._facts[seeds] = self.describe_seeds(settings, seeds)
        expected = {name: frozenset(self._expected.get(name, ())) for name in settings.estimators}
        return Scorecard(
            SUITE,
            settings.recipe.name,
            settings.recipe.hash,
            settings.plant,
            {name: metadata.version(name) for name in LIBRARIES},
            self._facts[seeds],
            tuple(self.rows.values()),
            expected,
            self.costs,
            {(found.entry.estimator, found.entry.check): found.message for found in self.refuted()},
            describe_run(settings.recorded) if settings.recorded is not None else None,
            draws=settings.draws,
            exhibits=self.exhibits,
            options=settings.typed,
            comparison=self.comparison(),
        )


def make_grader(session: GradingSession, seeds: Sequence[int], display: Display) -> Grader:
    """Train what is missing of these seeds, or sample what is missing for a recorded run, and grade on it."""
    from pytest_behaviortrace.grading import Grader
    from pytest_behaviortrace.run.orchestrate import ensure

    settings = session.settings
    if settings.recorded is not None:
        return make_recorded_grader(settings, settings.recorded, display)
    store = ensure(settings.recipe, seeds, range(settings.draws), settings.cache_dir, display)
    return Grader(
        store,
        settings.recipe,
        plant=settings.plant,
        seeds=settings.seeds,
        draws=settings.draws,
        timeout=settings.estimator_timeout,
    )


def make_recorded_grader(settings: Settings, recorded: AskedRun, display: Display) -> Grader:
    """Sample the draws that are missing, and grade on them."""
    from pytest_behaviortrace.evidence.recorded import RecordedEvidence
    from pytest_behaviortrace.grading import Grader
    from pytest_behaviortrace.run.orchestrate import ensure_draws

    store = ensure_draws(recorded.question, range(settings.draws), settings.cache_dir, display)
    return Grader.on_recorded(RecordedEvidence(store, recorded.run, settings.draws), settings.estimator_timeout)


def describe_run(recorded: AskedRun) -> RunFacts:
    """Facts of a recorded run."""
    from pytest_behaviortrace.run.recorded import compiled

    shown = recorded.run.shown(compiled(recorded.question.behavior))
    return RunFacts(
        recorded.given,
        recorded.run.sha256,
        recorded.question.behavior,
        recorded.run.recorded_as(recorded.question.behavior),
        int(shown.sum()),
        len(shown),
        dict(recorded.run.unit.manifest["versions"]),
    )


def describe_seeds(settings: Settings, seeds: Sequence[int]) -> list[SeedFacts]:
    """Facts of the seeds that are in the store; damaged and missing ones are left out, and there are none of a
    recorded run."""
    if settings.recorded is not None:
        return []
    from pytest_behaviortrace.run.store import DamagedUnit, MissingUnit, Store

    store, found = Store(settings.cache_dir, settings.recipe), []
    for seed in seeds:
        try:
            unit = store.seed(seed)
        except (DamagedUnit, MissingUnit):
            continue
        score, rollouts = unit.facts["s_b"][settings.plant], unit.table("rollouts")
        boosted = rollouts[f"boosted_{settings.plant}"]
        found.append(
            SeedFacts(
                seed,
                statistics.fmean(score["planted"]["end"]),
                statistics.fmean(score["null"]["end"]),
                sum(map(bool, boosted)),
                len(boosted),
            )
        )
    return found


def absent_units(settings: Settings) -> list[str]:
    """Units of the whole session that are not in the cache, from manifests and file sizes alone (no hashing)."""
    from pytest_behaviortrace.run.cache import recipe_folder
    from pytest_behaviortrace.run.manifest import DamagedUnit, MissingUnit, check_sizes, read_manifest

    subject = settings.recipe if settings.recorded is None else settings.recorded.question
    folder, absent = recipe_folder(settings.cache_dir, subject), []
    for unit in units(settings):
        try:
            check_sizes(folder / unit, read_manifest(folder / unit))
        except (DamagedUnit, MissingUnit):
            absent.append(unit)
    return absent


def units(settings: Settings) -> list[str]:
    """Names of the units of the whole session."""
    draws = [f"draw{draw}" for draw in range(settings.draws)]
    if settings.recorded is not None:
        return draws
    return [unit for s in settings.seeds for unit in (f"seed{s}", *(f"seed{s}-{draw}" for draw in draws))]
