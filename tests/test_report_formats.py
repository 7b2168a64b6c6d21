"""Markdown that fits GitHub and stays text, CSV that no spreadsheet computes, and the summary line."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace

import golden_cards
import pytest

from pytest_behaviortrace.reports import csv as csv_report
from pytest_behaviortrace.reports import markdown
from pytest_behaviortrace.summary import summary


# -- the summary line --------------------------------------------------------------------------------------------------
def test_the_summary_counts_every_row_once():
    card = golden_cards.planted("gas")
    assert summary(card, "gas") == (
        "checklist failed; 5 of 11 rows passed, 1 error, 1 failed, 1 inconclusive, 2 n/a, 1 not run; "
        "suite 2026.12, recipe tiny@abababab"
    )
    numbers = [int(n) for n in re.findall(r"(\d+) (?:of|error|failed|inconclusive|n/a|not run)", summary(card, "gas"))]
    assert sum(numbers) == 11


def test_the_summary_of_a_recorded_run_names_the_run():
    assert summary(golden_cards.recorded(), "gas") == (
        "checklist failed; 1 of 2 rows passed, 1 failed (1 expected); suite 2026.12, recorded run my run@cdcdcdcd"
    )


# -- Markdown ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("count", [1, 12, 120, 1000])
def test_markdown_fits_a_comment_and_says_what_it_left_out(count):
    text = markdown.render(golden_cards.planted(*(f"estimator-{i}" for i in range(count))))
    assert len(text.encode()) <= markdown.LIMIT
    cut = re.findall(r"\*Cut here: (\d+) of (\d+) (.+) do not fit\. The JSON", text)
    assert bool(cut) == (count > 100)
    assert text.count("<details>") == text.count("</details>") > 0
    assert len(re.findall("^```", text, re.MULTILINE)) % 2 == 0
    for left, total, what in cut:
        if what == "estimators" and int(total) == count:
            assert 0 < int(left) < count
    assert text.count("<details>") + sum(int(left) for left, _, what in cut[-1:]) == count


def test_an_estimator_that_raises_megabytes_leaves_room_for_the_others():
    card = golden_cards.planted("gas", "dot")
    rows = [replace(row, reason="x" * 3_000_000) if row.verdict == "error" else row for row in card.rows]
    rows = [replace(row, reason="line\n" * 100_000) if row.verdict == "inconclusive" else row for row in rows]
    text = markdown.render(replace(card, rows=rows))
    assert "Cut here" not in text
    assert len(text) < 20_000
    assert text.count("<details>") == 2


def test_every_line_of_the_table_has_the_same_cells():
    for names in (("a|b", "c`d"), ("a|b", "c`d", "e", "f")):
        text = markdown.render(golden_cards.planted(*names))
        table = [line for line in text.splitlines() if line.startswith("| ")]
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1


def test_fences_are_longer_than_what_they_hold():
    card = golden_cards.planted("gas")
    rows = [replace(row, reason="``` \n</details>\n````` @you") if row.verdict == "error" else row for row in card.rows]
    text = markdown.render(replace(card, rows=rows))
    block = text[text.index("**stress") :]
    assert block.splitlines()[2] == "``````text"
    assert block.splitlines()[-3] == "``````"


@pytest.mark.parametrize(("text", "shown"), [("a", "`a`"), ("a`b", "``a`b``"), ("`a", "`` `a ``"), ("a\nb", "`a b`")])
def test_code(text, shown):
    assert markdown.code(text) == shown


def test_a_scorecard_without_rows_is_markdown_too():
    text = markdown.render(replace(golden_cards.planted("gas"), rows=(), comparison=None))
    assert "checklist partial; 0 of 11 rows passed, 11 not run" in text


# -- CSV ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("reason", "cell"),
    [
        ("=1+1", "'=1+1"), ("+1", "'+1"), ("-1+cmd|' C'!A0", "'-1+cmd|' C'!A0"), ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "' =1"), ("\n=1", "' =1"), ("plain", "plain"), ("two\nlines, \"quoted\"", 'two lines, "quoted"'),
    ],
)  # fmt: skip
def test_text_is_no_formula_and_one_line(reason, cell):
    card = golden_cards.planted("gas")
    text = csv_report.render(replace(card, rows=[replace(card.rows[0], reason=reason)]))
    assert text.count("\n") == 2
    (line,) = csv.DictReader(io.StringIO(text))
    assert line["reason"] == cell


def test_controls_and_numbers_read_as_in_the_json_report():
    card = golden_cards.planted("gas")
    row = replace(card.rows[2], control="-norm-only", estimate=-0.25, reason="")
    (line,) = csv.DictReader(io.StringIO(csv_report.render(replace(card, rows=[row]))))
    assert (line["control"], line["estimate"], line["reason"]) == ("-norm-only", "-0.25", "")
    assert (line["suite"], line["recipe"], line["recipe_hash"], line["plant"]) == ("2026.12", "tiny", "ab" * 32, "rose")


def test_a_recorded_run_has_columns_of_its_own():
    line = next(csv.DictReader(io.StringIO(csv_report.render(golden_cards.recorded()))))
    assert (line["recipe"], line["plant"], line["run"], line["behavior"]) == ("", "", "my run", "QZ[A-Z]+|x")
