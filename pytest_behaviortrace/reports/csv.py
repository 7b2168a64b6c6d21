"""Scorecard -> CSV: a line a row, with what it was graded on beside the fields of the JSON report."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import fields
from typing import Any

from pytest_behaviortrace.scorecard import Row, Scorecard
from pytest_behaviortrace.wording import printable

ABOUT = ("suite", "recipe", "recipe_hash", "plant", "run", "run_sha256", "behavior")
"""The same in all lines of a report. The last three are empty for a planted run, those before for a recorded one."""

AGAINST = "baseline"
"""What became of the row since the baseline: `regression: passed before, ...`, `improvement: ...`; empty: neither."""

COLUMNS = (*(field.name for field in fields(Row)), *ABOUT, AGAINST)
"""Names of the columns. `check` is spelt with `test_`, as in `id` and in the JSON report (`Row.check`)."""

FORMULA = re.compile(r" *[=+\-@]")
NAME = re.compile(r"-[A-Za-z][\w-]*")
"""A control in its other orientation ("-norm-only"): no formula, and must read as it does in the JSON report."""


def render(scorecard: Scorecard) -> str:
    """The report as text: a line of names, then one line a row.

    Spreadsheets take text that begins with =, +, - or @ for a formula, and reasons quote whatever an estimator
    raised: such text gets a leading apostrophe, which makes it text there. Numbers and names of controls stay.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    run = scorecard.run
    about: tuple[str | None, ...] = (scorecard.recipe, scorecard.recipe_hash, scorecard.plant, None, None, None)
    if run is not None:
        about = (None, None, None, run.path, run.manifest_sha256, run.behavior)
    for row in scorecard.rows:
        own = [getattr(row, field.name) for field in fields(Row)]
        writer.writerow([_cell(value) for value in (*own, scorecard.suite, *about, _against(scorecard, row))])
    return stream.getvalue()


def _against(scorecard: Scorecard, row: Row) -> str | None:
    found = scorecard.comparison.change(row.id) if scorecard.comparison is not None else None
    return None if found is None else f"{found[0]}: {found[1].sentence}"


def _cell(value: Any) -> Any:
    """A value as it is written: text in one line and harmless, numbers as they are, None as nothing."""
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if FORMULA.match(text) and not NAME.fullmatch(text) else text
