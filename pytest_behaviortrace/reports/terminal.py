"""Scorecard -> the section at the end of pytest's output: plain text, colour only on top of it."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from pytest_behaviortrace.scorecard import CHANCE_FREE, SEVERITY, Row, Scorecard, worst
from pytest_behaviortrace.summary import graded_on, summary
from pytest_behaviortrace.wording import printable

BADGES = 20
"""Estimators up to this number get a line of summary each."""

LINE = 120
"""Widest line, but for commands and lines of summary: those are for copying."""

OTHERS = 20
"""Rows of a check that are listed under its worst one."""

CHANCE_PASS = 0.025
"""A worthless score clears one 95 % interval by luck this often (one-sided)."""

COLOURS = {
    "pass": "green", "passed": "green", "fail": "red", "failed": "red", "error": "red", "inconclusive": "yellow",
    "not shown": "yellow", "partial": "yellow", "n/a": "cyan", "passed on this run": "green",
}  # fmt: skip


LEGEND = (
    "Of each check: its worst row, how many rows share that verdict, the estimate with its 95 % interval, chance, and "
    "the control it comes closest to losing against (with a minus sign: that control turned round)."
)
NO_TRUTH = (
    "On a recorded run nobody knows which rollouts taught the behaviour. What needs ground truth is n/a: precision in "
    "the window, AUC against decoys, reward control, look-alikes. So no verdict here says that an estimator finds "
    "causes; grade it on the embedded run for that (without --bt-run)."
)

INDENT = " " * 6
SPREAD = re.compile(r"(?:; )?(spread: (?:(?:, )?\w+ (?:unknown|[\d.]+ \(\d+ %\)))+)")
"""The split of a component's variance, shown for every component of a check and not for the worst alone."""


class Line(NamedTuple):
    """One line, and the colour a terminal may give it."""

    text: str
    colour: str | None = None
    bold: bool = False


def render(
    scorecard: Scorecard, *, options: Sequence[str] = (), width: int = LINE, verbose: bool = False
) -> list[Line]:
    """The scorecard's lines.

    `options`: what was typed beside the estimators, repeated in the commands that rerun a row. `verbose` adds under
    each check's worst row the others that did not pass, with their reasons, and the command to rows that passed.
    """
    return list(_lines(scorecard, options, min(width, LINE), verbose))


def _lines(scorecard: Scorecard, options: Sequence[str], width: int, verbose: bool) -> Iterator[Line]:
    run = scorecard.run
    if run is None:
        recipe = f"recipe {scorecard.recipe}@{scorecard.recipe_hash[:8]}, plant {scorecard.plant}"
        yield Line(f"suite {scorecard.suite}, {recipe}")
    else:
        about = f"recorded run {run.path}@{run.manifest_sha256[:8]}, behaviour {run.behavior!r}"
        yield from (Line(line) for line in _wrapped(f"suite {scorecard.suite}, {about}", width))
        yield Line(f"{run.shown} of {run.n} rollouts show the behaviour; which of them taught it is not known")
    for facts in scorecard.seeds:
        yield Line(
            f"seed {facts.seed}: behaviour score {facts.s_b_planted:.3f} planted, {facts.s_b_null:.3f} null; "
            f"{facts.gt} of {facts.n} rollouts are ground truth"
        )
    for name in (None, *scorecard.estimators):
        checks = scorecard.by_check(name)
        if not checks:
            continue
        yield Line("")
        yield _title(scorecard, name)
        for check, rows in checks.items():
            refuted = scorecard.refuted.get((name or "", check), "")
            yield from _check(check, rows, name or scorecard.estimators[0], refuted, options, width, verbose)
    shown = LEGEND if any(row.estimate is not None for row in scorecard.rows) else ""
    for remark in (shown, NO_TRUTH if run is not None else "", luck(scorecard)):
        if remark:
            yield Line("")
            yield from (Line(line) for line in _wrapped(remark, width))
    yield from _badges(scorecard)


def _badges(scorecard: Scorecard) -> Iterator[Line]:
    """The line for a badge of each estimator, those of other reports; of many: how many ended how."""
    verdicts = {name: scorecard.checklist_verdict(name) for name in scorecard.estimators if scorecard.of(name)}
    if verdicts:
        yield Line("")
    if len(verdicts) <= BADGES:
        for name, verdict in verdicts.items():
            yield Line(printable(f"{name}: {summary(scorecard, name)}"), COLOURS[verdict])
        return
    counted = ", ".join(f"{count} {verdict}" for verdict, count in Counter(verdicts.values()).most_common())
    yield Line(f"{len(verdicts)} estimators, by checklist: {counted}; {graded_on(scorecard)}")


def _title(scorecard: Scorecard, estimator: str | None) -> Line:
    if estimator is None:
        return Line("the run itself (no estimator on trial)", bold=True)
    verdict = scorecard.checklist_verdict(estimator)
    missing, rows = scorecard.missing(estimator), scorecard.of(estimator)
    ran = f"{len(rows)} of {len(rows) + missing} rows" if missing else f"{len(rows)} rows"
    text = f"{estimator}: {verdict.upper()} ({ran}: {counts(rows)})"
    if (cost := scorecard.costs.get(estimator)) is not None:
        text += f"; its own time {cost.seconds:.2f} s, memory +{cost.peak_bytes / 1e6:.0f} MB"
    return Line(text, COLOURS[verdict], bold=True)


def counts(rows: Sequence[Row]) -> str:
    """How many rows have each verdict, best first."""
    parts = []
    for verdict in reversed(SEVERITY):
        those = [row for row in rows if row.verdict == verdict]
        expected = sum(row.expected_failure is not None for row in those)
        if those:
            parts.append(f"{len(those)} {verdict}" + (f" ({expected} expected)" if expected else ""))
    return ", ".join(parts)


def _check(
    check: str, rows: Sequence[Row], estimator: str, refuted: str, options: Sequence[str], width: int, verbose: bool
) -> Iterator[Line]:
    applicable = [row for row in rows if row.verdict != "n/a"]
    row = worst(applicable or rows)
    same = sum(r.verdict == row.verdict for r in rows)
    head = f"  {check.removeprefix('test_'):<19} {row.verdict:<12} {f'{same} of {len(rows)}':>7}  {place(row):<16} "
    yield Line((head + numbers(row)).rstrip(), COLOURS[row.verdict])
    yield from (Line(line) for line in _wrapped(SPREAD.sub("", row.reason), width, INDENT))
    expected = next((r.expected_failure for r in rows if r.expected_failure is not None), None)
    for remark in (f"expected: {expected}" if expected is not None else "", refuted):
        yield from (Line(line) for line in _wrapped(remark, width, INDENT))
    for other in applicable:
        if spread := SPREAD.search(other.reason):
            yield from (Line(line) for line in _wrapped(f"{place(other)}: {spread[1]}", width, INDENT))
    if verbose:
        yield from (Line(line) for line in _others(row, applicable or rows, width))
    absent = [r for r in rows if r.verdict == "n/a"] if applicable else []
    for reason in dict.fromkeys(r.reason for r in absent):
        where = ", ".join(place(r) for r in absent if r.reason == reason)
        yield from (Line(line) for line in _wrapped(f"n/a: {where} ({reason})", width, INDENT))
    if verbose or row.verdict not in ("pass", "n/a"):
        yield Line(f"{INDENT}rerun: {command(row, estimator, options)}")


def _others(shown: Row, rows: Sequence[Row], width: int) -> Iterator[str]:
    """The rows beside the one shown that did not pass, worst first, as far as they are not too many."""
    others = not_passed([row for row in rows if row is not shown])
    for row in others[:OTHERS]:
        said = f"{place(row)}: {row.verdict} {numbers(row)}".rstrip()
        yield from _wrapped(f"{said} ({SPREAD.sub('', row.reason)})", width, INDENT)
    if (more := len(others) - OTHERS) > 0:
        yield f"{INDENT}and {more} more row{'s' * (more != 1)} that did not pass; the CSV report has them all"


def not_passed(rows: Iterable[Row]) -> list[Row]:
    """The rows that did not pass, worst verdict first, and within a verdict as they come."""
    return sorted((row for row in rows if row.verdict != "pass"), key=lambda row: SEVERITY.index(row.verdict))


def place(row: Row) -> str:
    """Seed, draw and component of a row, as in its id."""
    return row.id.partition("[")[2].removesuffix("]").removeprefix(f"{row.estimator}-")


def numbers(row: Row) -> str:
    """A row's estimate, interval, chance and control, as far as there are any."""
    if row.estimate is None:
        return ""
    text = f"{row.estimate:.3f}"
    if row.low is not None and row.high is not None:
        text += f" [{row.low:.3f}, {row.high:.3f}]"
    if row.chance is not None:
        text += f" chance {row.chance:g}"
    if row.control is not None:
        theirs = "" if row.control_estimate is None else f" {row.control_estimate:.3f}"
        text += f", {row.control}{theirs}"
    return text


def command(row: Row, estimator: str, options: Sequence[str] = ()) -> str:
    """The command that runs this row alone."""
    return shlex.join(["pytest", f"--bt-estimator={row.estimator or estimator}", *options, row.id])


def luck(scorecard: Scorecard) -> str:
    """What a worthless score can pass by chance; empty where no row that it can pass decided anything."""
    on_trial = [row for row in scorecard.rows if row.estimator is not None and row.check not in CHANCE_FREE]
    if not any(row.verdict in ("pass", "fail") for row in on_trial):
        return ""
    rows = sum(row.verdict not in ("n/a", "error") for row in on_trial)
    return (
        f"What luck can do: a worthless score passes a row with probability at most {CHANCE_PASS:g}, "
        f"so at most {rows * CHANCE_PASS:.2g} of {rows} row{'s' * (rows != 1)} on average. "
        f"One passed row shows little; the verdict is that of the whole checklist."
    )


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """The text in lines, without anything that moves a terminal's cursor; paths and names are never broken."""
    return textwrap.wrap(
        printable(text),
        width,
        initial_indent=indent,
        subsequent_indent=indent and indent + "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
