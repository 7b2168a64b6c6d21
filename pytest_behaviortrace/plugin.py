"""The pytest plugin: hooks only, each delegating in a few lines. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_behaviortrace import hookspecs, options

if TYPE_CHECKING:
    from pytest_behaviortrace.session import GradingSession

# -- always: everything here runs in every project this package is installed next to, and must cost nothing ----------


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Let projects register estimators."""
    pluginmanager.add_hookspecs(hookspecs)


def pytest_addoption(parser: pytest.Parser) -> None:
    """--bt-* and bt_*."""
    options.add(parser)


def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """--bt-list."""
    if not config.getoption("bt_list"):
        return None
    from pytest_behaviortrace import activation, output

    return output.guarded(lambda: activation.print_list(config))


def pytest_configure(config: pytest.Config) -> None:
    """Activate where an estimator is to be graded."""
    config.addinivalue_line("markers", "behaviortrace: a check shipped by pytest-behaviortrace")
    if options.asked(config):
        from pytest_behaviortrace import activation

        config.pluginmanager.register(Active(config, activation.activate(config)), "behaviortrace-active")
    else:
        options.refuse_alone(config)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """In this project's own repository, the check files are no test files."""
    if collection_path.name != "checks":
        return None
    from pytest_behaviortrace import scope

    return True if scope.is_shipped_folder(collection_path) else None


@pytest.hookimpl(tryfirst=True)
def pytest_keyboard_interrupt(excinfo: pytest.ExceptionInfo[BaseException]) -> None:
    """Ctrl-C while pytest rewrites a module may meet code that has no line, which pytest's display breaks on."""
    from pytest_behaviortrace import interrupts

    excinfo.traceback = excinfo.traceback.filter(interrupts.has_line)


@pytest.fixture
def _behaviortrace_row(request: pytest.FixtureRequest) -> None:
    """Tell a row of `parametrize_with_checks` which pytest it runs under."""
    from pytest_behaviortrace import parametrize

    parametrize.introduce(request)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take in what a worker of xdist has to say of such rows (a dead one says nothing)."""
    if "behaviortrace_rows" in (output := getattr(node, "workeroutput", {})):
        from pytest_behaviortrace import expected_rows

        expected_rows.take_in(node.config, output)


# -- only while an estimator is graded ---------------------------------------------------------------------------------


class Active:
    """The hooks of an active session."""

    def __init__(self, config: pytest.Config, grading: GradingSession) -> None:
        self.config, self.grading = config, grading
        self.is_worker = hasattr(config, "workerinput")

    def pytest_report_header(self) -> str:
        """What is graded, on which run, whether it is in the cache, and what else runs."""
        from pytest_behaviortrace import activation

        return activation.header(self.config, self.grading)

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Put the suite beside whatever else is collected."""
        report = yield
        if isinstance(collector, pytest.Session) and report.passed:
            from pytest_behaviortrace.collection import CheckSuite

            report.result.append(CheckSuite.of(collector))
        return report

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Only what the selected rows need is trained."""
        from pytest_behaviortrace.collection import CheckItem

        self.grading.will_run(item.spec for item in session.items if isinstance(item, CheckItem))

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """A row that was left out is not missing."""
        from pytest_behaviortrace.collection import CheckItem

        self.grading.deselected |= any(isinstance(item, CheckItem) for item in items)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """A row says its reason, not its exception; its output is bounded; a failure that was expected is none."""
        from pytest_behaviortrace import gatekeeper
        from pytest_behaviortrace.collection import CheckItem, bounded

        report = yield
        if isinstance(item, CheckItem):
            report.sections = bounded(report.sections)
            item.amend(report, call.excinfo.value if call.excinfo is not None else None)
            gatekeeper.judge(self.grading, item, report)
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, Any] | None:
        """Own words in the summary for what is neither passed nor failed."""
        from pytest_behaviortrace import activation

        return activation.status(self.grading, report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take in the row."""
        from pytest_behaviortrace import activation

        if not self.is_worker:
            activation.take_in(self.grading, report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the report and settle the exit code."""
        from pytest_behaviortrace import activation

        if not self.is_worker:
            activation.finish(self.grading, session, exitstatus)
            activation.prepare_summary(session)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The scorecard."""
        from pytest_behaviortrace import activation

        if not self.is_worker:
            activation.show(self.config, self.grading, terminalreporter)
