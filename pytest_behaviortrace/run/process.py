"""Worker processes: how one is started, listened to, and ended together with everything it wrote."""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from pytest_behaviortrace.run import handover, worker
from pytest_behaviortrace.run.cache import LOGS
from pytest_behaviortrace.run.leftovers import BUILD_PREFIX
from pytest_behaviortrace.run.store import Store, draw_unit, seed_unit

if TYPE_CHECKING:
    from pytest_behaviortrace.run.recipe import Recipe
    from pytest_behaviortrace.run.recorded import RunQuestion

Events = queue.SimpleQueue[tuple[str, str | None]]
"""(unit, line of JSON), or (unit, None) when its worker closed its output."""

COST = {"seed": 4.0, "draw": 1.0}
"""Rough cost of a unit relative to others: what is started first, and how progress adds up."""

_TAIL_LINES = 15
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "WANDB_MODE": "disabled",
}
"""What a worker's environment says: offline, silent, and one thread, set before anything reads it."""


class TrainingFailed(Exception):
    """A worker failed; the message ends with the last lines of its log and the path of all of it.

    Without those lines where `said`: `why` is a sentence of this package's own, which needs no traceback.
    """

    def __init__(self, unit: str, why: str, log: Path, doing: str = Store.doing, *, said: bool = False) -> None:
        self.unit, self.log = unit, log
        super().__init__(
            f"{doing} {unit} failed: {why}{'' if said else '.'}\n{'' if said else tail(log)}full log: {log}"
        )


@dataclass(frozen=True, slots=True)
class Task:
    """A unit to be built."""

    seed: int
    draw: int | None = None
    name: str = ""
    """Name of the unit where it is not the usual one."""

    @property
    def unit(self) -> str:
        """Name of the unit."""
        return self.name or (seed_unit(self.seed) if self.draw is None else draw_unit(self.seed, self.draw))

    @property
    def cost(self) -> float:
        """Rough cost relative to other units."""
        return COST["seed" if self.draw is None else "draw"]


@dataclass
class Running:
    """A worker process and the folder it builds in."""

    task: Task
    process: subprocess.Popen[str]
    folder: Path
    log: Path


def start(task: Task, store: Store, recipe: Recipe | RunQuestion, builder: str, events: Events) -> Running:
    """Start the worker of a unit; its output arrives in `events`."""
    folder = Path(tempfile.mkdtemp(prefix=f"{BUILD_PREFIX}{task.unit}-", dir=store.folder))
    unit, work, handed = folder / task.unit, folder / "work", folder / "recipe.json"
    unit.mkdir()
    work.mkdir()
    handed.write_text(handover.dumps(recipe), encoding="utf-8")
    log = store.folder / LOGS / f"{task.unit}.log"
    log.parent.mkdir(exist_ok=True)
    command = [sys.executable, "-m", worker.__name__, "--builder", builder, "--recipe", str(handed)]
    command += ["--key", store.key, "--cache-dir", str(store.cache_dir), "--folder", str(unit)]
    command += ["--seed", str(task.seed)] + ([] if task.draw is None else ["--draw", str(task.draw)])
    with log.open("wb") as errors:
        # A session of its own: Ctrl-C reaches only this process, which then ends its workers in order.
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=work,
            env=_environment(work),
            start_new_session=True,
            text=True,
            encoding="utf-8",
        )
    threading.Thread(target=_listen, args=(task.unit, process, events), daemon=True).start()
    return Running(task, process, folder, log)


def _listen(unit: str, process: subprocess.Popen[str], events: Events) -> None:
    assert process.stdout is not None
    with process.stdout as lines:
        for line in lines:
            events.put((unit, line))
    events.put((unit, None))


def end(workers: Collection[Running]) -> None:
    """End workers, if they still run, and remove what they were writing."""
    for running in workers:
        if running.process.stdin is not None:
            running.process.stdin.close()  # a worker exits at the end of its stdin
    for running in workers:
        try:
            running.process.wait(timeout=2.0)
        except subprocess.TimeoutExpired:
            running.process.kill()
            running.process.wait()
        shutil.rmtree(running.folder, ignore_errors=True)


def _environment(work: Path) -> dict[str, str]:
    environment = {**os.environ, **ENVIRONMENT, "HF_DATASETS_CACHE": str(work / "datasets")}
    if "PYTHONPATH" in environment:  # the worker has another working directory
        paths = environment["PYTHONPATH"].split(os.pathsep)
        environment["PYTHONPATH"] = os.pathsep.join(str(Path(p).absolute()) for p in paths)
    return environment


def ending(code: int) -> str:
    """How a process ended, in words: its exit code, or the signal that killed it."""
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = str(-code)
    hint = "; perhaps the machine ran out of memory" if name == "SIGKILL" else ""
    return f"killed by {name}{hint}"


def tail(log: Path) -> str:
    """The last lines of a log, indented; empty if it cannot be read."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]
    except OSError:
        return ""
    return "".join(f"    {line}\n" for line in lines)


def last_line(log: Path) -> str:
    """The last line of a log; empty if it cannot be read."""
    return tail(log).strip().rpartition("\n")[2].strip()


@contextlib.contextmanager
def interrupts_later() -> Iterator[None]:
    """Hold Ctrl-C back until the block is over, so that no worker is started, published or ended by half.

    Does nothing outside the main thread, where Ctrl-C never arrives.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[tuple[int, FrameType | None]] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: pending.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler if before is None else before)
        if pending and callable(before):
            before(*pending[0])
