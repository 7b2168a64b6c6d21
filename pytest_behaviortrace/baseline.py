"""Two scorecards -> what got worse and what got better, or why they cannot be compared. Pure; decides nothing else.

A row got worse when it passed and no longer does, or when its interval now lies wholly below the old one; better is the
reverse. Numbers that move within their intervals are neither.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_behaviortrace.scorecard import Row
from pytest_behaviortrace.snapshot import LIBRARIES, Conditions, Snapshot

ACROSS_SEEDS = ("test_seed_stability",)
"""Checks whose rows go over all seeds: with other seeds they are other rows."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One condition that differs; `library` where another installation mends it."""

    what: str
    old: str
    new: str
    library: bool = False

    def describe(self) -> str:
        """For example `torch 2.12.0 there, 2.13.0 here`."""
        return f"{self.what} {self.old} there, {self.new} here"


@dataclass(frozen=True, slots=True)
class Change:
    """A row that got worse or better, and how."""

    id: str
    estimator: str | None
    sentence: str
    expected: str | None = None
    """Why it was expected to fail, if it did: such a change fails nothing."""

    def describe(self) -> str:
        """For example `checks/...[gas-seed0]: passed before, fail now`."""
        if self.expected is None:
            return f"{self.id}: {self.sentence}"
        why = "".join(letter if letter.isprintable() else " " for letter in self.expected)
        return f"{self.id}: {self.sentence} (expected: {why})"


@dataclass(frozen=True, slots=True)
class Comparison:
    """What became of a baseline's rows."""

    shown: str
    """The baseline as it was given."""
    compared: int
    """Rows that are in both."""
    regressions: tuple[Change, ...] = ()
    improvements: tuple[Change, ...] = ()
    not_run: tuple[str, ...] = ()
    """Ids of rows of the baseline that did not run here, and were not asked for."""
    unknown: tuple[str, ...] = ()
    """Estimators on trial of which the baseline has no row."""

    @property
    def failing(self) -> tuple[Change, ...]:
        """The regressions that nobody expected."""
        return tuple(change for change in self.regressions if change.expected is None)


def differences(old: Conditions, new: Conditions, rows: Iterable[Row] = ()) -> list[Difference]:
    """What differs between the conditions of two scorecards that have these rows in common; empty: comparable."""
    found = []
    if old.suite != new.suite:
        found.append(Difference("suite", old.suite, new.suite))
    if (old.recipe_hash, old.run_sha256) != (new.recipe_hash, new.run_sha256):
        found.append(Difference("graded on", _subject(old), _subject(new)))
    elif old.behavior != new.behavior:
        found.append(Difference("behaviour", repr(old.behavior), repr(new.behavior)))
    if old.plant != new.plant and old.plant is not None and new.plant is not None:
        found.append(Difference("plant", old.plant, new.plant))
    if old.draws != new.draws:
        found.append(Difference("draws", str(old.draws), str(new.draws)))
    if old.seeds != new.seeds and any(row.check in ACROSS_SEEDS for row in rows):
        found.append(Difference("seeds", _seeds(old), _seeds(new)))
    for name in LIBRARIES:
        if old.versions[name] != new.versions[name]:
            found.append(Difference(name, old.versions[name], new.versions[name], library=True))
    return found


def remedy(found: Sequence[Difference], again: str) -> str:
    """What to do about differences: `again` is the command that makes the baseline anew."""
    libraries = [difference for difference in found if difference.library]
    if libraries and len(libraries) == len(found):
        pins = " ".join(f"{difference.what}=={difference.old}" for difference in libraries)
        return f"install {pins}, or make the baseline again: {again}"
    return f"make the baseline again: {again}"


def regression(old: Row, new: Row) -> str | None:
    """How a row got worse, in a sentence; None if it did not."""
    if old.verdict == "pass" and new.verdict != "pass":
        return f"passed before, {new.verdict} now{_numbers(old, new)}"
    if new.high is not None and old.low is not None and new.high < old.low:
        return f"its interval fell clear of the old one ({_still(old, new)}){_numbers(old, new)}"
    return None


def improvement(old: Row, new: Row) -> str | None:
    """How a row got better, in a sentence; None if it did not, or got worse at the same time."""
    if regression(old, new) is not None:
        return None
    if new.verdict == "pass" and old.verdict != "pass":
        return f"{_was(old.verdict)} before, passes now{_numbers(old, new)}"
    if new.low is not None and old.high is not None and new.low > old.high:
        return f"its interval rose clear of the old one ({_still(old, new)}){_numbers(old, new)}"
    return None


def compare(
    old: Snapshot, rows: Iterable[Row], estimators: Collection[str], shown: str, *, whole: bool = False
) -> Comparison:
    """What became of the rows of `old` that put one of `estimators` or none on trial.

    `whole`: the whole checklist was asked for, so that a row that passed and is not among `rows` is a regression.
    """
    new = {row.id: row for row in rows}
    worse, better, absent, compared = [], [], [], 0
    for id, before in old.rows.items():
        if before.estimator is not None and before.estimator not in estimators:
            continue
        after = new.get(id)
        if after is None:
            if whole and before.verdict == "pass":
                worse.append(Change(id, before.estimator, "passed before, did not run now"))
            else:
                absent.append(id)
            continue
        compared += 1
        if (sentence := regression(before, after)) is not None:
            worse.append(Change(id, before.estimator, sentence, after.expected_failure))
        elif (sentence := improvement(before, after)) is not None:
            better.append(Change(id, before.estimator, sentence))
    on_trial = {row.estimator for row in old.rows.values()}
    unknown = tuple(name for name in estimators if name not in on_trial)
    return Comparison(shown, compared, tuple(worse), tuple(better), tuple(absent), unknown)


def to_dict(found: Comparison) -> Mapping[str, object]:
    """A comparison as plain data, for programs that read it."""
    return {
        "baseline": found.shown,
        "compared": found.compared,
        "regressions": [{"id": c.id, "what": c.sentence, "expected": c.expected} for c in found.regressions],
        "improvements": [{"id": c.id, "what": c.sentence} for c in found.improvements],
        "not_run": list(found.not_run),
        "not_in_baseline": list(found.unknown),
    }


def _subject(conditions: Conditions) -> str:
    if conditions.recipe_hash is not None:
        return f"recipe {conditions.recipe}@{conditions.recipe_hash[:8]}"
    return f"recorded run {conditions.run}@{(conditions.run_sha256 or '')[:8]}"


def _seeds(conditions: Conditions) -> str:
    return ",".join(map(str, conditions.seeds)) or "none"


def _was(verdict: str) -> str:
    return {"fail": "failed", "error": "an error"}.get(verdict, verdict)


def _still(old: Row, new: Row) -> str:
    return f"still {new.verdict}" if old.verdict == new.verdict else f"{old.verdict} before, {new.verdict} now"


def _numbers(old: Row, new: Row) -> str:
    before, after = _interval(old), _interval(new)
    return f": {before} before, {after} now" if before and after else ""


def _interval(row: Row) -> str:
    if row.estimate is None:
        return ""
    ends = f" [{row.low:.3f}, {row.high:.3f}]" if row.low is not None and row.high is not None else ""
    return f"{row.estimate:.3f}{ends}"
