"""Every format byte for byte, and as a reader of the format sees it.

After a change that was meant: `BEHAVIORTRACE_GOLDEN=write pytest tests/test_golden.py`, then look at the difference.
"""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path

import golden_cards
import pytest

from pytest_behaviortrace import snapshot
from pytest_behaviortrace.reports import csv as csv_report
from pytest_behaviortrace.reports import json as json_report
from pytest_behaviortrace.reports import markdown, terminal

GOLDEN = Path(__file__).parent / "golden"
CARDS = {"planted": golden_cards.planted, "recorded": golden_cards.recorded}


def terminal_text(scorecard):
    return "\n".join(line.text for line in terminal.render(scorecard, options=scorecard.options)) + "\n"


RENDER = {"json": json_report.render, "md": markdown.render, "csv": csv_report.render, "txt": terminal_text}


@pytest.mark.parametrize("name", CARDS)
@pytest.mark.parametrize("suffix", RENDER)
def test_the_bytes_are_the_golden_ones(name, suffix):
    path, text = GOLDEN / f"{name}.{suffix}", RENDER[suffix](CARDS[name]())
    if os.environ.get("BEHAVIORTRACE_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text.encode("utf-8"))
        pytest.fail(f"{path.name} was written; look at the difference, and run again without the variable")
    assert text.encode("utf-8") == path.read_bytes()


@pytest.mark.parametrize("name", CARDS)
def test_formats_agree_on_every_row(name):
    card = CARDS[name]()
    report = json.loads(json_report.render(card))
    lines = list(csv.DictReader(io.StringIO(csv_report.render(card))))
    assert len(report["rows"]) == len(lines) == len(card.rows)
    for row, line in zip(report["rows"], lines, strict=True):
        for field in ("id", "check", "verdict", "control"):
            assert line[field] == (row[field] or "")
        for field in ("estimate", "low", "high", "n", "seed", "draw"):
            assert line[field] == ("" if row[field] is None else str(row[field]))
    text = markdown.render(card)
    for estimator, line in report["summary"].items():
        said = line.rpartition("; suite")[0]
        assert said in text, estimator


@pytest.mark.parametrize("name", CARDS)
def test_a_json_report_reads_back_as_it_was(name):
    card = CARDS[name]()
    found = snapshot.parse(json_report.render(card), "card.json")
    assert tuple(found.rows.values()) == card.rows
    assert found.estimators == card.estimators
    assert found.conditions.draws == card.draws
