"""What the HTML report says in words: how many rows failed and why, tokens without text, names, and the baseline."""

from __future__ import annotations

from dataclasses import replace

import golden_cards
import pytest
from exhibited import bare, scorecard

from pytest_behaviortrace.reports import changes, explain, foreign, html, matrix, sentences, viewer
from pytest_behaviortrace.scorecard import Row, Scorecard
from pytest_behaviortrace.verdict import Floor, Gate, Interval, decide


@pytest.fixture(scope="module")
def card() -> Scorecard:
    return bare(scorecard(("weak", "strong"), points=20, rollouts=2))


def row(verdict: str, reason: str = "", expected: str | None = None) -> Row:
    return Row("x", "gas", "test_coverage", 0, None, verdict, reason=reason, expected_failure=expected)


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        (["fail", "pass", "pass"], "1 of 3 rows failed, 2 passed"),
        (["pass"] * 3, "all 3 rows passed"),
        (["n/a"], "its only row not applicable"),
        (["fail", "error", "inconclusive", "n/a"], "1 of 4 rows broke, 1 failed, 1 inconclusive, 1 not applicable"),
        ([], ""),
    ],
)
def test_a_tally_says_what_its_numbers_count(verdicts: list[str], said: str) -> None:
    assert sentences.tally([row(verdict) for verdict in verdicts]) == said


def test_a_tally_counts_expected_failures() -> None:
    assert sentences.tally([row("fail", expected="known"), row("fail"), row("pass")]) == (
        "2 of 3 rows failed (1 expected), 1 passed"
    )


GATES = {
    "Refuted: mixture alone ranks clearly better than this estimator.": Gate(
        "precision", Interval(-0.2, -0.3, -0.1), control="mixture"
    ),
    "Not shown to be better than mixture alone, although the interval is narrow enough to show it.": Gate(
        "precision", Interval(0.0, -0.05, 0.05), control="mixture"
    ),
    "Undecided: the interval is too wide to say whether it is better than -norm-only alone.": Gate(
        "precision", Interval(0.0, -0.1, 0.1), control="-norm-only"
    ),
    "Refuted: mean over seeds, above chance lies clearly below what chance gives.": Gate(
        "mean over seeds, above chance", Interval(-0.2, -0.3, -0.1)
    ),
    "Not shown to be better than chance, or by too little: AUC is known precisely, and it is too low.": Gate(
        "AUC", Interval(0.5, 0.45, 0.55), bar=0.5
    ),
    "Undecided: the interval of AUC is too wide to tell this estimator from chance.": Gate(
        "AUC", Interval(0.6, 0.4, 0.8), bar=0.5
    ),
}


@pytest.mark.parametrize("said", GATES)
def test_a_row_that_did_not_pass_says_why_in_a_sentence(said: str) -> None:
    """Of the reasons as `decide` words them, with and without figures behind them."""
    for decision in (decide([GATES[said]], chance=0.0, n=5), decide([GATES[said]], chance=0.0, n=5).remarking("a 0.1")):
        assert sentences.why(row(decision.verdict.value, decision.reason)) == said


def test_where_the_reason_is_a_sentence_none_is_added() -> None:
    short = decide([Gate("AUC", Interval(0.6, 0.4, 0.8))], [Floor("pairs", 3, 100)], chance=0.5, n=3)
    held = decide([Gate("AUC", Interval(0.9, 0.8, 0.95))], chance=0.5, n=3)
    for decision in (short, held):
        assert sentences.why(row(decision.verdict.value, decision.reason)) == ""
    assert "every single seed" in sentences.why(
        row("fail", "not on every seed and draw: seed 0 is -0.063 from mixture")
    )
    assert sentences.why(row("n/a", "not above: AUC: 0.5 [0.4, 0.6]")) == ""


@pytest.mark.parametrize(
    ("tokens", "found"),
    [
        (["a", "b", ""], [(2, "end")]),
        (["a", "", "b"], [(1, "special")]),
        (["a🐌", "", "", "", "b", ""], [(1, "part"), (2, "part"), (3, "part"), (5, "end")]),
        (["é", "", ""], [(1, "part"), (2, "end")]),
        (["", "a"], [(0, "special")]),
        ([""], [(0, "end")]),
        (["\ud800"], []),
        ([], []),
    ],
)
def test_tokens_without_text_are_named(tokens: list[str], found: list[tuple[int, str]]) -> None:
    assert viewer.blanks(tokens) == found


def test_what_is_not_to_be_seen_is_shown_as_an_escape() -> None:
    assert foreign.visible("a\x1b[31m\u202eb\ud800\U000e0041\n") == "a\\x1b[31m\\u202eb\\ud800\\U000e0041\\x0a"
    assert foreign.visible("a\n\tb\u00a0c\x00", lines=True) == "a\n\tb c\\x00"
    assert foreign.visible("naïve 日本 🐌") == "naïve 日本 🐌"
    assert html.isolated("<b>\u2066") == "<bdi>&lt;b&gt;\\u2066</bdi>"
    long = foreign.visible("x" * 5_000_000)
    assert len(long) < 2_000
    assert long.endswith(" (cut: 4,998,500 more characters; the JSON and CSV reports have them)")


def test_names_cannot_turn_the_page_round(card: Scorecard) -> None:
    name = "gas\u202eevil\x1b[0m\u2028"
    rows = [replace(row, estimator=row.estimator and name) for row in card.of("weak")]
    page = html.render(replace(card, rows=rows, expected={name: frozenset(r.id for r in rows)}, costs={}))
    assert not set(page) & set("\u202e\x1b\u2028")
    assert page.count("<bdi>gas\\u202eevil\\x1b[0m\\u2028</bdi>") >= 4


def test_a_failing_row_and_its_check_say_so_in_words(card: Scorecard) -> None:
    decision = decide([Gate("AUC", Interval(-0.2, -0.3, -0.1), control="step")], chance=0.5, n=9)
    rows = [
        replace(r, verdict="fail", reason=decision.reason)
        if r.check == "test_reward_control" and r.seed == 1
        else replace(r, verdict="pass", reason="")
        for r in card.of("strong")
    ]
    page = html.render(replace(card, rows=rows, expected={"strong": frozenset(r.id for r in rows)}))
    assert page.count("1 of 3 rows failed, 2 passed") == 2  # on the card and over the check
    assert "Refuted: step alone ranks clearly better than this estimator." in page
    assert "1 of 39 rows failed, 38 passed" in page


def test_many_estimators_get_short_cards_and_what_verdicts_mean_once(card: Scorecard) -> None:
    names = [f"method-{number}" for number in range(html.WORDY + 1)]
    for chosen in (names, names[:-1]):
        rows = [replace(r, estimator=n, id=f"{n} {r.id}") for n in chosen for r in card.of("weak")]
        expected = {n: frozenset(r.id for r in rows if r.estimator == n) for n in chosen}
        page = html.render(replace(card, rows=rows, expected=expected, costs={}))
        cards = page.partition('id="evidence"')[0]
        assert cards.count(explain.MEANING["failed"]) == (1 if chosen is names else len(chosen))


def test_the_matrix_is_cut_into_tables_that_fit_a_window(card: Scorecard) -> None:
    tables = matrix.tables(card)
    assert [table.caption for table in tables] == [
        "Verdicts by seed and draw", "Verdicts over all seeds and draws together",
        "Properties of the scores, on small drawn problems",
    ]  # fmt: skip
    cells = [cell for table in tables for line in table.lines for cell in line.cells if cell is not None]
    assert sorted(cell.id for cell in cells) == [r.id for r in card.rows if r.estimator is not None]


def test_a_page_names_the_baseline_and_links_what_got_worse_and_better() -> None:
    card = golden_cards.planted()
    found = changes.section(card)
    assert found is not None
    assert found["verdict"] == ("1 regression", "fail")
    (worse,) = found["tables"][0][1]
    assert (worse["place"], worse["row"].verdict) == ("Look-alikes, seed 1", "fail")
    page = html.render(card)
    number = next(i for i, row in enumerate(card.rows) if row.id == worse["row"].id)
    section = page.partition('<h2 id="baseline">')[2].partition("</section>")[0]
    assert "<bdi>against old|.json: 1 regression, 1 improvement in " in section
    assert f'<a href="#r{number}"><bdi>Look-alikes, seed 1</bdi></a>' in section
    assert "passed before, fail now: 0.900 [0.800, 0.950] before, 0.610 now" in section
    assert "failed before, passes now" in section
    assert "1 row of the baseline did not run in this session" in section
    assert "test_coverage[gas-seed0]" in section
    assert "Not in the baseline: <bdi>my`odd|name</bdi>" in section
    assert page.count('href="#baseline"') == 2


def test_a_baseline_that_nothing_fell_below_and_none_at_all() -> None:
    card = golden_cards.planted()
    assert card.comparison is not None
    same = replace(card, comparison=replace(card.comparison, regressions=(), improvements=(), not_run=(), unknown=()))
    page = html.render(same)
    assert '<span class="chip v-pass">nothing got worse</span>' in page
    assert "<h3>Regressions</h3>" not in page
    apart = replace(same.comparison, set_aside=("a.py::apart[x]",), seeds="seeds 0-1 there, 0 here", fresh=("n[y]",))
    page = html.render(replace(card, comparison=apart))
    assert "1 row of the baseline cannot be compared: seeds 0-1 there, 0 here" in page
    assert "<bdi>a.py::apart[x]</bdi>" in page
    assert "1 row of this session is not in the baseline, which excuses no failure of it" in page
    gone = replace(same.comparison, regressions=(replace(card.comparison.regressions[0], id="a.py::gone[x]"),))
    assert "<bdi>gone[x]</bdi>" in html.render(replace(card, comparison=gone))
    assert "aseline" not in html.render(replace(card, comparison=None)).partition("<body>")[2]


def test_a_session_in_which_nothing_ran_says_so(card: Scorecard) -> None:
    page = html.render(replace(card, rows=(), seeds=()))
    assert page.count(explain.NOTHING_RUN) == 2 * len(card.estimators)
    assert "no row was run" in page
    assert "no trained seed at hand" in page
