"""Which tests run: what the command line asks of the shipped checks, and whether the user's tests run beside them.

Pure functions of the command line and the ini file: xdist workers repeat them and must come to the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePath

from pytest_behaviortrace.checklist import PACKAGE, PREFIX, checks_dir


@dataclass(frozen=True, slots=True)
class Where:
    """The folders that paths on the command line can be relative to."""

    started: Path
    root: Path
    shipped: Path


def split(args: Iterable[str], where: Where) -> tuple[list[str], list[str]]:
    """Arguments that name shipped checks, as node ids (`checks`, `checks/test_x.py`, ...), and all the others.

    A shipped check is named by its id, by its real path, or as a module under --pyargs. A real path of the user's
    that looks like an id is the user's.
    """
    mine: list[str] = []
    theirs: list[str] = []
    for arg in args:
        found = shipped_id(arg, where)
        (theirs if found is None else mine).append(arg if found is None else found)
    return mine, theirs


def shipped_id(arg: str, where: Where) -> str | None:
    """The id of the shipped check, or group of checks, that an argument names; None if it names something else."""
    path, sep, rest = arg.partition("::")
    if path == PACKAGE or path.startswith(f"{PACKAGE}."):
        module = path.removeprefix(PACKAGE).removeprefix(".")
        return (f"{PREFIX}/{module}.py" if module else PREFIX) + sep + rest
    absolute = (where.started / path).resolve()
    if absolute.is_relative_to(where.shipped):
        return PurePath(PREFIX, absolute.relative_to(where.shipped)).as_posix() + sep + rest
    if absolute.exists():
        return None
    # Failure lines show ids as typed in the root folder, progress lines as seen from where pytest was started.
    for base in (where.started, where.root):
        relative = PurePath(os.path.relpath(where.started / path, base)).as_posix()
        if relative == PREFIX or relative.startswith(f"{PREFIX}/"):
            return relative + sep + rest
    return None


def select(asked: Iterable[str], known: Iterable[str]) -> frozenset[str]:
    """The known row ids that the asked ids cover. Raises `LookupError` for one that covers none."""
    ids, chosen = list(known), set()
    for one in asked:
        covered = {i for i in ids if one == PREFIX or i == one or i.startswith((f"{one}::", f"{one}["))}
        if not covered:
            raise LookupError(one)
        chosen |= covered
    return frozenset(chosen)


def is_shipped_folder(path: Path) -> bool:
    """Whether a folder is the one of the shipped checks."""
    return path.name == PREFIX and path.resolve() == checks_dir()
