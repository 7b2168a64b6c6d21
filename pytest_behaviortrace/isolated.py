"""One call of one estimator in this process, on the files in the working directory: the child's side of `isolation`.

Imports numpy and the estimator's own module, nothing that has seen a label. Reads nothing from stdin but its end: when
the session dies, however it dies, so does this process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

from pytest_behaviortrace.estimator import EstimatorError, NotServed, claims_of, needs_of
from pytest_behaviortrace.isolation import PREFIX
from pytest_behaviortrace.problem_files import read_problem
from pytest_behaviortrace.registry import Registered, RegistryError, made
from pytest_behaviortrace.run.formats import write_array
from pytest_behaviortrace.scoring import score

FRAMES = 5
"""Frames of the estimator's own code that are told with an error."""


def main(room: Path) -> dict[str, Any]:
    """The answer: the estimator's needs where there is no problem, else what its scores cost, or what went wrong."""
    request = json.loads((room / "request.json").read_text(encoding="utf-8"))
    entry = Registered(**request["entry"])
    try:
        estimator = made(entry, Path(request["folder"]))
        needs, claims = needs_of(estimator), claims_of(estimator)
    except RegistryError as error:
        return {"error": str(error)}
    except EstimatorError as error:
        return {"error": f"estimator {entry.name!r}: {error}"}
    if not (room / "problem.json").exists():
        claimed = [f.name for f in dataclasses.fields(claims) if getattr(claims, f.name)]
        return {"needs": needs.names(), "claims": claimed}
    try:
        scored = score(entry.name, estimator, read_problem(room))
    except EstimatorError as error:
        if isinstance(error.__cause__, NotServed):
            return {"not_served": str(error.__cause__)}
        return {"error": str(error), "frames": frames_of(error.__cause__)}
    write_array(room, "scores", scored.scores)
    return {"seconds": scored.seconds, "peak_bytes": scored.peak_bytes}


def frames_of(error: BaseException | None) -> list[str]:
    """The last lines of a traceback that are neither this package's nor the import system's."""
    if error is None:
        return []
    own = str(Path(__file__).parent)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith((own, "<"))]
    return "".join(traceback.format_list(frames[-FRAMES:])).splitlines()


def _die_with_parent(room: Path) -> None:
    """End this process and its group, and remove its folder, when stdin, a pipe the parent holds open, ends."""
    pipe = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # an estimator that reads stdin finds it empty

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(pipe, 1):
                pass
        if room.name.startswith(PREFIX):
            shutil.rmtree(room, ignore_errors=True)
        if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=watch, name="parent watcher", daemon=True).start()


if __name__ == "__main__":
    _die_with_parent(Path.cwd())
    answer = json.dumps(main(Path.cwd()))
    Path("answer.json").write_text(answer, encoding="utf-8")
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)  # not through threads and exit handlers that the estimator left behind
