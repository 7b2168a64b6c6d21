"""A JSON report, read back: which rows there were, and under which conditions they were graded. Pure.

A report may come from anywhere, so everything in it is checked before anything of it is believed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pytest_behaviortrace.scorecard import SCHEMA, SEVERITY, Row

LARGEST = 64_000_000
"""Bytes of the largest report that is read: about 4,000 estimators."""

LONGEST = 4_096
"""Characters of the longest text of a report that is shown."""

LIBRARIES = ("numpy", "torch", "transformers", "trl")
"""Libraries whose versions move the numbers. Of this package the suite version says it."""

DECIDED = ("pass", "fail", "inconclusive")
"""Verdicts that only a run can give."""

MAKE = "make it again with --bt-report"


@dataclass(frozen=True, slots=True)
class AskedBaseline:
    """The JSON report that this session is compared with."""

    path: Path
    given: str
    """As it was given."""
    where: str
    """Flag, or line of the ini file."""


class SnapshotError(ValueError):
    """A report that cannot be used; the message says what is wrong and what to do, in one sentence."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What must be equal for two scorecards to be comparable."""

    suite: str
    recipe: str | None
    recipe_hash: str | None
    """Hex sha256. None of a recorded run, which has the three below."""
    run: str | None
    run_sha256: str | None
    behavior: str | None
    plant: str | None
    draws: int
    seeds: tuple[int, ...]
    """Sorted. They matter to rows over seeds, and say which single seeds there are."""
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The rows of a report by id, and the checklist verdicts by estimator."""

    conditions: Conditions
    rows: Mapping[str, Row]
    checklist: Mapping[str, str]

    @property
    def estimators(self) -> tuple[str, ...]:
        """The estimators that were on trial."""
        return tuple(self.checklist)


def read(path: Path, shown: str) -> Snapshot:
    """The report in a file, which messages call `shown`. Raises `SnapshotError`."""
    try:
        if not path.is_file():
            what = "is no file" if path.exists() else "does not exist"
            raise SnapshotError(f"{shown} {what}; give the path of a JSON report, or {MAKE}={shown}")
        if path.stat().st_size > LARGEST:
            raise SnapshotError(f"{shown} is larger than {LARGEST // 10**6} MB, no report is; give a JSON report")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SnapshotError(f"{shown} cannot be read ({error.strerror or error}); give another path") from None
    except UnicodeDecodeError:
        raise SnapshotError(f"{shown} is not UTF-8 text; give a JSON report, or {MAKE}={shown}") from None
    return parse(text, shown)


def parse(text: str, shown: str) -> Snapshot:
    """The same from the file's text."""
    try:
        found = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_once)
    except RecursionError:
        raise SnapshotError(f"{shown} is nested too deeply for a report; {MAKE}={shown}") from None
    except ValueError as error:  # JSONDecodeError among them
        raise SnapshotError(f"{shown} is not JSON ({error}); {MAKE}={shown}") from None
    if not isinstance(found, dict) or "schema" not in found or "rows" not in found:
        raise SnapshotError(f"{shown} is JSON, but no report of pytest-behaviortrace; {MAKE}={shown}")
    if found["schema"] != SCHEMA or isinstance(found["schema"], bool):
        raise SnapshotError(
            f"{shown} has the layout {_short(found['schema'])} and this version reads {SCHEMA}; {MAKE}={shown}"
        )
    try:
        conditions = _conditions(found)
        rows: dict[str, Row] = {}
        for place, entry in enumerate(_list(found, "rows")):
            row = _row(entry, f"rows[{place}]")
            if row.id in rows:
                raise _Wrong(f"rows[{place}].id", "is there twice")
            _agree(row, conditions, f"rows[{place}]")
            rows[row.id] = row
        checklist = _map(found, "checklist")
        for name, verdict in checklist.items():
            _text(name, "checklist")
            _text(verdict, f"checklist[{name!r}]")
    except _Wrong as error:
        raise SnapshotError(f"{shown} is damaged: {error}; {MAKE}={shown}") from None
    return Snapshot(conditions, rows, checklist)


class _Wrong(Exception):
    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"{where} {what}")


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number in JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands twice in one object")
    return found


def _conditions(found: Mapping[str, Any]) -> Conditions:
    recipe, run = _get(found, "recipe"), found.get("run")
    if (recipe is None) == (run is None):
        raise _Wrong("recipe", "and run must be there one without the other")
    recipe = None if recipe is None else _map(found, "recipe")
    run = None if run is None else _map(found, "run")
    versions = _map(found, "versions")
    seeds: list[int] = []
    for place, entry in enumerate(_list(found, "seeds")):
        seed = _count(_get(_map({"seed": entry}, "seed"), "seed"), f"seeds[{place}].seed")
        if seed in seeds:
            raise _Wrong(f"seeds[{place}].seed", f"is {_short(seed)}, which is there twice")
        seeds.append(seed)

    def of(table: Mapping[str, Any] | None, where: str, name: str) -> str | None:
        return None if table is None else _text(_get(table, name), f"{where}.{name}")

    return Conditions(
        _text(_get(found, "suite"), "suite"),
        of(recipe, "recipe", "name"),
        of(recipe, "recipe", "hash"),
        of(run, "run", "path"),
        of(run, "run", "manifest_sha256"),
        None if run is None else _reason(_get(run, "behavior"), "run.behavior"),
        None if run is not None else _text(_get(found, "plant"), "plant"),
        _count(_get(found, "draws"), "draws"),
        tuple(sorted(seeds)),
        {name: _text(_get(versions, name), f"versions.{name}") for name in LIBRARIES},
    )


def _row(entry: Any, where: str) -> Row:
    if not isinstance(entry, dict):
        raise _Wrong(where, "is no object")
    values = {field.name: _get(entry, field.name, where) for field in fields(Row)}
    for name, (check, optional) in _ROW.items():
        if values[name] is not None or not optional:
            check(values[name], f"{where}.{name}")
    if values["verdict"] not in SEVERITY:
        raise _Wrong(f"{where}.verdict", f"is {_short(values['verdict'])}, not one of {', '.join(SEVERITY)}")
    if None not in (values["low"], values["high"]) and values["low"] > values["high"]:
        raise _Wrong(f"{where}.low", "is above its high")
    return Row(**values)


def _agree(row: Row, conditions: Conditions, where: str) -> None:
    """Whether a row is about what its id says, and about a seed of the report.

    A row that decided nothing may be about a seed that the report lacks: the training that failed left no facts.
    """
    if row.seed is not None and row.seed not in conditions.seeds and row.verdict in DECIDED:
        raise _Wrong(f"{where}.seed", f"is {_short(row.seed)}, which is none of the report's seeds")
    run = "run" if conditions.recipe_hash is None else None
    place = run if row.seed is None else f"seed{row.seed}"
    parts = [row.estimator, place, None if row.draw is None else f"draw{row.draw}"]
    told, start = f"{row.id.removesuffix(']')}-", f"checks/{row.check}.py::{row.check}["
    known = [part for part in parts if part is not None]
    # A check that is not about the run (stress) has no `run` in its ids; what follows the known parts is a component.
    starts = [
        start + "".join(f"{part}-" for part in known if with_run or part is not run) for with_run in (True, False)
    ]
    rest = next((told.removeprefix(known) for known in starts if told.startswith(known)), None)
    if rest is None or not row.id.endswith("]") or re.match(r"(seed|draw)\d+-", rest):
        raise _Wrong(f"{where}.id", f"is {_short(row.id)}, which disagrees with its check, estimator, seed or draw")


def _get(table: Mapping[str, Any], name: str, where: str = "") -> Any:
    if name not in table:
        raise _Wrong(f"{where}.{name}" if where else name, "is missing")
    return table[name]


def _map(table: Mapping[str, Any], name: str) -> dict[str, Any]:
    if not isinstance(found := _get(table, name), dict):
        raise _Wrong(name, "is no object")
    return found


def _list(table: Mapping[str, Any], name: str) -> Sequence[Any]:
    if not isinstance(found := _get(table, name), list):
        raise _Wrong(name, "is no list")
    return found


def _text(value: Any, where: str) -> str:
    """Text for a terminal: nothing that `wording.unfit` refuses, and no longer than a path may be."""
    if not isinstance(value, str) or not value.isprintable():
        raise _Wrong(where, f"is {_short(value)}, no plain text")
    if len(value) > LONGEST:
        raise _Wrong(where, f"is longer than {LONGEST} characters")
    return value


def _reason(value: Any, where: str) -> str:
    """A reason quotes whatever an estimator raised, so anything may stand in it; it is never shown as it is."""
    if not isinstance(value, str):
        raise _Wrong(where, f"is {_short(value)}, no text")
    return value


def _count(value: Any, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _Wrong(where, f"is {_short(value)}, no whole number")
    return value


def _number(value: Any, where: str) -> float:
    try:
        fine = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        fine = False
    if not fine:
        raise _Wrong(where, f"is {_short(value)}, no finite number")
    return float(value)


def _short(value: Any) -> str:
    text = ascii(value) if not isinstance(value, int) or abs(value) < 10**9 else "a huge number"
    return text if len(text) <= 40 else f"{text[:37]}..."


_ROW: Mapping[str, tuple[Callable[[Any, str], Any], bool]] = {
    "id": (_text, False), "estimator": (_text, True), "check": (_text, False), "seed": (_count, True),
    "draw": (_count, True), "verdict": (_text, False), "estimate": (_number, True), "low": (_number, True),
    "high": (_number, True), "chance": (_number, True), "control": (_text, True), "control_estimate": (_number, True),
    "margin_low": (_number, True), "n": (_count, True), "reason": (_reason, False),
    "expected_failure": (_reason, True),
}  # fmt: skip
"""Field of a row -> what checks it, and whether it may be null."""
