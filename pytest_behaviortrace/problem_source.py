"""A problem as Python source: what a counterexample is printed as, to be pasted into a test or a session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_behaviortrace.problem import AttributionProblem
from pytest_behaviortrace.variations import COLUMNS, served_values

FEW = 3
"""Entries up to which a constant array is written out."""
NATURAL = ("float64", "int64", "bool")
"""Types that numpy gives a list of Python's own numbers."""


def problem_source(problem: AttributionProblem, *imports: str) -> str:
    """Source that makes an equal problem and calls it `problem`, with public names only, below more `imports`.

    Raises `ValueError` for a problem over the policies of a training run, which no source can hold.
    """
    head = ["import numpy as np", "from pytest_behaviortrace import AttributionProblem, Needs"]
    if "model" in problem.lazy:
        head.append("from pytest_behaviortrace.strategies import shipped_model")
    return "\n".join([*head, *imports, "", f"problem = {problem_expression(problem)}", ""])


def problem_expression(problem: AttributionProblem) -> str:
    """The same as one expression, over several lines."""
    fields: dict[str, Any] = {name: getattr(problem, name) for name in ("kind", "loss_type")}
    fields |= {name: getattr(problem, name) for name in (*COLUMNS, "learning_rate", "rng_seed")}
    lines = [f"    {name}={written(value)}," for name, value in fields.items()]
    carried = ", ".join(f"{name}={getattr(problem.carried, name)}" for name in _shown(problem))
    lines.append(f"    carried=Needs({carried}),")
    if served := served_values(problem):
        lines += ["    lazy={", *(f"        {name!r}: {written(value)}," for name, value in served.items()), "    },"]
    return "\n".join(["AttributionProblem(", *lines, ")"])


def written(value: Any) -> str:
    """Source of a value out of a problem."""
    if isinstance(value, np.ndarray):
        return _array(value)
    if isinstance(value, tuple):
        return "(" + ", ".join(written(entry) for entry in value) + ("," * (len(value) == 1)) + ")"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {written(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, slice):
        return f"slice({value.start}, {value.stop})"
    if isinstance(value, (str, int)):
        return repr(value)
    if type(value).__name__ == "ShippedModel":  # by name: importing it takes torch
        return "shipped_model"
    raise ValueError(f"a {type(value).__name__} cannot be written out")


def _shown(problem: AttributionProblem) -> list[str]:
    """Needs to write out: what is carried, and gradients where they are not."""
    return ["gradients", *(name for name in problem.carried.names() if name != "gradients")]


def _array(values: NDArray[Any]) -> str:
    kind = values.dtype.name
    dtype = "" if kind in NATURAL else f", np.{kind}"
    if values.size == 0 or (values.size > FEW and _is_constant(values)):
        shape = values.shape if values.ndim > 1 else values.size
        if values.size == 0 or not (values.any() or np.signbit(values).any()):
            return f"np.zeros({shape}{', bool' if kind == 'bool' else ', np.' + kind if kind != 'float64' else ''})"
        return f"np.full({shape}, {_number(values.flat[0])}{dtype})"
    return f"np.array({_nested(values)}{dtype})"


def _is_constant(values: NDArray[Any]) -> bool:
    return len({entry.tobytes() for entry in values.flat}) == 1


def _nested(values: NDArray[Any]) -> str:
    entries = [_nested(row) for row in values] if values.ndim > 1 else [_number(entry) for entry in values]
    return "[" + ", ".join(entries) + "]"


def _number(entry: Any) -> str:
    """The shortest decimal that gives the same number in the entry's own type."""
    if entry.dtype.kind == "f" and not np.isfinite(entry):
        return "np.nan" if np.isnan(entry) else f"{'-' * bool(entry < 0)}np.inf"
    return str(entry)
