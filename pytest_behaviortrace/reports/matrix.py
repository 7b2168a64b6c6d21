"""Rows -> the verdict matrix: estimators and seeds down, checks and draws across."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pytest_behaviortrace.reports.explain import about
from pytest_behaviortrace.reports.intervals import where
from pytest_behaviortrace.reports.terminal import place
from pytest_behaviortrace.scorecard import CHANCE_FREE, CHECKLIST, Row, Scorecard


class Column(NamedTuple):
    """A check, and which of its rows."""

    check: str
    part: str


class Line(NamedTuple):
    """One line of the table: of an estimator, its seed, and a cell per column (None: no such row)."""

    estimator: int
    first: int
    """How many lines the estimator's name spans, if it starts here; else 0."""
    seed: str
    cells: list[Row | None]


class Table(NamedTuple):
    """A matrix; `heads`: title of each check and how many columns it spans."""

    caption: str
    heads: list[tuple[str, int]]
    columns: list[Column]
    lines: list[Line]


def tables(scorecard: Scorecard) -> list[Table]:
    """The rows that stand for a seed or the recorded run, those over all of them, and properties; empty ones left out.

    Three tables, because one of all would be wider than most windows.
    """
    on_trial = [row for row in scorecard.rows if row.estimator is not None]
    seeded = [row for row in on_trial if _seed(row)]
    whole = [row for row in on_trial if not _seed(row)]
    named = (
        (seeded, "Verdicts by seed and draw" if scorecard.run is None else "Verdicts on the recorded run, by draw"),
        ([row for row in whole if row.check not in CHANCE_FREE], "Verdicts over all seeds and draws together"),
        ([row for row in whole if row.check in CHANCE_FREE], "Properties of the scores, on small drawn problems"),
    )
    return [_table(scorecard, rows, caption) for rows, caption in named if rows]


def _seed(row: Row) -> str:
    if row.seed is not None:
        return f"seed {row.seed}"
    return "the run" if place(row).split("-")[0] == "run" else ""


def _part(row: Row) -> str:
    if not _seed(row):
        return where(row)
    return "" if row.draw is None else f"draw {row.draw}"


def _table(scorecard: Scorecard, rows: Sequence[Row], caption: str) -> Table:
    keys = {(_order(row.check), row.check, row.draw or 0, _part(row)) for row in rows}
    columns = [Column(check, part) for _, check, _, part in sorted(keys)]
    checks = list(dict.fromkeys(column.check for column in columns))
    cells = {(row.estimator, _seed(row), row.check, _part(row)): row for row in rows}
    lines = []
    for number, name in enumerate(scorecard.estimators):
        own = {_seed(row): row.seed for row in rows if row.estimator == name}
        seeds = sorted(own, key=lambda seed: own[seed] or 0)
        for position, seed in enumerate(seeds):
            found = [cells.get((name, seed, column.check, column.part)) for column in columns]
            lines.append(Line(number, 0 if position else len(seeds), seed, found))
    heads = [(about(check).title, sum(column.check == check for column in columns)) for check in checks]
    return Table(caption, heads, columns, lines)


def _order(check: str) -> int:
    return CHECKLIST.index(check) if check in CHECKLIST else len(CHECKLIST)
