"""Real processes around a builder that takes no time: built once, whole or not at all, and nothing is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from build_sessions import (
    DRAWS,
    HERE,
    SEEDS,
    UNITS,
    Told,
    built,
    leftovers,
    make,
    session,
    wait_for,
    whole_or_absent,
    workers_of,
)

from pytest_behaviortrace.run import handover
from pytest_behaviortrace.run.cache import BUILD_PREFIX, LOGS, NoRoom, Unwritable, cache_key
from pytest_behaviortrace.run.orchestrate import TrainingFailed
from pytest_behaviortrace.run.recipe import Recipe
from pytest_behaviortrace.run.store import MANIFEST, Store


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return Recipe.load("tiny")


@pytest.fixture(autouse=True)
def fake_build(tmp_path, monkeypatch):
    """Steers the fake builder in every process of the test: `fake_build(sleep=1.0)`."""
    monkeypatch.setenv("PYTHONPATH", str(HERE))

    def steer(**options) -> None:
        monkeypatch.setenv("FAKE_BUILD", json.dumps({"record": str(tmp_path / "record"), **options}))

    steer()
    return steer


@pytest.fixture
def cache(tmp_path) -> Path:
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def built_once(recipe, tmp_path_factory) -> Path:
    """A cache with every unit, to copy from."""
    folder = tmp_path_factory.mktemp("template") / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(HERE))
        patch.setenv("FAKE_BUILD", "{}")
        make(recipe, folder)
    return folder


# -- the ordinary course -----------------------------------------------------------------------------------------------


def test_a_miss_builds_everything_once_and_a_hit_nothing(recipe, cache, tmp_path):
    told = Told()
    store = make(recipe, cache, display=told)
    assert set(told.finished) == UNITS
    assert told.stages["seed0"] == ["starting", *(f"part {i}" for i in range(5)), "writing"]
    assert store.missing(SEEDS, DRAWS) == []
    assert leftovers(store) == []
    assert store.draw(1, 0).facts["read"] == "weights of seed1, flavor plain"
    assert store.seed(0).timings["total"] >= store.seed(0).timings["parts"] > 0
    assert store.seed(0).manifest["recipe"] == {"name": "tiny", "hash": recipe.hash}

    shutil.rmtree(cache / ".locks")
    again = make(recipe, cache)
    assert again.seed(0).path == store.seed(0).path
    assert not (cache / ".locks").exists()  # a hit takes no lock
    assert built(tmp_path) == Counter(UNITS)


def test_only_what_is_asked_for_is_built(recipe, cache, tmp_path):
    make(recipe, cache, [3], [])
    make(recipe, cache, [3, 4], [1])
    assert built(tmp_path) == Counter(["seed3", "seed4", "seed3-draw1", "seed4-draw1"])


def test_a_hit_needs_no_write_access(recipe, cache):
    make(recipe, cache, [0], [])
    for path in [*cache.rglob("*"), cache]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        assert make(recipe, cache, [0], []).seed(0).name == "seed0"
    finally:
        for path in [cache, *cache.rglob("*")]:
            path.chmod(0o755)


def test_the_recipe_arrives_in_the_worker_exactly(recipe):
    changed = replace(recipe, bonus=recipe.bonus + 0.1)
    for original in (recipe, changed):
        copy = handover.loads(handover.dumps(original))
        assert copy == original
        assert copy.hash == original.hash
    assert changed.hash != recipe.hash


def test_four_processes_build_once(cache, fake_build, tmp_path):
    fake_build(sleep=0.2)
    sessions = [session(cache) for _ in range(4)]
    outputs = [s.communicate(timeout=60) for s in sessions]
    assert [s.returncode for s in sessions] == [0] * 4, outputs
    assert all(out.endswith("ready\n") for out, _ in outputs)
    assert built(tmp_path) == Counter(UNITS)
    told = [line for out, _ in outputs for line in out.splitlines() if "waiting for" in line]
    assert len(told) >= 2  # two places to work on this machine, four sessions
    named = [int(m[1]) for line in told if (m := re.search(r"waiting for process (\d+) on \S+, since", line))]
    assert named  # who has just let go, or just begun, may be told as "another process"
    assert set(named) <= {s.pid for s in sessions}


def test_at_most_two_workers_run_and_draws_fill_the_gap(cache, fake_build):
    fake_build(sleep=0.6)
    running = session(cache, [0, 1, 2], [0, 1])
    most = 0
    while running.poll() is None:
        most = max(most, len(workers_of(cache)))
        time.sleep(0.02)
    out, err = running.communicate()
    assert running.returncode == 0, err
    assert most == 2
    finished = re.findall(r"(\S+): finished", out)
    assert len(finished) == 9
    assert finished.index("seed0-draw0") < finished.index("seed2")


# -- other versions ----------------------------------------------------------------------------------------------------


def fake_distribution(folder: Path, name: str, version: str) -> None:
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_another_trl_version_never_reuses_a_unit(recipe, cache, tmp_path, monkeypatch):
    store = make(recipe, cache, [0], [])
    fake_distribution(tmp_path / "site", "trl", "99.0")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}{os.pathsep}{HERE}")
    other = session(cache, [0], [])
    _, err = other.communicate(timeout=30)
    assert other.returncode == 0, err
    assert built(tmp_path)["seed0"] == 2
    manifests = [json.loads(path.read_text()) for path in cache.glob(f"*/seed0/{MANIFEST}")]
    assert {m["versions"]["trl"] for m in manifests} == {"99.0", store.seed(0).manifest["versions"]["trl"]}


def test_another_suite_or_recipe_never_reuses_a_unit(recipe, cache, monkeypatch):
    make(recipe, cache, [0], [])
    changed = replace(recipe, cutoff=recipe.cutoff - 1)
    assert Store(cache, changed).missing([0], []) == ["seed0"]
    monkeypatch.setattr("pytest_behaviortrace.run.cache.SUITE", "1999.1")
    assert Store(cache, recipe).missing([0], []) == ["seed0"]


def test_units_copied_from_another_recipe_are_rebuilt(recipe, cache, tmp_path):
    changed = replace(recipe, cutoff=recipe.cutoff - 1)
    make(recipe, cache, [0], [])
    shutil.copytree(Store(cache, recipe).folder, Store(cache, changed).folder)
    told = Told()
    store = make(changed, cache, [0], [], told)
    assert "belongs to another recipe" in told.messages[0]
    assert store.seed(0).manifest["key"] == cache_key(changed)


def test_a_change_between_session_and_worker_is_refused(recipe, cache, monkeypatch):
    monkeypatch.setattr(
        "pytest_behaviortrace.run.cache.library_versions", lambda: {"torch": "0", "transformers": "0", "trl": "0"}
    )
    with pytest.raises(TrainingFailed, match="changed while the session was running"):
        make(recipe, cache, [0], [])


# -- damage ------------------------------------------------------------------------------------------------------------


def flip_last_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "truncated": ("seed1", "part0.npy", lambda p: os.truncate(p, p.stat().st_size // 2)),
    "altered": ("seed1", "part0.npy", flip_last_byte),
    "deleted": ("seed0-draw1", "rollouts.parquet", Path.unlink),
    "manifest": ("seed0-draw1", MANIFEST, lambda p: os.truncate(p, 100)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_unit_is_named_and_alone_rebuilt(damage, recipe, cache, built_once, tmp_path):
    unit, file, inflict = DAMAGES[damage]
    shutil.copytree(built_once, cache)
    store = Store(cache, recipe)
    inflict(store.folder / unit / file)
    told = Told()
    make(recipe, cache, display=told)
    (message,) = told.messages
    assert unit in message
    assert file in message
    assert built(tmp_path) == Counter([unit])
    assert store.missing(SEEDS, DRAWS) == []
    assert leftovers(store) == []


def test_draws_of_another_build_of_their_seed_are_rebuilt(recipe, cache, built_once, fake_build, tmp_path):
    shutil.copytree(built_once, cache)
    store = Store(cache, recipe)
    (store.folder / "seed0" / "part0.npy").unlink()
    fake_build(flavor="other machine")
    told = Told()
    make(recipe, cache, display=told)
    assert built(tmp_path) == Counter(["seed0", "seed0-draw0", "seed0-draw1"])
    assert store.draw(0, 1).facts["read"] == "weights of seed0, flavor other machine"
    assert store.draw(1, 1).facts["read"] == "weights of seed1, flavor plain"
    assert sum("another build of seed0" in message for message in told.messages) == 2


# -- interruptions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", range(3))
def test_kill_9_of_a_session_leaves_nothing_half_and_nobody_behind(moment, recipe, cache, fake_build):
    fake_build(sleep=0.3)
    running = session(cache)
    delay = random.Random(moment).uniform(0.0, 2.0)
    wait_for(lambda: workers_of(cache))
    time.sleep(delay)
    running.kill()
    running.communicate()
    wait_for(lambda: not workers_of(cache), 3.0)
    whole_or_absent(recipe, cache)
    kept = UNITS - set(Store(cache, recipe).missing(SEEDS, DRAWS))
    inodes = {unit: (Store(cache, recipe).folder / unit).stat().st_ino for unit in kept}
    fake_build()
    store = make(recipe, cache)
    assert store.missing(SEEDS, DRAWS) == []
    assert leftovers(store) == []
    assert {unit: (store.folder / unit).stat().st_ino for unit in kept} == inodes


@pytest.mark.parametrize("moment", range(3))
def test_kill_9_of_a_worker_fails_its_unit_and_the_next_session_completes(moment, recipe, cache, fake_build):
    fake_build(sleep=0.5)
    running = session(cache)
    time.sleep(random.Random(100 + moment).uniform(0.0, 0.4))
    victim = wait_for(lambda: workers_of(cache))[0]
    victim.kill()
    _, err = running.communicate(timeout=20)
    assert running.returncode == 1
    assert re.search(r"TrainingFailed: training seed\d\S* failed: killed by SIGKILL", err)
    assert not workers_of(cache)
    whole_or_absent(recipe, cache)
    fake_build()
    assert make(recipe, cache).missing(SEEDS, DRAWS) == []


def test_ctrl_c_keeps_finished_units_and_ends_the_workers(recipe, cache, fake_build):
    fake_build(sleep=0.6)
    running = session(cache)
    store = Store(cache, recipe)
    wait_for(lambda: (store.folder / "seed0").exists())
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=10)
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert not workers_of(cache)
    assert leftovers(store) == []
    whole_or_absent(recipe, cache)
    assert "seed0" not in store.missing(SEEDS, DRAWS)
    assert "seed1-draw1" in store.missing(SEEDS, DRAWS)


def test_leftovers_of_dead_builds_are_swept_but_never_under_a_live_one(recipe, cache, fake_build):
    store = make(recipe, cache, [0], [])
    dead = store.folder / f"{BUILD_PREFIX}seed9-dead"
    (dead / "seed9").mkdir(parents=True)
    (dead / "seed9" / "half.npy").write_bytes(b"half")
    fake_build(sleep=1.0)
    running = session(cache, [1], [])
    wait_for(lambda: not dead.exists() and workers_of(cache))
    alive = wait_for(lambda: leftovers(store))
    make(recipe, cache, [0], [])  # a hit beside a live build
    assert leftovers(store) == alive
    running.communicate(timeout=20)
    assert leftovers(store) == []


# -- failures ----------------------------------------------------------------------------------------------------------


def test_a_failing_worker_shows_the_end_of_its_log(recipe, cache, fake_build):
    fake_build(fail=["seed1"])
    with pytest.raises(TrainingFailed) as caught:
        make(recipe, cache)
    message = str(caught.value)
    assert message.startswith("training seed1 failed: exit code 1.\n")
    assert "RuntimeError: seed1 does not want to" in message
    assert "about to fail" in message
    assert message.endswith(f"full log: {caught.value.log}")
    assert caught.value.log == Store(cache, recipe).folder / LOGS / "seed1.log"
    assert leftovers(Store(cache, recipe)) == []
    whole_or_absent(recipe, cache)


def test_an_unwritable_cache_is_told_before_anything_starts(recipe, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(Unwritable, match=r"cannot be written .*--bt-cache-dir"):
        make(recipe, tmp_path / "file" / "cache", [0], [])
    assert not built(tmp_path)


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    """A file system of that size, where this process may mount one."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs privileges; the limit on file size is tested instead")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_publishes_nothing_half(recipe, cache, fake_build):
    fake_build(bulk=1)
    with small_disk(cache, "1500k"):
        with pytest.raises(NoRoom, match=r"no room left .* B free.* finished units are kept"):
            make(recipe, cache)
        store = Store(cache, recipe)
        whole_or_absent(recipe, cache)
        assert leftovers(store) == []
        assert 1 <= len(UNITS) - len(store.missing(SEEDS, DRAWS)) <= 2
        with contextlib.suppress(OSError), (cache / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(4096))
        with pytest.raises(NoRoom):  # not even a folder or a log can be written now
            make(recipe, cache)
        whole_or_absent(recipe, cache)
    fake_build()
    with small_disk(cache.with_name("roomy"), "20m"):
        assert make(recipe, cache.with_name("roomy")).missing(SEEDS, DRAWS) == []


def test_a_file_that_cannot_grow_is_told_like_a_full_disk(recipe, cache, fake_build):
    fake_build(bulk=1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))  # inherited by the workers
    try:
        with pytest.raises(NoRoom, match="no room left"):
            make(recipe, cache, [0], [])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert Store(cache, recipe).problems([0], []) == {"seed0": ""}
    assert leftovers(Store(cache, recipe)) == []
    assert make(recipe, cache, [0], []).missing([0], []) == []


def test_workers_work_elsewhere_with_one_thread_and_offline(recipe, cache, tmp_path, fake_build, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.path.relpath(HERE))
    fake_build(sleep=1.0)
    running = session(Path("cache"), [0], [])
    (worker,) = wait_for(lambda: workers_of(cache))
    environment = wait_for(worker.environ)
    running.communicate(timeout=20)
    assert running.returncode == 0
    assert environment["OMP_NUM_THREADS"] == "1"
    assert environment["HF_HUB_OFFLINE"] == environment["TRANSFORMERS_OFFLINE"] == "1"
    assert environment["TOKENIZERS_PARALLELISM"] == "false"
    assert not (tmp_path / "litter.txt").exists()
    assert not list(cache.rglob("litter.txt"))
