"""What was asked for in Python (`grade`, `parametrize_with_checks`, `dump`) -> an open `GradingSession`, as pytest's.

Bad arguments raise `ValueError` or `TypeError` with one sentence, before anything is trained.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_behaviortrace import bounds, checklist, time_limit
from pytest_behaviortrace.attributes import Unreadable, attribute, require_readable
from pytest_behaviortrace.expected import ExpectedFailure, ExpectedFailures, ExpectedFailuresError, entries_of, load
from pytest_behaviortrace.options import DRAWS, RECIPE, SEEDS
from pytest_behaviortrace.registry import Registered, Registry, RegistryError, made, require_fit
from pytest_behaviortrace.wording import require_no_nul

if TYPE_CHECKING:
    from pytest_behaviortrace.estimator import Estimator
    from pytest_behaviortrace.run.recipe import Recipe
    from pytest_behaviortrace.run.recorded import AskedRun
    from pytest_behaviortrace.session import GradingSession
    from pytest_behaviortrace.settings import Settings

Named = Mapping[str, Any]
"""Name -> a callable, or a name that the registry knows or can import."""


@dataclass(frozen=True)
class Asked:
    """The arguments that say what is graded on what; the flags of the same names (--bt-seeds, ...) say the same."""

    estimators: Named
    seeds: int = SEEDS
    draws: int = DRAWS
    recipe: str | os.PathLike[str] = RECIPE
    plant: str | None = None
    run: str | os.PathLike[str] | None = None
    behavior: str | None = None
    checks: Sequence[str] | None = None
    """Names of checks, with or without test_, or ids of rows; None: all."""
    cache_dir: str | os.PathLike[str] | None = None
    timeout: float | None = None
    isolate: bool = False
    exhibits: bool = False
    expected_failures: Mapping[str, Any] | str | os.PathLike[str] | None = None
    """Estimator -> check -> reason, or a TOML file of that form; None: none is expected."""

    def __post_init__(self) -> None:
        """Check what can be checked without reading a recipe or a run."""
        for name in ("seeds", "draws"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name}={value!r} is not a whole number; give how many, such as 3")
            if value < 1:
                raise ValueError(f"{name}={value!r} is not a number of at least 1; give how many, such as 3")
        for name in ("isolate", "exhibits"):
            if not isinstance(value := getattr(self, name), bool):
                raise TypeError(f"{name}={value!r:.80} is neither True nor False; give one of them")
        object.__setattr__(self, "timeout", time_limit.seconds(self.timeout, "timeout"))
        if isinstance(self.checks, str):
            raise TypeError(f"checks={self.checks!r} is one text; give a list, such as [{self.checks!r}]")
        if self.checks is not None:
            try:
                object.__setattr__(self, "checks", tuple(self.checks))  # an iterator would be read once only
            except TypeError:
                raise TypeError(f"checks={self.checks!r} is no list of names, such as ['lookalikes']") from None
            if not self.checks or not all(isinstance(name, str) for name in self.checks):
                raise ValueError(f"checks={list(self.checks)!r} names no check; give names, such as ['lookalikes']")
        for name in ("recipe", "run", "cache_dir"):
            path = getattr(self, name)
            if path is not None and not isinstance(path, str | os.PathLike):
                raise TypeError(f"{name}={path!r} is no path")
            require_no_nul(path, name)
        self._require_place_for_runs()
        self._require_one_kind_of_run()
        rows = checklist.count(checklist.declared(), len(self.estimators), self.seeds, self.draws)
        if (excess := bounds.too_much(self.seeds, self.draws, rows)) is not None:
            raise ValueError(f"seeds, draws, estimators: {excess}; ask for fewer")
        self.specs()
        self.expected()

    def _require_place_for_runs(self) -> None:
        """Whether it can be written is seen when it is: it may be a folder of runs that are all there."""
        if not self.cache_dir:  # empty: as on the command line, the default
            return
        where = f"cache_dir={os.fspath(self.cache_dir)!r}"
        try:
            place = Path(self.cache_dir).expanduser()
            nearest = next(folder for folder in (place, *place.parents) if folder.exists())
        except (OSError, RuntimeError) as error:
            raise ValueError(f"{where} cannot be used ({error}); give a folder") from None
        if not nearest.is_dir():
            raise ValueError(f"{where}: {nearest} is no folder; give one")

    def _require_one_kind_of_run(self) -> None:
        if self.run is None and self.behavior is not None:
            raise ValueError("behavior is about a recorded run; name that with run=PATH")
        if self.run is None:
            return
        if self.behavior is None:
            raise ValueError("run needs to know what to look for: give behavior=REGEX")
        planted = {"recipe": self.recipe != RECIPE, "seeds": self.seeds != SEEDS, "plant": self.plant is not None}
        planted["expected_failures"] = self.expected_failures is not None
        for name in (name for name, given in planted.items() if given):
            raise ValueError(f"{name} is about planted runs and run names another; leave one out")

    def specs(self) -> dict[str, checklist.RowSpec]:
        """The rows that were asked for, by id, in the order in which they run. Imports neither numpy nor torch."""
        numbers = range(self.seeds) if self.run is None else (0,)
        every = checklist.planned(
            checklist.declared(), tuple(self.estimators), numbers, self.draws, recorded=self.run is not None
        )
        if self.checks is None:
            return every
        from pytest_behaviortrace.scope import select

        try:
            chosen = select([_id(name) for name in self.checks], every)
        except LookupError as error:
            known = ", ".join(check.name.removeprefix("test_") for check in checklist.declared())
            wrong = str(error.args[0]).removeprefix(f"{checklist.PREFIX}/test_").removesuffix(".py")
            raise ValueError(
                f"checks: {wrong!r} is neither a check nor a row of one under these arguments; checks: {known}"
            ) from None
        return {id: spec for id, spec in every.items() if id in chosen}

    def expected(self) -> list[ExpectedFailure]:
        """The failures that are expected. Raises `ExpectedFailuresError` (a `ValueError`) or `TypeError`."""
        given = self.expected_failures
        if given is None:
            return []
        if isinstance(given, Mapping):
            return entries_of(given, "expected_failures", checklist.on_trial(), self.estimators, unit="entry")
        if not isinstance(given, str | os.PathLike):
            raise TypeError(
                f"expected_failures={given!r:.80} is neither a path nor a dict, such as "
                f"{{'gas': {{'lookalikes': 'why'}}}}"
            )
        require_no_nul(given, "expected_failures")
        path = Path(given).expanduser()
        try:
            return load(path, os.fspath(given), checklist.on_trial(), None)  # a file may speak of others too
        except ExpectedFailuresError as error:
            raise ExpectedFailuresError(f"expected_failures: {error}") from None

    def opened(self, registry: Registry | None = None) -> GradingSession:
        """The session, with every estimator imported and checked; nothing is trained yet.

        Raises `ValueError` (an unknown or unusable estimator, recipe, plant, run) and `WrongVersions`.
        """
        from pytest_behaviortrace.installed import require_versions
        from pytest_behaviortrace.session import GradingSession

        require_versions()
        chosen = self._settings()
        known = registry or Registry(folder=Path.cwd())
        found = {name: self._estimator(name, target, known) for name, target in self.estimators.items()}
        grading = GradingSession(chosen, checklist.declared(), found, ExpectedFailures(self.expected()))
        if self.checks is not None:
            grading.selected = frozenset(self.specs())
        grading.will_run(self.specs().values())
        return grading

    def _settings(self) -> Settings:
        from pytest_behaviortrace.run.cache import default_cache_dir
        from pytest_behaviortrace.settings import Settings

        given = self.cache_dir if self.cache_dir is None else os.fspath(self.cache_dir)
        cache_dir = Path(given).expanduser() if given else default_cache_dir()  # empty: as on the command line
        recorded, (recipe, plant) = self._recorded(cache_dir), self.planted()
        return Settings(
            estimators=tuple(self.estimators),
            seeds=tuple(range(self.seeds)) if recorded is None else (0,),
            draws=self.draws,
            recipe=recipe,
            plant=plant,
            cache_dir=cache_dir,
            reports=(),
            fail_on="fail",
            estimator_timeout=self.timeout,
            recorded=recorded,
            isolate=self.isolate,
            typed=(),
            exhibits=self.exhibits,
        )

    def planted(self) -> tuple[Recipe, str]:
        """The recipe, and the plant of it that is graded. Raises `ValueError`."""
        from pytest_behaviortrace.run.recipe import Recipe

        recipe = Recipe.load(os.fspath(self.recipe))
        if not recipe.gradable:
            raise ValueError(
                f"recipe={self.recipe!r} only tests the machinery (gradable = false); choose one that can be graded"
            )
        return recipe, recipe.plants[0].name if self.plant is None else recipe.plant(self.plant).name

    def _recorded(self, cache_dir: Path) -> AskedRun | None:
        if self.run is None or self.behavior is None:
            return None
        from pytest_behaviortrace.run.recorded import AskedRun, open_run

        run = open_run(Path(self.run).expanduser())
        found = AskedRun(os.fspath(self.run), run, run.ask(self.behavior))
        found.require_outside(cache_dir)
        return found

    def _estimator(self, name: str, target: Any, known: Registry) -> Estimator:
        from pytest_behaviortrace.estimator import EstimatorError, claims_of, needs_of

        entry = known.find(target) if isinstance(target, str) else Registered(name, "given as an object", target)
        if self.isolate:
            from pytest_behaviortrace.isolation import isolate

            estimator: Estimator = isolate(entry, Path.cwd(), self.timeout)
        else:
            estimator = known.load(target) if isinstance(target, str) else made(entry)
        try:
            needs_of(estimator)
            claims_of(estimator)
        except EstimatorError as error:
            raise RegistryError(f"estimator {name!r}: {error}") from None
        return estimator


def named(estimators: Any, name: str | None = None) -> dict[str, Any]:
    """Estimators by name: from a mapping, a list of names and callables, or a single one, which `name` may name.

    Raises `TypeError` for what is no estimator, `ValueError` for a name that is empty or taken twice, or an object that
    raises where it is asked its name.
    """
    _require_readable(estimators)
    if isinstance(estimators, Mapping):
        pairs: Iterable[tuple[Any, Any]] = estimators.items()
    elif isinstance(estimators, str) or callable(estimators):
        pairs = [(_name_of(estimators) if name is None else name, estimators)]
        name = None
    elif isinstance(estimators, Iterable):
        pairs = [(_name_of(one), one) for one in estimators]
    else:
        raise TypeError(f"{estimators!r:.80} is no estimator: give a callable, a registered name, or a dict of them")
    if name is not None:
        raise ValueError(f"name={name!r} names a single estimator; for several give a dict of name -> estimator")
    found: dict[str, Any] = {}
    for key, target in pairs:
        if not isinstance(key, str) or not key.strip():
            raise ValueError(f"{key!r:.80} is no name of an estimator; give a text that is not empty")
        require_fit(key)
        _require_readable(target)
        if not (isinstance(target, str) or callable(target)):
            raise TypeError(f"estimator {key!r} is a {type(target).__name__}, which cannot be called with a problem")
        if key in found:
            raise ValueError(f"two estimators are called {key!r}; give a dict of name -> estimator")
        found[key] = target
    if not found:
        raise ValueError("there is no estimator to grade; give at least one")
    return found


def _require_readable(estimator: object) -> None:
    try:
        require_readable(estimator)
    except Unreadable as error:
        raise RegistryError(f"estimator of type {type(estimator).__name__}: {error}") from error


def _name_of(estimator: str | Callable[..., Any]) -> Any:
    _require_readable(estimator)
    if isinstance(estimator, str):
        return estimator
    while isinstance(estimator, functools.partial):  # whose own name would be "partial"
        estimator = estimator.func
    try:
        own = attribute(estimator, "__name__", type(estimator).__name__)
    except Unreadable as error:
        raise RegistryError(f"estimator of type {type(estimator).__name__}: {error}") from error
    return "estimator" if own == "<lambda>" else own


def _id(check: str) -> str:
    """The id of a check given by its name, or the id itself."""
    if check.startswith(f"{checklist.PREFIX}/"):
        return check
    return f"{checklist.PREFIX}/test_{check.removeprefix('test_')}.py"
