"""Expected failures among the rows of `parametrize_with_checks`: told at the end where they did not happen.

Rows may run in several processes (xdist), and one alone proves nothing: an entry is wrong once every row of its check
ran and some passed and none failed. So every process keeps a tally, workers hand theirs to the process that started
them, and that one concludes. Nothing of this is there in sessions without such rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from pytest_behaviortrace import checklist, expected
from pytest_behaviortrace.expected import ExpectedFailure, ExpectedFailures
from pytest_behaviortrace.options import EXPECTED_FAILURES

OUTPUT = "behaviortrace_rows"
"""Under which a worker hands over its tallies: plain lists and dicts."""
_TALLIES: pytest.StashKey[Tallies] = pytest.StashKey()


def of_the_ini(config: pytest.Config) -> list[ExpectedFailure]:
    """The entries of the file that the ini file names; none where it names none, and under --runxfail.

    Estimators that nobody knows here may be those of other decorators. Raises `ExpectedFailuresError`.
    """
    value = str(config.getini(EXPECTED_FAILURES)).strip()
    if not value or config.getoption("runxfail", False):
        return []
    folder = config.inipath.parent if config.inipath else config.rootpath
    try:
        return expected.load(folder / Path(value).expanduser(), value, checklist.on_trial(), None)
    except expected.ExpectedFailuresError as error:
        raise expected.ExpectedFailuresError(f"{EXPECTED_FAILURES}: {error}") from None


def tally(config: pytest.Config, test: str, entries: Iterable[ExpectedFailure], specs: Iterable[Any]) -> dict[str, Any]:
    """The verdicts by row of one decorated test in this session, to be kept up to date; made on first use.

    `specs`: its rows, of which those that are expected to fail are kept.
    """
    tallies = _tallies(config).kept
    if test not in tallies:
        named = {(entry.estimator, entry.check): entry for entry in entries}
        rows = {spec.id: [spec.estimator, spec.check, None] for spec in specs if (spec.estimator, spec.check) in named}
        used = {(estimator, check) for estimator, check, _ in rows.values()}
        told = [[e.estimator, e.check, e.reason, e.strict, e.line] for key, e in named.items() if key in used]
        tallies[test] = {"entries": told, "rows": rows}
    found: dict[str, Any] = tallies[test]["rows"]
    return found


def take_in(config: pytest.Config, output: Any) -> None:
    """Add the tallies of a worker that has finished."""
    kept = _tallies(config).kept
    for test, told in output.get(OUTPUT, {}).items():
        mine = kept.setdefault(test, told)
        for id, row in told["rows"].items():
            if row[2] is not None:
                mine["rows"][id] = row


def _tallies(config: pytest.Config) -> Tallies:
    if _TALLIES not in config.stash:
        config.stash[_TALLIES] = Tallies(config)
        config.pluginmanager.register(config.stash[_TALLIES], "behaviortrace-rows")
    return config.stash[_TALLIES]


class Tallies:
    """The hooks of a session that has such rows."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.kept: dict[str, dict[str, Any]] = {}
        """By test: the entries that are about it, and estimator, check and verdict of their rows."""
        self.said: list[str] = []
        """What fails nothing, and is told all the same."""

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Conclude, or hand over to the process that does."""
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput[OUTPUT] = self.kept
            return
        if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            return
        for test, told in self.kept.items():
            verdicts: dict[tuple[str | None, str], list[str | None]] = {}
            for estimator, check, verdict in told["rows"].values():
                verdicts.setdefault((estimator, check), []).append(verdict)
            for found in ExpectedFailures([ExpectedFailure(*entry) for entry in told["entries"]]).refuted(verdicts):
                if found.entry.strict:
                    _fail(session, test, found)
                else:
                    self.said.append(found.message)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Tell what fails nothing."""
        for message in self.said:
            terminalreporter.write_line(f"behaviortrace: {message}", yellow=True)


def _fail(session: pytest.Session, test: str, found: expected.Refuted) -> None:
    """Make it a failed test of its own, beside the rows, and the session one that failed."""
    check = found.entry.check.removeprefix("test_")
    name = f"{test.rpartition('::')[2]}[{check}-{found.entry.estimator}-expected-to-fail]"
    file = test.partition("::")[0]
    nodeid = f"{test.rpartition('::')[0]}::{name}"
    report = pytest.TestReport(nodeid, (file, None, name), {}, "failed", found.message, "call")
    session.testscollected += 1  # or the progress would go beyond 100 %
    session.config.hook.pytest_runtest_logreport(report=report)
    last_failed: Any = session.config.pluginmanager.getplugin("lfplugin")
    if last_failed is not None:  # no test has this id: --lf would look for it forever
        last_failed.lastfailed.pop(getattr(report, "id", nodeid), None)
    session.exitstatus = pytest.ExitCode.TESTS_FAILED
