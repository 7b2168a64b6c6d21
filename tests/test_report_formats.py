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
    assert text.count("<details>") - 1 + sum(int(left) for left, _, what in cut[-1:]) == count  # 1: the list of rows


def test_an_estimator_that_raises_megabytes_leaves_room_for_the_others():
    card = golden_cards.planted("gas", "dot")
    rows = [replace(row, reason="x" * 3_000_000) if row.verdict == "error" else row for row in card.rows]
    rows = [replace(row, reason="line\n" * 100_000) if row.verdict == "inconclusive" else row for row in rows]
    text = markdown.render(replace(card, rows=rows))
    assert "Cut here" not in text
    assert len(text) < 20_000
    assert text.count("<details>") == 3


def listed(text):
    """The lines of the list of rows, and how many more it says that there are."""
    assert text.endswith("</details>\n")
    block = text[text.rindex("<details>") :]
    more = re.findall(r"^\*And (\d+) more\. The JSON, CSV and HTML reports hold everything\.\*$", block, re.MULTILINE)
    assert len(more) <= 1
    return [line for line in block.splitlines() if line.startswith("- ")], int(*more) if more else 0


def test_every_row_that_did_not_pass_is_listed_with_its_reason():
    card = golden_cards.planted("gas")
    others = [replace(row, verdict="fail", reason=f"why {row.seed}") for row in card.of("gas") if row.seed is not None]
    card = replace(card, rows=[*[row for row in card.rows if row.id not in {r.id for r in others}], *others])
    lines, more = listed(markdown.render(card))
    assert more == 0
    assert len(lines) == sum(row.verdict != "pass" for row in card.rows)
    for row in others:
        place = row.id.partition("[gas-")[2].removesuffix("]")
        line = f"- fail: `gas`, {row.check.removeprefix('test_')} `{place}`: `why {row.seed}`"
        assert lines.count(line) == 1
    assert f"<summary>{len(lines)} rows not passed, one by one</summary>" in markdown.render(card)
    order = [line.split(":")[0].removeprefix("- ") for line in lines]
    assert order == sorted(order, key=["error", "fail", "inconclusive", "n/a"].index)


def test_an_expected_failure_is_listed_as_one():
    card = golden_cards.recorded()
    assert listed(markdown.render(card)) == (["- fail (expected): `gas`, target_context `run`: `not above`"], 0)


def test_where_every_row_passed_nothing_is_listed():
    card = golden_cards.planted("gas")
    text = markdown.render(replace(card, rows=[row for row in card.rows if row.verdict == "pass"]))
    assert "one by one" not in text
    assert "<details>" not in text


@pytest.mark.parametrize(("count", "reason"), [(60, "short"), (60, "x" * 900), (1000, "y" * 150), (3, "z" * 10**6)])
def test_the_list_of_rows_is_bounded_and_counts_what_it_leaves_out(count, reason):
    card = golden_cards.planted(*(f"estimator-{i}" for i in range(count)))
    card = replace(card, rows=[replace(row, reason=reason) for row in card.rows])
    text = markdown.render(card)
    lines, more = listed(text)
    assert len(lines) + more == sum(row.verdict != "pass" for row in card.rows)
    assert bool(more) == (count > 3)
    assert len(lines) <= markdown.ROWS
    assert len(text.encode()) <= markdown.LIMIT
    assert all(len(line) < 400 for line in lines)
    assert "estimator-0</code>: 3 checks not passed" in text  # the list leaves room for the details


def test_every_line_of_the_table_has_the_same_cells():
    for names in (("a|b", "c`d"), ("a|b", "c`d", "e", "f")):
        text = markdown.render(golden_cards.planted(*names))
        table = [line for line in text.splitlines() if line.startswith("| ")]
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1


def test_fences_are_longer_than_what_they_hold():
    card = golden_cards.planted("gas")
    rows = [replace(row, reason="``` \n</details>\n````` @you") if row.verdict == "error" else row for row in card.rows]
    text = markdown.render(replace(card, rows=rows))
    block = text[text.index("**stress") : text.rindex("<details>") - 1]
    assert block.splitlines()[2] == "``````text"
    assert block.splitlines()[-3] == "``````"
    assert "`````` ```  </details> ````` @you ``````" in text  # and in the list of rows


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
