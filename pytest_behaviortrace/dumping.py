"""The problems of one row as files, with the scores they got: for an author who wants to know why it failed.

Every problem is written as the estimator sees it: what it declares, in the salted order, and no labels.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from pytest_behaviortrace.api import as_they_come, take_in
from pytest_behaviortrace.asked import Asked, named
from pytest_behaviortrace.checklist import declared
from pytest_behaviortrace.estimator import EVERYTHING, Estimator, EstimatorError, Needs, NotServed, needs_of
from pytest_behaviortrace.problem import AttributionProblem
from pytest_behaviortrace.problem_files import read_problem, write_problem
from pytest_behaviortrace.run.formats import write_array
from pytest_behaviortrace.scoring import vouched

if TYPE_CHECKING:
    from pytest_behaviortrace.scorecard import Row

ROW, DECLARED = "row.json", "declared.json"
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Dumped:
    """How the row ended this time, and the folders of the problems it was scored on."""

    row: Row
    problems: tuple[Path, ...]


def dump(
    estimator: str | Estimator,
    row: str,
    folder: str | os.PathLike[str],
    *,
    name: str | None = None,
    recipe: str | os.PathLike[str] = "tiny",
    seeds: int = 3,
    draws: int = 2,
    plant: str | None = None,
    run: str | os.PathLike[str] | None = None,
    behavior: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Dumped:
    """Run one row again and write every problem the estimator is scored on in it into `folder`, with its scores.

    `row`: the id pytest shows, such as `checks/test_fluency_control.py::test_fluency_control[mymethod-seed0-draw1]`.
    The estimator is called in the row by the name that stands there (or `name`). The other arguments are those of
    `grade`, and must be those that the row was graded with. In `folder`, which must be new or empty:

        row.json              the row, its verdict and its reason
        problem-0/            what `load_problem` reads: JSON, and one .npy for each array
        problem-0/scores.npy  (n,) the scores it got

    A dump holds what the estimator declares and no labels; in place of `problem.model` it says that it has none. A
    problem of the embedded run takes 60 to 90 MB with gradients, their reference set included.
    Raises `ValueError` for a row that is unknown, has no estimator or no run, and a folder in use; `OSError` where it
    cannot be written; otherwise as `grade`.
    """
    path = Path(folder)
    asked = Asked(
        named(estimator, name or name_in(row)),
        seeds=seeds,
        draws=draws,
        recipe=recipe,
        plant=plant,
        run=run,
        behavior=behavior,
        checks=[row],
        cache_dir=cache_dir,
    )
    (spec, *others) = asked.specs().values()
    if others:
        raise ValueError(f"{row!r} are {len(others) + 1} rows; give the id of one, such as {spec.id!r}")
    check = next(check for check in declared() if check.name == spec.check)
    if spec.estimator is None:
        raise ValueError(f"{row!r} puts no estimator on trial, so that there is no problem to dump")
    if not check.needs_run:
        raise ValueError(f"{row!r} needs no dump: where it fails, its reason shows the whole problem as source")
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise ValueError(f"{path} exists already; give a folder that is new or empty")
    grading = asked.opened()
    writer = Writer(grading.estimators[spec.estimator], path)
    grading.estimators = {spec.estimator: writer}
    path.mkdir(parents=True, exist_ok=True)
    with as_they_come():
        take_in(grading, spec, progress=progress)
    if writer.failed is not None:
        raise writer.failed
    found = grading.rows[spec.id]
    said = {"schema": SCHEMA, "row": spec.id, "estimator": spec.estimator, "verdict": found.verdict}
    said |= {"reason": found.reason, "problems": [room.name for room in writer.rooms]}
    (path / ROW).write_text(json.dumps(said, indent=1), encoding="utf-8")
    return Dumped(found, tuple(writer.rooms))


def load_problem(folder: str | os.PathLike[str]) -> AttributionProblem:
    """The problem of a dump, for the estimator it was dumped for: it scores as it did, and may read what it declares.

    `folder`: a `problem-N` folder, or the folder of a dump that holds one. Arrays are maps of files opened for reading
    only. Raises `ValueError` for a folder that is no dump, not whole, or holds several problems.
    """
    path = Path(folder)
    if (path / ROW).is_file():
        rooms = sorted(path.glob("problem-*"), key=lambda room: (len(room.name), room.name))
        if len(rooms) != 1:
            names = ", ".join(room.name for room in rooms) or "none"
            raise ValueError(f"{path} holds {len(rooms)} problems ({names}); load one of them by its own folder")
        path = rooms[0]
    if not (path / DECLARED).is_file():
        raise ValueError(
            f"{path} holds no dumped problem; `python -m pytest_behaviortrace dump ROW --out DIR` makes one"
        )
    try:
        needed = json.loads((path / DECLARED).read_text(encoding="utf-8"))["needs"]
        problem = read_problem(path)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a whole dump ({type(error).__name__}: {error}); dump the row again") from error
    needs = Needs(**{need: need in needed for need in EVERYTHING.names()})
    if needs.model:
        lazy = {**problem.lazy, "model": _no_model}
        problem = replace(problem, carried=replace(problem.carried, model=True), lazy=lazy)
    return problem.scoped(needs)


def name_in(row: str) -> str:
    """The estimator's name in the id of a row. Raises `ValueError` for what is no id of a row."""
    place = re.fullmatch(r"checks/(test_\w+)\.py::(?P<check>test_\w+)\[(?P<rest>.+)\]", row, re.DOTALL)
    check = next((c for c in declared() if place is not None and c.name == place["check"]), None)
    if place is None or check is None:
        raise ValueError(
            f"{row!r} is no id of a row; copy one from pytest, such as "
            f"'checks/test_fluency_control.py::test_fluency_control[gas-seed0-draw1]'"
        )
    if "bt_estimator" not in check.arguments:
        raise ValueError(f"{row!r} puts no estimator on trial, so that there is no problem to dump")
    rest = place["rest"]
    for component in check.components:
        rest = rest.removesuffix(f"-{component}")
    for argument, part in (("bt_draw", r"-draw\d+$"), ("bt_seed", r"-(seed\d+|run)$")):
        rest = re.sub(part, "", rest) if argument in check.arguments else rest
    return rest


class Writer:
    """Stands in for an estimator, and writes what it is asked and what it answers."""

    def __init__(self, estimator: Estimator, folder: Path) -> None:
        self.estimator, self.folder = estimator, folder
        self.rooms: list[Path] = []
        self.failed: OSError | None = None
        """Why the dump could not be written."""

    def __getattr__(self, name: str) -> Any:
        """Everything it declares."""
        return getattr(self.estimator, name)

    def __call__(self, problem: AttributionProblem, /) -> NDArray[np.floating[Any]]:
        """The estimator's own answer, whatever it is."""
        room = self.folder / f"problem-{len(self.rooms)}"
        try:
            room.mkdir()
            write_problem(problem, room)
            needs = list(needs_of(self.estimator).names())
            (room / DECLARED).write_text(json.dumps({"schema": SCHEMA, "needs": needs}), encoding="utf-8")
        except OSError as error:
            self.failed = error
            raise
        self.rooms.append(room)
        raw = self.estimator(problem)
        try:
            scores = vouched(raw, len(problem), "")
        except EstimatorError:  # the row says so
            return raw
        try:
            write_array(room, "scores", scores)
        except OSError as error:
            self.failed = error
            raise
        return raw


def _no_model() -> NoReturn:
    raise NotServed(
        "a dump holds no policies; grade the estimator with grade() or pytest, where problem.model is served"
    )
