"""A problem as files in a folder (arrays as .npy, the rest as JSON), and back: for other processes, and for people.

What is written is what the problem serves, in its own order; no label is part of a problem. What is read has been
looked at before anything is made of it (`problem_check`), or what an estimator meets first would be a traceback.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_behaviortrace.estimator import EVERYTHING, Needs, NotServed
from pytest_behaviortrace.problem import COLUMNS, NEED_OF, AttributionProblem
from pytest_behaviortrace.problem_check import SCHEMA, checked
from pytest_behaviortrace.run.formats import read_array, write_array

PROBLEM = "problem.json"


def write_problem(problem: AttributionProblem, room: Path) -> None:
    """Everything the problem serves but the model, as files that `read_problem` reads. Raises `OSError`."""
    plain: dict[str, Any] = {"blocks": None, "behavior": None}
    ragged, arrays, absent = [], [], {}
    files: dict[str, Any] = {}

    def write(name: str, array: NDArray[Any]) -> None:
        write_array(room, name, array)
        files[name] = [np.lib.format.dtype_to_descr(array.dtype), list(array.shape)]

    for name in COLUMNS:
        write(name, np.asarray(getattr(problem, name)))
    for name in problem.lazy:
        need = NEED_OF.get(name, "gradients")
        if need == "model" or not getattr(problem.carried, need):
            continue
        try:
            value = getattr(problem, name)
        except NotServed as error:
            absent[name] = str(error)
            continue
        if isinstance(value, np.ndarray):
            arrays.append(name)
            write(name, value)
        elif isinstance(value, Mapping):
            plain[name] = {key: [part.start, part.stop] for key, part in value.items()}
        elif isinstance(value, tuple) and len(value) and isinstance(value[0], np.ndarray):
            ragged.append(name)
            write(name, np.concatenate(value))
            write(f"{name}.ends", np.cumsum([len(part) for part in value]))
        else:
            plain[name] = value
    facts = {
        "kind": problem.kind,
        "loss_type": problem.loss_type,
        "rng_seed": [int(word) for word in problem.rng_seed],
        "carried": problem.carried.without("model").names(),
    }
    said = {"schema": SCHEMA, "facts": facts, "plain": plain, "ragged": ragged, "arrays": arrays, "absent": absent}
    (room / PROBLEM).write_text(json.dumps({**said, "files": files}), encoding="utf-8")


def read_problem(room: Path) -> AttributionProblem:
    """The problem that `write_problem` wrote. Its arrays are maps of files opened for reading only.

    Raises `NotWhole` (a `ValueError`), naming the file, where it is not what was written: other files, shapes or types.
    """
    said = checked(room, PROBLEM)
    facts, plain = said["facts"], said["plain"]
    lazy: dict[str, Any] = {name: functools.partial(_array, room, name) for name in said["arrays"]}
    lazy |= {name: functools.partial(_ragged, room, name) for name in said["ragged"]}
    lazy |= {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()}
    lazy |= {name: functools.partial(_refused, reason) for name, reason in said["absent"].items()}
    if plain["blocks"] is not None:
        lazy["blocks"] = {name: slice(*ends) for name, ends in plain["blocks"].items()}
    carried = Needs(**{name: name in facts["carried"] for name in EVERYTHING.names()})
    columns: dict[str, Any] = {name: _array(room, name) for name in COLUMNS}
    return AttributionProblem(
        kind=facts["kind"],
        loss_type=facts["loss_type"],
        rng_seed=tuple(facts["rng_seed"]),
        carried=carried,
        lazy=lazy,
        **columns,
    )


def _refused(reason: str) -> Any:
    raise NotServed(reason)


def _array(room: Path, name: str) -> NDArray[Any]:
    return read_array(room / f"{name}.npy").view(np.ndarray)


def _ragged(room: Path, name: str) -> tuple[NDArray[Any], ...]:
    return tuple(np.split(_array(room, name), _array(room, f"{name}.ends")[:-1]))
