"""The HTML report as text: its structure, what it refuses to load, hostile names, size, the same bytes every time."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from exhibited import bare, scorecard

from pytest_behaviortrace.reports import explain, html, viewer
from pytest_behaviortrace.scorecard import CHECKLIST, Row

HOSTILE = "</script><img src=x onerror=\"document.title='owned'\"><!-- &amp; ' \\ ]]>"
VOID = {"meta", "br", "col", "img", "link", "input", "hr"}


class Page(HTMLParser):
    """What the tests ask about a page: elements with their attributes and text, scripts and styles, unclosed tags."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.raw: dict[str, list[str]] = {"script": [], "style": []}
        self.said = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag in self.raw:
            self.raw[tag].append("")

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in self.raw:
            self.raw[self.open[-1]][-1] += data
        else:
            self.said += data

    def of(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def card():
    return scorecard(("weak", "strong"), points=60, rollouts=6)


@pytest.fixture(scope="module")
def text(card):
    return html.render(card)


def test_the_page_is_well_formed_and_loads_nothing(text):
    page = Page(text)
    assert page.open == []
    for tag, attributes in page.elements:
        assert tag not in ("img", "link", "iframe", "object", "embed", "image", "base", "form", "video", "audio")
        assert not {name for name in attributes if name.startswith("on") or name in ("src", "srcset", "xlink:href")}
        assert attributes.get("href", "#").startswith("#")
    style = "".join(page.raw["style"])
    assert not re.search(r"@import|@font-face|url\(", style)
    assert "http://" not in text.replace("http://www.w3.org/", "")
    assert "https://" not in text
    policy = next(a["content"] for a in page.of("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")


def test_ids_are_unique_and_every_link_resolves(text):
    page = Page(text)
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    named = [a["href"] for _, a in page.elements if "href" in a]
    named += [f"#{a['aria-labelledby']}" for _, a in page.elements if "aria-labelledby" in a]
    named += [f"#{found}" for found in re.findall(r"url\(#([^)]*)\)", text)]
    assert {name.removeprefix("#") for name in named} <= set(ids)
    assert len(named) > 100


def test_every_row_has_a_cell_that_leads_to_its_numbers(card, text):
    page = Page(text)
    cells = {a["href"] for a in page.of("a") if "chip" in a.get("class", "")}
    rows = {f"#{a['id']}" for a in page.of("tr") if "id" in a}
    assert cells == rows
    assert len(rows) == len(card.rows)
    for verdict in {row.verdict for row in card.rows}:
        assert re.search(rf'<a class="chip v-{verdict.replace("/", "")}" href="#r\d+">{verdict}</a>', text)


def test_every_figure_says_its_numbers(card, text):
    figures = Page(text).of("svg")
    assert len(figures) == 3 + 2 * (3 + 6 + 6) + 1 + sum(len(found) for found in _interval_figures(card))
    labels = [figure["aria-label"] for figure in figures]
    assert all(figure["role"] == "img" for figure in figures)
    assert all(len(re.findall(r"\d+\.\d+", label)) >= 2 or "%" in label for label in labels)
    row = next(row for row in card.of("strong") if row.check == "test_reward_control")
    said = next(label for label in labels if f"{row.estimate:.3f} [{row.low:.3f}, {row.high:.3f}]" in label)
    assert said.startswith("Reward control: estimates with 95 % intervals. AUC (bar 0.5): seed 0 ")
    assert "Strongest controls: seed 0 " in said
    assert any(label.startswith("seed 1. Lines: share of own-prompt rollouts") for label in labels)


def _interval_figures(card):
    """Per estimator and check with estimates: one figure of statistics, and one of margins where there are controls."""
    for name in card.estimators:
        for check, rows in card.by_check(name).items():
            if check != "test_stress" and any(row.estimate is not None for row in rows):
                yield [check, *([check] if any(row.control for row in rows) else [])]


def test_no_colour_is_left_that_a_theme_could_not_change(text):
    page = Page(text)
    assert not re.findall(r"#0[0-9a-f]0[0-9a-f]0[0-9a-f]\b", text)
    for figure in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        assert not re.search(r'(?:fill|stroke)(?:: |=")#', figure)
        assert "style=" not in figure
    classes = "".join(page.raw["style"]).partition("\n.s0 ")[2]
    assert set(re.findall(r"(?:fill|stroke): ([^;} ]+)", classes)) <= {"none"} | {
        f"var(--{name})"
        for name in ("ink", "muted", "rule", "shade", "panel", "blue", "orange", "green", "purple", "pass", "fail",
                     "inconclusive")
    }  # fmt: skip


def test_the_same_scorecard_gives_the_same_bytes(card, text):
    assert html.render(card) == text
    assert html.render(replace(card, rows=card.rows[::-1])) == text


def test_without_exhibits_the_intervals_are_drawn_from_the_rows(card):
    page = Page(html.render(bare(card)))
    labels = [figure["aria-label"] for figure in page.of("svg")]
    assert labels
    assert all("estimates with 95 % intervals" in label for label in labels)
    assert "rankings" not in {a.get("id") for a in page.of("script")}


def test_where_there_is_nothing_to_draw_a_sentence_says_so(card):
    text = html.render(card)
    assert text.count(explain.NO_PICTURE["test_stress"]) == len(card.estimators)
    assert "Nothing to draw: the check does not apply. The table says why." in text
    broken = [replace(row, verdict="error", estimate=None, low=None, high=None, chance=None, control=None,
                      control_estimate=None, margin_low=None) for row in card.rows]  # fmt: skip
    text = html.render(replace(bare(card), rows=broken))
    assert "<svg" not in text
    assert "Nothing to draw: no number came out of these rows." in text


def test_hostile_names_and_texts_stay_text(card):
    """An estimator, a reason, a prompt and tokens that try to be markup, script or markdown of matplotlib."""
    name = f'x"{HOSTILE} $\\frac$'
    rows = [
        replace(row, estimator=row.estimator and name, reason=HOSTILE, control=row.control and HOSTILE, id=f"r{i}")
        for i, row in enumerate(card.of("weak"))
    ]
    shown = {}
    for row, old in zip(rows, card.of("weak"), strict=True):
        if exhibit := card.exhibits.get(old.id):
            shown[row.id] = json.loads(json.dumps(exhibit))
            for gate in shown[row.id].get("gates", []):
                gate["name"] += f"{HOSTILE}\x00"
                gate["control"] = gate["control"] and HOSTILE
            for rollout in shown[row.id].get("rollouts", []):
                rollout["prompt"], rollout["tokens"][0] = HOSTILE, f"{HOSTILE}\u2028\ud800"
    expected = {name: frozenset(row.id for row in rows)}
    hostile = replace(card, rows=rows, expected=expected, costs={}, exhibits=shown, plant=HOSTILE)
    text = html.render(hostile)
    page = Page(text)
    assert page.open == []
    assert "img" not in {tag for tag, _ in page.elements}
    assert len(page.of("script")) == 2
    assert f"estimator {name}" not in text
    assert HOSTILE in page.said
    data = json.loads(page.raw["script"][0])
    assert data[0]["estimator"] == name
    assert data[0]["rollouts"][0]["prompt"] == HOSTILE
    text.encode("utf-8")


@pytest.mark.parametrize("value", ["</script>", "<!--", "&lt;", "\u2028\u2029", "a\\b"])
def test_json_in_a_script_element_is_inert_and_comes_back(value):
    text = viewer.script_json([value])
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == [value]


def test_fifteen_estimators_with_everything_would_stay_under_three_megabytes(monkeypatch):
    """A third of them, with a third of the dots that all clouds of a page share, takes less than a third."""
    monkeypatch.setattr(html, "DOTS", html.DOTS // 3)
    card = scorecard(tuple(f"estimator-{i}" for i in range(html.PICTURED // 3)), points=400, rollouts=40)
    assert len(card.rows) == 5 * 39 + 3
    assert len(html.render(card).encode("utf-8")) < 1_000_000


def test_very_many_estimators_get_tables_and_a_sentence_in_place_of_pictures(monkeypatch, card):
    monkeypatch.setattr(html, "PICTURED", 1)
    text = html.render(card)
    first, second = text.split('id="e0"')[1].split('id="e1"')
    assert first.count("<svg") > 10
    assert "<svg" not in second
    assert "Pictures are drawn for the first 1 estimators" in second
    assert 'id="r0"' in text


def test_a_number_that_json_does_not_know_is_none(card):
    row = next(row for row in card.rows if "rollouts" in card.exhibits.get(row.id, {}))
    rollout = {**card.exhibits[row.id]["rollouts"][0], "reward": math.nan, "token_scores": [math.inf] * 20}
    data = viewer.rankings(replace(card, exhibits={row.id: {"rollouts": [rollout]}}))
    assert data[0]["rollouts"][0]["reward"] is None
    assert data[0]["rollouts"][0]["scores"] == [None] * 20
    viewer.script_json(data)


def test_a_draw_without_a_pair_has_a_cloud_and_no_auc(card):
    id = next(id for id, exhibit in card.exhibits.items() if "fluency" in exhibit)
    cloud = {**card.exhibits[id]["fluency"], "raw_auc": None, "residual_auc": None}
    page = html.render(replace(card, exhibits={**card.exhibits, id: {**card.exhibits[id], "fluency": cloud}}))
    assert "within-group AUC unknown" in page


def test_long_rankings_show_their_first_rollouts(card):
    everything = viewer.rankings(card)
    assert [len(ranking["rollouts"]) for ranking in everything] == [6] * 6
    fewer = viewer.rankings(card, budget=len(viewer.script_json(everything)) // 2)
    assert {len(ranking["rollouts"]) for ranking in fewer} <= {2, 3}
    assert [rollout["rank"] for rollout in fewer[0]["rollouts"]] == [1, 2, 3]


def test_a_recorded_run_has_no_truth_marks():
    card = scorecard(("gas",), points=40, rollouts=4, recorded=True)
    text = html.render(card)
    page = Page(text)
    assert "graded on the recorded run runs/mine@cdcdcdcd, behaviour QZ[A-Z]+" in " ".join(page.said.split())
    assert explain.ABOUT_RECORDED in page.said
    assert "Nobody knows which of these taught the behaviour" in page.said
    assert {rollout["kind"] for ranking in json.loads(page.raw["script"][0]) for rollout in ranking["rollouts"]} == {""}
    assert "planted behaviour" not in re.findall(r"<dt>([^<]*)</dt>", text)
    assert "the run" in re.findall(r'<th scope="row">([^<]*)</th>', text)


def test_a_part_of_the_checklist_says_that_it_is_one(card):
    rows = [row for row in card.rows if row.check == "test_coverage"]
    text = html.render(replace(card, rows=rows))
    assert "3 of 39 rows were run" in text
    assert "Only some of its rows were run" in text
    nobody = html.render(replace(card, rows=card.of(None), expected={}, costs={}))
    assert "No estimator was on trial." in nobody
    assert Page(nobody).open == []


def test_expected_failures_are_named(card):
    rows = [replace(row, expected_failure="known <since> May") if row.verdict == "fail" else row for row in card.rows]
    failed = sum(row.verdict == "fail" for row in rows)
    text = html.render(replace(card, rows=rows, refuted={("weak", "test_coverage"): "remove line 7"}))
    assert text.count("fail (expected)</a>") == failed
    assert text.count("expected: known &lt;since&gt; May") == failed
    assert '<p class="note">remove line 7</p>' in text


def test_every_check_and_every_verdict_is_explained(card):
    assert set(explain.CHECKS) == set(CHECKLIST)
    assert {"passed", "failed", "inconclusive", "not shown", "partial", "passed on this run"} == set(explain.MEANING)
    other = Row("checks/test_new_one.py::test_new_one[weak-seed0]", "weak", "test_new_one", 0, None, "pass")
    assert "New one" in html.render(replace(bare(card), rows=[other]))


def test_tables_have_scopes_and_the_page_has_landmarks(text):
    page = Page(text)
    assert all("scope" in a for a in page.of("th"))
    for tag in ("header", "main", "footer", "nav", "h1"):
        assert len(page.of(tag)) == 1
    assert page.of("html")[0]["lang"] == "en"
    assert page.of("a")[0]["class"] == "skip"
    boxes = [a for _, a in page.elements if a.get("class") == "scroll"]
    assert boxes
    assert all(a["tabindex"] == "0" and a["role"] == "region" and a["aria-labelledby"] for a in boxes)
