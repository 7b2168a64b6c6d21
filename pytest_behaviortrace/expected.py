"""Failures that were expected: which estimator fails which check, and why. A TOML file -> entries -> reasons. Pure.

    [gas]
    lookalikes = "plain cosine carries no credit"
    reward_control = { reason = "the topic explains as much", strict = false }

An entry changes what pytest makes of a row, never the row's verdict.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KEYS = ("reason", "strict")
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


class ExpectedFailuresError(ValueError):
    """A file of expected failures that cannot be used; the message says where, what is wrong and what to do."""


@dataclass(frozen=True, slots=True)
class ExpectedFailure:
    """One entry: this estimator is expected to fail this check."""

    estimator: str
    check: str
    reason: str
    strict: bool
    """Whether it is a failure of the session when the estimator passes instead."""
    line: str
    """For example `the line 'lookalikes' of [gas] in expected.toml`."""


@dataclass(frozen=True, slots=True)
class Refuted:
    """An entry whose failure did not happen, and the sentence that says so."""

    entry: ExpectedFailure
    message: str


class ExpectedFailures:
    """The entries of one session, and the verdicts that count as failing in it."""

    def __init__(self, entries: Iterable[ExpectedFailure] = (), failing: Collection[str] = ("fail",)) -> None:
        self._entries = {(entry.estimator, entry.check): entry for entry in entries}
        self._failing = failing

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._entries)

    @property
    def entries(self) -> list[ExpectedFailure]:
        """All of them."""
        return list(self._entries.values())

    def reason(self, estimator: str | None, check: str, verdict: str) -> str | None:
        """Why a row with this verdict was expected to fail; None if it was not, or did not fail."""
        entry = self._entries.get((estimator or "", check))
        return entry.reason if entry is not None and verdict in self._failing else None

    def refuted(self, verdicts: Mapping[tuple[str | None, str], Collection[str | None]]) -> list[Refuted]:
        """The entries that were wrong, from the verdicts of every row of each estimator and check (None: not run).

        Nothing is concluded from a selection, from a broken estimator, or from rows that decided nothing.
        """
        found = []
        for key, entry in self._entries.items():
            rows = list(verdicts.get(key, ()))
            if "pass" in rows and not {None, "error", *self._failing} & set(rows):
                found.append(Refuted(entry, _refutation(entry, rows)))
        return found


def _refutation(entry: ExpectedFailure, rows: list[str | None]) -> str:
    name, open_rows = entry.check.removeprefix("test_"), rows.count("inconclusive")
    what = f"{entry.estimator} passes {name}"
    if open_rows:
        what = f"no row of {name} fails for {entry.estimator} ({rows.count('pass')} pass, {open_rows} inconclusive)"
    remedy = f"remove {entry.line}" if entry.strict else f"{entry.line} is not strict, so this fails nothing"
    return f"expected failure did not happen: {what}; {remedy}"


def load(
    path: Path, shown: str, checks: Mapping[str, bool], estimators: Collection[str] | None
) -> list[ExpectedFailure]:
    """The entries of a file, which messages call `shown`.

    `checks`: every check, and whether it puts an estimator on trial. `estimators`: every name that may have entries;
    None: any may. Raises `ExpectedFailuresError`.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ExpectedFailuresError(
            f"{shown} cannot be read ({path}: {error.strerror or error}); give the path of a TOML file, "
            f"relative to the ini file"
        ) from None
    except UnicodeDecodeError:
        raise ExpectedFailuresError(f"{shown} is not UTF-8 text; save it as UTF-8") from None
    return parse(text, shown, checks, estimators)


def parse(
    text: str, shown: str, checks: Mapping[str, bool], estimators: Collection[str] | None
) -> list[ExpectedFailure]:
    """The same from the file's text."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        last = max(len(text.splitlines()), 1)
        problem = str(error).replace("at end of document", f"at line {last}, the end")
        raise ExpectedFailuresError(f"{shown} is not TOML: {problem}; mend that line") from None
    return entries_of(tables, shown, checks, estimators)


def entries_of(
    tables: Mapping[Any, Any],
    shown: str,
    checks: Mapping[str, bool],
    estimators: Collection[str] | None,
    unit: str = "line",
) -> list[ExpectedFailure]:
    """The same from what a file says, or from a dict of that form; `unit` is what messages call one entry."""
    found: dict[tuple[str, str], ExpectedFailure] = {}
    for estimator, table in tables.items():
        if not isinstance(estimator, str):
            raise ExpectedFailuresError(f"{shown}: {estimator!r:.80} is no name of an estimator; give a text")
        where = f"{shown}: [{_as_key(estimator)}]"
        if not isinstance(table, Mapping):
            raise ExpectedFailuresError(
                f"{shown}: {estimator!r} is no table; entries stand below their estimator, such as [gas]"
            )
        # A path is registered nowhere, and may be for other runs.
        if estimators is not None and estimator not in estimators and ":" not in estimator:
            raise ExpectedFailuresError(
                f"{where} is neither graded in this run nor registered; correct the name or remove the table"
            )
        for key, value in table.items():
            check = _check(key, where, checks)
            if (estimator, check) in found:
                raise ExpectedFailuresError(f"{where} names {check} twice, with and without test_; remove one of them")
            reason, strict = _reason(value, f"{where} {key}")
            line = f"the {unit} {key!r} of [{_as_key(estimator)}] in {shown}"
            found[estimator, check] = ExpectedFailure(estimator, check, reason, strict, line)
    return list(found.values())


def _check(key: Any, where: str, checks: Mapping[str, bool]) -> str:
    """The name of the check that a key means."""
    if not isinstance(key, str):
        raise ExpectedFailuresError(f"{where}: {key!r:.80} is no name of a check; give a text")
    name = key if key.startswith("test_") else f"test_{key}"
    if name not in checks:
        known = ", ".join(sorted(check.removeprefix("test_") for check, on_trial in checks.items() if on_trial))
        raise ExpectedFailuresError(f"{where} names the unknown check {key!r}; checks: {known}")
    if not checks[name]:
        raise ExpectedFailuresError(f"{where} names {key!r}, which puts no estimator on trial; remove the line")
    return name


def _reason(value: Any, where: str) -> tuple[str, bool]:
    """Reason and strictness of an entry."""
    entry = value if isinstance(value, Mapping) else {"reason": value}
    if unknown := [key for key in entry if key not in KEYS]:
        raise ExpectedFailuresError(f"{where} has the unknown key {unknown[0]!r}; keys: {', '.join(KEYS)}")
    if "reason" not in entry:
        raise ExpectedFailuresError(f"{where} has no reason; say why the failure is expected")
    reason, strict = entry["reason"], entry.get("strict", True)
    if not isinstance(reason, str):
        raise ExpectedFailuresError(f"{where}: the reason {reason!r} is no text; say in quotes why it is expected")
    if not reason.strip():
        raise ExpectedFailuresError(f"{where}: the reason is empty; say why the failure is expected")
    if not isinstance(strict, bool):
        raise ExpectedFailuresError(f"{where}: strict = {strict!r} is not known; choose true or false")
    return " ".join(reason.split()), strict


def _as_key(name: str) -> str:
    """A name as it stands in the file."""
    if BARE_KEY.fullmatch(name):
        return name
    return f'"{name}"' if name.isprintable() else json.dumps(name)
