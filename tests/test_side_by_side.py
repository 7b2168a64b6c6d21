"""Several processes, on one machine or more, that train into one cache folder: side by side, nothing twice."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from build_sessions import DRAWS, HERE, built, leftovers, make, session, wait_for, workers_of

from pytest_behaviortrace.run import cache as cache_module
from pytest_behaviortrace.run.cache import BUILD_PREFIX, InUse, Unwritable
from pytest_behaviortrace.run.leftovers import set_aside, unit_of
from pytest_behaviortrace.run.lock import BuildLock, worker_place
from pytest_behaviortrace.run.orchestrate import SIDE_BY_SIDE
from pytest_behaviortrace.run.process import Task
from pytest_behaviortrace.run.recipe import Recipe
from pytest_behaviortrace.run.store import Store


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return Recipe.load("tiny")


@pytest.fixture
def cache(tmp_path) -> Path:
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def fake_build(tmp_path, monkeypatch):
    """Steers the fake builder in every process of the test: `fake_build(sleep=1.0)`."""
    monkeypatch.setenv("PYTHONPATH", str(HERE))

    def steer(**options) -> None:
        monkeypatch.setenv("FAKE_BUILD", json.dumps({"record": str(tmp_path / "record"), **options}))

    steer()
    return steer


def watch(sessions, cache: Path) -> tuple[int, list[str]]:
    """Most workers seen at one moment until all sessions ended, and what each printed; every one must succeed."""
    most = 0
    while any(s.poll() is None for s in sessions):
        most = max(most, len(workers_of(cache)))
        time.sleep(0.02)
    outputs = [s.communicate() for s in sessions]
    assert [s.returncode for s in sessions] == [0] * len(sessions), outputs
    assert all(out.endswith("ready\n") for out, _ in outputs)
    return most, [out for out, _ in outputs]


def units(seeds, draws=DRAWS) -> Counter[str]:
    return Counter(Task(s, d).unit for s in seeds for d in (None, *draws))


# -- dividing the work -------------------------------------------------------------------------------------------------


def test_two_machines_train_disjoint_seeds_at_the_same_time(cache, recipe, fake_build, tmp_path):
    fake_build(sleep=3.0)
    sessions = [session(cache, [0, 1], DRAWS, "left"), session(cache, [2, 3], DRAWS, "right")]
    most, outputs = watch(sessions, cache)
    assert most == 2 * SIDE_BY_SIDE
    assert built(tmp_path) == units(range(4))
    assert not any("waiting" in out for out in outputs)
    assert Store(cache, recipe).missing(range(4), DRAWS) == []
    assert leftovers(Store(cache, recipe)) == []


def test_two_machines_divide_the_same_seeds(cache, recipe, fake_build, tmp_path):
    fake_build(sleep=1.0)
    most, outputs = watch([session(cache, [0, 1, 2, 3], [0], name) for name in ("left", "right")], cache)
    assert most > SIDE_BY_SIDE
    assert built(tmp_path) == units(range(4), [0])
    finished = [set(re.findall(r"(\S+): finished", out)) for out in outputs]
    elsewhere = [set(re.findall(r"(\S+) was trained by another process", out)) for out in outputs]
    assert all(finished)
    assert not finished[0] & finished[1]
    assert [f | e for f, e in zip(finished, elsewhere, strict=True)] == [set(units(range(4), [0]))] * 2


def test_one_machine_keeps_to_its_workers_whatever_the_number_of_processes(cache, recipe, fake_build, tmp_path):
    fake_build(sleep=0.8)
    most, _ = watch([session(cache, [seed], [0]) for seed in range(3)], cache)
    assert most == SIDE_BY_SIDE
    assert built(tmp_path) == units(range(3), [0])


def test_a_recipe_in_mixed_precision_has_the_machine_to_itself(cache, recipe, fake_build, tmp_path):
    fake_build(sleep=0.6)
    large = replace(recipe, grpo=replace(recipe.grpo, precision="bfloat16"))
    made = threading.Thread(target=make, args=(large, cache, [0, 1], [0]))
    made.start()
    most = 0
    while made.is_alive():
        most = max(most, len(workers_of(cache)))
        time.sleep(0.02)
    assert most == 1
    assert built(tmp_path) == units([0, 1], [0])


# -- the dead and the living -------------------------------------------------------------------------------------------


def test_what_a_killed_process_was_training_is_taken_over_by_the_one_that_waits(cache, recipe, fake_build, tmp_path):
    fake_build(sleep=60.0)  # still at it when it is killed, however slow the machine
    first = session(cache, [0], [], "left")
    wait_for(lambda: "seed0" in built(tmp_path))  # started, and not only its process
    fake_build()
    second = session(cache, [0], [], "right")
    assert second.stdout is not None
    assert "to do: seed0" in second.stdout.readline()
    assert re.match(rf"behaviortrace: waiting for process {first.pid} on left, since .*seed0", second.stdout.readline())
    first.kill()
    first.communicate()
    watch([second], cache)
    assert built(tmp_path)["seed0"] == 2
    assert Store(cache, recipe).missing([0], []) == []
    assert leftovers(Store(cache, recipe)) == []


def test_the_folder_of_a_live_build_is_never_swept_whatever_machine_it_runs_on(cache, recipe, fake_build):
    store = make(recipe, cache, [0], [])
    fake_build(sleep=2.5)
    other = session(cache, [7], [], "elsewhere")
    wait_for(lambda: workers_of(cache))
    (alive,) = leftovers(store)
    dead = store.folder / f"{BUILD_PREFIX}seed9-dead"
    dead.mkdir()
    fake_build()
    make(recipe, cache, [1], [])
    assert leftovers(store) == [alive]
    watch([other], cache)
    assert store.missing([0, 1, 7], []) == []
    assert leftovers(store) == []


def test_leftovers_are_told_by_unit(tmp_path):
    assert unit_of(tmp_path / f"{BUILD_PREFIX}seed0-draw1-ab_cd12") == "seed0-draw1"
    for name in ("seed0-draw1", f"{BUILD_PREFIX}seed0-draw1-ab_cd12"):
        (tmp_path / name).mkdir()
        assert unit_of(set_aside(tmp_path / name)) == "seed0-draw1"
    assert unit_of(tmp_path / f"{BUILD_PREFIX}strange") == "unknown"


def test_a_draw_of_a_seed_that_was_built_again_meanwhile_is_built_again(cache, recipe, fake_build, tmp_path):
    store = make(recipe, cache, [0], [])
    fake_build(sleep=20.0)  # a quarter of it for a draw
    running = session(cache, [0], [0], "left")
    wait_for(lambda: "seed0-draw0" in built(tmp_path))
    (store.folder / "seed0" / "part0.npy").unlink()
    fake_build(flavor="right")
    make(recipe, cache, [0], [])
    watch([running], cache)
    assert built(tmp_path) == Counter({"seed0": 2, "seed0-draw0": 2})
    assert store.draw(0, 0).facts["read"] == "weights of seed0, flavor right"


# -- clearing ----------------------------------------------------------------------------------------------------------


def test_nothing_is_cleared_while_anybody_trains_or_waits_for_his_turn(cache, recipe, fake_build):
    store = make(recipe, cache, [0], [])
    places = [worker_place(cache, SIDE_BY_SIDE) for _ in range(SIDE_BY_SIDE)]
    assert worker_place(cache, SIDE_BY_SIDE).startswith(f"process {os.getpid()} on")
    waiting = session(cache, [1], [])
    assert waiting.stdout is not None
    assert "to do: seed1" in waiting.stdout.readline()
    assert f"waiting for process {os.getpid()} on" in waiting.stdout.readline()
    with pytest.raises(InUse, match=f"process {waiting.pid} on .*nothing was deleted"):
        cache_module.clear(cache)
    for place in places:
        place.release()
    watch([waiting], cache)
    assert store.missing([0, 1], []) == []
    assert len(cache_module.clear(cache)) == 2
    assert not list((cache / ".locks" / store.folder.name).glob("process-*"))


def test_nobody_begins_to_train_while_a_folder_is_cleared(cache, recipe, tmp_path):
    gate = BuildLock(Store(cache, recipe).folder)
    assert gate.acquire()
    waiting = session(cache, [0], [])
    assert waiting.stdout is not None
    assert f"waiting for process {os.getpid()} on" in waiting.stdout.readline()
    assert not built(tmp_path)
    gate.release()
    watch([waiting], cache)


# -- file systems ------------------------------------------------------------------------------------------------------


def test_a_file_system_without_locks_is_refused_in_one_sentence(cache, recipe, monkeypatch, tmp_path):
    def without(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", without)
    with pytest.raises(Unwritable, match=r"\.locks has no file locks .*--bt-cache-dir or BEHAVIORTRACE_CACHE$"):
        make(recipe, cache, [0], [])
    assert not built(tmp_path)
