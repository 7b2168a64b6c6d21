"""Makes sure that the units a session needs are in the store: trains what is missing, each unit once wherever.

Sessions on one machine, or on several that share the cache folder, divide the units among them (see `lock`).
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import queue
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_behaviortrace.run import worker
from pytest_behaviortrace.run.cache import CacheError, Unwritable, no_access, no_room, no_room_error, require_writable
from pytest_behaviortrace.run.leftovers import set_aside, sweep, sweep_unit
from pytest_behaviortrace.run.lock import BuildLock, NoLocks, building, worker_place
from pytest_behaviortrace.run.manifest import flush
from pytest_behaviortrace.run.process import Events, Running, Task, end, ending, interrupts_later, last_line, start
from pytest_behaviortrace.run.process import TrainingFailed as TrainingFailed
from pytest_behaviortrace.run.progress import Display, Silent
from pytest_behaviortrace.run.recorded import RUN, RecordedStore, RunQuestion, store_of
from pytest_behaviortrace.run.requirements import unmet
from pytest_behaviortrace.run.store import Store

if TYPE_CHECKING:
    from pytest_behaviortrace.run.recipe import Recipe

BUILDER = "pytest_behaviortrace.run.build"
"""Module whose `build_seed` and `build_draw` fill a unit's folder."""

DRAW_BUILDER = "pytest_behaviortrace.run.recorded_draw"
"""The same for draws of a recorded run."""

SIDE_BY_SIDE = 2
"""Worker processes at a time, of one user's sessions on one machine that share a cache folder.

Tiny tensors do not profit from threads, so each worker has one.
"""

LOOK_EVERY = 0.5
"""Seconds between two looks at what others build."""


def side_by_side(recipe: Recipe | RunQuestion) -> int:
    """Workers at a time: one for a policy that fills a GPU or uses all cores (a recipe's in mixed precision)."""
    alone = recipe.large_policy if isinstance(recipe, RunQuestion) else recipe.grpo.precision == "bfloat16"
    return 1 if alone else SIDE_BY_SIDE


class CannotTrain(CacheError):
    """Units are missing, and this machine lacks what their recipe needs to be trained; the message says what."""


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

    A hit takes no lock and needs no write access. On a miss each unit is trained by whichever process takes its lock
    first, at most `side_by_side` of them on this machine; what another process trains is waited for. Each unit is
    published whole, by a rename, as soon as it is finished: whatever interrupts this (an exception, Ctrl-C, kill -9),
    finished units stay and no half of one is ever seen.

    Raises `TrainingFailed`, `CannotTrain`, `Unwritable`, `NoAccess` or `NoRoom` (see `cache`).
    """
    seeds, draws = sorted(set(seeds)), sorted(set(draws))
    show = display or Silent()
    store = store_of(cache_dir, recipe)
    try:
        if not store.problems(seeds, draws):
            return store
    except PermissionError as error:
        raise no_access(error) from error
    if lacking := unmet(recipe):
        raise CannotTrain(lacking)
    require_writable(store.cache_dir)
    require_writable(store.folder)
    try:
        with building(store.folder, show.message):
            _Build(store, recipe, seeds, draws, show, builder).run()
    except NoLocks as error:
        raise Unwritable(str(error)) from error
    except OSError as error:
        if no_room(error):
            raise no_room_error(store.cache_dir) from error
        if isinstance(error, PermissionError):
            raise no_access(error) from error
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


def publish(sealed: Path, folder: Path) -> None:
    """Gives a sealed unit its name in a recipe folder. The caller holds the unit's lock."""
    target = folder / sealed.name
    aside = set_aside(target)  # only a damaged unit can be there; it makes room by a rename, too
    os.replace(sealed, target)
    flush(folder)
    shutil.rmtree(aside, ignore_errors=True)


@dataclass
class _Build:
    """One session's share of a build."""

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
    held: dict[str, contextlib.ExitStack] = field(default_factory=dict)
    """Unit that is being built here -> gives its lock and its worker's place back."""
    again: set[str] = field(default_factory=set)
    told: set[str] = field(default_factory=set)
    next_look: float = 0.0

    @functools.cached_property
    def most(self) -> int:
        """Workers at a time."""
        return side_by_side(self.recipe)

    def run(self) -> None:
        """Build every requested unit that cannot be used, longest first, and publish each when it is finished."""
        self.store.folder.mkdir(parents=True, exist_ok=True)
        sweep(self.store.folder)
        for seed in self.seeds:
            self._plan(self._task(seed))
        for seed in self.seeds:
            for draw in self.draws:
                self._plan(self._task(seed, draw))
        if not self.waiting:
            return
        if isinstance(self.recipe, RunQuestion):
            self.display.message(self.recipe.why)
        try:
            self.display.start(self.planned)
            while self.waiting or self.running:
                if time.monotonic() >= self.next_look:
                    while self.waiting and len(self.running) < self.most and self._start_one():
                        pass
                    self.next_look = time.monotonic() + LOOK_EVERY
                if self.waiting or self.running:
                    self._handle()
        finally:
            with interrupts_later():
                end(self.running.values())
                for locks in self.held.values():
                    locks.close()
                self.display.stop()

    def _task(self, seed: int, draw: int | None = None) -> Task:
        return Task(seed, draw, self.store.unit_name(seed, draw))

    def _plan(self, task: Task) -> None:
        problem = self.store.problem(task.seed, task.draw)
        if problem is None or task.unit in self.planned:
            return
        if problem:
            self.display.message(f"{task.unit} in the cache cannot be used ({problem}); it is built again")
        self.waiting.append(task)
        self.waiting.sort(key=lambda t: (-t.cost, t.seed, t.draw or 0))
        self.planned[task.unit] = task.cost

    def _start_one(self) -> bool:
        """Start the longest unit that can start now and that nobody else builds; False if there is none, or no room."""
        with interrupts_later():
            place = worker_place(self.store.cache_dir, self.most)
            if isinstance(place, str):
                self._tell_wait("place", f"waiting for {place}: as many workers run on this machine as may")
                return False
            with contextlib.ExitStack() as undo:
                undo.callback(place.release)
                for task in list(self.waiting):
                    lock = BuildLock(self.store.folder, task.unit)
                    if self._blocked(task) or not self._claimed(task, lock):
                        continue
                    undo.callback(lock.release)
                    self.running[task.unit] = start(task, self.store, self.recipe, self.builder, self.events)
                    self.waiting.remove(task)
                    self.held[task.unit] = undo.pop_all()
                    return True
        return False

    def _blocked(self, task: Task) -> bool:
        """Whether a draw has to wait for its seed."""
        ours = [*self.waiting, *(r.task for r in self.running.values())]
        return task.draw is not None and self._task(task.seed) in ours

    def _claimed(self, task: Task, lock: BuildLock) -> bool:
        """Take the lock of a waiting unit, if it is free and the unit is still to be built."""
        if not lock.acquire():
            self._tell_wait(task.unit, f"waiting for {lock.owner()}, to finish {self.store.doing} {task.unit}")
            return False
        with contextlib.ExitStack() as undo:
            undo.callback(lock.release)
            sweep_unit(self.store.folder, task.unit)
            if self.store.problem(task.seed, task.draw) is None:
                self._made_elsewhere(task)
            elif task.draw is not None and self.store.problem(task.seed) is not None:
                self.planned.pop(self._task(task.seed).unit, None)
                self._plan(self._task(task.seed))  # its seed was damaged since it was looked at first
            else:
                undo.pop_all()
                return True
        return False

    def _made_elsewhere(self, task: Task) -> None:
        self.waiting.remove(task)
        del self.planned[task.unit]
        self.display.message(f"{task.unit} was trained by another process")
        self._plan_draws(task)

    def _tell_wait(self, what: str, sentence: str) -> None:
        """Say once what is waited for, if there is nothing else to do meanwhile."""
        if not self.running and what not in self.told:
            self.told.add(what)
            self.display.message(sentence)

    def _handle(self) -> None:
        """Wait for one event of a worker: progress, or its end."""
        try:
            unit, line = self.events.get(timeout=LOOK_EVERY)  # with a timeout, Ctrl-C is noticed on every platform
        except queue.Empty:
            return
        if line is not None:
            event = json.loads(line)
            self.display.update(unit, event["stage"], event["fraction"], event.get("note", ""))
            return
        running = self.running[unit]
        code = running.process.wait()
        if code == worker.FULL:
            raise no_room_error(self.store.cache_dir)
        if code == worker.SAID:
            raise TrainingFailed(unit, last_line(running.log), running.log, self.store.doing, said=True)
        if code != worker.DONE:
            raise TrainingFailed(unit, ending(code), running.log, self.store.doing)
        with interrupts_later():
            self._publish(running)
            del self.running[unit]
            self.held.pop(unit).close()
        self.next_look = 0.0

    def _publish(self, running: Running) -> None:
        task = running.task
        publish(running.folder / task.unit, self.store.folder)
        end([running])
        problem = self.store.problem(task.seed, task.draw)
        if problem is not None and task.draw is not None and task.unit not in self.again:
            self.again.add(task.unit)  # another process has built its seed again meanwhile
            del self.planned[task.unit]
            self._plan(task)
            return
        if problem is not None:
            why = f"it was damaged as soon as it was published ({problem})"
            raise TrainingFailed(task.unit, why, running.log, self.store.doing)
        self.display.finish(task.unit)
        self._plan_draws(task)

    def _plan_draws(self, task: Task) -> None:
        """Once a seed is there: plan draws of another build of it, which are of no use any more."""
        if task.draw is None:
            for draw in self.draws:
                self._plan(self._task(task.seed, draw))
        self.display.start(self.planned)
