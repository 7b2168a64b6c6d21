"""What the shipped checks declare, read from their source: nothing is imported until a row runs.

A check file holds one function named like the file. Its arguments say which rows it has:
`bt_seed`, `bt_draw`: one per seed, per draw; `bt_component`: one per entry of the module's tuple `COMPONENTS` (a dict
where components have the statistic and the controls of other checks: component -> check);
`bt_estimator`: for every estimator (a check without it puts none on trial); `bt_case`: the row's evidence.
`CONTROLS` names what a score must beat, each in both orientations.
A check with `RUN = False` needs no training run; its `bt_case` is a `Trial`, which has none.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_behaviortrace.interrupts import imported_whole

PACKAGE = "pytest_behaviortrace.checks"
PREFIX = "checks"
"""First part of every row's id, wherever the package is installed."""

BLOCK = 32
"""Estimators whose rows run side by side, check by check; the next ones follow when they are through, so that what was
remembered of them can go."""

ARGUMENTS = ("bt_case", "bt_estimator", "bt_seed", "bt_draw", "bt_component")


@dataclass(frozen=True, slots=True)
class RowSpec:
    """One row of the scorecard before it runs: a check, and what it is run on."""

    check: str
    estimator: str | None = None
    seed: int | None = None
    draw: int | None = None
    component: str | None = None
    recorded: bool = False
    """Whether it is about a user's own run, whose number is no seed."""

    @property
    def place(self) -> str | None:
        """`seed0`, or `run` for a recorded run; None for a row about neither."""
        return None if self.seed is None else "run" if self.recorded else f"seed{self.seed}"

    @property
    def name(self) -> str:
        """For example `test_fluency_control[token-gas-seed0-draw1]`."""
        parts = [
            self.estimator,
            self.place,
            None if self.draw is None else f"draw{self.draw}",
            self.component,
        ]
        return f"{self.check}[{'-'.join(part for part in parts if part is not None)}]"

    @property
    def id(self) -> str:
        """The node id, the same everywhere: `checks/test_x.py::` and the name."""
        return f"{PREFIX}/{self.check}.py::{self.name}"


@dataclass(frozen=True, slots=True)
class Check:
    """One shipped check: its file, the line of its function, its claim, and what its rows run over."""

    name: str
    path: Path
    line: int
    claim: str
    arguments: tuple[str, ...]
    components: tuple[str, ...] = ()
    needs_run: bool = True
    controls: tuple[str, ...] = ()
    """What a score must beat."""
    origins: tuple[str, ...] = ()
    """By component, the check that it has its statistic and its controls from; empty where they are its own."""

    @property
    def id(self) -> str:
        """The node id of its file."""
        return f"{PREFIX}/{self.name}.py"

    def rows(
        self, estimators: Sequence[str], seeds: Sequence[int], draws: int, recorded: bool = False
    ) -> Iterator[RowSpec]:
        """Its rows, estimator by estimator, then seed by seed, draw by draw; a `recorded` run stands for one seed."""

        def over(argument: str, values: Sequence[Any]) -> Sequence[Any]:
            return values if argument in self.arguments else (None,)

        for combination in itertools.product(
            over("bt_estimator", estimators),
            over("bt_seed", seeds),
            over("bt_draw", range(draws)),
            over("bt_component", self.components),
        ):
            yield RowSpec(self.name, *combination, recorded=recorded)

    def function(self) -> Callable[..., None]:
        """The function itself; imports the check, and numpy with it."""
        # Hypothesis' pytest plugin, which imports it at the end, would break on half of it.
        with imported_whole("hypothesis"):
            module = importlib.import_module(f"{PACKAGE}.{self.name}")
        found: Callable[..., None] = getattr(module, self.name)
        return found

    def run(self, row: RowSpec, case: Any) -> None:
        """Run the check on a row; it ends by returning or by raising one of the outcomes of `verdict`."""
        values = (case, row.estimator, row.seed, row.draw, row.component)
        self.function()(**{k: v for k, v in zip(ARGUMENTS, values, strict=True) if k in self.arguments})


def checks_dir() -> Path:
    """The folder of the shipped checks: the first entry of the package's `__path__`."""
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations))).resolve()


def declared() -> tuple[Check, ...]:
    """Every shipped check, by file name."""
    return tuple(parse(path) for path in sorted(checks_dir().glob("test_*.py")))


def count(checks: Sequence[Check], estimators: int, seeds: int, draws: int) -> int:
    """How many rows `planned` gives, without making them."""
    over = {"bt_estimator": estimators, "bt_seed": seeds, "bt_draw": draws}
    return sum(
        math.prod(many for argument, many in over.items() if argument in check.arguments)
        * max(len(check.components), 1)
        for check in checks
    )


def on_trial() -> dict[str, bool]:
    """Every shipped check by name, and whether it puts an estimator on trial."""
    return {check.name: "bt_estimator" in check.arguments for check in declared()}


def planned(
    checks: Sequence[Check], estimators: Sequence[str], seeds: Sequence[int], draws: int, *, recorded: bool = False
) -> dict[str, RowSpec]:
    """Every row by id, in the order in which they run: check by check for `BLOCK` estimators at a time."""
    found = {}
    for start in range(0, max(len(estimators), 1), BLOCK):
        for check in checks:
            if start and "bt_estimator" not in check.arguments:
                continue
            for spec in check.rows(estimators[start : start + BLOCK], seeds, draws, recorded):
                found[spec.id] = spec
    return found


def parse(path: Path) -> Check:
    """What a check file declares. Raises `ValueError` when it is not one claim in one function as described above."""
    module = ast.parse(path.read_text(encoding="utf-8"), str(path))
    functions = [n for n in module.body if isinstance(n, ast.FunctionDef) and n.name.startswith("test")]
    if [f.name for f in functions] != [path.stem]:
        raise ValueError(f"{path.name} must hold exactly one test function, named {path.stem}")
    arguments = tuple(argument.arg for argument in functions[0].args.args)
    if unknown := [a for a in arguments if a not in ARGUMENTS]:
        raise ValueError(f"{path.name}: unknown argument {unknown[0]}; a check may ask for {', '.join(ARGUMENTS)}")
    found = _constant(module, "COMPONENTS", ()) if "bt_component" in arguments else ()
    if "bt_component" in arguments and not found:
        raise ValueError(f"{path.name} asks for bt_component but has no tuple COMPONENTS of strings")
    origins = tuple(found.values()) if isinstance(found, dict) else ()
    needs_run = bool(_constant(module, "RUN", True))
    if not needs_run and (seeded := [a for a in arguments if a in ("bt_seed", "bt_draw")]):
        raise ValueError(f"{path.name} asks for {seeded[0]} but says that it needs no run")
    claim = (ast.get_docstring(module) or "").partition("\n")[0].removeprefix("Claim: ")
    components = tuple(str(component) for component in found)
    controls = tuple(_constant(module, "CONTROLS", ()))
    return Check(path.stem, path, functions[0].lineno, claim, arguments, components, needs_run, controls, origins)


def _constant(module: ast.Module, name: str, default: Any) -> Any:
    """The literal that the module assigns to a name."""
    for node in module.body:
        if isinstance(node, ast.Assign) and name in [ast.unparse(target) for target in node.targets]:
            return ast.literal_eval(node.value)
    return default
