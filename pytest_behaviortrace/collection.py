"""Collector nodes and items of the shipped checks: own names, own ids, own calls; no part of pytest's Python plugin.

The items are not `pytest.Function`s, so nothing that a project configures for its own test functions reaches them:
neither python_files and python_functions, nor import modes, nor autouse fixtures, nor `pytest_generate_tests`.
"""

from __future__ import annotations

import itertools
import os
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_behaviortrace import outcome, scope
from pytest_behaviortrace.checklist import PREFIX, Check, RowSpec, checks_dir
from pytest_behaviortrace.exhibit import Exhibit
from pytest_behaviortrace.outcome import sentence
from pytest_behaviortrace.session import GradingSession
from pytest_behaviortrace.verdict import ClaimFailed, Inconclusive, NotApplicable, Verdict

GRADING: pytest.StashKey[GradingSession] = pytest.StashKey()
"""Key of the session in `config.stash`; absent where nothing is graded."""

OWN_PACKAGE = Path(__file__).parent
FRAMES = 5
"""Frames of the estimator's own code shown below an error."""
OUTPUT_KEPT = 10_000
"""Characters of a row's captured output that are reported, the last ones: an estimator that prints drowns nothing."""


class CheckSuite(pytest.Collector):
    """Root of the shipped checks. Not a `pytest.Directory`: pytest loads every conftest.py above one of those."""

    @classmethod
    def of(cls, session: pytest.Session) -> CheckSuite:
        """The suite of a pytest session."""
        suite: CheckSuite = cls.from_parent(session, name=PREFIX, path=checks_dir(), nodeid=PREFIX)
        return suite

    def collect(self) -> Iterator[CheckModule]:
        """A node per check file, in the order of the rows: one for each block of many estimators."""
        grading = self.config.stash[GRADING]
        checks = {check.name: check for check in grading.checks}
        for name, specs in itertools.groupby(grading.specs.values(), key=lambda spec: spec.check):
            check = checks[name]
            module = CheckModule.from_parent(self, name=check.path.name, path=check.path, nodeid=check.id)
            module.check, module.specs = check, [spec for spec in specs if grading.wants(spec)]
            yield module


class CheckModule(pytest.Collector):
    """One check file. Not a `pytest.File`: --lf leaves out files that are not where their id says."""

    check: Check
    specs: Sequence[RowSpec]

    def collect(self) -> Iterator[CheckItem]:
        """Its rows, as far as they were asked for."""
        manager = self.config.pluginmanager
        self.add_marker(pytest.mark.behaviortrace)
        self.add_marker(pytest.mark.filterwarnings("default"))  # a library's warning decides no claim
        if manager.hasplugin("timeout"):
            self.add_marker(pytest.mark.timeout(0))  # the first row may wait for training
        if manager.hasplugin("rerunfailures"):
            self.add_marker(pytest.mark.flaky(reruns=0, condition=False))  # a verdict drawn again is none
        for spec in self.specs:
            # With an id of its own: pytest 9.2 tells parameters from names only when it parses an id, and --lf
            # compares ids in that form.
            item = CheckItem.from_parent(self, name=spec.name, nodeid=spec.id)
            item.check, item.spec = self.check, spec
            yield item


class CheckItem(pytest.Item):
    """One row: runs the check on its case and leaves the verdict and its numbers in `user_properties`."""

    check: Check
    spec: RowSpec
    exhibit: Exhibit | None = None
    """What the row shows, where someone wants it, until its report has it."""
    raised: BaseException | None = None
    """What the row ended with, until it has been reported."""

    def runtest(self) -> None:
        """Run the row, training first what is missing.

        Raises the outcome: `ClaimFailed`, `Inconclusive`, `NotApplicable`, or, for an error, whatever was raised.
        """
        from pytest_behaviortrace.console import training_display

        grading = self.config.stash[GRADING]
        self.user_properties.clear()
        self.exhibit = None
        ended = outcome.run(grading, self.check, self.spec, lambda: training_display(self.config))
        self.user_properties.extend(ended.properties.items())
        self.exhibit = outcome.shown(grading, self.spec, ended)
        error = ended.error
        try:
            if isinstance(error, Inconclusive) and grading.settings.fail_on == "inconclusive":
                raise ClaimFailed(str(error)) from None
            if error is not None and not isinstance(error, (Exception, Inconclusive, NotApplicable)):
                raise RuntimeError(f"{self.check.name} raised {sentence(error)}") from error
            if error is not None:
                raise error
        finally:
            del ended, error  # its frames hold the row's arrays

    def teardown(self) -> None:
        """Keep nothing of the row: pytest keeps the items of a session to its end."""
        outcome.let_go(self.raised)
        self.exhibit = self.raised = None

    def amend(self, report: pytest.TestReport, error: BaseException | None) -> None:
        """Let a report say what pytest cannot know: the reason of a skip, that a failure was expected, what is shown.

        The last is an attribute and no user property, which JUnit's report would print.
        """
        if report.when == "call":
            self.raised = error
            if self.exhibit:
                report.bt_exhibit = self.exhibit  # type: ignore[attr-defined]
        expected = dict(self.user_properties).get("bt_expected_failure")
        if report.skipped:
            report.longrepr = self.repr_skip()
        elif expected is not None and isinstance(error, ClaimFailed):
            report.outcome, report.wasxfail = "skipped", str(expected)  # what pytest itself makes of an xfail mark

    def reportinfo(self) -> tuple[os.PathLike[str] | str, int | None, str]:
        """File and line of the check, and the row's name."""
        return self.path, self.check.line - 1, self.name

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The row's sentence in place of a traceback through this plugin.

        Below it stand, once for each error, the frames that help: those of the estimator's own code, or all of them
        where a check itself broke. --tb=native and --full-trace show pytest's own rendering.
        """
        option = self.config.option
        if option.fulltrace or option.tbstyle in ("native", "long"):
            return super().repr_failure(excinfo)
        properties = dict(self.user_properties)
        head = f"{properties.get('bt_verdict', Verdict.ERROR.value)}: {self._on_trial}{sentence(excinfo.value)}"
        shown = excinfo.getrepr(style="value", chain=False)
        if shown.reprcrash is not None:
            shown.reprcrash.message = head
        details = self._details(excinfo.value)
        if not isinstance(excinfo.value, ClaimFailed):  # the lines below a failed claim are there to be copied
            details = [f"E   {line}" for line in details]
        shown.reprtraceback.reprentries[-1].lines = [f"E   {head}", *details]
        return shown

    def repr_skip(self) -> tuple[str, int, str]:
        """File, line and reason of an inconclusive or n/a row."""
        properties = dict(self.user_properties)
        return str(self.path), self.check.line, f"{properties['bt_verdict']}: {properties.get('bt_reason', '')}"

    @property
    def _on_trial(self) -> str:
        on = [self.spec.estimator, (self.spec.place or "").replace("seed", "seed ")]
        return ", ".join(part for part in on if part) + ": "

    def _details(self, error: BaseException) -> list[str]:
        """What there is to say beyond the sentence."""
        if isinstance(error, ClaimFailed):
            return str(error).splitlines()[1:]
        if not self.config.stash[GRADING].first_time(error):
            return []
        ours = type(error).__module__.startswith(f"{__package__}.")
        more = str(error).splitlines()[1:] if ours else []
        blamed = error.__cause__ if ours else error
        if blamed is None:
            return more
        frames = traceback.extract_tb(blamed.__traceback__)
        if ours:
            frames = traceback.StackSummary(
                f for f in frames if not (Path(f.filename).is_relative_to(OWN_PACKAGE) or f.filename.startswith("<"))
            )
        return more + "".join(traceback.format_list(frames[-FRAMES:])).splitlines()


def bounded(sections: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Captured output cut to its end, and a note of how much was left out."""
    return [
        (name, text if len(text) <= OUTPUT_KEPT else f"[{len(text) - OUTPUT_KEPT} characters]\n{text[-OUTPUT_KEPT:]}")
        for name, text in sections
    ]


def claim_arguments(config: pytest.Config, grading: GradingSession, *, typed: bool) -> None:
    """Take the shipped checks named on the command line out of `config.args`, and settle which tests run.

    Without a path, an estimator `typed` on the command line runs the checks only. One from an ini file or addopts
    runs the user's tests too: a configuration file must never hide them.
    Raises `pytest.UsageError` for an id that no shipped check has.
    """
    if config.args_source is config.ArgsSource.ARGS:
        where = scope.Where(config.invocation_params.dir, config.rootpath, checks_dir())
        mine, theirs = scope.split(config.args, where)
        if mine:
            try:
                grading.selected = scope.select(mine, grading.specs)
            except LookupError as error:
                raise pytest.UsageError(
                    f"{error.args[0]} is no row of the shipped checks under these options; "
                    f"--collect-only -q lists them all"
                ) from None
            config.args[:] = theirs
    elif typed:
        config.args[:] = []
        config.args_source = config.ArgsSource.ARGS  # or the header would say that testpaths was used
    grading.own_tests = bool(config.args)
