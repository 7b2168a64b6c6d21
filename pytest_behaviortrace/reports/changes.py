"""Comparison -> what the HTML report says of a baseline: rows that got worse or better, and where they stand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pytest_behaviortrace.baseline import Change
from pytest_behaviortrace.reports import comparison, explain, intervals
from pytest_behaviortrace.scorecard import Row, Scorecard


def section(scorecard: Scorecard) -> dict[str, Any] | None:
    """Headline and tables; None where the session was held to no baseline."""
    found = scorecard.comparison
    if found is None:
        return None
    rows = {row.id: row for row in scorecard.rows}
    return {
        "headline": comparison.headline(found),
        "verdict": _verdict(len(found.failing), found.compared),
        "tables": [
            ("Regressions", _changes(found.regressions, rows)),
            ("Improvements", _changes(found.improvements, rows)),
        ],
        "not_run": found.not_run,
        "unknown": found.unknown,
        "set_aside": found.set_aside,
        "seeds": found.seeds,
        "fresh": found.fresh,
    }


def _verdict(failing: int, compared: int) -> tuple[str, str]:
    """Word and colour."""
    if failing:
        return f"{failing} regression{'s' * (failing != 1)}", "fail"
    return ("nothing got worse", "pass") if compared else ("nothing to compare", "inconclusive")


def _changes(changes: Iterable[Change], rows: Mapping[str, Row]) -> list[dict[str, Any]]:
    return [
        {
            "estimator": change.estimator,
            "place": _place(rows.get(change.id), change.id),
            "row": rows.get(change.id),
            "sentence": change.sentence,
            "expected": change.expected,
        }
        for change in changes
    ]


def _place(row: Row | None, id: str) -> str:
    """The row in words; one that did not run now goes by its id."""
    if row is None:
        return id.partition("::")[2] or id
    return f"{explain.about(row.check).title}, {intervals.where(row)}"
