"""Name -> estimator: entry points, the conftest hook, or `package.module:name`. Only what is asked for is imported."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pytest_behaviortrace.attributes import Unreadable, attribute, cause
from pytest_behaviortrace.making import Unusable, ready
from pytest_behaviortrace.wording import RULE, escaped, few, printable, unfit

if TYPE_CHECKING:
    from pytest_behaviortrace.estimator import Estimator

GROUP = "pytest_behaviortrace.estimators"
HOOK = "pytest_behaviortrace_estimators"
_ABSENT = object()


class RegistryError(ValueError):
    """An estimator that is unknown, ambiguous or unusable; the message says which, why, and what to do."""


@dataclass(frozen=True, slots=True)
class Registered:
    """A name, who registered it, and the estimator or a `package.module:name` that leads to it.

    Names are printed everywhere. Raises `RegistryError` for one that must not be.
    """

    name: str
    origin: str
    target: object

    def __post_init__(self) -> None:
        require_fit(self.name, self.origin)

    @property
    def path(self) -> str | None:
        """The target where it is a text. An object is not asked what it is: it may raise."""
        return cast(str, self.target) if issubclass(type(self.target), str) else None

    @property
    def described(self) -> str:
        """For example `estimator 'gas' (mypackage 1.2, mypackage.scores:gas)`."""
        where = self.origin if self.path is None else f"{self.origin}, {printable(self.path)}"
        return f"estimator {self.name!r} ({where.lstrip(', ')})"


def require_fit(name: str, origin: str = "") -> None:
    """Raise `RegistryError` for a name of an estimator that a terminal or page must not show as it is."""
    if (why := unfit(name)) is not None:
        by = f" ({origin})" if origin else ""
        raise RegistryError(f"estimator name {escaped(name)}{by} {why}; {RULE}: choose another")


class Registry:
    """Everything registered: entry points of installed packages, and what conftest hooks returned."""

    def __init__(self, hooked: Iterable[object] = (), folder: Path | None = None) -> None:
        """`hooked`: results of the hook. `folder`: where `package.module:name` is looked for if it is not installed.

        Raises `RegistryError` when a hook returned anything but a mapping from names.
        """
        self._folder = folder
        self._found: dict[str, list[Registered]] = {}
        for point in metadata.entry_points(group=GROUP):
            origin = f"{point.dist.name} {point.dist.version}" if point.dist else "an installed package"
            origin = printable(origin)
            self._add(Registered(point.name, origin, point.value))
        for result in hooked:
            if not isinstance(result, Mapping) or not all(isinstance(name, str) and name for name in result):
                said = printable(f"{result!r:.80}")
                raise RegistryError(f"the hook {HOOK} must return a dict of name -> estimator, not {said}")
            for name, target in result.items():
                self._add(Registered(name, f"hook {HOOK}", target))

    def _add(self, entry: Registered) -> None:
        others = self._found.setdefault(entry.name, [])
        if entry not in others:
            others.append(entry)

    def entries(self) -> list[Registered]:
        """Everything registered, by name; nothing is imported."""
        return [entry for name in sorted(self._found) for entry in self._found[name]]

    def find(self, name: str) -> Registered:
        """The estimator of that name, not imported. Raises `RegistryError` if there is none, or more than one."""
        require_fit(name)
        if name not in self._found:
            module, colon, attribute = name.partition(":")
            if colon and all(part.isidentifier() for part in [*module.split("."), *attribute.split(".")]):
                return Registered(name, "", name)
            raise RegistryError(self._unknown(name))
        first, *others = self._found[name]
        if others:
            both = " and ".join(f"{e.origin}" for e in (first, others[0]))
            raise RegistryError(f"estimator {name!r} is registered by {both}; rename one of them")
        return first

    def _unknown(self, name: str) -> str:
        close = difflib.get_close_matches(name, self._found, 1)
        hint = f"; did you mean {close[0]!r}?" if close else "."
        return (
            f"unknown estimator {name!r}{hint} Registered: {few(sorted(self._found), 20)}. "
            f"A function that is not registered, or in a conftest.py outside of pytest, is given as package.module:name"
        )

    def load(self, name: str) -> Estimator:
        """The estimator of that name, ready to be called. Raises `RegistryError` (see `made`)."""
        return made(self.find(name), self._folder)


def made(entry: Registered, folder: Path | None = None) -> Estimator:
    """The estimator that an entry leads to, ready to be called.

    A class is instantiated without arguments; a function that can be called without arguments is a factory, and is
    called, unless it declares `needs`; anything else is the estimator itself.
    Raises `RegistryError` naming the package and the cause when importing or making it fails.
    """
    found = entry.target if entry.path is None else _imported(entry, entry.path, folder)
    try:
        return cast("Estimator", ready(found))
    except (Unusable, Unreadable) as error:
        raise RegistryError(f"{entry.described}: {error}") from error.__cause__


def _imported(entry: Registered, target: str, folder: Path | None) -> object:
    module_name, _, path = target.partition(":")
    _make_importable(module_name.partition(".")[0], folder)
    try:
        found: Any = importlib.import_module(module_name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # pytest.skip and sys.exit at module level are not Exceptions
        raise RegistryError(f"{entry.described} cannot be imported: {cause(error)}") from error
    for part in path.split(".") if path else ():
        try:
            found = attribute(found, part, _ABSENT)
        except Unreadable as error:  # a module that imports its parts on demand
            raise RegistryError(f"{entry.described} cannot be imported: {error}") from error.__cause__
        if found is _ABSENT:
            raise RegistryError(f"{entry.described} cannot be imported: {module_name} has no {path!r}")
    return found


def _make_importable(package: str, folder: Path | None) -> None:
    """Look in the folder pytest was started from as well, as `python -m pytest` does."""
    if folder is None or str(folder) in sys.path:
        return
    if (folder / f"{package}.py").is_file() or (folder / package).is_dir():
        sys.path.append(str(folder))
