"""Rows -> scorecard: what was graded, on what, with which verdicts. Pure data; knows neither pytest nor numpy."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_behaviortrace.exhibit import Exhibit
from pytest_behaviortrace.spelling import ByCheck
from pytest_behaviortrace.wording import few

if TYPE_CHECKING:
    from pytest_behaviortrace.baseline import Comparison

SCHEMA = 2
"""Of the JSON report."""

CHECKLIST = (
    "test_headroom",
    "test_gradient_magnitude",
    "test_fluency_control",
    "test_reward_control",
    "test_trigger_alignment",
    "test_target_context",
    "test_coverage",
    "test_lookalikes",
    "test_seed_stability",
    "test_stress",
)
"""The checks in their order of reading."""

CHANCE_FREE = ("test_stress",)
"""Checks that ask for properties: luck passes none of their rows."""

CORE = ("test_gradient_magnitude", "test_fluency_control", "test_trigger_alignment", "test_seed_stability")
"""The checks without which an estimator is not shown to work: n/a for one of them, and it has not passed."""

SEVERITY = ("error", "fail", "inconclusive", "n/a", "pass")
"""Verdicts of a row, worst first."""

DECIMALS = 6
"""Decimals of every number: more than any verdict hangs on, fewer than machines differ in."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the scorecard; its fields are those of the JSON report."""

    id: str
    estimator: str | None
    check: str
    """With `test_`, as in the id and in JSON, CSV and JUnit. Pages, terminals and Markdown show it without; whatever
    takes the name of a check takes both (`grade(checks=...)`, `Scorecard.by_check`, files of expected failures)."""
    seed: int | None
    draw: int | None
    verdict: str
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    chance: float | None = None
    control: str | None = None
    control_estimate: float | None = None
    margin_low: float | None = None
    n: int | None = None
    reason: str = ""
    expected_failure: str | None = None
    """Why it was expected to fail, if it did."""

    def __post_init__(self) -> None:
        for name in ("estimate", "low", "high", "chance", "control_estimate", "margin_low"):
            object.__setattr__(self, name, _rounded(getattr(self, name)))

    @property
    def clearance(self) -> float:
        """How far the tightest bound lies above its bar; the smallest is the row closest to failing."""
        above = [] if self.low is None else [self.low - (self.chance or 0.0)]
        return min([*above, *([] if self.margin_low is None else [self.margin_low])], default=math.inf)


@dataclass(frozen=True, slots=True)
class Cost:
    """What an estimator itself took: wall seconds, and growth of memory in bytes (largest of any one call)."""

    seconds: float = 0.0
    peak_bytes: int = 0

    def plus(self, other: Cost) -> Cost:
        """Both together."""
        return Cost(self.seconds + other.seconds, max(self.peak_bytes, other.peak_bytes))


@dataclass(frozen=True, slots=True)
class SeedFacts:
    """What a seed's run looks like: behaviour score with and without the bonus, ground truth, rollouts."""

    seed: int
    s_b_planted: float
    s_b_null: float
    gt: int
    n: int

    def __post_init__(self) -> None:
        for name in ("s_b_planted", "s_b_null"):
            object.__setattr__(self, name, _rounded(getattr(self, name)))


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A user's own run: where it is, what it is, what is asked about it, and who shows that."""

    path: str
    """As it was given."""
    manifest_sha256: str
    behavior: str
    """A regular expression."""
    recorded_as: str | None
    """The name under which the behaviour was recorded with the run; None if it was not."""
    shown: int
    n: int
    """Rollouts that show it, and all."""
    versions: Mapping[str, str]
    """Of the libraries it was recorded with."""


@dataclass(frozen=True)
class Scorecard:
    """Everything a report needs. `rows` are sorted by id, `expected` holds the ids of all rows of each estimator."""

    suite: str
    recipe: str
    recipe_hash: str
    plant: str
    versions: Mapping[str, str]
    seeds: Sequence[SeedFacts]
    rows: Sequence[Row]
    expected: Mapping[str, frozenset[str]]
    costs: Mapping[str, Cost] = field(default_factory=dict)
    refuted: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """By estimator and check: what there is to say about an expected failure that did not happen."""
    run: RunFacts | None = None
    """The recorded run that was graded on in place of a recipe's."""
    draws: int = 0
    """Sibling draws of each seed."""
    exhibits: Mapping[str, Exhibit] = field(default_factory=dict)
    """By row id, where a report with pictures was asked for."""
    options: Sequence[str] = ()
    """Flags beside the estimators that a command to rerun a row repeats."""
    comparison: Comparison | None = None
    """What got worse and better since a baseline, where there is one."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", tuple(sorted(self.rows, key=lambda row: row.id)))

    @property
    def estimators(self) -> tuple[str, ...]:
        """The estimators on trial, in the order asked for."""
        return tuple(self.expected)

    def of(self, estimator: str | None) -> list[Row]:
        """The rows of one estimator; of None: those that put none on trial.

        This and everything else that asks for an estimator raises `LookupError`, a sentence, for one it knows nothing
        of.
        """
        if estimator is not None and estimator not in self.expected and estimator not in self._by_estimator:
            known = f"it has {few(self.estimators)}" if self.expected else "it has none"
            raise LookupError(f"the scorecard has no estimator {estimator!r}; {known}")
        return list(self._by_estimator.get(estimator, ()))

    @cached_property
    def _by_estimator(self) -> dict[str | None, list[Row]]:
        """Sorted out once: reports of many estimators ask for each of them several times."""
        found: dict[str | None, list[Row]] = {}
        for row in self.rows:
            found.setdefault(row.estimator, []).append(row)
        return found

    def by_check(self, estimator: str | None) -> ByCheck[list[Row]]:
        """The same by check, in the order of the checklist; found by its name with `test_` and without."""
        rows = self.of(estimator)
        names = sorted({row.check for row in rows}, key=_reading_order)
        return ByCheck({name: [row for row in rows if row.check == name] for name in names})

    def missing(self, estimator: str) -> int:
        """How many rows of an estimator did not run in this session."""
        ran = {row.id for row in self.of(estimator)}
        return len(self.expected.get(estimator, frozenset()) - ran)

    def checklist_verdict(self, estimator: str) -> str:
        """The verdict over the whole checklist.

        * `failed`: some row failed, or the estimator broke on it;
        * `partial`: no such row, but not every row ran;
        * `not shown`: a core check is n/a for it: declaring less never wins;
        * `passed`: every applicable row passed; on a recorded run, whose cause nobody knows, `passed on this run`;
        * `inconclusive`: otherwise.
        """
        checks = self.by_check(estimator)
        verdicts = {row.verdict for row in self.of(estimator)}
        if verdicts & {"fail", "error"}:
            return "failed"
        if self.missing(estimator):
            return "partial"
        if any(all(row.verdict == "n/a" for row in checks.get(core, ())) for core in CORE):
            return "not shown"
        if not verdicts <= {"pass", "n/a"}:
            return "inconclusive"
        return "passed" if self.run is None else "passed on this run"

    @property
    def decided(self) -> bool:
        """Whether anything was decided about an estimator (about a run, where no estimator was on trial)."""
        on_trial = [row for row in self.rows if row.estimator is not None] or self.rows
        return any(row.verdict in ("pass", "fail", "error") for row in on_trial)

    def __iter__(self) -> Iterator[Row]:
        """The rows, by id."""
        return iter(self.rows)

    def __len__(self) -> int:
        """How many rows ran."""
        return len(self.rows)

    def __repr__(self) -> str:
        """Short: the verdicts. `str` and `print` give the whole report."""
        verdicts = ", ".join(f"{name}: {self.checklist_verdict(name)}" for name in self.estimators)
        return f"<Scorecard of {len(self.rows)} rows; {verdicts or 'no estimator'}>"

    def __str__(self) -> str:
        """The report of the terminal (`text`)."""
        return self.text()

    def text(self, *, verbose: bool = False) -> str:
        """The report of the terminal; `verbose` tells of every row that did not pass, not of each check's worst alone.

        Without its commands: an object in a notebook is registered nowhere.
        """
        from pytest_behaviortrace.reports.terminal import render

        lines = render(self, verbose=verbose)
        return "\n".join(line.text for line in lines if not line.text.startswith("      rerun: "))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the report that the suffix asks for (.json, .html, .md, .csv), whole or not at all; returns its path.

        Pictures are in it only if `grade` kept them (`exhibits=True`). Raises `ValueError` for another suffix or a
        folder, `OSError` where it cannot be written; one sentence each.
        """
        from pytest_behaviortrace.reports.saving import save

        return save(self, path)

    def _repr_html_(self) -> str:
        """What a notebook shows: a small table (`reports.notebook`)."""
        from pytest_behaviortrace.reports.notebook import render

        return render(self)


def worst(rows: Sequence[Row]) -> Row:
    """The row to show for many: worst verdict first, then the one closest to failing, then by id."""
    return min(rows, key=lambda row: (SEVERITY.index(row.verdict), row.clearance, row.id))


def row_of(spec: Any, properties: Mapping[str, Any]) -> Row:
    """The row of a `RowSpec` from the `bt_*` properties its report carries."""
    names = (
        "verdict", "estimate", "low", "high", "chance", "control", "control_estimate", "margin_low", "n", "reason",
        "expected_failure",
    )  # fmt: skip
    found = {name: properties[f"bt_{name}"] for name in names if f"bt_{name}" in properties}
    return Row(spec.id, spec.estimator, spec.check, None if spec.recorded else spec.seed, spec.draw, **found)


def _rounded(number: float | None) -> float | None:
    if number is None or not math.isfinite(number):
        return None
    return round(float(number), DECIMALS) + 0.0  # + 0.0 turns -0.0 into 0.0


def _reading_order(check: str) -> tuple[int, str]:
    return (CHECKLIST.index(check) if check in CHECKLIST else len(CHECKLIST), check)
