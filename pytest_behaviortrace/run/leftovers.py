"""What builds leave behind: unit folders in the making, or on their way out, and how the dead ones are told and swept.

Such a folder is named `.build-UNIT-SUFFIX`, without a hyphen in the suffix. Only the holder of a unit's lock makes
one, so while that lock is free, or one's own, they belong to nobody alive, on this machine or another.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path

from pytest_behaviortrace.run.lock import BuildLock

BUILD_PREFIX = ".build-"
"""Start of the name of a folder that is being built, or was when its build died."""


def unit_of(leftover: Path) -> str:
    """Name of the unit that a leftover folder was to become, or was."""
    return leftover.name.removeprefix(BUILD_PREFIX).rpartition("-")[0] or "unknown"


def sweep(folder: Path) -> list[Path]:
    """Delete, in a recipe folder, what dead builds left; what a living one is making stays. Returns what was deleted.

    The caller is `building` in the folder and holds the lock of no unit.
    """
    dead: list[Path] = []
    for unit in sorted({unit_of(path) for path in folder.glob(f"{BUILD_PREFIX}*") if path.is_dir()}):
        lock = BuildLock(folder, unit)
        if lock.acquire():
            try:
                dead += sweep_unit(folder, unit)
            finally:
                lock.release()
    return dead


def sweep_unit(folder: Path, unit: str) -> list[Path]:
    """Delete what dead builds of one unit left. The caller holds the unit's lock and builds it not yet.

    Writes into the folder in any case, so that a network file system's client asks for its present state: what is seen
    of the unit afterwards is what was there when its lock was taken.
    """
    (folder / f"{BUILD_PREFIX}{unit}-looking").mkdir(parents=True, exist_ok=True)
    dead = [path for path in folder.glob(f"{BUILD_PREFIX}{unit}-*") if path.is_dir() and unit_of(path) == unit]
    for path in dead:
        shutil.rmtree(path, ignore_errors=True)
    return dead


def remove_unit(path: Path) -> None:
    """Delete a unit folder so that no reader can meet half of it: it is renamed away first.

    Raises `OSError` for what cannot be deleted.
    """
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(set_aside(path))


def set_aside(path: Path) -> Path:
    """Rename a unit folder, if there is one, to a name that no reader looks at and `sweep` deletes; returns it."""
    unit = unit_of(path) if path.name.startswith(BUILD_PREFIX) else path.name
    aside = path.with_name(f"{BUILD_PREFIX}{unit}-removed{os.getpid()}x{time.monotonic_ns()}")
    with contextlib.suppress(FileNotFoundError):
        os.replace(path, aside)
    return aside
