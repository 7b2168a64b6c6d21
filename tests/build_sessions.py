"""Real sessions around the fake builder, for tests of processes that share a cache: start one, watch what it does."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from pytest_behaviortrace.run.cache import BUILD_PREFIX
from pytest_behaviortrace.run.orchestrate import ensure
from pytest_behaviortrace.run.process import Task
from pytest_behaviortrace.run.progress import Silent
from pytest_behaviortrace.run.recipe import Recipe
from pytest_behaviortrace.run.store import Store

HERE = Path(__file__).parent
SEEDS, DRAWS = [0, 1], [0, 1]
UNITS = {Task(s, d).unit for s in SEEDS for d in (None, *DRAWS)}

SESSION = """
import json, os, socket, sys
from pathlib import Path
from pytest_behaviortrace.run import orchestrate, progress, recipe
name = os.environ.get("PRETENDED_MACHINE")
if name:
    socket.gethostname = lambda: name
seeds, draws = json.loads(sys.argv[2])
tiny = recipe.Recipe.load("tiny")
display = progress.display_for(sys.stdout)
orchestrate.ensure(tiny, seeds, draws, Path(sys.argv[1]), display, builder="fake_builder")
print("ready")
"""


def make(recipe: Recipe, cache: Path, seeds: Any = SEEDS, draws: Any = DRAWS, display: Any = None) -> Store:
    """What a session does, in this process."""
    return ensure(recipe, seeds, draws, cache, display, builder="fake_builder")


def session(
    cache: Path, seeds: Any = SEEDS, draws: Any = DRAWS, machine: str = "", **options: Any
) -> subprocess.Popen[str]:
    """A session in a process of its own, on the pretended machine of that name."""
    options.setdefault("env", {**os.environ, "PRETENDED_MACHINE": machine})
    command = [sys.executable, "-c", SESSION, str(cache), json.dumps([seeds, draws])]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def built(tmp_path: Path) -> Counter[str]:
    """How often each unit was started."""
    record = tmp_path / "record"
    lines = record.read_text().splitlines() if record.exists() else []
    return Counter(line.split()[0] for line in lines if not line.endswith("done"))


def workers_of(cache: Path) -> list[psutil.Process]:
    """Living worker processes that build in this cache."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if str(cache) in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found += [process] if "pytest_behaviortrace.run.worker" in process.cmdline() else []
    return found


def wait_for(condition: Any, seconds: float = 10.0) -> Any:
    """The condition's first truthy value; fails after `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.01)
    raise AssertionError("waited in vain")


def leftovers(store: Store) -> list[str]:
    return [path.name for path in store.folder.iterdir() if path.name.startswith(BUILD_PREFIX)]


class Told(Silent):
    """A display that remembers."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.stages: dict[str, list[str]] = {}
        self.finished: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)

    def update(self, unit: str, stage: str, fraction: float, note: str = "") -> None:
        self.stages.setdefault(unit, []).append(stage)

    def finish(self, unit: str) -> None:
        self.finished.append(unit)


def whole_or_absent(recipe: Recipe, cache: Path) -> None:
    problems = Store(cache, recipe).problems(SEEDS, DRAWS)
    assert set(problems.values()) <= {""}, problems
