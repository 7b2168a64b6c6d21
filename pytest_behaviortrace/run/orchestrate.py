"""Makes sure that the units a session needs are in the store: trains what is missing, once per machine."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_behaviortrace.run import worker
from pytest_behaviortrace.run.cache import (
    no_room,
    no_room_error,
    require_writable,
    set_aside,
    sweep,
)
from pytest_behaviortrace.run.lock import BuildLock
from pytest_behaviortrace.run.manifest import flush
from pytest_behaviortrace.run.process import Events, Running, Task, end, ending, interrupts_later, start, tail
from pytest_behaviortrace.run.progress import Display, Silent
from pytest_behaviortrace.run.recorded import RUN, RecordedStore, store_of
from pytest_behaviortrace.run.store import Store

if TYPE_CHECKING:
    from pytest_behaviortrace.run.recipe import Recipe
    from pytest_behaviortrace.run.recorded import RunQuestion

BUILDER = "pytest_behaviortrace.run.build"
"""Module whose `build_seed` and `build_draw` fill a unit's folder."""

DRAW_BUILDER = "pytest_behaviortrace.run.recorded_draw"
"""The same for draws of a recorded run."""

SIDE_BY_SIDE = 2
"""Worker processes at a time. Tiny tensors do not profit from threads, so each worker has one."""


class TrainingFailed(Exception):
    """A worker failed; the message ends with the last lines of its log and the path of all of it."""

    def __init__(self, unit: str, why: str, log: Path, doing: str = Store.doing) -> None:
        self.unit, self.log = unit, log
        super().__init__(f"{doing} {unit} failed: {why}.\n{tail(log)}full log: {log}")


def ensure(
    recipe: Recipe | RunQuestion,
    seeds: Iterable[int],
    draws: Iterable[int],
    cache_dir: Path,
    display: Display | None = None,
    *,
    builder: str = BUILDER,
) -> Store:
    """A store in which every given draw of every given seed is present and undamaged.

    (For a question about a recorded run, which is the one seed of its store, use `ensure_draws`.)

    A hit takes no lock and needs no write access. On a miss one process per machine trains, at most two units side by
    side, while others wait for what they need. Each unit is published whole, by a rename, as soon as it is finished:
    whatever interrupts this (an exception, Ctrl-C, kill -9), finished units stay and no half of one is ever seen.

    Raises `TrainingFailed`, `Unwritable` or `NoRoom` (see `cache`).
    """
    seeds, draws = sorted(set(seeds)), sorted(set(draws))
    show = display or Silent()
    store = store_of(cache_dir, recipe)
    if not store.problems(seeds, draws):
        return store
    require_writable(store.cache_dir)
    require_writable(store.folder)
    try:
        with _turn(store, seeds, draws, show) as ours:
            if ours:
                _Build(store, recipe, seeds, draws, show, builder).run()
    except OSError as error:
        if no_room(error):
            raise no_room_error(store.cache_dir) from error
        raise
    return store


def ensure_draws(
    question: RunQuestion,
    draws: Iterable[int],
    cache_dir: Path,
    display: Display | None = None,
    *,
    builder: str = DRAW_BUILDER,
) -> RecordedStore:
    """A store in which every given draw of a recorded run is present and undamaged; see `ensure`.

    Nothing is written into the run's own folder. Raises `RecordedRunError` too, when the run is damaged or changed.
    """
    store = ensure(question, [RUN], draws, cache_dir, display, builder=builder)
    assert isinstance(store, RecordedStore)
    return store


@contextlib.contextmanager
def _turn(store: Store, seeds: list[int], draws: list[int], display: Display) -> Iterator[bool]:
    """Hold the recipe folder's lock, or (yielding False) see another process finish all that is needed."""
    lock = BuildLock(store.folder)
    patience = 0.0
    while not lock.acquire(patience):
        if not store.problems(seeds, draws):
            yield False
            return
        if not patience:
            display.message(f"waiting for {lock.owner()}, to finish training in {store.folder}")
        patience = 0.5
    try:
        yield True
    finally:
        lock.release()


@dataclass
class _Build:
    """One build by the holder of the lock."""

    store: Store
    recipe: Recipe | RunQuestion
    seeds: list[int]
    draws: list[int]
    display: Display
    builder: str
    waiting: list[Task] = field(default_factory=list)
    planned: dict[str, float] = field(default_factory=dict)
    running: dict[str, Running] = field(default_factory=dict)
    events: Events = field(default_factory=queue.SimpleQueue)

    def run(self) -> None:
        """Build every requested unit that cannot be used, longest first, and publish each when it is finished."""
        self.store.folder.mkdir(parents=True, exist_ok=True)
        sweep(self.store.folder)
        for seed in self.seeds:
            self._plan(seed)
        for seed in self.seeds:
            for draw in self.draws:
                self._plan(seed, draw)
        if not self.waiting:
            return
        try:
            self.display.start(self.planned)
            while self.waiting or self.running:
                while len(self.running) < SIDE_BY_SIDE and (task := self._next()):
                    with interrupts_later():
                        self.running[task.unit] = start(task, self.store, self.recipe, self.builder, self.events)
                self._handle()
        finally:
            with interrupts_later():
                end(self.running.values())
                self.display.stop()

    def _plan(self, seed: int, draw: int | None = None) -> None:
        task = Task(seed, draw, self.store.unit_name(seed, draw))
        problem = self.store.problem(task.seed, task.draw)
        if problem is None or task.unit in self.planned:
            return
        if problem:
            self.display.message(f"{task.unit} in the cache cannot be used ({problem}); it is built again")
        self.waiting.append(task)
        self.waiting.sort(key=lambda t: (-t.cost, t.seed, t.draw or 0))
        self.planned[task.unit] = task.cost

    def _next(self) -> Task | None:
        """The longest unit that can start now: a draw has to wait for its seed."""
        unfinished = {task.seed for task in self.waiting if task.draw is None}
        unfinished |= {r.task.seed for r in self.running.values() if r.task.draw is None}
        for index, task in enumerate(self.waiting):
            if task.draw is None or task.seed not in unfinished:
                return self.waiting.pop(index)
        return None

    def _handle(self) -> None:
        """Wait for one event of a worker: progress, or its end."""
        with contextlib.suppress(queue.Empty):
            unit, line = self.events.get(timeout=1.0)  # with a timeout, Ctrl-C is noticed on every platform
            if line is not None:
                event = json.loads(line)
                self.display.update(unit, event["stage"], event["fraction"])
                return
            running = self.running[unit]
            code = running.process.wait()
            if code == worker.FULL:
                raise no_room_error(self.store.cache_dir)
            if code != worker.DONE:
                raise TrainingFailed(unit, ending(code), running.log, self.store.doing)
            with interrupts_later():
                self._publish(running)
                del self.running[unit]

    def _publish(self, running: Running) -> None:
        task = running.task
        target = self.store.folder / task.unit
        aside = set_aside(target)  # only a damaged unit can be there; it makes room by a rename, too
        os.replace(running.folder / task.unit, target)
        flush(self.store.folder)
        shutil.rmtree(aside, ignore_errors=True)
        end([running])
        problem = self.store.problem(task.seed, task.draw)
        if problem is not None:
            why = f"it was damaged as soon as it was published ({problem})"
            raise TrainingFailed(task.unit, why, running.log, self.store.doing)
        self.display.finish(task.unit)
        if task.draw is None:  # draws of another build of this seed are of no use any more
            for draw in self.draws:
                self._plan(task.seed, draw)
            self.display.start(self.planned)
