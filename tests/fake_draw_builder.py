"""A builder of draws of a recorded run that makes them up, for tests of the processes that build them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import recorded_world

from pytest_behaviortrace.run.recorded import RecordedRunError
from pytest_behaviortrace.run.store import Built


def build_draw(question: Any, seed: int, draw: int, run: Any, folder: Path, progress: Any) -> Built:
    """A made-up draw that notes which run it was asked about."""
    if os.environ.get("FAKE_DRAW") == "fail":
        raise RuntimeError("no policy here")
    if os.environ.get("FAKE_DRAW") == "refuse":
        raise RecordedRunError("its base is not here;\nput it back")
    if record := os.environ.get("FAKE_DRAW_RECORD"):
        with Path(record).open("a", encoding="utf-8") as lines:
            lines.write(f"draw{draw}\n")
        time.sleep(float(os.environ["FAKE_DRAW_SLEEP"]))
    progress("siblings", 0.5)
    found = recorded_world.write_draw(folder, draw)
    return Built({**found, "read": run.policy("end").name, "behavior": question.behavior}, {"siblings": 0.0})
