"""A dumped problem, read back for the estimator it was dumped for."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from pytest_behaviortrace.estimator import EVERYTHING, Needs, NotServed
from pytest_behaviortrace.problem import AttributionProblem
from pytest_behaviortrace.problem_check import NotWhole, absent_of, described, require_finite
from pytest_behaviortrace.problem_files import read_problem
from pytest_behaviortrace.whole_folder import is_unfinished

ROW, DECLARED, INDEX = "row.json", "declared.json", "problems.txt"
SCHEMA = 2
"""Of both JSON files."""


def load_problem(folder: str | os.PathLike[str]) -> AttributionProblem:
    """The problem of a dump, for the estimator it was dumped for: it scores as it did, and may read what it declares.

    `folder`: a `problem-N` folder, or the folder of a dump that holds one. Arrays are maps of files opened for reading
    only. Raises `ValueError` for a folder that is no dump, not whole, damaged (NaN where no dump has any), or holds
    several problems.
    """
    path = Path(folder)
    if is_unfinished(path):
        raise ValueError(f"{path} is of a dump that was not finished, or is being written; dump the row again")
    if (path / ROW).is_file():
        rooms = sorted(path.glob("problem-*"), key=lambda room: (len(room.name), room.name))
        if len(rooms) != 1:
            names = ", ".join(room.name for room in rooms) or "none"
            raise ValueError(
                f"{path} holds {len(rooms)} problems ({names}); load one of them by its own folder "
                f"({INDEX} says which asks what)"
            )
        path = rooms[0]
    if not (path / DECLARED).is_file():
        raise ValueError(
            f"{path} holds no dumped problem; `python -m pytest_behaviortrace dump ROW --out DIR` makes one"
        )
    try:
        needed = described(path, DECLARED, SCHEMA).get("needs")
        if not isinstance(needed, list) or any(need not in EVERYTHING.names() for need in needed):
            raise NotWhole(f"{DECLARED} does not say what the estimator declares")
        problem = read_problem(path)
        require_finite(problem)
        needs = Needs(**{need: need in needed for need in EVERYTHING.names()})
        if lacking := absent_of(needs.without("model"), problem):
            raise NotWhole(f"{lacking} is missing, which the estimator declares")
    except NotWhole as error:
        raise ValueError(f"{path} is not a whole dump: {error}; dump the row again") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror or error})") from None
    if needs.model:
        lazy = {**problem.lazy, "model": _no_model}
        problem = replace(problem, carried=replace(problem.carried, model=True), lazy=lazy)
    return problem.scoped(needs)


def _no_model() -> NoReturn:
    raise NotServed(
        "a dump holds no policies; grade the estimator with grade() or pytest, where problem.model is served"
    )
