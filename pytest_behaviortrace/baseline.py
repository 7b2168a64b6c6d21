"""Two scorecards -> what got worse and what got better, or why they cannot be compared. Pure; decides nothing else.

A row got worse when it passed and no longer does, or when its interval now lies wholly below the old one; better is the
reverse. Numbers that move within their intervals are neither.

Scorecards of other seeds are compared as far as they speak of the same: a row about one seed where both have that seed,
a row over all seeds where all of them are the same. The others are set aside, and named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from pytest_behaviortrace.scorecard import Row
from pytest_behaviortrace.snapshot import LIBRARIES, Conditions, Snapshot
from pytest_behaviortrace.wording import printable

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
        return f"{self.id}: {self.sentence} (expected: {printable(self.expected)})"


@dataclass(frozen=True)
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
    set_aside: tuple[str, ...] = ()
    """Ids of rows of the baseline that cannot be compared: of a seed, or over seeds, that are others here."""
    seeds: str = ""
    """How the seeds differ, where rows were set aside."""
    fresh: tuple[str, ...] = ()
    """Ids of rows of estimators that the baseline has, and rows that it has not: no failure of theirs is known."""

    def change(self, id: str) -> tuple[str, Change] | None:
        """`regression` or `improvement`, and how, of a row; None of a row that is neither."""
        return self._changes.get(id)

    @cached_property
    def _changes(self) -> dict[str, tuple[str, Change]]:
        found = {change.id: ("improvement", change) for change in self.improvements}
        return found | {change.id: ("regression", change) for change in self.regressions}

    @property
    def failing(self) -> tuple[Change, ...]:
        """The regressions that nobody expected."""
        return tuple(change for change in self.regressions if change.expected is None)


def other_seeds(row: Row, old: Conditions, seeds: Collection[int]) -> bool:
    """Whether a row of a baseline speaks of seeds that a session or scorecard of these seeds does not speak of."""
    if row.check in ACROSS_SEEDS:
        return set(old.seeds) != set(seeds)
    return row.seed is not None and row.seed not in seeds


def seeds_differ(old: Conditions, seeds: Collection[int]) -> Difference:
    """How the seeds differ, where they do."""
    return Difference("seeds", _seeds(old.seeds), _seeds(seeds))


def differences(old: Conditions, new: Conditions) -> list[Difference]:
    """What differs between the conditions of two scorecards, their seeds left out; empty: comparable."""
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
    old: Snapshot,
    rows: Iterable[Row],
    estimators: Collection[str],
    shown: str,
    seeds: Collection[int],
    *,
    whole: bool = False,
) -> Comparison:
    """What became of the rows of `old` that put one of `estimators` or none on trial, in rows of these seeds.

    `whole`: the whole checklist was asked for, so that a row that passed and is not among `rows` is a regression.
    """
    new = {row.id: row for row in rows}
    worse, better, absent, apart, compared = [], [], [], [], 0
    for id, before in old.rows.items():
        if before.estimator is not None and before.estimator not in estimators:
            continue
        if other_seeds(before, old.conditions, seeds):
            apart.append(id)
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
    return Comparison(
        shown,
        compared,
        tuple(worse),
        tuple(better),
        tuple(absent),
        tuple(name for name in estimators if name not in on_trial),
        tuple(apart),
        seeds_differ(old.conditions, seeds).describe() if apart else "",
        tuple(id for id, row in new.items() if id not in old.rows and row.estimator in on_trial),
    )


def to_dict(found: Comparison) -> dict[str, object]:
    """A comparison as plain data, for programs that read it."""
    return {
        "baseline": found.shown,
        "compared": found.compared,
        "regressions": [{"id": c.id, "what": c.sentence, "expected": c.expected} for c in found.regressions],
        "improvements": [{"id": c.id, "what": c.sentence} for c in found.improvements],
        "not_run": list(found.not_run),
        "not_in_baseline": list(found.unknown),
        "set_aside": list(found.set_aside),
        "new_rows": list(found.fresh),
        "seeds": found.seeds or None,
    }


def _subject(conditions: Conditions) -> str:
    if conditions.recipe_hash is not None:
        return f"recipe {conditions.recipe}@{conditions.recipe_hash[:8]}"
    return f"recorded run {conditions.run}@{(conditions.run_sha256 or '')[:8]}"


def _seeds(seeds: Collection[int]) -> str:
    """`0-2,5`; `none` where there are none."""
    parts: list[list[int]] = []
    for seed in sorted(seeds):
        if parts and parts[-1][-1] == seed - 1:
            parts[-1] = [parts[-1][0], seed]
        else:
            parts.append([seed])
    return ",".join("-".join(map(str, part)) for part in parts) or "none"


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
    ends = f" [{_number(row.low)}, {_number(row.high)}]" if row.low is not None and row.high is not None else ""
    return f"{_number(row.estimate)}{ends}"


def _number(value: float) -> str:
    """Three places; a number that no check gives, such as 1e308 in a file that somebody edited, stays short."""
    return f"{value:.3f}" if abs(value) < 1e6 else f"{value:.3g}"
