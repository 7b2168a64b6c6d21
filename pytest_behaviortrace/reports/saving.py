"""A scorecard in a file, for whoever has one in Python: the formats and refusals of --bt-report."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_behaviortrace.reports import files
from pytest_behaviortrace.wording import require_no_nul

if TYPE_CHECKING:
    from pytest_behaviortrace.scorecard import Scorecard


def save(scorecard: Scorecard, path: str | os.PathLike[str]) -> Path:
    """Write the report that the suffix asks for (.json, .html, .md, .csv) over what was there; returns its path.

    Folders on the way are made. Raises `ValueError`, one sentence, for another suffix or a folder; `OSError`, one
    sentence, where it cannot be written, and then what was there before is there still.
    """
    require_no_nul(path, "path")
    place = Path(path).expanduser()
    given = os.fspath(path)
    if place.suffix.lower() not in files.FORMATS:
        raise ValueError(f"{given!r} does not say in which format; end it in {' or '.join(files.FORMATS)}")
    if place.is_dir():
        raise ValueError(f"{given!r} is a folder; give the path of a file")
    try:
        files.write(scorecard, place)
    except OSError as error:
        raise OSError(
            f"the report {given!r} was not written ({error.strerror or error}); choose another path"
        ) from None
    return place
