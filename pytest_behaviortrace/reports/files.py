"""Scorecard -> files: which format a suffix means, and a writer that leaves the whole of a report or nothing of it."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from pytest_behaviortrace.scorecard import Scorecard

FORMATS: Mapping[str, str] = {
    ".json": "pytest_behaviortrace.reports.json",
    ".html": "pytest_behaviortrace.reports.html",
    ".md": "pytest_behaviortrace.reports.markdown",
    ".csv": "pytest_behaviortrace.reports.csv",
}
"""Suffix -> module whose `render(scorecard)` gives the text. Imported when written: pictures take heavy libraries."""

SUFFIX = ".part"
"""End of the name of a report in the making, `.card.json.x1y2z3ab.part`."""


def wants_exhibits(paths: Iterable[Path]) -> bool:
    """Whether a report among these shows pictures."""
    return any(path.suffix.lower() == ".html" for path in paths)


def write(scorecard: Scorecard, path: Path) -> None:
    """Write the report that the suffix asks for, so that `path` holds the whole of it or what was there before.

    Raises `OSError`, and whatever the format's own `render` raises.
    """
    replace(path, importlib.import_module(FORMATS[path.suffix.lower()]).render(scorecard))


def replace(path: Path, text: str) -> None:
    """Put text in place of a file, in one step. Raises `OSError`; what was there before is there still, then.

    Takes away what writers of the same file left that were killed before they could.
    """
    # A lone surrogate, out of a file name in an exception for example, must not cost the report.
    data = text.encode("utf-8", "backslashreplace")
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path)
    handle, temporary = _begun(path)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.chmod(temporary, 0o666 & ~_umask())  # mkstemp's files are private; a report is an ordinary file
            if fcntl is not None:
                os.replace(temporary, path)  # while it is locked
        if fcntl is None:  # Windows renames no file that is open
            os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _begun(path: Path) -> tuple[int, str]:
    """A new temporary file for a report, open, and locked where there are locks; and its name."""
    while True:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=SUFFIX)
        if fcntl is None:
            return handle, temporary
        with contextlib.suppress(OSError):  # a file system without locks: nothing is ever swept there
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:  # else somebody swept it before it was locked
            return handle, temporary
        os.close(handle)


def _sweep(path: Path) -> None:
    """Delete temporary files of this report whose writer is dead: the system has released their lock.

    Without locks, as on Windows, none is: there a living writer's could not be told from them.
    """
    if fcntl is None:
        return
    name = re.compile(rf"{re.escape(f'.{path.name}.')}[a-z0-9_]{{8}}{re.escape(SUFFIX)}")
    with contextlib.suppress(OSError):
        for left in [entry.path for entry in os.scandir(path.parent) if name.fullmatch(entry.name)]:
            _sweep_one(left)


def _sweep_one(left: str) -> None:
    assert fcntl is not None
    try:
        handle = os.open(left, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)  # neither a link nor a pipe is ours
    except OSError:
        return
    with contextlib.suppress(OSError):  # locked by a writer at work, or no locks here
        try:
            if stat.S_ISREG(os.fstat(handle).st_mode):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(left)
        finally:
            os.close(handle)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
