"""The problems of one row as files, with the scores they got: for an author who wants to know why it failed.

Every problem is written as the estimator sees it: what it declares, in the salted order, and no labels.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pytest_behaviortrace.api import as_they_come, take_in
from pytest_behaviortrace.asked import Asked, named
from pytest_behaviortrace.checklist import declared
from pytest_behaviortrace.estimator import Estimator, EstimatorError, needs_of
from pytest_behaviortrace.loading import DECLARED, INDEX, ROW, SCHEMA
from pytest_behaviortrace.problem import AttributionProblem
from pytest_behaviortrace.problem_files import write_problem
from pytest_behaviortrace.questions import Question, question
from pytest_behaviortrace.run.formats import write_array
from pytest_behaviortrace.scoring import vouched
from pytest_behaviortrace.whole_folder import require_free, whole_folder
from pytest_behaviortrace.wording import place, require_no_nul

if TYPE_CHECKING:
    from pytest_behaviortrace.scorecard import Row
    from pytest_behaviortrace.session import GradingSession


@dataclass(frozen=True, slots=True)
class Dumped:
    """How the row ended this time, and the folders of the problems it was scored on."""

    row: Row
    problems: tuple[Path, ...]
    questions: tuple[Question, ...]
    """What each of them asks."""


class NotDumped(OSError):
    """A dump that could not be written; the message says why, and that nothing is left of it."""


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

        problems.txt          which problem asks what; row.json says the same, with the row's verdict and reason
        problem-0/            what `load_problem` reads: JSON, and one .npy for each array
        problem-0/scores.npy  (n,) the scores it got

    A dump holds what the estimator declares and no labels; in place of `problem.model` it says that it has none. A
    problem of the embedded run takes 60 to 90 MB with gradients, their reference set included. The folder is there once
    the dump is finished: what breaks off leaves nothing, and a killed process a hidden folder beside it, which the next
    dump of the same folder removes.
    Raises `ValueError` for a row that is unknown, has no estimator or no run, and a folder in use; `NotDumped` (an
    `OSError`) where it cannot be written; otherwise as `grade`.
    """
    require_no_nul(folder, "folder")
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
    require_free(path)
    grading = asked.opened()
    recorded = grading.settings.recorded
    sought = grading.settings.plant if recorded is None else recorded.question.behavior
    with _written(path, grading) as room:
        writer = Writer(grading.estimators[spec.estimator], room, sought, recorded=recorded is not None)
        grading.estimators = {spec.estimator: writer}
        grading.make_grader = functools.partial(_overheard, grading.make_grader, writer)
        with as_they_come():
            take_in(grading, spec, progress=progress)
        if writer.failed is not None:
            raise writer.failed
        found = grading.rows[spec.id]
        (room / ROW).write_text(json.dumps(_said(found, writer), indent=1), encoding="utf-8")
        (room / INDEX).write_text(_index(found, writer), encoding="utf-8")
    return Dumped(found, tuple(path / name for name in writer.questions), tuple(writer.questions.values()))


@contextlib.contextmanager
def _written(path: Path, grading: GradingSession) -> Iterator[Path]:
    """`whole_folder`, with what the file system refuses in a sentence; what training raised is raised as it is."""
    try:
        with whole_folder(path) as room:
            yield room
    except OSError as error:
        if error is grading.broken:
            raise
        why = error.strerror or error
        raise NotDumped(
            f"{place(path)} was not written ({why}), and nothing of it is left; make room, or choose another folder"
        ) from None


def _overheard(make: Callable[..., Any], writer: Writer, *args: Any) -> Any:
    """The grader of a session, which tells the writer what is asked next."""
    grader = make(*args)
    grader.told = writer.hear
    return grader


def _said(row: Row, writer: Writer) -> dict[str, Any]:
    problems = [{"folder": name, **asdict(question)} for name, question in writer.questions.items()]
    said = {"schema": SCHEMA, "row": row.id, "check": row.check, "estimator": row.estimator, "verdict": row.verdict}
    return {**said, "reason": row.reason, "problems": problems}


def _index(row: Row, writer: Writer) -> str:
    """The same for people."""
    lines = [row.id, f"{row.verdict}: {row.reason}", "", "What the estimator was asked, in this order:", ""]
    for name, one in writer.questions.items():
        about = [f"{word} {n}" for word, n in (("seed", one.seed), ("draw", one.draw)) if n is not None]
        lines.append(f"{name}  {', '.join([*about, one.asked])}")
    lines += [
        "",
        "pytest_behaviortrace.load_problem(folder) loads one; scores.npy in it is what it scored, item by item.",
    ]
    return "\n".join([*lines, "No labels are kept: which items are right is not in these files.", ""])


def name_in(row: str) -> str:
    """The estimator's name in the id of a row. Raises `ValueError` for what is no id of a row."""
    parts = re.fullmatch(r"checks/(test_\w+)\.py::(?P<check>test_\w+)\[(?P<rest>.+)\]", row, re.DOTALL)
    check = next((c for c in declared() if parts is not None and c.name == parts["check"]), None)
    if parts is None or check is None:
        raise ValueError(
            f"{row!r} is no id of a row; copy one from pytest, such as "
            f"'checks/test_fluency_control.py::test_fluency_control[gas-seed0-draw1]'"
        )
    if "bt_estimator" not in check.arguments:
        raise ValueError(f"{row!r} puts no estimator on trial, so that there is no problem to dump")
    rest = parts["rest"]
    for component in check.components:
        rest = rest.removesuffix(f"-{component}")
    for argument, part in (("bt_draw", r"-draw\d+$"), ("bt_seed", r"-(seed\d+|run)$")):
        rest = re.sub(part, "", rest) if argument in check.arguments else rest
    return rest


class Writer:
    """Stands in for an estimator, and writes what it is asked and what it answers."""

    def __init__(self, estimator: Estimator, folder: Path, sought: str = "", *, recorded: bool = False) -> None:
        self.estimator, self.folder = estimator, folder
        self.questions: dict[str, Question] = {}
        """By name of a problem's folder."""
        self._sought, self._recorded, self._key = sought, recorded, ("",)
        self.failed: OSError | None = None
        """Why the dump could not be written."""

    def __getattr__(self, name: str) -> Any:
        """Everything it declares."""
        return getattr(self.estimator, name)

    def hear(self, key: tuple[Any, ...]) -> None:
        """Under which key the next problem is scored."""
        self._key = key

    def __call__(self, problem: AttributionProblem, /) -> NDArray[np.floating[Any]]:
        """The estimator's own answer, whatever it is."""
        room = self.folder / f"problem-{len(self.questions)}"
        try:
            room.mkdir()
            write_problem(problem, room)
            needs = list(needs_of(self.estimator).names())
            (room / DECLARED).write_text(json.dumps({"schema": SCHEMA, "needs": needs}), encoding="utf-8")
        except OSError as error:
            self.failed = error
            raise
        self.questions[room.name] = question(self._key, problem.kind, len(problem), self._sought, self._recorded)
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
