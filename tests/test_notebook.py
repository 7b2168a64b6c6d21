"""What a notebook shows of a scorecard: well-formed, in words, and safe whatever anything is called."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from pytest_behaviortrace.reports.notebook import MARKS, MEANS
from pytest_behaviortrace.scorecard import CHECKLIST, SEVERITY, Row, RunFacts, Scorecard

HOSTILE = "<script>alert('&')</script>\""


def card(verdicts: dict[str, str], name: str = "mine", run: RunFacts | None = None, missing: int = 0) -> Scorecard:
    rows = [
        Row(f"checks/{check}.py::{check}[{name}]", name, check, None, None, verdict, 0.8, 0.7, 0.9, 0.5, reason=HOSTILE)
        for check, verdict in verdicts.items()
    ]
    expected = {name: frozenset({row.id for row in rows} | {f"more {i}" for i in range(missing)})}
    return Scorecard("2026.12", "tiny", "3f2a" * 16, "frobnitz", {}, (), rows, expected, run=run)


def text_of(scorecard: Scorecard) -> str:
    """The visible text; parsing fails where anything is not well-formed."""
    return " ".join(" ".join(ET.fromstring(scorecard._repr_html_()).itertext()).split())


@pytest.mark.parametrize("verdict", SEVERITY)
def test_every_verdict_is_a_word(verdict: str) -> None:
    shown = text_of(card(dict.fromkeys(CHECKLIST, "pass") | {"test_lookalikes": verdict}))
    assert f"lookalikes {verdict} 1 of 1 0.800 [0.700, 0.900] (chance 0.5): {HOSTILE}" in shown


def test_the_summary_says_what_the_checklist_says() -> None:
    every = dict.fromkeys(CHECKLIST, "pass")
    assert "mine : passed (every row that applies passed; 10 rows: 10 pass)" in text_of(card(every))
    assert "mine : partial (not every row ran; 10 of 12 rows: 10 pass)" in text_of(card(every, missing=2))
    shown = text_of(card(every | {"test_stress": "fail"}))
    assert "mine : failed (a row failed, or the estimator broke on it; 10 rows: 9 pass, 1 fail)" in shown
    assert set(MEANS) <= set(MARKS)
    assert set(SEVERITY) <= set(MARKS)


def test_hostile_names_stay_text() -> None:
    facts = RunFacts(HOSTILE, "0" * 64, HOSTILE, None, 3, 9, {})
    page = card({"test_stress": "pass"}, name=HOSTILE, run=facts)._repr_html_()
    assert "<script" not in page
    assert text_of(card({"test_stress": "pass"}, name=HOSTILE, run=facts)).count(HOSTILE) == 3  # path, name, reason


def test_it_loads_nothing_and_sets_no_text_colour() -> None:
    page = card(dict.fromkeys(CHECKLIST, "pass"))._repr_html_()
    assert not any(
        word in page for word in ("http", "src=", "url(", "<link", "<img", "background", "; color", '"color')
    )


def test_the_run_itself_has_its_own_table() -> None:
    rows = [Row("checks/test_headroom.py::test_headroom[seed0]", None, "test_headroom", 0, None, "pass", reason="room")]
    shown = text_of(Scorecard("2026.12", "tiny", "ab", "frobnitz", {}, (), rows, {"mine": frozenset()}))
    assert "the run itself (no estimator on trial)" in shown
    assert "headroom pass 1 of 1 room" in shown
