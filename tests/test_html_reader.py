"""The HTML report as a reader meets it: on narrow screens, on paper, with long and odd names, in both themes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import golden_cards
import pytest
from browsing import find, look, opened_browser, press, style, unfold
from exhibited import bare, scorecard

from pytest_behaviortrace.reports import html
from pytest_behaviortrace.scorecard import Scorecard

LONG = "an_estimator_whose_name_is_very_long_and_has_no_space_at_all_" * 2
WIDTHS = (1400, 1100, 900, 600, 390)
EMPTY = {"estimate": None, "low": None, "high": None, "chance": None, "control": None, "control_estimate": None,
         "margin_low": None, "n": None}  # fmt: skip

# Text whose colour stands out less than 4.5 to 1 against what lies behind it, by WCAG's luminance.
CONTRAST = """
const pen = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
const rgba = (colour) => {
  pen.clearRect(0, 0, 1, 1); pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1);
  const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data; return [r, g, b, a / 255];
};
const over = (top, below) => below.map((c, i) => i < 3 ? top[i] * top[3] + c * (1 - top[3]) : 1);
const back = (element) => {
  const found = [];
  for (let at = element; at; at = at.parentElement) found.push(rgba(getComputedStyle(at).backgroundColor));
  return found.reverse().reduce((below, top) => over(top, below), [255, 255, 255, 1]);
};
const light = ([r, g, b]) => {
  const [x, y, z] = [r, g, b].map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * x + 0.7152 * y + 0.0722 * z;
};
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), faint = new Set();
let seen = 0;
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
  const element = node.parentElement;
  if (!node.data.trim() || !element.getClientRects().length || element.disabled) continue;
  const own = getComputedStyle(element), behind = back(element);
  const front = over(rgba(element.closest('svg') ? own.fill : own.color), behind);
  const [high, low] = [light(front), light(behind)].sort((a, b) => b - a), ratio = (high + 0.05) / (low + 0.05);
  seen += 1;
  if (ratio < 4.5) faint.add(`${node.data.trim().slice(0, 40)} <${element.tagName} ${element.className}> ${ratio.toFixed(2)}`);
}
return [seen, [...faint]];
"""

# What a reader cannot see without scrolling sideways: right ends beyond the window or beyond a box that hides them.
CUT = """
return [...document.querySelectorAll(arguments[0])].filter((element) => {
  const {right, left, width} = element.getBoundingClientRect();
  return width > 0 && (right > innerWidth + 0.5 || left < -0.5);
}).map((element) => element.textContent.slice(0, 60));
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with opened_browser(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture(scope="module")
def card() -> Scorecard:
    return scorecard(("weak", "strong"), points=40, rollouts=4)


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """Opens the page of a scorecard; afterwards the console must be empty."""

    def opened(card: Scorecard, width: int = 1200, theme: str = "light", medium: str = "screen") -> Any:
        path = tmp_path / "report.html"
        path.write_text(html.render(card), encoding="utf-8", newline="\n")
        look(browser, width, theme, medium)
        browser.get("about:blank")
        browser.get(path.as_uri())
        return browser

    yield opened
    look(browser, 1200, "light")
    assert browser.get_log("browser") == []


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


def page_width(browser: Any) -> int:
    return int(browser.execute_script("return document.documentElement.scrollWidth"))


@pytest.mark.parametrize("width", WIDTHS)
def test_a_name_of_a_hundred_letters_pushes_nothing_out_of_the_window(show: Any, card: Scorecard, width: int) -> None:
    opened = show(renamed(card, "weak", LONG), width)
    unfold(opened)
    assert page_width(opened) <= width
    assert opened.execute_script(CUT, ".matrix tbody tr:first-child td:nth-of-type(1), .matrix .name, .name, h1, h3") == []
    name = find(opened, ".matrix .name")
    assert name.text == LONG
    assert name.rect["width"] <= 13 * 16 + 1


@pytest.mark.parametrize("width", WIDTHS)
def test_every_number_and_reason_is_readable_without_scrolling_sideways(
    show: Any, card: Scorecard, width: int
) -> None:
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
def test_a_matrix_wider_than_the_window_says_so_and_scrolls_by_keyboard(
    show: Any, card: Scorecard, width: int
) -> None:
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
    assert any(hint.is_displayed() for hint in opened.find_elements("css selector", ".hint")) == (width <= 600)


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
        "return ['.card .head bdi', '.card .head .chip'].map(s => document.querySelector(s).getBoundingClientRect().left)"
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


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_stands_out_from_what_lies_behind_it(show: Any, card: Scorecard, theme: str) -> None:
    """Chips, pictures and the shades of token scores too."""
    opened = show(replace(card, comparison=golden_cards.planted().comparison), 1200, theme)
    unfold(opened)
    seen, faint = opened.execute_script(CONTRAST)
    assert seen > 2_000
    assert faint == []


def test_headings_go_down_by_one_and_figures_have_a_caption(show: Any, card: Scorecard) -> None:
    opened = show(replace(card, comparison=golden_cards.planted().comparison))
    levels = opened.execute_script("return [...document.querySelectorAll('h1,h2,h3,h4,h5,h6')].map(h => +h.tagName[1])")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(next - level <= 1 for level, next in zip(levels, levels[1:], strict=False))
    assert opened.execute_script(
        "return [...document.querySelectorAll('figure')].filter(f => (f.querySelector('figcaption') || "
        "{textContent: ''}).textContent.trim().length < 40).length"
    ) == 0  # fmt: skip


def test_every_picture_names_its_axes_and_its_bar(show: Any, card: Scorecard) -> None:
    opened = show(card)
    unfold(opened)
    texts = opened.execute_script(
        "return [...document.querySelectorAll('svg')].map(s => [s.getAttribute('aria-label'), "
        "[...s.querySelectorAll('text')].map(t => t.textContent)])"
    )
    needed = {
        "estimates with": ({"estimate and 95 % interval"}, r"^chance 0(\.5)?$|\(chance|^level"),
        "difference to each control": ({"estimator minus control, 95 % interval"}, "^level with the control$"),
        "Share of ground truth among": (
            {"k highest-ranked rollouts of the window", "precision (share that is paid)"}, "^chance$"),
        "Lines: share": ({"training step", "share that shows the behaviour"}, "bonus paid in the shaded steps"),
        "Fluency against score": ({"fluency (nats a token)", "score", "what is left of it"}, "AUC"),
        "Score of the trigger span": ({"score of other span", "score of trigger span"}, "above the line"),
    }  # fmt: skip
    met = set()
    for label, said in texts:
        kind = next(words for words in needed if words in label)
        axes, bar = needed[kind]
        assert axes <= set(said), label
        assert any(re.search(bar, text) for text in said), (label, said)
        met.add(kind)
    assert met == set(needed)


def test_on_paper_the_page_is_light_whole_and_without_buttons(show: Any, card: Scorecard) -> None:
    opened = show(card, 1032, "dark")
    find(opened, "#theme").click()
    find(opened, "#theme").click()
    assert opened.execute_script("return document.documentElement.dataset.theme") == "dark"
    look(opened, 1032, "dark", "print")
    unfold(opened)
    assert style(opened, "body", "background-color") == "rgb(255, 255, 255)"
    for selector in ("nav", "#theme", "#viewer", ".jumps", ".hint", ".back"):
        assert not find(opened, selector).is_displayed(), selector
    assert find(opened, ".check .rows thead").is_displayed()
    assert page_width(opened) <= 1032
    assert opened.execute_script(CUT, ".rows td, .matrix td, svg") == []


def test_nothing_moves_by_itself(show: Any, card: Scorecard) -> None:
    opened = show(card)
    assert opened.execute_script(
        "return [...document.querySelectorAll('*')].filter(e => { const s = getComputedStyle(e); "
        "return s.animationName !== 'none' || parseFloat(s.transitionDuration) > 0 || s.scrollBehavior !== 'auto'; })"
        ".length"
    ) == 0  # fmt: skip


def odd(card: Scorecard, kind: str) -> Scorecard:
    """A scorecard of a session that did not go the usual way."""
    weak, expected = card.of("weak"), {"weak": card.expected["weak"]}
    broken = "ValueError: shapes (3,) and (4,)\n  File 'my.py', line 3, in scores\n" + "z" * 9_000
    changed = {
        "one row": [row for row in card.of("strong") if row.check == "test_coverage"][:1],
        "n/a": [replace(row, verdict="n/a", reason="weak reads no gradients", **EMPTY) for row in weak],
        "error": [replace(row, verdict="error", reason=broken, **EMPTY) for row in weak],
        "nothing": [],
    }[kind]
    if kind == "one row":
        return replace(card, rows=changed, expected={"strong": card.expected["strong"]})
    return replace(bare(card), rows=changed, expected=expected, seeds=() if kind == "nothing" else card.seeds)


@pytest.mark.parametrize(
    ("kind", "verdict", "said"),
    [
        ("one row", "partial", "1 of 39 rows were run"),
        ("n/a", "not shown", "all 39 rows not applicable"),
        ("error", "failed", "all 39 rows broke"),
        ("nothing", "partial", "None of its rows was run"),
    ],
)
@pytest.mark.parametrize("width", [1400, 390])
def test_odd_sessions_have_a_page_too(
    show: Any, card: Scorecard, kind: str, verdict: str, said: str, width: int
) -> None:
    opened = show(odd(card, kind), width)
    unfold(opened)
    assert page_width(opened) <= width
    shown = find(opened, ".card")
    assert shown.find_element("css selector", ".chip").text == verdict
    assert said in shown.text
    assert opened.execute_script(CUT, ".rows td, .rows th, p, dd") == []
    assert opened.execute_script("return document.documentElement.scrollHeight") < 60_000


def test_a_recorded_run_is_readable_on_a_telephone(show: Any) -> None:
    opened = show(scorecard(("gas",), points=40, rollouts=4, recorded=True), 390)
    assert page_width(opened) <= 390
    assert "runs/mine@cdcdcdcd" in find(opened, ".graded").text
    assert "nobody knows which rollouts taught the behaviour" in find(opened, ".note").text
    assert opened.execute_script(CUT, ".rows td, .card, #completion") == []


def test_of_many_estimators_the_page_stays_short_until_one_is_opened(show: Any, card: Scorecard) -> None:
    names = [f"method-{number}" for number in range(15)]
    rows = [replace(r, estimator=n, id=r.id.replace("[strong", f"[{n}")) for n in names for r in card.of("strong")]
    expected = {n: frozenset(r.id for r in rows if r.estimator == n) for n in names}
    opened = show(replace(bare(card), rows=rows, expected=expected, costs={}), 1400)
    height = "return document.documentElement.scrollHeight"
    assert opened.execute_script(height) < 9_000
    link = find(opened, ".card:nth-child(7) .head a")
    link.click()
    assert find(opened, "#e6").is_displayed()
    find(opened, "#e6 ~ .jumps a[href='#e6-c3']").click()
    assert 0 <= find(opened, "#e6-c3").rect["y"] - opened.execute_script("return scrollY") < 900


def test_without_javascript_a_narrow_page_still_says_that_tables_scroll(show: Any, card: Scorecard) -> None:
    opened = show(card, 390)
    opened.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        opened.refresh()
        assert find(opened, ".hint").is_displayed()
    finally:
        opened.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
