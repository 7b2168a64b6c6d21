"""Scorecard -> a small HTML table for notebooks: loads nothing from anywhere, and keeps the notebook's colours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from pytest_behaviortrace.reports.terminal import counts
from pytest_behaviortrace.scorecard import Row, Scorecard, worst

MARKS = {
    "pass": "#2e8b57", "passed": "#2e8b57", "passed on this run": "#2e8b57", "fail": "#d04437", "failed": "#d04437",
    "error": "#d04437", "inconclusive": "#b8860b", "not shown": "#b8860b", "partial": "#b8860b", "n/a": "#808080",
}  # fmt: skip
"""Colour of the bar beside a verdict; the verdict is always a word too. Seen as well on white as on black."""

MEANS = {
    "passed": "every row that applies passed",
    "passed on this run": "every row that applies passed; whose cause nobody knows",
    "failed": "a row failed, or the estimator broke on it",
    "not shown": "a core check is n/a for it",
    "inconclusive": "the evidence does not decide",
    "partial": "not every row ran",
}
CELL = "text-align: left; vertical-align: top; padding: 2px 10px"


def render(scorecard: Scorecard) -> str:
    """One table for each estimator, and one for the run itself. Every text of the scorecard is escaped."""
    return f'<div class="behaviortrace">{"".join(_parts(scorecard))}</div>'


def _parts(scorecard: Scorecard) -> Iterator[str]:
    run = scorecard.run
    about = f"recipe {scorecard.recipe}@{scorecard.recipe_hash[:8]}, plant {scorecard.plant}"
    if run is not None:
        about = f"recorded run {run.path}@{run.manifest_sha256[:8]}, behaviour {run.behavior!r}"
    yield f"<p>behaviortrace suite {escape(scorecard.suite)}, {escape(about)}</p>"
    for name in (*scorecard.estimators, None):
        if not (checks := scorecard.by_check(name)):
            continue
        yield f"<p>{_title(scorecard, name)}</p>"
        head = "".join(f'<th scope="col" style="{CELL}">{word}</th>' for word in ("check", "verdict", "rows", "why"))
        body = "".join(
            _check(check, rows, scorecard.refuted.get((name or "", check), "")) for check, rows in checks.items()
        )
        yield f'<table style="border-collapse: collapse"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _title(scorecard: Scorecard, name: str | None) -> str:
    if name is None:
        return "<strong>the run itself</strong> (no estimator on trial)"
    verdict, rows = scorecard.checklist_verdict(name), scorecard.of(name)
    missing = scorecard.missing(name)
    ran = f"{len(rows)} of {len(rows) + missing} rows" if missing else f"{len(rows)} rows"
    means = escape(f"{MEANS[verdict]}; {ran}: {counts(rows)}")
    return f"<strong>{escape(name)}</strong>: {_marked(verdict)} ({means})"


def _check(check: str, rows: Sequence[Row], refuted: str) -> str:
    applicable = [row for row in rows if row.verdict != "n/a"]
    row = worst(applicable or rows)
    same = sum(other.verdict == row.verdict for other in rows)
    cells = (
        escape(check.removeprefix("test_")),
        _marked(row.verdict),
        f"{same} of {len(rows)}",
        escape(" ".join(part for part in (_numbers(row), row.reason) if part)) + _expected(rows, refuted),
    )
    shown = "".join(f'<td style="{CELL}">{cell}</td>' for cell in cells)
    return f"<tr>{shown}</tr>"


def _expected(rows: Sequence[Row], refuted: str) -> str:
    """Why failures were expected, or that one did not happen."""
    reason = next((row.expected_failure for row in rows if row.expected_failure is not None), None)
    told = [*([f"expected: {reason}"] if reason is not None else []), *([refuted] if refuted else [])]
    return "".join(f"<br/>{escape(text)}" for text in told)


def _numbers(row: Row) -> str:
    if row.estimate is None:
        return ""
    interval = "" if row.low is None or row.high is None else f" [{row.low:.3f}, {row.high:.3f}]"
    chance = "" if row.chance is None else f" (chance {row.chance:g})"
    return f"{row.estimate:.3f}{interval}{chance}:"


def _marked(verdict: str) -> str:
    return f'<span style="border-left: 4px solid {MARKS[verdict]}; padding-left: 6px">{escape(verdict)}</span>'
