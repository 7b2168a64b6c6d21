"""Scorecard -> files: which format a suffix means, and a writer that leaves the whole of a report or nothing of it."""

from __future__ import annotations

import contextlib
import importlib
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_behaviortrace.scorecard import Scorecard

FORMATS: Mapping[str, str] = {
    ".json": "pytest_behaviortrace.reports.json",
    ".html": "pytest_behaviortrace.reports.html",
    ".md": "pytest_behaviortrace.reports.markdown",
    ".csv": "pytest_behaviortrace.reports.csv",
}
"""Suffix -> module whose `render(scorecard)` gives the text. Imported when written: pictures take heavy libraries."""


def wants_exhibits(paths: Iterable[Path]) -> bool:
    """Whether a report among these shows pictures."""
    return any(path.suffix.lower() == ".html" for path in paths)


def write(scorecard: Scorecard, path: Path) -> None:
    """Write the report that the suffix asks for, so that `path` holds the whole of it or what was there before.

    Raises `OSError`, and whatever the format's own `render` raises.
    """
    replace(path, importlib.import_module(FORMATS[path.suffix.lower()]).render(scorecard))


def replace(path: Path, text: str) -> None:
    """Put text in place of a file, in one step. Raises `OSError`; what was there before is there still, then."""
    # A lone surrogate, out of a file name in an exception for example, must not cost the report.
    data = text.encode("utf-8", "backslashreplace")
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp's files are private; a report is an ordinary file
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
