"""Units built by several processes that were launched together (`accelerate launch -m pytest_behaviortrace train`).

Rank 0 takes the locks, says what is built, and publishes; the others follow. A seed is trained by all of them at once,
draws are divided among them. A process that fails ends, and whoever launched them ends the others: what they were
making has no unit's name, and the next build sweeps it away.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from pytest_behaviortrace.run.cache import LOGS, CacheError, Unwritable, no_room, no_room_error, require_writable
from pytest_behaviortrace.run.importing import imported
from pytest_behaviortrace.run.launch import settle
from pytest_behaviortrace.run.leftovers import BUILD_PREFIX, sweep, sweep_unit
from pytest_behaviortrace.run.lock import BuildLock, NoLocks, OwnedLock, building, worker_place
from pytest_behaviortrace.run.orchestrate import BUILDER, LOOK_EVERY, CannotTrain, TrainingFailed, publish, side_by_side
from pytest_behaviortrace.run.process import Task
from pytest_behaviortrace.run.progress import Display, Silent, display_for
from pytest_behaviortrace.run.requirements import unmet
from pytest_behaviortrace.run.store import Built, Store
from pytest_behaviortrace.run.worker import finish, sentence_of

if TYPE_CHECKING:
    from pytest_behaviortrace.run.ranks import Ranks
    from pytest_behaviortrace.run.recipe import Recipe

Order = tuple[int, int | None, str]
"""Seed, draw (None: the seed itself), and the folder in which the unit is made."""


def refuse(sentence: str) -> int:
    """Exit code of a usage error that every rank has seen; rank 0 tells it before the launcher ends it."""
    from pytest_behaviortrace.run.ranks import joined

    with joined() as ranks:
        if ranks.first:
            with _terminal() as terminal:
                print(f"error: {sentence}", file=terminal)
        ranks.wait()
    return 2


def ensure_together(
    recipe: Recipe, seeds: Iterable[int], draws: Iterable[int], cache_dir: Path, builder: str = BUILDER
) -> int:
    """What `orchestrate.ensure` does, by all the processes that call this; returns the exit code.

    Rank 0 speaks for all of them, and each for what fails in it.
    """
    settle(recipe)
    from pytest_behaviortrace.run.ranks import joined

    store = Store(cache_dir, recipe)
    with joined() as ranks, _terminal() as terminal:
        party = _Party(store, recipe, ranks, builder, terminal)
        if not ranks.first:
            while "build" in (told := ranks.tell()):
                party.build(told["build"])
            return int(told["end"])
        try:
            _Lead(party, sorted(set(seeds)), sorted(set(draws)), display_for(terminal)).run()
            code = 0
        except (CacheError, TrainingFailed) as error:
            print(f"error: {error}", file=terminal, flush=True)
            code = 1
        ranks.tell({"end": code})
    return code


@contextlib.contextmanager
def _terminal() -> Iterator[TextIO]:
    """Standard error as it is now, whatever becomes of it inside."""
    with os.fdopen(os.dup(2), "w", encoding="utf-8") as stream:
        yield stream


@dataclass
class _Party:
    """This process's part in what all of them build."""

    store: Store
    recipe: Recipe
    ranks: Ranks
    builder: str
    terminal: TextIO
    display: Display = field(default_factory=Silent)

    def build(self, orders: Sequence[Order]) -> None:
        """Do this process's part of one seed, or one of the draws; returns when all processes are done.

        Does not return where it fails: the others may be waiting for what this process will never send.
        """
        alike = orders[0][1] is None
        if alike or self.ranks.rank < len(orders):
            seed, draw, folder = orders[0 if alike else self.ranks.rank]
            task, mark = Task(seed, draw), "" if self.ranks.first or not alike else f".rank{self.ranks.rank}"
            log = self.store.folder / LOGS / f"{task.unit}{mark}.log"
            try:
                with _apart(Path(folder) / f"work-{self.ranks.rank}", log):
                    self._build(task, Path(folder) / task.unit)
            except Exception as error:
                who, said = f"process {self.ranks.rank} of {self.ranks.count}", sentence_of(error)
                why = f"{who} met a {type(error).__name__}" if said is None else f"{said} ({who})"
                failed = TrainingFailed(task.unit, why, log, said=said is not None)
                print(
                    f"error: {no_room_error(self.store.cache_dir) if no_room(error) else failed}",
                    file=self.terminal, flush=True,
                )  # fmt: skip
                os._exit(1)
        self.ranks.wait()

    def _build(self, task: Task, folder: Path) -> None:
        began, module = time.perf_counter(), imported(self.builder)

        def report(stage: str, fraction: float, note: str = "") -> None:
            self.display.update(task.unit, stage, fraction, note)

        report("starting", 0.0)
        whose = None if task.draw is None else self.store.seed(task.seed)
        if whose is None:
            built = module.build_seed(self.recipe, task.seed, folder, report, self.ranks)
        else:
            built = module.build_draw(self.recipe, task.seed, task.draw, whose, folder, report)
        if whose is not None or self.ranks.first:
            report("writing", 1.0)
            origin = None if whose is None else whose.analysis_policy
            finish(self.store, task.unit, origin, folder, Built(*built), time.perf_counter() - began)


@contextlib.contextmanager
def _apart(work: Path, log: Path) -> Iterator[None]:
    """Inside, this process works in a folder of its own, and what it prints, or fails with, goes to a log."""
    work.mkdir()
    os.environ["HF_DATASETS_CACHE"] = str(work / "datasets")
    before, kept = Path.cwd(), [os.dup(1), os.dup(2)]
    with log.open("wb") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    os.chdir(work)
    try:
        yield
    except Exception:
        with contextlib.suppress(OSError):  # the log may be on the full disk
            traceback.print_exc()
        raise
    finally:
        os.chdir(before)
        for number, descriptor in enumerate(kept, 1):
            os.dup2(descriptor, number)
            os.close(descriptor)


@dataclass
class _Lead:
    """What rank 0 does beside its part: decides, locks, publishes."""

    party: _Party
    seeds: list[int]
    draws: list[int]
    display: Display
    planned: dict[str, float] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)

    def run(self) -> None:
        """Build every requested unit that cannot be used, seeds first.

        Raises what `orchestrate.ensure` does, and only while the others wait to be told.
        """
        store = self.party.store
        if not store.problems(self.seeds, self.draws):
            return
        if lacking := unmet(self.party.recipe, self.party.ranks.count):
            raise CannotTrain(lacking)
        require_writable(store.cache_dir)
        require_writable(store.folder)
        self.party.display = self.display
        try:
            with building(store.folder, self.display.message), contextlib.ExitStack() as undo:
                sweep(store.folder)
                (store.folder / LOGS).mkdir(exist_ok=True)
                undo.callback(self._place().release)
                undo.callback(self.display.stop)
                draws = [Task(seed, draw) for seed in self.seeds for draw in self.draws]
                self._plan([Task(seed) for seed in self.seeds] + draws)
                self._all([Task(seed) for seed in self.seeds], 1)
                self._plan(draws)  # those of a seed that was built again are of no use any more
                self._all(draws, self.party.ranks.count)
        except NoLocks as error:
            raise Unwritable(str(error)) from error
        except OSError as error:
            if no_room(error):
                raise no_room_error(store.cache_dir) from error
            raise

    def _place(self) -> OwnedLock:
        """A worker's place on this machine, for all of the processes."""
        most = side_by_side(self.party.recipe)
        while isinstance(place := worker_place(self.party.store.cache_dir, most), str):
            self._tell_wait("place", f"waiting for {place}: as many workers run on this machine as may")
        return place

    def _plan(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            problem = self.party.store.problem(task.seed, task.draw)
            if problem and task.unit not in self.planned:
                self.display.message(f"{task.unit} in the cache cannot be used ({problem}); it is built again")
            if problem is not None:
                self.planned[task.unit] = task.cost
        self.display.start(self.planned)

    def _all(self, tasks: Sequence[Task], most: int) -> None:
        """Build what is missing of some units, up to `most` at a time; what others build meanwhile is waited for."""
        store = self.party.store
        waiting = [task for task in tasks if store.problem(task.seed, task.draw) is not None]
        while waiting:
            with contextlib.ExitStack() as held:
                taken: list[Task] = []
                for task in list(waiting):
                    lock = BuildLock(store.folder, task.unit)
                    if len(taken) == most:
                        break
                    if not lock.acquire():
                        owner = lock.owner()
                        continue
                    held.callback(lock.release)
                    waiting.remove(task)
                    sweep_unit(store.folder, task.unit)
                    if store.problem(task.seed, task.draw) is None:
                        self.display.message(f"{task.unit} was trained by another process")
                        self.display.finish(task.unit)
                    else:
                        taken.append(task)
                if taken:
                    self._round(taken)
                elif waiting:
                    self._tell_wait(waiting[0].unit, f"waiting for {owner}, to finish training {waiting[0].unit}")

    def _tell_wait(self, what: str, sentence: str) -> None:
        if what not in self.told:
            self.told.add(what)
            self.display.message(sentence)
        time.sleep(LOOK_EVERY)

    def _round(self, tasks: Sequence[Task]) -> None:
        store = self.party.store
        folders = [Path(tempfile.mkdtemp(prefix=f"{BUILD_PREFIX}{t.unit}-", dir=store.folder)) for t in tasks]
        for task, folder in zip(tasks, folders, strict=True):
            (folder / task.unit).mkdir()
        orders = [(task.seed, task.draw, str(folder)) for task, folder in zip(tasks, folders, strict=True)]
        self.party.build(self.party.ranks.tell({"build": orders})["build"])
        for task, folder in zip(tasks, folders, strict=True):
            publish(folder / task.unit, store.folder)
            shutil.rmtree(folder, ignore_errors=True)
            if problem := store.problem(task.seed, task.draw):
                log = store.folder / LOGS / f"{task.unit}.log"
                raise TrainingFailed(task.unit, f"it was damaged as soon as it was published ({problem})", log)
            self.display.finish(task.unit)
