"""The gate of a session: a baseline is opened before anything is trained, and every row is held to it as it ends.

A row that got worse fails its test, whatever its verdict, so that -x, --lf, JUnit and xdist see it.
"""

from __future__ import annotations

import shlex
from importlib import metadata
from typing import TYPE_CHECKING, Any

import pytest

from pytest_behaviortrace import baseline, snapshot
from pytest_behaviortrace.scorecard import row_of
from pytest_behaviortrace.suite import SUITE
from pytest_behaviortrace.wording import few

if TYPE_CHECKING:
    from pytest_behaviortrace.session import GradingSession
    from pytest_behaviortrace.settings import Settings

REGRESSION = "bt_regression"
"""Property of a report: how the row got worse."""
TOLERATED = "bt_no_regression"
"""Property of a report: the row fails, and under --bt-fail-on=regression this fails no session."""


def open_baseline(grading: GradingSession) -> snapshot.Snapshot | None:
    """The report that the session is compared with, checked; None without one.

    Raises `pytest.UsageError`, one sentence: what is wrong with it or differs, and what to do.
    """
    chosen = grading.settings
    asked = chosen.baseline
    if asked is None:
        return None
    again = _command(chosen, asked)
    try:
        found = snapshot.read(asked.path, asked.given)
    except snapshot.SnapshotError as error:
        raise pytest.UsageError(f"{asked.where}: {error}; the command is {again}") from None
    here = conditions(chosen, grading.seeds)
    differing = baseline.differences(found.conditions, here)
    wanted = [row for id, row in found.rows.items() if id in grading.specs and grading.wants(grading.specs[id])]
    # A whole session that leaves seeds out would hold its estimators to less than the baseline did.
    fewer = grading.selected is None and not set(found.conditions.seeds) <= set(here.seeds)
    none = wanted and all(baseline.other_seeds(row, found.conditions, here.seeds) for row in wanted)
    if not differing and (fewer or none):
        differing = [baseline.seeds_differ(found.conditions, here.seeds)]
    if differing:
        what = "; ".join(difference.describe() for difference in differing)
        raise pytest.UsageError(
            f"{asked.where}: {asked.given} cannot be compared with this session: {what}; "
            f"{baseline.remedy(differing, again)}"
        )
    known = {row.estimator for row in found.rows.values()}
    if not known.intersection(chosen.estimators):
        names = few(chosen.estimators)
        raise pytest.UsageError(f"{asked.where}: {asked.given} has no row of {names}; make the baseline again: {again}")
    return found


def conditions(chosen: Settings, seeds: tuple[int, ...]) -> snapshot.Conditions:
    """The conditions of a session on these seeds, as its own report will state them."""
    run = chosen.recorded
    return snapshot.Conditions(
        SUITE,
        None if run is not None else chosen.recipe.name,
        None if run is not None else chosen.recipe.hash,
        None if run is None else run.given,
        None if run is None else run.run.sha256,
        None if run is None else run.question.behavior,
        None if run is not None else chosen.plant,
        chosen.draws,
        seeds,
        {name: metadata.version(name) for name in snapshot.LIBRARIES},
    )


def _command(chosen: Settings, asked: snapshot.AskedBaseline) -> str:
    """The command that makes the baseline again under the conditions of this session."""
    typed = [flag for flag in chosen.typed if not flag.startswith(("--bt-baseline", "--bt-fail-on"))]
    if not asked.where.startswith("--"):
        typed.append("--bt-baseline=")
    if chosen.fail_on == "regression":
        typed.append("--bt-fail-on=fail")
    names = [f"--bt-estimator={name}" for name in chosen.estimators]
    return shlex.join(["pytest", *names, *typed, f"--bt-report={asked.path}"])


def judge(grading: GradingSession, item: pytest.Item, report: pytest.TestReport) -> None:
    """Make a row's report a failure where the row got worse, and none where only that is asked and it did not."""
    properties = dict(report.user_properties)
    if grading.baseline is None or report.when != "call" or "bt_verdict" not in properties:
        return
    if hasattr(report, "wasxfail"):  # expected, so nothing that has to be said again
        return
    row, before = row_of(grading.specs[report.nodeid], properties), grading.baseline.rows.get(report.nodeid)
    if before is not None and baseline.other_seeds(before, grading.baseline.conditions, grading.seeds):
        before = None
    worse = baseline.regression(before, row) if before is not None else None
    if worse is not None:
        _say(item, report, REGRESSION, worse)
        told = f"regression: {worse}"
        if report.failed:
            report.sections.append(("behaviortrace baseline", told))
        else:
            report.outcome, report.longrepr = "failed", f"{told}\n{row.verdict}: {row.reason}"
    elif before is not None and report.failed and row.verdict == "fail" and grading.settings.fail_on == "regression":
        # A failure that the baseline does not know is none that it excuses.
        _say(item, report, TOLERATED, "failed before, too")
        report.outcome, report.longrepr = "skipped", (*_place(report), f"fail: {row.reason}")


def _say(item: pytest.Item, report: pytest.TestReport, name: str, value: str) -> None:
    """Add a property, to the item too: JUnit reads them from the report of the teardown."""
    item.user_properties.append((name, value))
    report.user_properties.append((name, value))


def _place(report: pytest.TestReport) -> tuple[str, int]:
    path, line, _ = report.location
    return path, (line or 0) + 1


def status(report: pytest.TestReport) -> tuple[str, str, Any] | None:
    """Category, letter and word of a report that the baseline has changed; None for any other."""
    properties = dict(report.user_properties) if report.when == "call" else {}
    if REGRESSION in properties and report.failed:
        return "failed", "F", ("REGRESSION", {"red": True})
    if TOLERATED in properties and report.skipped:
        return "fail (no regression)", "f", ("FAIL (no regression)", {"yellow": True})
    return None


def broken_off(session: pytest.Session) -> bool:
    """Whether rows may be missing that were not named: left out by -k and the like, or never reached after -x.

    What a worker of xdist deselects is not seen here, hence the look at the options themselves.
    """
    option = session.config.option
    chosen = any(getattr(option, name, None) for name in ("keyword", "markexpr", "deselect", "lf", "stepwise"))
    return chosen or bool(session.shouldstop or session.shouldfail)
