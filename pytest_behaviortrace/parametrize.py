"""The shipped checks as tests of a user's own test file: one test per row, run by pytest like any other."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from pytest_behaviortrace.asked import Asked, named
from pytest_behaviortrace.checklist import RowSpec

if TYPE_CHECKING:
    from pytest_behaviortrace.estimator import Estimator
    from pytest_behaviortrace.run.progress import Display
    from pytest_behaviortrace.session import GradingSession

ARGUMENT = "row"
"""Name of the argument through which a test gets its row."""
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
) -> Callable[[_Test], _Test]:
    """Decorator: one test per row of the scorecard, run without --bt-estimator.

        @parametrize_with_checks(["mymethod", mypackage.othermethod])
        def test_attribution(row):
            row()

    Ids are `check-estimator-seed-draw`, such as `fluency_control-mymethod-seed0-draw1`. A row that fails (or whose
    estimator breaks) fails its test; one that is inconclusive or n/a skips it, with the reason. Rows of the run itself
    (headroom) have no estimator in their id. What is missing in the cache is trained when the first row runs, once,
    also under xdist. Arguments are those of `grade`; names may also be those that a conftest hook registers.

    Raises `ValueError` or `TypeError` for bad arguments, and for a test without the argument `row`.
    """
    suite = Suite(
        Asked(
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
        )
    )
    rows = [pytest.param(CheckRow(suite, spec), id=id_of(spec)) for spec in suite.asked.specs().values()]

    def decorate(test: _Test) -> _Test:
        if ARGUMENT not in inspect.signature(test).parameters:
            name = getattr(test, "__name__", repr(test))
            raise TypeError(f"{name} has no argument {ARGUMENT!r}; write def {name}({ARGUMENT}): {ARGUMENT}()")
        marked: _Test = pytest.mark.parametrize(ARGUMENT, rows)(pytest.mark.usefixtures(FIXTURE)(test))
        return marked

    return decorate


def id_of(spec: RowSpec) -> str:
    """For example `fluency_control-mymethod-seed0-draw1`."""
    check, _, rest = spec.name.partition("[")
    return f"{check.removeprefix('test_')}-{rest.removesuffix(']')}"


@dataclass(eq=False)
class Suite:
    """What the rows of one decorated test share: opened by the first of them that runs."""

    asked: Asked
    config: pytest.Config | None = None
    _grading: GradingSession | BaseException | None = field(default=None, repr=False)

    def grading(self) -> GradingSession:
        """The session. Raises what opening it raised, in every row, after one attempt only."""
        if self._grading is None:
            try:
                self._grading = self.asked.opened(self._registry())
            except Exception as error:
                self._grading = error
        if isinstance(self._grading, BaseException):
            raise self._grading
        return self._grading

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

        Raises `ClaimFailed` on fail, an outcome that pytest takes for a skip on inconclusive and n/a, and on an error
        what was raised.
        """
        __tracebackhide__ = True
        from pytest_behaviortrace import outcome
        from pytest_behaviortrace.api import as_they_come

        grading = self.suite.grading()
        check = next(check for check in grading.checks if check.name == self.spec.check)
        with as_they_come():
            ended = outcome.run(grading, check, self.spec, self.suite.showing)
        if ended.error is None:
            return
        if isinstance(ended.error, pytest.skip.Exception) and ended.verdict.value in ("inconclusive", "n/a"):
            pytest.skip(f"{ended.verdict.value}: {ended.reason}")
        ours = type(ended.error).__module__.startswith("pytest_behaviortrace.")
        raise ended.error.with_traceback(None if ours else ended.error.__traceback__)  # what helps is in the sentence
