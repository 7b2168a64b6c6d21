"""What was asked for on the command line, in the environment and the ini file -> one frozen `Settings`."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from pytest_behaviortrace import bounds, expected, time_limit
from pytest_behaviortrace.options import (
    CACHE_VARIABLE,
    DRAWS,
    EXPECTED_FAILURES,
    FAIL_ON,
    FLAGS,
    PLANTED_ONLY,
    RECIPE,
    SEEDS,
    asked,
    typed,
)
from pytest_behaviortrace.registry import Registry, RegistryError
from pytest_behaviortrace.reports import files
from pytest_behaviortrace.run.cache import default_cache_dir
from pytest_behaviortrace.run.recipe import Recipe
from pytest_behaviortrace.snapshot import AskedBaseline

if TYPE_CHECKING:
    from pytest_behaviortrace.run.recorded import AskedRun


@dataclass(frozen=True)
class Settings:
    """What was asked for, checked."""

    estimators: tuple[str, ...]
    seeds: tuple[int, ...]
    draws: int
    recipe: Recipe
    plant: str
    cache_dir: Path
    reports: tuple[Path, ...]
    """Files to write, their formats by suffix."""
    fail_on: str
    estimator_timeout: float | None
    """Seconds."""
    recorded: AskedRun | None
    """The run to grade on in place of planted ones."""
    isolate: bool
    """Whether estimators are called in processes of their own."""
    typed: tuple[str, ...]
    """Flags typed on the command line that a command to rerun a row must repeat."""
    baseline: AskedBaseline | None = None
    exhibits: bool = False
    """Whether a report shows pictures, so that rows must carry what is drawn."""


def resolve(config: pytest.Config, registry: Registry) -> Settings:
    """Read and check everything. Raises `pytest.UsageError`: what is wrong, where it was said, what to do."""
    reader = _Reader(config)
    names = asked(config)
    try:
        for name in names:
            registry.find(name)
    except RegistryError as error:
        raise pytest.UsageError(str(error)) from None
    draws, cache_dir = reader.count("bt_draws", DRAWS, bounds.MOST_DRAWS), reader.cache_dir()
    recorded = reader.recorded(cache_dir)
    if recorded is not None:
        seeds: tuple[int, ...] = (0,)  # the run's number
        recipe = Recipe.load(RECIPE)
        plant = recipe.plants[0].name
    else:
        seeds = tuple(range(reader.count("bt_seeds", SEEDS, bounds.MOST_SEEDS)))
        recipe = reader.recipe()
        plant = reader.plant(recipe)
    reports, baseline = reader.reports(), reader.baseline()
    if baseline is not None and any(_same_file(path, baseline.path) for path in reports):
        raise pytest.UsageError(
            f"--bt-report: {baseline.given!r} is the baseline; a session that replaced it would hide what got worse, "
            f"so write to another path"
        )
    fail_on = reader.choice("bt_fail_on", FAIL_ON)
    if fail_on == "regression" and baseline is None:
        raise pytest.UsageError(
            "bt_fail_on: 'regression' needs something to compare with; name an earlier JSON report with --bt-baseline"
        )
    return Settings(
        names,
        seeds,
        draws,
        recipe,
        plant,
        cache_dir,
        reports,
        fail_on,
        reader.seconds("bt_estimator_timeout"),
        recorded,
        reader.switch("bt_isolate"),
        tuple(a for a in typed(config) if not a.startswith(("--bt-estimator=", "--bt-report", "--bt-list"))),
        baseline,
        files.wants_exhibits(reports),
    )


def expected_failures(
    config: pytest.Config, registry: Registry, chosen: Settings, checks: Mapping[str, bool]
) -> expected.ExpectedFailures:
    """What the file named by bt_expected_failures says, checked; `checks`: those with an estimator on trial are true.

    It speaks of planted runs: on a recorded one no failure is expected.
    Raises `pytest.UsageError`.
    """
    reader = _Reader(config)
    if (value := reader.ini(EXPECTED_FAILURES)) is None:
        return expected.ExpectedFailures()
    path, names = reader.ini_folder / Path(value).expanduser(), {entry.name for entry in registry.entries()}
    try:
        entries = expected.load(path, value, checks, names.union(chosen.estimators))
    except expected.ExpectedFailuresError as error:
        raise pytest.UsageError(f"{EXPECTED_FAILURES}: {error}") from None
    if chosen.recorded is not None or config.getoption("runxfail", False):  # pytest's own flag
        return expected.ExpectedFailures()
    return expected.ExpectedFailures(entries, {"fail", chosen.fail_on})


class _Reader:
    """Takes values from the command line, else from the ini file, and remembers where each came from."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def ini(self, name: str) -> str | None:
        """A value of the ini file; None where it says nothing."""
        return str(self._config.getini(name)).strip() or None

    @property
    def ini_folder(self) -> Path:
        """The folder that paths in the ini file are relative to."""
        return self._config.inipath.parent if self._config.inipath else self._config.rootpath

    def _value(self, name: str) -> tuple[str | None, str, Path]:
        """The value, where it was said, and the folder its paths are relative to."""
        flag, config = "--" + name.replace("_", "-"), self._config
        value = config.getoption(name)
        if value is not None:
            return value, flag, config.invocation_params.dir
        if any(name == ini for _, ini, *_ in FLAGS) and (value := self.ini(name)) is not None:
            return value, f"{name} in {config.inipath}", self.ini_folder
        return None, flag, config.invocation_params.dir

    def _wrong(self, value: Any, where: str, remedy: str) -> NoReturn:
        raise pytest.UsageError(f"{where}: {value!r:.200} {remedy}")

    def count(self, name: str, default: int, most: int) -> int:
        """A whole number of at least 1 and at most `most`."""
        value, where, _ = self._value(name)
        if value is None:
            return default
        if not (number := bounds.number(value, most)):
            self._wrong(value, where, "is not a number of at least 1; give how many, such as 3")
        if number > most:
            self._wrong(value, where, f"is more than {most:,}; give fewer")
        return number

    def seconds(self, name: str) -> float | None:
        """A positive number of seconds."""
        value, where, _ = self._value(name)
        if value is None:
            return None
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if (fault := time_limit.fault(number)) is not None:
            self._wrong(value, where, fault)
        return number

    def switch(self, name: str) -> bool:
        """A flag without a value, or its twin in the ini file."""
        try:
            return bool(self._config.getoption(name) or self._config.getini(name))
        except (ValueError, pytest.UsageError):
            raise pytest.UsageError(f"{name} in {self._config.inipath}: write true or false") from None

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """One of `choices`; by default the first."""
        value, where, _ = self._value(name)
        if value is not None and value not in choices:
            self._wrong(value, where, f"is not known; choose {' or '.join(choices)}")
        return value or choices[0]

    def recipe(self) -> Recipe:
        """A recipe that may be graded."""
        value, where, folder = self._value("bt_recipe")
        name = value or RECIPE
        try:
            recipe = Recipe.load(str(folder / name) if name.endswith(".toml") else name)
        except ValueError as error:
            raise pytest.UsageError(f"{where}: {error}") from None
        if not recipe.gradable:
            self._wrong(name, where, "only tests the machinery (gradable = false); choose a recipe that can be graded")
        return recipe

    def recorded(self, cache_dir: Path) -> AskedRun | None:
        """The user's own run and what is asked about it; None where planted runs are graded."""
        value, where, folder = self._value("bt_run")
        behavior, asked_where, _ = self._value("bt_behavior")
        if value is None and behavior is None:
            return None
        if value is None:
            raise pytest.UsageError(f"{asked_where} is about a recorded run; name it with --bt-run=PATH")
        if behavior is None:
            raise pytest.UsageError(f"{where} needs to know what to look for: give --bt-behavior=REGEX")
        for name in PLANTED_ONLY:
            other, other_where, _ = self._value(name)
            # What the ini file says of planted runs does not matter to a run named on the command line.
            if other is not None and (other_where.startswith("--") or not where.startswith("--")):
                raise pytest.UsageError(f"{other_where} is about planted runs and {where} names another; leave one out")
        from pytest_behaviortrace.run.recorded import AskedRun, RecordedRunError, open_run

        said = where
        try:
            run = open_run(folder / Path(value).expanduser())
            said = asked_where
            found = AskedRun(value, run, run.ask(behavior))
            said = f"--bt-cache-dir or {CACHE_VARIABLE}"
            found.require_outside(cache_dir)
        except RecordedRunError as error:
            raise pytest.UsageError(f"{said}: {error}") from None
        return found

    def plant(self, recipe: Recipe) -> str:
        """One of the recipe's plants; by default the first."""
        value, where, _ = self._value("bt_plant")
        try:
            return recipe.plant(value).name if value is not None else recipe.plants[0].name
        except ValueError as error:
            raise pytest.UsageError(f"{where}: {error}") from None

    def cache_dir(self) -> Path:
        """Command line, else environment, else ini file, else the user's cache folder."""
        value, where, folder = self._value("bt_cache_dir")
        if value is None or (where != "--bt-cache-dir" and os.environ.get(CACHE_VARIABLE)):
            return default_cache_dir()
        return folder / Path(value).expanduser()

    def reports(self) -> tuple[Path, ...]:
        """Where the reports go, each a file in a folder that can be written."""
        found: list[Path] = []
        where = "--bt-report"
        for value in self._config.getoption("bt_report") or ():
            path = self._config.invocation_params.dir / Path(value).expanduser()
            if path.suffix.lower() not in files.FORMATS:
                self._wrong(value, where, f"does not say in which format; end it in {' or '.join(files.FORMATS)}")
            if path.is_dir():
                self._wrong(value, where, "is a folder; give the path of a file")
            if any(_same_file(path, other) for other in found):
                self._wrong(value, where, "is asked for twice; leave one out")
            if (problem := unwritable(path.parent)) is not None:
                self._wrong(value, where, f"cannot be written ({problem}); choose another path")
            found.append(path)
        return tuple(found)

    def baseline(self) -> AskedBaseline | None:
        """The report to compare with; an empty value on the command line means none."""
        value, where, folder = self._value("bt_baseline")
        return AskedBaseline(folder / Path(value).expanduser(), value, where) if value else None


def _same_file(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def unwritable(folder: Path) -> str | None:
    """Why files could not be written in a folder (or where it would be created); None if they can. Leaves no trace."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return f"{folder}: {error.strerror or error}"
