"""What the plugin's hooks do while an estimator is graded, from the command line to the exit code."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_behaviortrace import bounds, checklist, collection, gatekeeper, options, scope, settings
from pytest_behaviortrace.installed import wrong_versions
from pytest_behaviortrace.interrupts import imported_whole
from pytest_behaviortrace.registry import Registry, RegistryError
from pytest_behaviortrace.reports import comparison as comparison_report
from pytest_behaviortrace.reports import files
from pytest_behaviortrace.reports import terminal as terminal_report
from pytest_behaviortrace.session import GradingSession, absent_units, units
from pytest_behaviortrace.suite import SUITE
from pytest_behaviortrace.wording import few, printable

if TYPE_CHECKING:
    from pytest_behaviortrace.estimator import Estimator
    from pytest_behaviortrace.expected import Refuted

STATUS = {
    "inconclusive": ("inconclusive", "?", ("INCONCLUSIVE", {"yellow": True})),
    "n/a": ("n/a", "-", ("N/A", {"cyan": True})),
    "error": ("error", "E", ("ERROR", {"red": True})),
}


def registry(config: pytest.Config) -> Registry:
    """Everything registered. Raises `pytest.UsageError` when a conftest hook raised or returned nonsense."""
    try:
        hooked = config.hook.pytest_behaviortrace_estimators(config=config)
    except Exception as error:
        said = printable(f"{type(error).__name__}: {error}")
        raise pytest.UsageError(
            f"the hook pytest_behaviortrace_estimators raised {said}; mend it in the conftest.py or plugin that "
            f"implements it"
        ) from None
    try:
        return Registry(hooked, config.invocation_params.dir)
    except RegistryError as error:
        raise pytest.UsageError(str(error)) from None


def print_list(config: pytest.Config) -> int:
    """Print what --bt-list is about, and return the exit code; imports no estimator unless -v asks for it.

    Raises `pytest.UsageError` for an estimator that was asked for beside it and is unknown.
    """
    from pytest_behaviortrace import listing

    known = registry(config)
    try:
        print("\n".join(listing.lines(known, imported=config.get_verbosity() > 0, asked=options.asked(config))))
    except RegistryError as error:
        raise pytest.UsageError(str(error)) from None
    return 0


def activate(config: pytest.Config) -> GradingSession:
    """Check everything that was asked for, before anything is trained, and open the session in `config.stash`.

    Raises `pytest.UsageError`.
    """
    if (lacking := wrong_versions()) is not None:
        raise pytest.UsageError(lacking)
    known = registry(config)
    chosen, checks = settings.resolve(config, known), checklist.declared()
    rows = checklist.count(checks, len(chosen.estimators), len(chosen.seeds), chosen.draws)
    if (excess := bounds.too_much(len(chosen.seeds), chosen.draws, rows)) is not None:
        raise pytest.UsageError(f"--bt-seeds, --bt-draws, estimators: {excess}; ask for fewer")
    estimators: dict[str, Estimator] = {}
    if not config.getoption("collectonly"):
        try:
            estimators = {name: _estimator(config, known, name, chosen) for name in chosen.estimators}
        except RegistryError as error:
            raise pytest.UsageError(str(error)) from None
        _require_declarations(estimators)
    on_trial = {check.name: "bt_estimator" in check.arguments for check in checks}
    expected = settings.expected_failures(config, known, chosen, on_trial)
    grading = GradingSession(chosen, checks, estimators, expected)
    typed = any(flag.startswith("--bt-estimator=") for flag in options.typed(config))
    collection.claim_arguments(config, grading, typed=typed)
    grading.baseline = gatekeeper.open_baseline(grading)
    config.stash[collection.GRADING] = grading
    trains = grading.needs_run and not config.getoption("collectonly") and not hasattr(config, "workerinput")
    if trains and absent_units(chosen) and (problem := settings.unwritable(chosen.cache_dir)):
        raise pytest.UsageError(
            f"the cache folder {chosen.cache_dir} cannot be written ({problem}); "
            f"choose another with --bt-cache-dir or {options.CACHE_VARIABLE}"
        )
    return grading


def _estimator(config: pytest.Config, known: Registry, name: str, chosen: settings.Settings) -> Estimator:
    """The estimator of that name, or under --bt-isolate what stands in for it. Raises `RegistryError`."""
    if not chosen.isolate:
        return known.load(name)
    from pytest_behaviortrace.isolation import isolate

    return isolate(known.find(name), config.invocation_params.dir, chosen.estimator_timeout)


def _require_declarations(estimators: Mapping[str, Estimator]) -> None:
    """Raise `pytest.UsageError`, before anything is trained, for an estimator with improper needs or claims."""
    from pytest_behaviortrace.estimator import EstimatorError, claims_of, needs_of

    for name, estimator in estimators.items():
        try:
            needs_of(estimator)
            claims_of(estimator)
        except EstimatorError as error:
            raise pytest.UsageError(f"estimator {name!r}: {error}") from None


def refuse_checks(config: pytest.Config) -> None:
    """Raise `pytest.UsageError` when shipped checks were named without an estimator to grade."""
    where = scope.Where(config.invocation_params.dir, config.rootpath, checklist.checks_dir())
    files = {checklist.PREFIX, *(check.id for check in checklist.declared())}
    if any((scope.shipped_id(arg, where) or "").partition("::")[0] in files for arg in config.args):
        raise pytest.UsageError("the shipped checks grade an estimator; name one with --bt-estimator=NAME")


def header(config: pytest.Config, grading: GradingSession) -> str:
    """One line: estimators, recipe or recorded run, cache, scope."""
    chosen = grading.settings
    absent = absent_units(chosen) if grading.needs_run else []
    todo = "draws to sample" if chosen.recorded is not None else "units to train"
    cache = (
        f"{len(absent)} of {len(units(chosen))} {todo}" if absent else "cache hit" if grading.needs_run else "no run"
    )
    if absent and getattr(config.option, "numprocesses", None):
        cache += " (workers show no progress)"
    tests = "checks + your tests" if grading.own_tests else "checks only (add a path, such as '.', for your tests)"
    recipe = f"{chosen.recipe.name}@{chosen.recipe.hash[:8]}"
    if chosen.recorded is not None:
        asked = chosen.recorded.question
        recipe = f"run {chosen.recorded.given}@{asked.run_sha256[:8]}, behaviour {asked.behavior!r}"
    names = few(chosen.estimators) + (" (isolated)" if chosen.isolate else "")
    return f"behaviortrace {SUITE}: {names}; {recipe}, {cache}; {tests}"


def status(grading: GradingSession, report: pytest.TestReport) -> tuple[str, str, Any] | None:
    """Category, letter and word of a row's report; None for everything that pytest words itself."""
    if _died(grading, report):
        return STATUS["error"]
    if hasattr(report, "wasxfail"):
        return None
    if (found := gatekeeper.status(report)) is not None:
        return found
    verdict = dict(report.user_properties).get("bt_verdict") if report.when == "call" else None
    if verdict == "inconclusive" and report.failed:  # --bt-fail-on=inconclusive
        return "failed", "?", ("INCONCLUSIVE", {"red": True})
    return STATUS.get(str(verdict))


def take_in(grading: GradingSession, report: pytest.TestReport) -> None:
    """Record the row that a report is about, if it is about one."""
    properties = dict(report.user_properties)
    if _died(grading, report):
        grading.record_death(report.nodeid)
    elif report.when == "call" and "bt_verdict" in properties and report.nodeid in grading.specs:
        grading.record(report.nodeid, properties, getattr(report, "bt_exhibit", None))


def _died(grading: GradingSession, report: pytest.TestReport) -> bool:
    """Whether this is xdist's report of a row whose worker died: it comes from no phase of a test."""
    return report.failed and report.when not in ("setup", "call", "teardown") and report.nodeid in grading.specs


def finish(grading: GradingSession, session: pytest.Session, exitstatus: int) -> None:
    """Settle the session, unless it was broken off: expected failures that did not happen, the reports, exit code.

    The exit code is 1 where a row of the baseline got worse or a report could not be written, 5 when nothing was
    decided, and 2, as ever after Ctrl-C, when somebody would not wait for the reports.
    """
    if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED):
        return
    wrong = [found for found in grading.refuted() if found.entry.strict]
    for found in wrong:
        _report_refuted(session, found)
    if wrong:
        session.exitstatus = exitstatus = pytest.ExitCode.TESTS_FAILED
    if session.config.getoption("collectonly"):
        return
    unwritten = list(grading.settings.reports if grading.rows else ())  # an earlier report says more than an empty one
    try:
        grading.deselected |= gatekeeper.broken_off(session)
        compared = grading.comparison()
        if compared is not None and compared.failing:
            session.exitstatus = exitstatus = pytest.ExitCode.TESTS_FAILED
        if _write_reports(grading, unwritten):
            session.exitstatus = exitstatus = pytest.ExitCode.TESTS_FAILED
        if grading.rows and exitstatus == pytest.ExitCode.OK and not grading.scorecard().decided:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
    except KeyboardInterrupt:
        session.exitstatus = pytest.ExitCode.INTERRUPTED
        if unwritten:
            names = ", ".join(map(str, unwritten))
            grading.report_problems.append(f"interrupted, so these reports were not written: {names}")


def prepare_summary(session: pytest.Session) -> None:
    """Import what Hypothesis' plugin imports for its summary, where Ctrl-C ends in a traceback: here it ends with 2."""
    if not session.config.pluginmanager.hasplugin("hypothesispytest"):
        return
    try:
        with contextlib.suppress(ImportError), imported_whole("hypothesis"):
            importlib.import_module("hypothesis")
    except KeyboardInterrupt:
        session.exitstatus = pytest.ExitCode.INTERRUPTED


def _write_reports(grading: GradingSession, unwritten: list[Path]) -> list[str]:
    """Write every report; what kept one from being written keeps no other from it.

    Takes each out of `unwritten` once it is clear what became of it: Ctrl-C may come at any time.
    """
    while unwritten:
        path = unwritten[0]
        try:
            files.write(grading.scorecard(), path)
        except OSError as error:
            grading.report_problems.append(f"the report {path} was not written: {error.strerror or error}")
        except Exception as error:  # a library that draws, on a machine nobody has tried
            grading.report_problems.append(f"the report {path} was not written: {type(error).__name__}: {error}")
        del unwritten[0]
    return grading.report_problems


def _report_refuted(session: pytest.Session, found: Refuted) -> None:
    """Make an expected failure that did not happen a failed test of its own, for whoever reads reports."""
    check = found.entry.check
    name = f"{check}[{found.entry.estimator}-expected-to-fail]"
    file = f"{checklist.PREFIX}/{check}.py"
    report = pytest.TestReport(f"{file}::{name}", (file, None, name), {}, "failed", found.message, "call")
    session.testscollected += 1  # or the progress would go beyond 100 %
    session.config.hook.pytest_runtest_logreport(report=report)
    last_failed: Any = session.config.pluginmanager.getplugin("lfplugin")
    if last_failed is not None:  # no row has this id: --lf would look for it forever
        last_failed.lastfailed.pop(getattr(report, "id", report.nodeid), None)


def show(config: pytest.Config, grading: GradingSession, reporter: pytest.TerminalReporter) -> None:
    """Print the scorecard, what became of the baseline, and which report is missing."""
    for problem in grading.report_problems:
        reporter.write_line(f"behaviortrace: {problem}", red=True)
    if not grading.rows:
        return
    width = config.get_terminal_writer().fullwidth
    reporter.section("behaviortrace scorecard", sep="=")
    scorecard = grading.scorecard()
    for line in terminal_report.render(
        scorecard, options=grading.settings.typed, width=width, verbose=config.get_verbosity() > 0
    ):
        markup = {line.colour: True} if line.colour else {}
        reporter.write_line(line.text, bold=line.bold, **markup)
    if scorecard.comparison is not None:
        reporter.write_line("")
        for text, colour in comparison_report.render(scorecard.comparison):
            reporter.write_line(text, **{colour: True} if colour else {})
