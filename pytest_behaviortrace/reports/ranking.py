"""Ranking -> a table for people, coloured on a terminal, and one JSON object for programs."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, TextIO

from pytest_behaviortrace.ranked import RankedRollout, Ranking

SCHEMA = 1
PROMPT, COMPLETION = 36, 90
"""Characters of a text that the table shows; the JSON has all of it."""
MARK = "**"
"""Around the behaviour in plain text."""
HEAD = ("#", "step", "advantage", "score", "interval", "norm-only #", "fluency #", "prompt", "completion")
_TEMPLATE_TOKEN = re.compile(r"<\|[^|<>]*\|>")

Piece = tuple[str, bool]
"""Text, and whether it is the behaviour."""


def to_json(ranking: Ranking) -> str:
    """One JSON object, on one line."""
    run = asdict(ranking.run)
    report: dict[str, Any] = {
        "schema": SCHEMA,
        "suite": ranking.suite,
        "run": {**run, "versions": dict(sorted(run["versions"].items()))},
        "estimator": ranking.estimator,
        "interval": {"what": ranking.interval, "resamples": ranking.resamples},
        "shown": dict(ranking.shown),
        "shared": dict(ranking.shared),
        "embedded": {**asdict(ranking.standing), "checks": dict(ranking.standing.checks)},
        "warnings": list(ranking.warnings),
        "top": [_record(row) for row in ranking.top],
    }
    return json.dumps(report, allow_nan=False, ensure_ascii=False)


def _record(row: RankedRollout) -> dict[str, Any]:
    """A row as JSON has it: a reward or advantage that is no number, which JSON does not know, is null."""
    values = asdict(row)
    return values | {k: v if math.isfinite(v := values[k]) else None for k in ("advantage", "reward")}


def show(ranking: Ranking, stream: TextIO) -> None:
    """Print the table: with `rich` on a terminal, as plain lines anywhere else."""
    if stream.isatty():
        _show_on_terminal(ranking, stream)
        return
    for line in plain(ranking):
        stream.write(line + "\n")


def plain(ranking: Ranking) -> Iterator[str]:
    """The table as lines of text; the behaviour stands between `MARK`s."""
    yield from _above(ranking)
    cells = [HEAD, *([*_numbers(row), _short_prompt(row), _marked(pieces(row))] for row in ranking.top)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(HEAD) - 1)]
    for row in cells:
        left = [cell.rjust(width) for cell, width in zip(row[:-2], widths, strict=False)]
        yield "  ".join([*left, row[-2].ljust(widths[-1]), row[-1]]).rstrip()
    yield from _below(ranking)


def _show_on_terminal(ranking: Ranking, stream: TextIO) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=stream, highlight=False, markup=False, soft_wrap=False)
    for line in _above(ranking):
        console.print(Text(line))
    table = Table(show_edge=False, pad_edge=False)
    for name in HEAD:
        table.add_column(name, justify="left" if name in ("prompt", "completion") else "right", overflow="fold")
    for row in ranking.top:
        said = Text()
        for text, is_behavior in pieces(row):
            said.append(text, "bold reverse" if is_behavior else "")
        table.add_row(*map(Text, (*_numbers(row), _short_prompt(row))), said)
    console.print(table)
    for line in _below(ranking):
        console.print(Text(line, "bold yellow" if line.startswith("warning") else ""))


def _above(ranking: Ranking) -> Iterator[str]:
    run = ranking.run
    yield f"run {run.path}@{run.manifest_sha256[:8]}, behaviour {run.behavior!r}: in {run.shown} of {run.n} rollouts"
    yield f"which of them taught it, by {ranking.estimator}: the first {len(ranking.top)} of {run.n}"
    yield ""


def _below(ranking: Ranking) -> Iterator[str]:
    count, standing = len(ranking.top), ranking.standing
    yield ""
    yield f"interval: {ranking.interval}"
    shown = ", ".join(f"{n} of {count} by {who}" for who, n in ranking.shown.items())
    yield f"among the first {count} the behaviour shows in: {shown}"
    yield "named by both: " + ", ".join(f"{n} of {count} with {control}" for control, n in ranking.shared.items())
    if standing.verdict is None:
        yield f"on the embedded run {ranking.estimator} was not graded: {standing.reason}; {standing.command} does it"
    else:
        yield f"on the embedded run, where the cause is known, {ranking.estimator}: {standing.verdict}"
        yield f"  {', '.join(f'{check} {verdict}' for check, verdict in standing.checks.items())}"
    yield from (f"warning: {text}" for text in ranking.warnings)


def _numbers(row: RankedRollout) -> tuple[str, ...]:
    interval = "-" if row.low is None or row.high is None else f"[{row.low:z.4g}, {row.high:z.4g}]"
    return (
        str(row.rank), str(row.step), f"{row.advantage:+z.2f}", f"{row.score:z.4g}", interval, str(row.rank_norm_only),
        str(row.rank_fluency),
    )  # fmt: skip


def _short_prompt(row: RankedRollout) -> str:
    text = _spaced(_TEMPLATE_TOKEN.sub(" ", row.prompt)).strip()
    return text if len(text) <= PROMPT else f"{text[: PROMPT - 3]}..."


def pieces(row: RankedRollout, width: int = COMPLETION) -> list[Piece]:
    """The completion on one line, cut to about `width` characters around the first place of the behaviour."""
    spans, text = merged(row.spans), row.completion
    start = max(0, spans[0][0] - width // 2) if spans and spans[0][1] > width else 0
    stop = min(len(text), start + width)
    found: list[Piece] = [("...", False)] if start else []
    at = start
    for low, high in spans:
        if low >= stop:
            break
        found += [(_spaced(text[at:low]), False), (_spaced(text[low : min(high, stop)]), True)]
        at = min(high, stop)
    found.append((_spaced(text[at:stop]), False))
    if stop < len(text):
        found.append(("...", False))
    return [piece for piece in found if piece[0]]


def merged(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans in order, overlapping ones joined."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(spans):
        if found and low < found[-1][1]:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        else:
            found.append((low, high))
    return found


def _marked(parts: Sequence[Piece]) -> str:
    return "".join(f"{MARK}{text}{MARK}" if is_behavior else text for text, is_behavior in parts)


def _spaced(text: str) -> str:
    """No line breaks and no control characters, which could steer a terminal; spaces in their place."""
    return re.sub(r"\s+", " ", "".join(c if c.isprintable() else " " for c in text))
