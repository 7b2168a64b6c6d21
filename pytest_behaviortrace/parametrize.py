"""The shipped checks as tests of a user's own test file: one test per row, run by pytest like any other."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import pytest

from pytest_behaviortrace.asked import Asked, named
from pytest_behaviortrace.checklist import RowSpec
from pytest_behaviortrace.decorated import (
    ARGUMENT,
    in_a_sentence,
    place_of_caller,
    require_brackets,
    require_parametrized,
    require_test,
)
from pytest_behaviortrace.expected import ExpectedFailures

if TYPE_CHECKING:
    from pytest_behaviortrace.estimator import Estimator
    from pytest_behaviortrace.run.progress import Display
    from pytest_behaviortrace.session import GradingSession
    from pytest_behaviortrace.verdict import Verdict

FIXTURE = "_behaviortrace_row"
"""The plugin's fixture that tells a row which pytest it runs under."""

_Test = TypeVar("_Test", bound=Callable[..., Any])


def parametrize_with_checks(
    estimators: str | Estimator | Mapping[str, str | Estimator] | Sequence[str | Estimator],
    *,
    seeds: int = 3,
    draws: int = 2,
    checks: Sequence[str] | None = None,
    recipe: str | os.PathLike[str] = "tiny",
    plant: str | None = None,
    run: str | os.PathLike[str] | None = None,
    behavior: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
    isolate: bool = False,
    expected_failures: Mapping[str, Any] | str | os.PathLike[str] | None = None,
) -> Callable[[_Test], _Test]:
    """Decorator: one test per row of the scorecard, run without --bt-estimator.

        @parametrize_with_checks(["mymethod", mypackage.othermethod])
        def test_attribution(row):
            row()

    Ids are `check-estimator-seed-draw`, such as `fluency_control-mymethod-seed0-draw1`. A row that fails (or whose
    estimator breaks) fails its test; one that is inconclusive or n/a skips it, with the reason. A test that would pass
    without having called its row fails. Rows of the run itself (headroom) have no estimator in their id. What is
    missing in the cache is trained when the first row runs, once, also under xdist. Arguments are those of `grade`;
    names may also be those that a conftest hook registers.

    `expected_failures`: `{"mymethod": {"lookalikes": "why"}}`, or a TOML file of that form; by default the file that
    `bt_expected_failures` in pytest's ini file names. Such rows are xfailed; if none of a check's rows fails although
    all ran and some passed, the session fails, as it does in a session with --bt-estimator.

    Raises `CannotParametrize`, a `ValueError` and `TypeError` of which pytest shows one sentence while it collects,
    for bad arguments, and for anything but a function or a method of a plain class with the argument `row`. What only
    a running pytest can know (an estimator's name, a cache that cannot be written) fails the rows in one sentence.
    """
    place = place_of_caller(1)
    with in_a_sentence(place):
        require_brackets(estimators)
        asked = Asked(
            named(estimators),
            seeds=seeds,
            draws=draws,
            recipe=recipe,
            plant=plant,
            run=run,
            behavior=behavior,
            checks=checks,
            cache_dir=cache_dir,
            timeout=timeout,
            isolate=isolate,
            expected_failures=expected_failures,
        )
        asked.planted()
    suite = Suite(asked)
    rows = [pytest.param(CheckRow(suite, spec), id=id_of(spec)) for spec in asked.specs().values()]

    def decorate(test: _Test) -> _Test:
        with in_a_sentence(place):
            require_test(test)
        marked: _Test = pytest.mark.parametrize(ARGUMENT, rows)(pytest.mark.usefixtures(FIXTURE)(test))
        return marked

    return decorate


def introduce(request: pytest.FixtureRequest) -> None:
    """Tell the row of a test which pytest it runs under, and in which test."""
    require_parametrized(request.node)
    suite = request.getfixturevalue(ARGUMENT).suite
    suite.config = request.config
    suite.test = f"{request.node.parent.nodeid}::{request.node.originalname}"
    suite.called = False
    if not request.config.pluginmanager.has_plugin(MustCall.NAME):
        request.config.pluginmanager.register(MustCall(), MustCall.NAME)


class MustCall:
    """The hook of a session that has such rows: a test that never calls its row has graded nothing, and fails."""

    NAME = "behaviortrace-must-call"

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> Generator[None, object, object]:
        """A test that ended otherwise (failed, skipped) has said why, and is left alone."""
        result = yield
        callspec = getattr(pyfuncitem, "callspec", None)
        row = None if callspec is None else callspec.params.get(ARGUMENT)
        if isinstance(row, CheckRow) and not row.suite.called:
            pytest.fail(f"{pyfuncitem.originalname} never called {ARGUMENT}(), so nothing was graded", pytrace=False)
        return result


def id_of(spec: RowSpec) -> str:
    """For example `fluency_control-mymethod-seed0-draw1`."""
    check, _, rest = spec.name.partition("[")
    return f"{check.removeprefix('test_')}-{rest.removesuffix(']')}"


@dataclass(eq=False)
class Suite:
    """What the rows of one decorated test share: opened by the first of them that runs."""

    asked: Asked
    config: pytest.Config | None = None
    test: str = ""
    """Id of the test whose row is running, without its row."""
    called: bool = False
    """Whether that row was called."""
    _grading: GradingSession | Exception | None = field(default=None, repr=False)

    def grading(self) -> GradingSession | Exception:
        """The session, or what opening it raised: the same in every row, after one attempt only."""
        if self._grading is None:
            try:
                self._grading = self._opened()
            except Exception as error:
                self._grading = error
        return self._grading

    def _opened(self) -> GradingSession:
        grading, config = self.asked.opened(self._registry()), self.config
        if config is not None and self.asked.run is None:
            from pytest_behaviortrace import expected_rows

            given = self.asked.expected_failures
            entries = expected_rows.of_the_ini(config) if given is None else self.asked.expected()
            grading.expected_failures = ExpectedFailures([] if config.getoption("runxfail", False) else entries)
        return grading

    def ended(self, grading: GradingSession, spec: RowSpec, verdict: Verdict) -> None:
        """Remember how a row ended, where some are expected to fail."""
        if self.config is not None and grading.expected_failures:
            from pytest_behaviortrace import expected_rows

            entries, every = grading.expected_failures.entries, grading.specs.values()
            kept = expected_rows.tally(self.config, self.test, entries, every)
            if spec.id in kept:
                kept[spec.id][2] = verdict.value

    def _registry(self) -> Any:
        """With what conftest hooks register, where the plugin told which pytest this is."""
        if self.config is None:
            return None
        from pytest_behaviortrace.activation import registry

        return registry(self.config)

    def showing(self) -> AbstractContextManager[Display]:
        """Opens the display of the training that a row waits for."""
        from contextlib import nullcontext

        from pytest_behaviortrace.console import training_display
        from pytest_behaviortrace.run.progress import Silent

        return nullcontext(Silent()) if self.config is None else training_display(self.config)


@dataclass(frozen=True, eq=False)
class CheckRow:
    """One row of the scorecard, as the argument of a test."""

    suite: Suite = field(repr=False)
    spec: RowSpec

    def __call__(self) -> None:
        """Run the row: returns on pass.

        Raises `ClaimFailed` on fail, an outcome that pytest takes for a skip on inconclusive and n/a, one that it takes
        for an xfail on a fail that was expected, and on an error what was raised.
        """
        __tracebackhide__ = True
        from pytest_behaviortrace import outcome
        from pytest_behaviortrace.api import as_they_come
        from pytest_behaviortrace.verdict import ClaimFailed

        self.suite.called = True
        grading = self.suite.grading()
        if isinstance(grading, Exception):
            _refuse(grading)
        check = next(check for check in grading.checks if check.name == self.spec.check)
        with as_they_come():
            ended = outcome.run(grading, check, self.spec, self.suite.showing)
        self.suite.ended(grading, self.spec, ended.verdict)
        error = ended.error
        if error is None:
            return
        if ended.expected_failure is not None and isinstance(error, ClaimFailed):
            pytest.xfail(ended.expected_failure)
        if isinstance(error, pytest.skip.Exception) and ended.verdict.value in ("inconclusive", "n/a"):
            pytest.skip(f"{ended.verdict.value}: {ended.reason}")
        if error is grading.broken:
            _refuse(error)
        ours = type(error).__module__.startswith("pytest_behaviortrace.")
        raise error.with_traceback(None if ours else error.__traceback__)  # what helps is in the sentence


def _refuse(error: BaseException) -> NoReturn:
    """Fail a row with the sentence of what kept it from running; what is no such sentence is raised as it is."""
    __tracebackhide__ = True
    ours = type(error).__module__.startswith("pytest_behaviortrace.")
    if not (ours or isinstance(error, (ValueError, TypeError, pytest.UsageError))):
        raise error
    text = str(error).splitlines() or [type(error).__name__]
    pytest.fail("\n".join(text) if ours else text[0], pytrace=False)
