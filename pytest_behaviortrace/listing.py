"""What --bt-list prints: every estimator and check, where it comes from and what it needs; imports none of them.

An estimator's needs are read from the source of this package, and from an object that a hook registered. Those of
other packages are told when asked for (-v), which imports them.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_behaviortrace.attributes import Unreadable, attribute, cause
from pytest_behaviortrace.checklist import Check, declared
from pytest_behaviortrace.registry import Registered, Registry, RegistryError

OWN = "pytest_behaviortrace"
MIXTURE = "mixture"
"""The name that `gates` gives it; not imported from there, or a list would wait for numpy."""
UNKNOWN = "known when it is imported (-v)"
SERVED: Mapping[str, tuple[str, ...]] = {
    "test_gradient_magnitude": ("gradients", "spans", "text", "behavior"),
    "test_fluency_control": ("gradients",),
    "test_trigger_alignment": ("gradients", "spans"),
    "test_coverage": ("gradients", "spans"),
}
"""Needs that the problems of a check serve, where that is not all of them: whoever declares another one is n/a."""
INSTEAD = {"test_coverage": "or model alone", "test_seed_stability": "its fluency component: gradients"}
"""What is to be said beside that."""


def lines(registry: Registry, *, imported: bool = False, asked: Sequence[str] = ()) -> Iterator[str]:
    """The whole list. `imported`: import every estimator to tell its needs.

    `asked`: names of estimators that were asked for; those that are registered nowhere (`package.module:name`) are
    listed behind the others. Raises `RegistryError` for one that is unknown.
    """
    registered = registry.entries()
    names = {entry.name for entry in registered}
    asked_for = [registry.find(name) for name in asked if name not in names]
    yield "estimators (pytest --bt-estimator=NAME):"
    for entry in (*registered, *asked_for):
        yield f"  {entry.name:<24} {origin(entry)}; needs: {_told(registry, entry) if imported else needs(entry)}"
    yield "checks:"
    for check in declared():
        yield f"  {check.name.removeprefix('test_'):<24} {check.claim}"
        for line in about(check):
            yield f"  {'':<24}   {line}"


def origin(entry: Registered) -> str:
    """Which package or hook registered it, and that it ships with this one."""
    where = entry.origin or "registered nowhere"
    return f"{where} (shipped)" if _is_own(entry) and entry.origin else where


def needs(entry: Registered) -> str:
    """What an estimator declares, as far as that is known without importing anything."""
    if entry.path is not None:
        return (_in_source(entry.path) or UNKNOWN) if _is_own(entry) else UNKNOWN
    try:
        declared_needs = attribute(entry.target, "needs")
        if inspect.isclass(entry.target) or declared_needs is None:
            return UNKNOWN
        return _names(declared_needs)
    except Unreadable as error:
        return f"unknown: {error}"


def about(check: Check) -> Iterator[str]:
    """What a check asks of an estimator, how many rows it has, and which controls it compares it with."""
    if "bt_estimator" not in check.arguments:
        serves = "puts no estimator on trial"
    else:
        served = SERVED.get(check.name)
        serves = f"serves {', '.join(served) if served else 'every need'}"
    yield serves + (f" ({INSTEAD[check.name]})" if check.name in INSTEAD else "")
    over = [word for word in ("seed", "draw") if f"bt_{word}" in check.arguments]
    over += [f"component ({', '.join(check.components)})"] if check.components else []
    yield f"rows: one per {' and '.join(over)}"
    if check.origins:
        theirs = zip(check.components, check.origins, strict=True)
        borrowed = ", ".join(f"{other.removeprefix('test_')} ({component})" for component, other in theirs)
        yield f"controls: those of {borrowed}"
    else:
        yield f"controls: {_controls(check.controls)}"


def _controls(names: Sequence[str]) -> str:
    """For example `norm-only, length (each also turned round)`."""
    single = [name for name in names if name != MIXTURE]
    turned = f" ({'each also' if len(single) > 1 else 'also'} turned round)" if single else ""
    return (", ".join(single) or "none") + turned + (", and their mixture" if MIXTURE in names else "")


def _is_own(entry: Registered) -> bool:
    return (entry.path or "").startswith(f"{OWN}.")


def _in_source(target: str) -> str | None:
    """The needs that the decorator of a function of this package states."""
    module, _, name = target.partition(":")
    path = Path(__file__).parent.joinpath(*module.split(".")[1:]).with_suffix(".py")
    if not path.is_file():
        return None
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            calls = [d for d in node.decorator_list if isinstance(d, ast.Call) and ast.unparse(d.func) == "needs"]
            if not calls:
                return "gradients"
            stated = [k.arg for k in calls[0].keywords if isinstance(k.value, ast.Constant) and k.value.value]
            return ", ".join(word for word in stated if word) or "nothing"
    return None


def _told(registry: Registry, entry: Registered) -> str:
    """The same by importing it."""
    from pytest_behaviortrace.estimator import EstimatorError, needs_of

    try:
        return _names(needs_of(registry.load(entry.name)))
    except (RegistryError, EstimatorError) as error:
        return f"unknown: {cause(error.__cause__ or error)}"


def _names(found: Any) -> str:
    return ", ".join(found.names()) or "nothing" if attribute(found, "names") else f"unknown: {found!r:.40} is no Needs"
