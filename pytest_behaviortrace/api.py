"""Grading from Python: the rows, numbers and verdicts of `pytest --bt-estimator`, as a `Scorecard`."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_behaviortrace import outcome
from pytest_behaviortrace.asked import Asked, named
from pytest_behaviortrace.run.progress import Display, display_for

if TYPE_CHECKING:
    from pytest_behaviortrace.checklist import RowSpec
    from pytest_behaviortrace.estimator import Estimator
    from pytest_behaviortrace.scorecard import Scorecard
    from pytest_behaviortrace.session import GradingSession


def grade(
    estimator: str | Estimator | Mapping[str, str | Estimator] | Sequence[str | Estimator],
    *,
    name: str | None = None,
    recipe: str | os.PathLike[str] = "tiny",
    seeds: int = 3,
    draws: int = 2,
    plant: str | None = None,
    run: str | os.PathLike[str] | None = None,
    behavior: str | None = None,
    checks: Sequence[str] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
    isolate: bool = False,
    exhibits: bool = False,
    expected_failures: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Scorecard:
    """Grade an estimator, or several, with the shipped checks; what `pytest --bt-estimator` says, without pytest.

    `estimator`: a callable, a name (registered by an installed package, or `package.module:name`), a list of those, or
    a dict of name -> estimator; `name` is what a single one is called in the rows (default: its own name). A class or
    a function without arguments makes the estimator, as where one is registered.
    `recipe`, `seeds` (how many), `draws` (of each seed), `plant`: the planted runs, trained where they are not in the
    cache yet (minutes), with the progress shown on standard error unless `progress` is false.
    `run`, `behavior`: a recorded run of your own to grade on in their place, and the regular expression asked about.
    `checks`: names of checks (`["fluency_control"]`) or ids of rows; default: all.
    `cache_dir`: where runs are kept (default: $BEHAVIORTRACE_CACHE, or the user cache). `timeout`: seconds a call of
    the estimator may take. `isolate`: call it in processes of its own. `exhibits`: keep what reports with pictures
    show.
    `expected_failures`: which estimator is expected to fail which check, and why, such as `{"gas": {"lookalikes": "no
    credit in a cosine"}}`, or the path of a TOML file of that form. Verdicts stay; rows say `expected_failure`, and the
    scorecard names the failures that did not happen.

    The `Scorecard` holds one `Row` for each claim, seed and draw: `card.rows` (or iterate over it), `card.of(name)`,
    `card.checklist_verdict(name)`; `print(card)` is the report of a terminal, `card.text(verbose=True)` that of
    `pytest -v`, with every row that did not pass; a notebook shows a table, and `card.save("card.html")` writes the
    reports of --bt-report.

    An estimator that breaks gives rows that say `error`, as under pytest. Raises `ValueError` or `TypeError` for bad
    arguments, `WrongVersions` where a library is out of range, and what training raised (`TrainingFailed`,
    `CacheError`) where it failed.
    """
    asked = Asked(
        named(estimator, name),
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
        exhibits=exhibits,
        expected_failures=expected_failures,
    )
    grading = asked.opened()
    with as_they_come():
        for spec in asked.specs().values():
            take_in(grading, spec, progress=progress)
    return grading.scorecard()


def take_in(grading: GradingSession, spec: RowSpec, *, progress: bool) -> outcome.Ended:
    """Run a row and record how it ended. Raises what training raised."""
    check = next(check for check in grading.checks if check.name == spec.check)
    ended = outcome.run(grading, check, spec, lambda: _display(progress))
    exhibit = outcome.shown(grading, spec, ended)
    if (broken := grading.broken) is not None:
        raise broken
    grading.record(spec.id, ended.properties, exhibit)
    outcome.let_go(ended.error)
    return ended


@contextlib.contextmanager
def as_they_come() -> Iterator[None]:
    """A library's warning decides no claim, whatever filters make errors of warnings; each is shown once."""
    seen, show = set(), warnings.showwarning

    def first(message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None) -> None:
        if (key := (str(message), category, filename, lineno)) not in seen:
            seen.add(key)
            show(message, category, filename, lineno, file, line)

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = first
        yield


@contextlib.contextmanager
def _display(progress: bool) -> Iterator[Display]:
    yield display_for(sys.stderr if progress else None)


__all__ = ["grade"]
