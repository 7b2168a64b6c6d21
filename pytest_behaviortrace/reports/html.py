"""Scorecard -> one HTML file with the evidence in pictures: opens from disk, asks no network, follows light and dark.

Heavy (jinja2, matplotlib): imported only where an HTML report is asked for.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from pytest_behaviortrace.exhibit import PICTURED, Exhibit
from pytest_behaviortrace.reports import (
    changes,
    explain,
    figures,
    foreign,
    intervals,
    matrix,
    sentences,
    terminal,
    viewer,
)
from pytest_behaviortrace.reports.drawing import Sheet, matplotlib_at_hand
from pytest_behaviortrace.scorecard import Row, Scorecard, worst

DOTS = 50_000
"""Dots that all clouds of a report share; a dot takes about 12 bytes."""
FEWEST, MOST = 60, 400
"""Dots of one cloud."""
NAMED, LONG_NAMES = 3, 120
"""Most estimators, and letters of their names, in the headline."""
STRESS = "test_stress"
"""The one check that shows nothing in pictures."""
WORDY = 4
"""Most estimators whose cards say everything; those of more are short."""
GROUPS = (("Failed", ("error", "fail")), ("Inconclusive", ("inconclusive",)), ("Not applicable", ("n/a",)))
"""Under what a card names the checks that were not passed: by the worst of their rows."""


def render(scorecard: Scorecard) -> str:
    """The page. The same scorecard gives the same bytes.

    `scorecard.exhibits` carries what the pictures show; without them the intervals are drawn from the rows alone.
    """
    style, script = _asset("report.css"), _asset("report.js")
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_asset), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters.update(visible=foreign.visible, isolated=isolated)
    with matplotlib_at_hand():
        sheet = Sheet()
        page = _page(scorecard, sheet)
    text = environment.get_template("report.html.j2").render(
        **page, style=Markup(style + sheet.css()), script=Markup(script), script_hash=_csp_hash(script)
    )
    return text.encode("utf-8", "replace").decode("utf-8")  # a lone surrogate in a completion must not lose the report


def isolated(text: object) -> Markup:
    """What somebody else wrote, in an element that keeps the direction of its letters to itself."""
    return Markup("<bdi>{}</bdi>").format(foreign.visible(text))


def _asset(name: str) -> str:
    folder = resources.files("pytest_behaviortrace.reports")
    return folder.joinpath("templates", name).read_text(encoding="utf-8")


def _csp_hash(script: str) -> str:
    digest = hashlib.sha256(script.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"


def _page(scorecard: Scorecard, sheet: Sheet) -> dict[str, Any]:
    recorded = scorecard.run is not None
    numbers = {row.id: number for number, row in enumerate(scorecard.rows)}
    rankings = viewer.rankings(scorecard)
    clouds = sum("fluency" in e or "spans" in e for e in scorecard.exhibits.values())
    illustrator = _Illustrator(scorecard, sheet, min(MOST, max(FEWEST, DOTS // (2 * clouds or 1))))
    return {
        "scorecard": scorecard,
        "run": scorecard.run,
        "title": _title(scorecard),
        "lead": explain.LEAD,
        "meanings": _meanings(scorecard),
        "baseline": changes.section(scorecard),
        "about": explain.ABOUT_RECORDED if recorded else explain.ABOUT,
        "no_truth": terminal.NO_TRUTH if recorded else "",
        "bare": not scorecard.exhibits and any(row.check != STRESS and row.n for row in scorecard.rows),
        "luck": terminal.luck(scorecard),
        "seeds": sorted(scorecard.seeds, key=lambda facts: facts.seed),
        "headroom": {row.seed: row for row in scorecard.of(None) if row.check == "test_headroom"},
        "versions": sorted(scorecard.versions.items()),
        "run_versions": sorted(scorecard.run.versions.items()) if scorecard.run is not None else [],
        "estimators": [_estimator(scorecard, name, illustrator) for name in scorecard.estimators],
        "run_checks": _checks(scorecard, None, illustrator),
        "tables": matrix.tables(scorecard),
        "row_meaning": explain.ROW_MEANING,
        "words": explain.WORDS,
        "anchor": lambda row: f"r{numbers[row.id]}",
        "rankings": rankings,
        "viewer_data": Markup(viewer.script_json(rankings)),
        "number": _number,
    }


def _title(scorecard: Scorecard) -> Markup:
    """The names on trial, or how many there are where all of them would fill the first screen."""
    names = scorecard.estimators
    if len(names) > NAMED or (sum(map(len, names)) > LONG_NAMES and len(names) > 1):
        return Markup(f"{len(names)} estimators")
    return Markup(", ").join(map(isolated, names)) or Markup("No estimator")


def _meanings(scorecard: Scorecard) -> dict[str, str]:
    """What each verdict means, said once where many cards would say it again and again; else empty: cards say it."""
    found = [scorecard.checklist_verdict(name) for name in scorecard.estimators]
    return {} if len(found) <= WORDY else {word: text for word, text in explain.MEANING.items() if word in found}


def _estimator(scorecard: Scorecard, name: str, illustrator: _Illustrator) -> dict[str, Any]:
    verdict = scorecard.checklist_verdict(name)
    rows, missing = scorecard.of(name), scorecard.missing(name)
    checks = _checks(scorecard, name, illustrator)
    return {
        "id": f"e{scorecard.estimators.index(name)}",
        "name": name,
        "verdict": verdict,
        "meaning": explain.MEANING[verdict] if rows else explain.NOTHING_RUN,
        "tally": "" if not missing else f"{len(rows)} of {len(rows) + missing} rows were run. ",
        "counts": sentences.tally(rows) or "no row was run",
        "groups": [
            (title, those)
            for title, verdicts in GROUPS
            if (those := [check for check in checks if check["worst"] in verdicts])
        ],
        "cost": scorecard.costs.get(name),
        "checks": checks,
    }


def _checks(scorecard: Scorecard, name: str | None, illustrator: _Illustrator) -> list[dict[str, Any]]:
    """The checks of an estimator (of the run itself: None), each with its pictures and its rows."""
    number_of = 0 if name is None else scorecard.estimators.index(name)
    prefix, drawn = ("run" if name is None else f"e{number_of}"), number_of < PICTURED
    return [
        {
            "id": f"{prefix}-c{number}",
            "about": explain.about(check),
            "worst": worst([row for row in rows if row.verdict != "n/a"] or rows).verdict,
            "counts": sentences.tally(rows),
            "refuted": scorecard.refuted.get((name or "", check), ""),
            "pictures": [Markup(picture) for picture in illustrator.pictures(rows if drawn else [])],
            "thinned": illustrator.thinned(rows) if drawn else "",
            "intervals": [Markup(picture) for picture in illustrator.intervals(check, rows if drawn else [])],
            "no_picture": _no_picture(check, rows) if drawn else explain.TOO_MANY.format(PICTURED),
            "rows": [_row(row, scorecard.exhibits.get(row.id, Exhibit())) for row in rows],
        }
        for number, (check, rows) in enumerate(scorecard.by_check(name).items())
    ]


def _row(row: Row, exhibit: Exhibit) -> dict[str, Any]:
    return {
        "row": row,
        "where": intervals.where(row),
        "sentence": sentences.why(row),
        "floors": [f"{f['name']} {f['have']:g} (needs {f['need']:g})" for f in exhibit.get("floors", [])],
        "note": "" if exhibit.get("rollouts") else exhibit.get("rollouts_note", ""),
    }


def _no_picture(check: str, rows: Sequence[Row]) -> str:
    if check in explain.NO_PICTURE:
        return explain.NO_PICTURE[check]
    verdicts = {row.verdict for row in rows}
    if verdicts <= {"n/a"}:
        return "Nothing to draw: the check does not apply. The table says why."
    if verdicts <= {"n/a", "error"}:
        return "Nothing to draw: no number came out of these rows. The table says why."
    return "Nothing to draw: there was too little evidence to compute an interval. The table says why."


def _number(value: float | None, digits: int = 3) -> str:
    return "\N{EN DASH}" if value is None else f"{value:.{digits}f}"


class _Illustrator:
    """Draws what rows show; `most`: dots of one cloud."""

    def __init__(self, scorecard: Scorecard, sheet: Sheet, most: int) -> None:
        self._exhibits = scorecard.exhibits
        self._most = most
        self._sheet = sheet

    def intervals(self, check: str, rows: Sequence[Row]) -> Iterator[str]:
        """Statistics against chance, and margins over the controls."""
        title = explain.about(check).title
        if groups := intervals.statistics(rows, self._exhibits):
            yield intervals.statistic_figure(self._sheet, groups, f"{title}: estimates with 95 % intervals")
        if groups := intervals.margins(rows, self._exhibits):
            yield intervals.margin_figure(self._sheet, groups, f"{title}: difference to each control")

    def pictures(self, rows: Sequence[Row]) -> Iterator[str]:
        """The check's own pictures, one per row that has something to show."""
        for row in rows:
            exhibit, where = self._exhibits.get(row.id, Exhibit()), intervals.where(row)
            if "curve" in exhibit:
                yield figures.learning(self._sheet, exhibit["curve"], where)
            if "precision" in exhibit and exhibit["precision"]["k"]:
                yield figures.precision(self._sheet, exhibit["precision"], where)
            if "fluency" in exhibit and exhibit["fluency"]["fluency"]:
                yield figures.fluency(self._sheet, exhibit["fluency"], where, self._most)
            if "spans" in exhibit and exhibit["spans"]["trigger"]:
                yield figures.spans(self._sheet, exhibit["spans"], where, self._most)

    def thinned(self, rows: Sequence[Row]) -> str:
        """What to say where not every dot is drawn."""
        exhibits = [self._exhibits.get(row.id, Exhibit()) for row in rows]
        clouds = [len(e["fluency"]["fluency"]) for e in exhibits if "fluency" in e]
        clouds += [len(e["spans"]["trigger"]) for e in exhibits if "spans" in e]
        return f"At most {self._most} dots of each are drawn." if max(clouds, default=0) > self._most else ""
