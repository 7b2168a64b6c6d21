"""The HTML report in a real browser: what a reader clicks, presses and sees, in light and dark, wide and narrow."""

from __future__ import annotations

from dataclasses import replace

import pytest
from browsing import find, look, press, style
from exhibited import scorecard

from pytest_behaviortrace.reports import html

ROLLOUTS = 6


@pytest.fixture(scope="module")
def card():
    return scorecard(("weak", "strong"), points=60, rollouts=ROLLOUTS)


@pytest.fixture(scope="module")
def page(card, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("report") / "a report #1.html"
    path.write_text(html.render(card), encoding="utf-8", newline="\n")
    return path.as_uri()


@pytest.fixture
def opened(browser, page):
    """The page, freshly opened, wide and light; afterwards the console must be empty."""
    look(browser, 1200, "light")
    browser.get("about:blank")
    browser.get(page)
    yield browser
    assert browser.get_log("browser") == []


def test_opens_from_disk_and_asks_nothing_of_a_network(opened):
    assert opened.title == "Attribution scorecard: weak, strong"
    urls = [
        entry["message"] for entry in opened.get_log("performance") if "Network.requestWillBeSent" in entry["message"]
    ]
    assert not [url for url in urls if "http://" in url.replace("http://www.w3.org", "") or "https://" in url]
    assert opened.execute_script("return performance.getEntriesByType('resource').length") == 0


def test_every_figure_has_a_text_alternative_and_is_drawn(opened, card):
    opened.execute_script("for (const part of document.querySelectorAll('details')) part.open = true")
    found = opened.execute_script(
        "return [...document.querySelectorAll('svg')].map(s => [s.getAttribute('role'), s.getAttribute('aria-label'),"
        " s.getBoundingClientRect().width, s.querySelectorAll('path').length, s.querySelectorAll('text').length])"
    )
    assert len(found) > 50
    for role, label, width, paths, texts in found:
        assert role == "img"
        assert len(label) > 40
        assert width > 100
        assert paths > 2
        assert texts > 1


def test_a_cell_of_the_matrix_leads_to_its_row(opened, card):
    details = "return document.querySelectorAll('details')[1].open"
    assert opened.execute_script(details) is False
    number = next(i for i, row in enumerate(card.rows) if row.estimator == "strong" and row.check == "test_coverage")
    cell = find(opened, f"table.matrix a[href='#r{number}']")
    assert cell.text == card.rows[number].verdict
    cell.click()
    assert opened.execute_script(details) is True
    top, height = opened.execute_script(
        "const r = document.querySelector(arguments[0]).getBoundingClientRect(); return [r.top, innerHeight]",
        f"#r{number}",
    )
    assert 0 <= top < height
    assert find(opened, f"#r{number} td .chip").text == card.rows[number].verdict
    assert style(opened, f"#r{number}", "background-color") != style(opened, "body", "background-color")


def test_every_link_of_the_page_works(opened):
    hrefs = opened.execute_script("return [...document.querySelectorAll('a')].map(a => a.getAttribute('href'))")
    lost = opened.execute_script(
        "return [...document.querySelectorAll('a')].map(a => a.getAttribute('href'))"
        ".filter(h => !document.getElementById(h.slice(1)))"
    )
    assert len(hrefs) > 80
    assert lost == []


def test_the_viewer_steps_by_button_and_by_key(opened):
    from selenium.webdriver.common.keys import Keys

    def position() -> str:
        return find(opened, "#position").text

    assert position().startswith(f"Rank 1 (1 of {ROLLOUTS} shown)")
    assert not find(opened, "#previous").is_enabled()
    find(opened, "#next").click()
    assert position().startswith("Rank 2 ")
    find(opened, "#rollout").click()
    press(opened, Keys.ARROW_RIGHT)
    assert position().startswith("Rank 3 ")
    press(opened, Keys.ARROW_LEFT, Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert position().startswith("Rank 1 ")
    opened.find_elements("css selector", "#strip button")[-1].click()
    assert position().startswith(f"Rank {ROLLOUTS} ")
    assert not find(opened, "#next").is_enabled()
    find(opened, "#previous").click()
    assert position().startswith(f"Rank {ROLLOUTS - 1} ")


def test_the_viewer_shows_marks_scores_and_words(opened, card):
    row = next(row for row in card.of("weak") if row.check == "test_gradient_magnitude" and row.seed == 0)
    rollout = card.exhibits[row.id]["rollouts"][0]
    marked = [e.text for e in opened.find_elements("css selector", "#completion mark")]
    assert (
        "".join(marked).split()
        == "".join(t for t, b in zip(rollout["tokens"], rollout["behavior"], strict=True) if b).split()
    )
    assert find(opened, "#completion").get_property("textContent") == "".join(rollout["tokens"])
    assert find(opened, "#prompt").get_property("textContent") == rollout["prompt"]
    shaded = opened.execute_script(
        "return [...document.querySelectorAll('#completion > *')].filter(e => e.style.backgroundColor).length"
    )
    assert shaded > len(rollout["tokens"]) / 2
    word = next(w for w, is_it in (("ground truth", rollout["truth"]), ("decoy", rollout["decoy"]),
                                   ("look-alike", rollout["lookalike"]), ("neither", True)) if is_it)  # fmt: skip
    assert find(opened, "#position .chip").text == word
    assert "token scores are its own" in find(opened, "#note").text
    assert "Highest token scores" in find(opened, "#strongest").text


def test_the_viewer_shows_the_estimator_and_seed_that_is_chosen(opened, card):
    from selenium.webdriver.support.ui import Select

    Select(find(opened, "#pick-estimator")).select_by_visible_text("strong")
    Select(find(opened, "#pick-place")).select_by_visible_text("seed 2")
    row = next(row for row in card.of("strong") if row.check == "test_gradient_magnitude" and row.seed == 2)
    shown = find(opened, "#completion").get_property("textContent")
    assert shown == "".join(card.exhibits[row.id]["rollouts"][0]["tokens"])


@pytest.mark.parametrize(("system", "other"), [("light", "dark"), ("dark", "light")])
def test_figures_and_page_follow_the_system_and_the_button(opened, system, other):
    look(opened, 1200, system)
    text, back = "#run + p, main svg text", "body"
    before = style(opened, text, "fill"), style(opened, back, "background-color")
    button = find(opened, "#theme")
    assert button.text == f"{other.capitalize()} theme"
    button.click()
    after = style(opened, text, "fill"), style(opened, back, "background-color")
    assert before[0] != after[0]
    assert before[1] != after[1]
    look(opened, 1200, other)
    assert after == (style(opened, text, "fill"), style(opened, back, "background-color"))
    button.click()
    look(opened, 1200, other)
    assert before == (style(opened, text, "fill"), style(opened, back, "background-color"))


def test_narrow_windows_scroll_the_matrix_and_not_the_page(opened):
    look(opened, 360, "light")
    opened.execute_script("for (const part of document.querySelectorAll('details')) part.open = true")
    page_width, box_scrolls = opened.execute_script(
        "const box = document.querySelector('table.matrix').parentElement;"
        "return [document.documentElement.scrollWidth, box.scrollWidth > box.clientWidth]"
    )
    assert page_width <= 360
    assert box_scrolls


def test_the_keyboard_reaches_everything(opened):
    from selenium.webdriver.common.keys import Keys

    press(opened, Keys.TAB)
    skip = opened.switch_to.active_element
    assert skip.text == "Skip to the verdicts"
    assert skip.rect["x"] >= 0
    press(opened, Keys.ENTER)
    assert opened.current_url.endswith("#verdicts")
    reached = set()
    while "rollout" not in reached and len(reached) < 500:
        press(opened, Keys.TAB)
        name, outline = opened.execute_script(
            "const a = document.activeElement, said = a.getAttribute('href') || a.getAttribute('aria-label');"
            "return [a.id || said || a.tagName, getComputedStyle(a).outlineStyle]"
        )
        assert outline != "none", name
        assert name != "BODY", "the page ends before the viewer"
        reached.add(name)
    assert {"pick-estimator", "pick-place", "next", "rollout", "SUMMARY"} <= reached


def test_without_javascript_everything_but_the_viewer_is_there(browser, page):
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(page)
        assert "Stepping through rollouts needs JavaScript" in find(browser, "noscript").text
        assert not find(browser, "#viewer").is_displayed()
        assert not find(browser, "#theme").is_displayed()
        find(browser, "table.matrix a[href='#e1']").click()
        assert find(browser, "#e1-c0").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_hostile_texts_run_nothing(browser, card, tmp_path):
    attack = "</script><img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    rows = [replace(row, estimator=row.estimator and attack, reason=attack) for row in card.of("weak")]
    shown = {}
    for row in rows:
        exhibit = dict(card.exhibits.get(row.id, {}))
        if "rollouts" in exhibit:
            exhibit["rollouts"] = [{**r, "prompt": attack, "tokens": [attack] * 20} for r in exhibit["rollouts"]]
            exhibit["rollouts_note"] = attack
        shown[row.id] = exhibit
    expected = {attack: frozenset(row.id for row in rows)}
    path = tmp_path / "hostile.html"
    path.write_text(
        html.render(replace(card, rows=rows, expected=expected, costs={}, exhibits=shown)), encoding="utf-8"
    )
    look(browser, 1200, "light")
    browser.get(path.as_uri())
    assert browser.get_log("browser") == []
    assert browser.title == f"Attribution scorecard: {attack}"
    assert browser.find_elements("css selector", "img") == []
    assert find(browser, "#prompt").text == attack
    assert find(browser, "#note").text == attack
    assert find(browser, "h1").text == attack
