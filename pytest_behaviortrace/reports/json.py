"""Scorecard -> JSON, schema 1: the same bytes for the same cache, however the rows were spread over processes."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from pytest_behaviortrace.scorecard import Row, Scorecard

SCHEMA = 1
_ROW_FIELDS = tuple(f.name for f in fields(Row))


def to_dict(scorecard: Scorecard) -> dict[str, Any]:
    """The report as plain data, in its documented order. Of a recorded run, `run` says which, and `recipe` is null."""
    run = scorecard.run
    about: dict[str, Any] = {"recipe": {"name": scorecard.recipe, "hash": scorecard.recipe_hash}}
    if run is not None:
        about = {"recipe": None, "run": {**asdict(run), "versions": dict(sorted(run.versions.items()))}}
    return {
        "schema": SCHEMA,
        "suite": scorecard.suite,
        **about,
        "versions": dict(sorted(scorecard.versions.items())),
        "seeds": [asdict(facts) for facts in sorted(scorecard.seeds, key=lambda facts: facts.seed)],
        "rows": [{name: getattr(row, name) for name in _ROW_FIELDS} for row in scorecard.rows],
    }


def render(scorecard: Scorecard) -> str:
    """The report as text, one row a line."""
    report = to_dict(scorecard)
    rows = [_dump(row) for row in report.pop("rows")]
    body = "\n" + ",\n".join(rows) + "\n" if rows else ""
    return f'{_dump(report)[:-1]}, "rows": [{body}]}}\n'


def _dump(value: dict[str, Any]) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


def write(scorecard: Scorecard, path: Path) -> None:
    """Write the report so that `path` holds the whole of it or what was there before. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as stream:
            stream.write(render(scorecard))
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
