"""The HTML report as a reader meets it: on narrow screens, on paper, with long and odd names, in both themes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import golden_cards
import pytest
from browsing import CUT, find, page_width, press, style, unfold
from exhibited import scorecard

from pytest_behaviortrace.scorecard import Scorecard

LONG = "an_estimator_whose_name_is_very_long_and_has_no_space_at_all_" * 2
WIDTHS = (1100, 900, 390)


@pytest.fixture(scope="module")
def card() -> Scorecard:
    return scorecard(("weak", "strong"), points=40, rollouts=4)


def renamed(card: Scorecard, old: str, new: str) -> Scorecard:
    """The scorecard with another name for one of its estimators."""
    rows, exhibits = [], {}
    for row in card.rows:
        id = row.id.replace(f"[{old}-", f"[{new}-")
        rows.append(replace(row, id=id, estimator=new if row.estimator == old else row.estimator))
        if row.id in card.exhibits:
            exhibits[id] = card.exhibits[row.id]
    names = [new if name == old else name for name in card.estimators]
    expected = {name: frozenset(row.id for row in rows if row.estimator == name) for name in names}
    return replace(card, rows=rows, expected=expected, exhibits=exhibits, costs={})


@pytest.mark.parametrize("width", WIDTHS)
def test_a_name_of_a_hundred_letters_pushes_nothing_out_of_the_window(show: Any, card: Scorecard, width: int) -> None:
    opened = show(renamed(card, "weak", LONG), width)
    unfold(opened)
    assert page_width(opened) <= width
    assert (
        opened.execute_script(CUT, ".matrix tbody tr:first-child td:nth-of-type(1), .matrix .name, .name, h1, h3") == []
    )
    name = find(opened, ".matrix .name")
    assert name.text == LONG
    assert name.rect["width"] <= 13 * 16 + 1


@pytest.mark.parametrize("width", WIDTHS)
def test_every_number_and_reason_is_readable_without_scrolling_sideways(show: Any, card: Scorecard, width: int) -> None:
    opened = show(card, width)
    unfold(opened)
    assert page_width(opened) <= width
    assert len(opened.find_elements("css selector", ".why")) == len(card.rows)
    assert opened.execute_script(CUT, ".rows td, .rows th, .check svg, figcaption, .card, #completion, #figures") == []
    heads = find(opened, ".check .rows thead").is_displayed()
    assert heads == (width > 68 * 16)
    label = "return getComputedStyle(document.querySelector('.check .rows [data-l=chance]'), '::before').content"
    assert opened.execute_script(label) == ("none" if heads else '"chance "')


@pytest.mark.parametrize("width", WIDTHS)
def test_a_matrix_wider_than_the_window_says_so_and_scrolls_by_keyboard(show: Any, card: Scorecard, width: int) -> None:
    from selenium.webdriver.common.keys import Keys

    opened = show(card, width)
    boxes = opened.find_elements("css selector", ".scroll")
    assert len(boxes) == 3
    for place, box in enumerate(boxes):
        wide = opened.execute_script("return arguments[0].scrollWidth > arguments[0].clientWidth + 1", box)
        hint = opened.find_elements("css selector", ".hint")[place]
        assert hint.is_displayed() == wide
        assert not (wide and width >= 1100)
        if wide:
            assert "scroll it sideways" in hint.text
            opened.execute_script("arguments[0].focus()", box)
            press(opened, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
            moved = "const b = arguments[0]; return new Promise(r => setTimeout(() => r(b.scrollLeft), 300))"
            assert opened.execute_script(moved, box) > 0
            who = find(opened, ".matrix .who").rect["x"]
            assert who >= -0.5, "the name stays in sight"
    if width <= 600:
        assert find(opened, ".hint").is_displayed()


def test_a_token_without_text_is_a_named_mark_with_its_own_score(show: Any, card: Scorecard) -> None:
    id = next(row.id for row in card.of("weak") if "rollouts" in card.exhibits.get(row.id, {}))
    first = card.exhibits[id]["rollouts"][0]
    tokens = ["é", "", *first["tokens"][2:-1], ""]
    scores = [number / 10 for number in range(20)]
    viewed = {**first, "tokens": tokens, "token_scores": scores}
    exhibits = {**card.exhibits, id: {**card.exhibits[id], "rollouts": [viewed]}}
    opened = show(replace(card, exhibits=exhibits))
    pieces = opened.find_elements("css selector", "#completion > *")
    assert len(pieces) == 20
    assert find(opened, "#completion").get_property("textContent") == "".join(tokens)
    blank = [piece for piece in pieces if "blank" in piece.get_attribute("class")]
    assert blank == [pieces[1], pieces[19]]
    assert pieces[19].get_attribute("title") == "end of the answer; token score 1.9"
    shown = "return getComputedStyle(arguments[0], '::before').content"
    assert opened.execute_script(shown, pieces[19]) == '"end"'
    assert pieces[19].rect["width"] > 20
    titles = [piece.get_attribute("title") for piece in pieces]
    assert [float(title.rpartition("token score ")[2]) for title in titles] == scores
    assert find(opened, "#strongest").text.startswith("Highest token scores: end of the answer 1.9, “")
    assert "in a box: a token without text" in find(opened, "#key").text


def test_a_name_that_turns_letters_round_stays_in_its_place(show: Any, card: Scorecard) -> None:
    name = "\u202egas\x1b"
    opened = show(renamed(card, "weak", name))
    shown = r"\u202egas\x1b"
    for selector in ("h1 bdi", ".card a", ".matrix .name", "summary h3"):
        assert find(opened, selector).text == shown
        assert style(opened, f"{selector}, {selector} bdi", "direction") == "ltr"
    assert opened.title == f"Attribution scorecard: {shown}, strong"
    assert "u202egas" in find(opened, "#pick-estimator").text
    hebrew = show(renamed(card, "weak", "שיטה"))
    left = hebrew.execute_script(
        "return ['.card .head bdi', '.card .head .chip'].map(s => document.querySelector(s).getBoundingClientRect())"
        ".map(box => box.left)"
    )
    assert left[0] < left[1], "what stands behind a name that runs from right to left stays behind it"
    assert style(hebrew, ".card .head bdi", "unicode-bidi") == "isolate"


def test_the_baseline_leads_to_the_row_that_got_worse(show: Any) -> None:
    card = golden_cards.planted()
    opened = show(card, 390)
    find(opened, ".gate a").click()
    assert opened.current_url.endswith("#baseline")
    find(opened, "section[aria-labelledby=baseline] .rows a").click()
    number = next(i for i, row in enumerate(card.rows) if row.verdict == "fail")
    assert opened.current_url.endswith(f"#r{number}")
    assert find(opened, f"#r{number}").is_displayed()
    assert page_width(opened) <= 390
