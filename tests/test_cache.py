"""Where the cache lies, what its key depends on, how it is listed and cleared, and the command line for it."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from importlib import metadata
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pytest_behaviortrace.__main__ import main
from pytest_behaviortrace.run import cache, manifest, progress
from pytest_behaviortrace.run.lock import BuildLock
from pytest_behaviortrace.run.progress import Bars, Lines, Silent, display_for
from pytest_behaviortrace.run.store import Store, write_array
from pytest_behaviortrace.suite import SUITE

RECIPE = SimpleNamespace(name="toy", hash="ab" * 32)
OTHER = SimpleNamespace(name="toy-2", hash="cd" * 32)


def publish(cache_dir: Path, recipe=RECIPE, unit: str = "seed0", **described) -> Path:
    """A small sealed unit under the current key."""
    store = Store(cache_dir, recipe)
    folder = store.folder / unit
    folder.mkdir(parents=True)
    write_array(folder, "numbers", np.zeros(1000, np.uint8))
    description = {"unit": unit, "recipe": {}, "key": store.key, "suite": SUITE, "versions": cache.library_versions()}
    manifest.seal(folder, {**description, "facts": {}, "timings": {}, **described})
    return folder


def leftover(cache_dir: Path, recipe=RECIPE) -> Path:
    folder = Store(cache_dir, recipe).folder / f"{cache.BUILD_PREFIX}seed7-xyz"
    folder.mkdir(parents=True)
    (folder / "half.npy").write_bytes(bytes(500))
    return folder


# -- place and key -----------------------------------------------------------------------------------------------------


def test_the_place_comes_from_the_environment_or_the_platform(monkeypatch, tmp_path):
    monkeypatch.setenv("BEHAVIORTRACE_CACHE", str(tmp_path / "here"))
    assert cache.default_cache_dir() == tmp_path / "here"
    monkeypatch.setenv("BEHAVIORTRACE_CACHE", "~/there")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.default_cache_dir() == tmp_path / "there"
    monkeypatch.delenv("BEHAVIORTRACE_CACHE")
    assert cache.default_cache_dir().name == "behaviortrace"


def test_the_key_depends_on_all_that_determines_a_run(monkeypatch):
    keys = {cache.cache_key(RECIPE), cache.cache_key(OTHER)}
    with monkeypatch.context() as patch:
        patch.setattr(cache, "SUITE", "1999.1")
        keys.add(cache.cache_key(RECIPE))
    with monkeypatch.context() as patch:
        patch.setattr(cache, "SCHEMA", 99)
        keys.add(cache.cache_key(RECIPE))
    for library in cache.LIBRARIES:
        versions = {**cache.library_versions(), library: "0.0"}
        with monkeypatch.context() as patch:
            patch.setattr(cache, "library_versions", lambda versions=versions: versions)
            keys.add(cache.cache_key(RECIPE))
    assert len(keys) == 7
    assert cache.cache_key(RECIPE) == cache.cache_key(SimpleNamespace(name="renamed", hash=RECIPE.hash))


# -- listing and clearing ----------------------------------------------------------------------------------------------


def test_the_listing_tells_size_age_and_state(tmp_path):
    whole, altered, cut = (publish(tmp_path, unit=f"seed{i}") for i in range(3))
    os.truncate(cut / "numbers.npy", 10)
    content = (altered / "numbers.npy").read_bytes()
    (altered / "numbers.npy").write_bytes(content[:-1] + b"\1")
    os.utime(whole, (0, time.time() - 7200))
    leftover(tmp_path)
    stale = publish(tmp_path, OTHER, versions={"torch": "0"})
    (tmp_path / "somebody's folder").mkdir()

    found = {(e.recipe, e.unit): e for e in cache.entries(tmp_path)}
    states = {unit: entry.state for (recipe, unit), entry in found.items() if recipe == "toy"}
    assert states == {"seed0": "complete", "seed1": "complete", "seed2": "damaged", "seed7-xyz": "unfinished"}
    assert "numbers.npy has 10 bytes" in found["toy", "seed2"].problem
    assert found["toy", "seed0"].bytes == sum(path.stat().st_size for path in whole.iterdir())
    assert found["toy", "seed0"].age == pytest.approx(7200, abs=60)
    assert (found["toy-2", "seed0"].stale, found["toy", "seed0"].stale) == (True, False)
    assert found["toy-2", "seed0"].path == stale
    assert len(found) == 5

    hashed = {e.unit: e.state for e in cache.entries(tmp_path, hashes=True) if e.recipe == "toy"}
    assert hashed["seed1"] == "damaged"
    text = cache.table(tmp_path, list(found.values()))
    assert "2 h" in text
    assert "complete, stale" in text
    assert text.endswith(f"in {tmp_path}")


@pytest.mark.parametrize(
    ("what", "kept"),
    [
        ({}, set()),
        ({"recipe": "toy"}, {"toy-2/seed0", "toy-2/seed1"}),
        ({"stale": True}, {"toy/seed0", "toy-2/seed1", "toy/seed7-xyz"}),
        ({"leftovers": True}, {"toy/seed0", "toy-2/seed0", "toy-2/seed1"}),
    ],
)
def test_clearing_takes_what_it_says_and_no_more(tmp_path, what, kept):
    publish(tmp_path)
    publish(tmp_path, OTHER, suite="1999.1")
    publish(tmp_path, OTHER, "seed1")
    leftover(tmp_path)
    (tmp_path / "notes.txt").write_text("not ours")
    before = {f"{e.recipe}/{e.unit}" for e in cache.entries(tmp_path)}
    gone = cache.clear(tmp_path, **what)
    left = {f"{e.recipe}/{e.unit}" for e in cache.entries(tmp_path)}
    assert left == kept
    assert {f"{e.recipe}/{e.unit}" for e in gone} == before - kept
    assert (tmp_path / "notes.txt").exists()
    if not kept:
        assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", ".locks"}


def test_clearing_under_a_live_build_is_refused_whole(tmp_path):
    folder = publish(tmp_path)
    publish(tmp_path, OTHER)
    hold = (
        "import sys, pathlib, time; from pytest_behaviortrace.run.lock import BuildLock\n"
        "lock = BuildLock(pathlib.Path(sys.argv[1])); lock.acquire(); print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", hold, str(folder.parent)], stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            with pytest.raises(cache.InUse, match=f"process {holder.pid} on .*nothing was deleted"):
                cache.clear(tmp_path)
            assert len(cache.entries(tmp_path)) == 2
            cache.clear(tmp_path, recipe="toy-2")
            assert len(cache.entries(tmp_path)) == 1
        finally:
            holder.kill()
    assert BuildLock(folder.parent).owner().startswith(f"process {holder.pid}")  # died without saying so
    cache.clear(tmp_path)  # yet its lock died with it
    assert cache.entries(tmp_path) == []


def test_an_absent_cache_is_an_empty_cache(tmp_path):
    assert cache.entries(tmp_path / "none") == []
    assert cache.clear(tmp_path / "none") == []
    assert not (tmp_path / "none").exists()


def test_a_full_disk_is_recognised_however_it_is_told():
    rust = RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")
    wrapped = ValueError("could not save")
    wrapped.__cause__ = OSError(28, "No space left on device")
    assert cache.no_room(rust)
    assert cache.no_room(wrapped)
    assert cache.no_room(OSError("524288 requested and 99872 written"))
    assert not cache.no_room(OSError(13, "Permission denied"))
    with pytest.raises(OSError, match=r"No space|\d+ requested") as caught, open("/dev/full", "wb") as full:
        np.zeros(1 << 16).tofile(full)
    assert cache.no_room(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_unwritable(tmp_path):
    tmp_path.chmod(0o555)
    try:
        with pytest.raises(cache.Unwritable, match="Permission denied"):
            cache.require_writable(tmp_path / "cache")
    finally:
        tmp_path.chmod(0o755)


def test_a_file_in_the_way_is_unwritable(tmp_path):
    (tmp_path / "cache").write_text("")
    with pytest.raises(cache.Unwritable, match="--bt-cache-dir"):
        cache.require_writable(tmp_path / "cache")


# -- display -----------------------------------------------------------------------------------------------------------


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def play(display) -> None:
    display.start({"seed0": 4.0, "seed0-draw0": 1.0})
    display.message("waiting for [nobody]")
    for unit in ("seed0", "seed0-draw0"):
        for stage in ("warm-up", "planted run", "planted run"):
            display.update(unit, stage, 0.5)
        display.finish(unit)
    display.stop()


def test_lines_say_each_stage_once():
    stream = StringIO()
    display = display_for(stream)
    assert isinstance(display, Lines)
    play(display)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "behaviortrace: to do: seed0, seed0-draw0"
    assert lines[2] == "behaviortrace: seed0: warm-up (0:00)"
    assert sum("planted run" in line for line in lines) == 2
    assert lines[4] == "behaviortrace: seed0: finished in 0:00 (1 of 2, about 0:00 left)"
    assert len(lines) == 8
    assert "\x1b" not in stream.getvalue()


def test_lines_say_what_there_is_to_see_once_a_minute_and_at_the_end_of_a_stage(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    stream = StringIO()
    display = Lines(stream)
    display.start({"seed0": 1.0})
    for step in range(1, 151):
        now[0] += 1.0
        display.update("seed0", "grpo", step / 200, f"step {step} of 150, shown 1 of 2")
    display.update("seed0", "targets", 0.9)
    display.message("a path with \x1b[31m and\na line")
    assert stream.getvalue().splitlines() == [
        "behaviortrace: to do: seed0",
        "behaviortrace: seed0: grpo (0:00)",
        "behaviortrace: seed0: grpo, step 61 of 150, shown 1 of 2 (1:00, about 2:19 left)",
        "behaviortrace: seed0: grpo, step 121 of 150, shown 1 of 2 (2:00, about 1:19 left)",
        "behaviortrace: seed0: targets (2:29; grpo: step 150 of 150, shown 1 of 2)",
        "behaviortrace: a path with  [31m and a line",
    ]


@pytest.mark.parametrize(("name", "value", "kind"), [
    ("CI", "true", Lines), ("CI", "1", Lines), ("CI", "false", Bars), ("CI", "", Bars), ("TERM", "dumb", Lines),
])  # fmt: skip
def test_a_ci_gets_lines_whatever_it_pretends_to_be(monkeypatch, name, value, kind):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv(name, value)
    assert isinstance(display_for(Terminal()), kind)


def test_bars_show_the_note_and_leave_nothing_but_what_was_finished(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("COLUMNS", "160")
    stream = Terminal()
    display = Bars(stream)
    display.start({"seed0": 1.0})
    display.update("seed0", "planted run: grpo", 0.5, "step 64 of 160, shown lately on own prompts: frobnitz 3 of 9")
    display._bars.refresh()
    assert "planted run: grpo  step 64 of 160, shown lately on own prompts: frobnitz 3 of 9" in stream.getvalue()
    display.finish("seed0")
    display.stop()
    assert stream.getvalue().endswith("\x1b[2K")  # the bars are wiped out


def test_bars_appear_on_a_terminal_only(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("CI", raising=False)
    display = display_for(Terminal())
    assert isinstance(display, Bars)
    play(display)
    assert isinstance(display_for(None), Silent)
    play(display_for(None))


# -- command line ------------------------------------------------------------------------------------------------------


def run(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest_behaviortrace", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def test_the_cache_command_lists_checks_and_clears(tmp_path, capsys):
    where = ["--cache-dir", str(tmp_path)]
    folder = publish(tmp_path)
    assert main(["cache", *where]) == 0
    assert "complete" in capsys.readouterr().out
    assert main(["cache", "check", *where]) == 0
    assert capsys.readouterr().out.endswith("\n1 units hashed, all whole\n")
    assert main(["cache", "clear", "--recipe", "nosuch", *where]) == 0
    assert capsys.readouterr().out == f"nothing of a recipe named 'nosuch' is in {tmp_path}\n"
    content = (folder / "numbers.npy").read_bytes()
    (folder / "numbers.npy").write_bytes(content[:-1] + b"\1")
    capsys.readouterr()
    assert main(["cache", "check", *where]) == 1
    assert "numbers.npy was altered" in capsys.readouterr().out
    assert main(["cache", "clear", "--stale", *where]) == 0
    assert "cleared 0 units" in capsys.readouterr().out
    assert main(["cache", "clear", "--all", *where]) == 0
    assert "cleared 1 units" in capsys.readouterr().out
    assert main(["cache", *where]) == 0
    assert capsys.readouterr().out == f"nothing in {tmp_path}\n"


def refuse_to_read(monkeypatch):
    def refused(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("pytest_behaviortrace.run.manifest.sha256_of", refused)


def test_what_may_not_be_read_is_not_called_damaged(tmp_path, capsys, monkeypatch):
    folder = publish(tmp_path)
    refuse_to_read(monkeypatch)
    assert main(["cache", "check", "--cache-dir", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert f"{folder / 'numbers.npy'}: Permission denied" in said
    assert said.endswith("1 units hashed, 1 unreadable\n")
    assert "damaged" not in said


def test_what_may_not_be_deleted_is_one_sentence(tmp_path, capsys, monkeypatch):
    def refused(path, ignore_errors=False):
        if not ignore_errors:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))

    publish(tmp_path)
    monkeypatch.setattr("shutil.rmtree", refused)
    assert main(["cache", "clear", "--all", "--cache-dir", str(tmp_path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "by this user (Permission denied). Change its permissions" in line


def test_a_cache_folder_that_may_not_be_read_is_one_sentence(tmp_path, capsys, monkeypatch):
    def refused(self):
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", refused)
    assert main(["cache", "--cache-dir", str(tmp_path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {tmp_path} cannot be read")


@pytest.mark.parametrize("action", ["check", "missing", "list"])
def test_a_cache_folder_that_is_none(tmp_path, capsys, action):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as caught:
        main(["cache", action, "--cache-dir", str(tmp_path / "file")])
    assert caught.value.code == 2
    assert "is a file; give the cache folder" in capsys.readouterr().err
    absent = ["cache", action, "--cache-dir", str(tmp_path / "absent")]
    if action == "check":
        with pytest.raises(SystemExit) as caught:
            main(absent)
        assert caught.value.code == 2
    else:
        assert main(absent) == (1 if action == "missing" else 0)
    said = capsys.readouterr()
    words = "nothing in" if action == "list" else f"{tmp_path / 'absent'} does not exist"
    assert words in said.out + said.err


def test_the_cache_path_is_told(tmp_path):
    done = run("cache", "path", env={**os.environ, "BEHAVIORTRACE_CACHE": str(tmp_path)})
    assert (done.returncode, done.stdout) == (0, f"{tmp_path}\n")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "COMMAND"),
        (["frobnicate"], "invalid choice"),
        (["train", "--seeds", "2-0"], "not a list of seeds"),
        (["train", "--seeds", "-1"], "--seeds"),
        (["train", "--seeds", "a"], "not a list of seeds"),
        (["train", "--draws", "-1"], "'-1' is not a number of at least 0"),
        (["train", "--draws", "99999999"], "'99999999' is more than 1,000"),
        (["train", "--seeds", "0-2999", "--draws", "1000"], "are 3,003,000 runs and draws, more than 10,000"),
        (["train", "--seeds", "0-" + "9" * 5000], "has a seed above 1,000,000,000"),
        (["cache", "key", "--draws", "1" * 5000], "is more than 1,000"),
        (["rank", "x", "--top", "1000001"], "'1000001' is more than 1,000,000"),
        (["calibrate", "--workers", "257"], "'257' is more than 256"),
        (["calibrate", "--seeds", "1000000"], "--seeds and --draws: more than 3,000 seeds; ask for fewer"),
        (["dump", "x", "--out", "y", "--draws", "5000"], "--seeds and --draws: more than 1,000 draws"),
        (["train", "--seeds", "0-99999999"], "'0-99999999' are more than 3,000 seeds"),
        (["cache", "missing", "--seeds", "0-99999999"], "more than 3,000 seeds"),
        (["rank", "x", "--top", "-1"], "'-1' is not a number of at least 1"),
        (["rank", "x", "--draws", "0"], "'0' is not a number of at least 1"),
        (["train", "--budget", "--verify"], "--budget counts one run of the recipe; --verify"),
        (["train", "--budget", "--plant", "x"], "--budget counts one run of the recipe; --plant"),
        (["train", "--budget", "--seeds", "0"], "--budget counts one run of the recipe; --seeds"),
        (["train", "--recipe", "nonesuch"], "tiny"),
        (["train", "--plant", "nonesuch"], "has no plant 'nonesuch'"),
        (["train", "--recipe", "nonesuch.toml"], "nonesuch.toml"),
        (["cache", "clear"], "needs one of them"),
        (["cache", "list", "--all"], "say what"),
        (["cache", "clear", "--all", "--stale"], "not allowed with"),
    ],
)
def test_usage_errors_exit_2_and_say_why(arguments, complaint, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert complaint in capsys.readouterr().err


def test_training_into_an_unwritable_place_fails_with_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    done = run("train", "--seeds", "0", "--draws", "0", "--cache-dir", str(tmp_path / "file"))
    assert done.returncode == 1
    assert done.stderr.startswith("error: the cache folder")
    assert "Traceback" not in done.stderr


def test_training_takes_seeds_and_draws_from_the_cache(tmp_path, monkeypatch):
    from pytest_behaviortrace.run.orchestrate import ensure
    from pytest_behaviortrace.run.recipe import Recipe

    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    ensure(Recipe.load("tiny"), [0, 1, 3], [0], tmp_path, builder="fake_builder")
    done = run("train", "--seeds", "0-1,3", "--draws", "1", "--cache-dir", str(tmp_path))
    assert done.returncode == 0
    assert done.stdout.startswith("tiny: seeds 0, 1, 3 with 1 draws each are in")


def test_ctrl_c_on_the_command_line_exits_130(tmp_path):
    code = (
        "import sys; from pytest_behaviortrace.run import orchestrate; from pytest_behaviortrace.__main__ import main\n"
        "orchestrate.ensure.__kwdefaults__['builder'] = 'fake_builder'; sys.exit(main(sys.argv[1:]))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "FAKE_BUILD": json.dumps({"sleep": 30})}
    command = [sys.executable, "-c", code, "train", "--seeds", "0", "--cache-dir", str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as running:
        assert running.stderr is not None
        while "part 0" not in running.stderr.readline():
            pass
        running.send_signal(signal.SIGINT)
        rest = running.stderr.read()
        assert running.wait(10) == 130
    assert "interrupted; finished units are kept" in rest
    assert cache.entries(tmp_path) == []


def test_the_list_names_estimators_checks_and_recipes(capsys):
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    version = metadata.version("pytest-behaviortrace")
    assert f"  token-gas                pytest-behaviortrace {version} (shipped); needs: gradients, spans\n" in out
    assert "  headroom                 this run can tell estimators apart.\n" in out
    assert "  tiny\n" in out
