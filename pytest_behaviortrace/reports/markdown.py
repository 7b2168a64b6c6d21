"""Scorecard -> Markdown for a comment on GitHub or a job's summary: verdicts first, then why, then the commands.

Whatever a user or an estimator wrote stands in code: there neither markup, nor mentions, nor links are looked for.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence

from pytest_behaviortrace.reports import comparison, terminal
from pytest_behaviortrace.scorecard import CHECKLIST, Row, Scorecard, worst
from pytest_behaviortrace.summary import graded_on, summary
from pytest_behaviortrace.wording import printable

LIMIT = 65_536
"""Bytes of the longest text: GitHub takes as many characters in a comment, and more in a summary."""
MARK = "<!-- pytest-behaviortrace -->"
"""First line: by it a bot finds the comment that it wrote before."""
SIDE_BY_SIDE = 3
"""Most estimators that are columns of the table; more are its lines."""
SHARES = {"summary": 0.2, "table": 0.3, "changes": 0.2}
"""Most of the text that the parts before the details take."""
ROWS, ROWS_SHARE = 200, 0.25
"""Most rows in the list of those that did not pass, and most of the text that it takes."""
SHORT_LINE = 200
"""Characters of a reason that are shown there."""
LINE = 1_000
"""Characters of a line of reason that are shown: an estimator may raise megabytes."""
REASON_LINES = 10
ELSEWHERE = "The JSON, CSV and HTML reports hold everything."


def render(scorecard: Scorecard) -> str:
    """The report as text of at most `LIMIT` bytes. A part that does not fit ends with a sentence that says so."""
    parts = [[MARK, "### Attribution checklist", ""]]
    heads = [f"- {code(name)}: {_head(scorecard, name)}" for name in scorecard.estimators]
    parts.append(_fitted([], heads, "estimators", SHARES["summary"]))
    head, lines = _table(scorecard)
    parts.append(["", *_fitted(head, lines, "lines of the table", SHARES["table"]), ""])
    if scorecard.comparison is not None:
        parts.append([*_fitted([], list(_changes(scorecard)), "changes", SHARES["changes"]), ""])
    rows = _rows(scorecard)
    used = sum(_size(line) for part in (*parts, rows) for line in part)
    parts.append(_fitted([], list(_details(scorecard)), "estimators", 1.0, LIMIT - used))
    parts.append(["", *rows] if rows and parts[-1] and parts[-1][-1].startswith("*Cut") else rows)
    return "\n".join(line for part in parts for line in part).rstrip("\n") + "\n"


def _fitted(head: list[str], entries: Sequence[str], what: str, share: float, room: int = LIMIT) -> list[str]:
    """The entries that fit into a share of the room, and a sentence where some do not."""
    left = int(share * room) - sum(map(_size, head)) - 200  # for the sentence
    kept = list(head)
    for place, entry in enumerate(entries):
        left -= _size(entry)
        if left < 0:
            return [*kept, "", f"*Cut here: {len(entries) - place} of {len(entries)} {what} do not fit. {ELSEWHERE}*"]
        kept.append(entry)
    return kept


def _head(scorecard: Scorecard, estimator: str) -> str:
    """The line of summary; what it was graded on as code, or GitHub makes a link to a commit of `tiny@89aa7c0f`."""
    where = graded_on(scorecard)
    return summary(scorecard, estimator).removesuffix(where) + code(where)


def _size(line: str) -> int:
    return len(line.encode("utf-8", "backslashreplace")) + 1


def _table(scorecard: Scorecard) -> tuple[list[str], list[str]]:
    """Head and lines of the table of verdicts."""
    names = list(scorecard.estimators)
    found = {name: scorecard.by_check(name) for name in (None, *names)}
    on_run = {check: cell(rows) for check, rows in found[None].items()}
    checks = list(dict.fromkeys(check for name in names for check in found[name]))
    cells = {(name, check): cell(found[name].get(check, [])) for name in names for check in checks}
    shown = {name: in_table(code(name)) for name in names}
    if len(names) > SIDE_BY_SIDE:
        head = ["estimator", *(check.removeprefix("test_") for check in checks)]
        lines = [[shown[name], *(cells[name, check] for check in checks)] for name in names]
        run = ", ".join(f"{_short(check)} {text}" for check, text in on_run.items())
        lines += [["the run itself", run, *[""] * (len(checks) - 1)]] if run else []
    else:
        head = ["check", *shown.values()]
        lines = [[f"{_short(check)} (the run itself)", *[text] * len(names)] for check, text in on_run.items()]
        lines += [[_short(check), *(cells[name, check] for name in names)] for check in checks]
    return [_line(head), _line(["---"] * len(head))], [_line(line) for line in lines]


def _short(check: str) -> str:
    return check.removeprefix("test_")


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def cell(rows: Sequence[Row]) -> str:
    """The worst verdict of a check's rows and how many have it: `fail 1 of 3`; empty where none ran."""
    if not rows:
        return ""
    shown = _worst(rows)
    count = f"{shown.verdict} {sum(row.verdict == shown.verdict for row in rows)} of {len(rows)}"
    return f"**{count}**" if shown.verdict in ("fail", "error") else count


def _worst(rows: Sequence[Row]) -> Row:
    return worst([row for row in rows if row.verdict != "n/a"] or rows)


def _changes(scorecard: Scorecard) -> Iterator[str]:
    """What became of the baseline, a line each."""
    found = scorecard.comparison
    assert found is not None
    yield f"**Baseline**: {code(comparison.headline(found))}\n"
    for text, _ in list(comparison.render(found))[1:]:
        kind, _, rest = text.strip().partition(": ")
        yield f"- {kind}: {code(rest)}"


def _details(scorecard: Scorecard) -> Iterator[str]:
    """What did not pass, folded by estimator: each check's worst row, its reason, and the command that runs it."""
    for name in (None, *scorecard.estimators):
        open_checks = {
            check: rows
            for check, rows in scorecard.by_check(name).items()
            if _worst(rows).verdict not in ("pass", "n/a")
        }
        if not open_checks:
            continue
        title = f"<code>{html.escape(printable(name))}</code>" if name is not None else "the run itself"
        count = f"{len(open_checks)} check{'s' * (len(open_checks) != 1)}"
        lines = ["<details>", f"<summary>{title}: {count} not passed</summary>", ""]
        for check, rows in open_checks.items():
            row = _worst(rows)
            lines += [f"**{_short(check)}: {cell(rows).strip('*')}**", "", *_why(scorecard, row), ""]
        yield "\n".join([*lines, "</details>", ""])


def _rows(scorecard: Scorecard) -> list[str]:
    """Every row that did not pass, folded: one line each, the worst verdicts first, as far as there is room."""
    order = {name: place for place, name in enumerate((None, *scorecard.estimators))}
    ordered = sorted(scorecard.rows, key=lambda row: (order.get(row.estimator, len(order)), *_reading(row)))
    found = terminal.not_passed(ordered)
    if not found:
        return []
    head = ["<details>", f"<summary>{len(found)} row{'s' * (len(found) != 1)} not passed, one by one</summary>", ""]
    left, kept = int(ROWS_SHARE * LIMIT) - sum(map(_size, head)) - 200, []  # for the last lines
    for row in found[:ROWS]:
        reason = row.reason if len(row.reason) <= SHORT_LINE else f"{row.reason[:SHORT_LINE]} ..."
        name = "the run itself" if row.estimator is None else code(row.estimator)
        expected = " (expected)" if row.expected_failure is not None else ""
        line = f"- {row.verdict}{expected}: {name}, {_short(row.check)} {code(terminal.place(row))}"
        line += f": {code(reason)}" if reason else ""
        left -= _size(line)
        if left < 0:
            break
        kept.append(line)
    if more := len(found) - len(kept):
        kept.append(f"\n*And {more} more. {ELSEWHERE}*")
    return [*head, *kept, "", "</details>"]


def _reading(row: Row) -> tuple[int, str]:
    return (CHECKLIST.index(row.check) if row.check in CHECKLIST else len(CHECKLIST), row.id)


def _why(scorecard: Scorecard, row: Row) -> list[str]:
    """A block of code: the row, its numbers, its reason, and the command."""
    numbers = terminal.numbers(row)
    text = [row.id, *([numbers] if numbers else []), *row.reason.splitlines()[:REASON_LINES]]
    if row.expected_failure is not None:
        text.append(f"expected: {row.expected_failure}")
    anyone = next(iter(scorecard.estimators), "")
    text.append(f"rerun: {terminal.command(row, row.estimator or anyone, scorecard.options)}")
    text = [printable(line if len(line) <= LINE or line is text[-1] else f"{line[:LINE]} ...") for line in text]
    fence = "`" * max(3, 1 + _longest_run("\n".join(text)))
    return [f"{fence}text", *text, fence]


def code(text: str) -> str:
    """The text as code between backticks, more of them than it holds itself."""
    text = printable(text)
    ticks = "`" * (1 + _longest_run(text))
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{ticks}{pad}{text}{pad}{ticks}"


def in_table(text: str) -> str:
    """Code inside a table: there a bar ends the cell even in code."""
    return text.replace("|", "\\|")


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)
