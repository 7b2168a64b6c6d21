"""The HTML report looked at: contrast, headings, axes, paper, and the pages of sessions that went another way."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any

import golden_cards
import pytest
from browsing import CUT, find, look, page_width, style, unfold
from exhibited import bare, scorecard

from pytest_behaviortrace.scorecard import Scorecard

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
  if (ratio < 4.5) faint.add(`${node.data.trim().slice(0, 40)} <${element.tagName}> ${ratio.toFixed(2)}`);
}
return [seen, [...faint]];
"""


# Words of the cells of a table that are broken in their middle: their letters stand on more than one line.
BROKEN = """
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), broken = new Set();
let seen = 0;
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
  const cell = node.parentElement.closest('.rows th, .rows td, .matrix th, .matrix td');
  if (!cell || !cell.getClientRects().length) continue;
  for (const word of node.data.matchAll(/[A-Za-z]+/g)) {
    const range = document.createRange();
    range.setStart(node, word.index);
    range.setEnd(node, word.index + word[0].length);
    seen += 1;
    if (new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size > 1) broken.add(word[0]);
  }
}
return [seen, [...broken]];
"""


@pytest.fixture(scope="module")
def card() -> Scorecard:
    return scorecard(("weak", "strong"), points=40, rollouts=4)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_stands_out_from_what_lies_behind_it(show: Any, card: Scorecard, theme: str) -> None:
    """Chips, pictures and the shades of token scores too."""
    opened = show(replace(card, comparison=golden_cards.planted().comparison), 1200, theme)
    unfold(opened)
    seen, faint = opened.execute_script(CONTRAST)
    assert seen > 2_000
    assert faint == []


@pytest.mark.parametrize("width", [1500, 1200, 1104, 1060, 390, 320])
def test_no_word_of_a_table_is_broken_in_its_middle(show: Any, card: Scorecard, width: int) -> None:
    """Names of properties were, in the table of stress, beside long reasons."""
    long = "a violation: " + "scores of the same problem differ by 0.25 where the largest is 1.5; " * 4
    rows = [replace(row, reason=long) if row.check == "test_stress" else row for row in card.rows]
    opened = show(replace(card, rows=rows), width)
    unfold(opened)
    seen, broken = opened.execute_script(BROKEN)
    assert seen > 1_000
    assert broken == []
    assert page_width(opened) <= width


def test_what_n_counts_is_said_where_it_stands_and_among_the_words(show: Any, card: Scorecard) -> None:
    opened = show(card)
    unfold(opened)
    heads = opened.find_elements("css selector", ".check .rows thead abbr")
    assert len(heads) == len(opened.find_elements("css selector", ".check .rows"))
    assert {head.text for head in heads} == {"n"}
    (said,) = {head.get_attribute("title") for head in heads}
    words = dict(zip(
        [word.text for word in opened.find_elements("css selector", ".words dt")],
        [word.text for word in opened.find_elements("css selector", ".words dd")],
        strict=True,
    ))  # fmt: skip
    assert words["n"] == said
    assert "pairs for an AUC" in said


def test_headings_go_down_by_one_and_figures_have_a_caption(show: Any, card: Scorecard) -> None:
    opened = show(replace(card, comparison=golden_cards.planted().comparison))
    levels = opened.execute_script("return [...document.querySelectorAll('h1,h2,h3,h4,h5,h6')].map(h => +h.tagName[1])")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(next - level <= 1 for level, next in itertools.pairwise(levels))
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
    context = [said for label, said in texts if label.startswith("Target context: estimates")]
    assert all("must reach 0.1" in said for said in context)
    assert len(context) == len(card.estimators)


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
