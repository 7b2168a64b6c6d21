"""Whole sessions under load, in real processes: what ran is reported, what was there stays, nobody is left behind."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
from build_sessions import HERE, built, make, wait_for
from surface import QUIET, ROWS, Repo, magnitude

from pytest_behaviortrace.run.process import Task
from pytest_behaviortrace.run.recipe import Recipe

SEEDS, DRAWS = range(3), range(2)
UNITS = Counter(Task(seed, draw).unit for seed in SEEDS for draw in (None, *DRAWS))
DEATH = "the process that ran this row died; run it alone, with -p no:xdist, to see why"
OLD = "the old one"

TRAINING = """
def make_grader(session, seeds, display):
    from pytest_behaviortrace.run.orchestrate import ensure
    chosen = session.settings
    store = ensure(chosen.recipe, seeds, range(chosen.draws), chosen.cache_dir, display, builder="fake_builder")
    assert store.draw(0, 1).facts["read"].startswith("weights of seed0")
    return Grader()
"""

HANGING = """
    from pathlib import Path
    import time
    hung = Path(__file__).with_name("hung")
    if case.name and case.draw is None and case.component is None and case.seed == 1 and not hung.exists():
        hung.write_text(str(os.getpid()))
        time.sleep(600)
"""

FILLING = """
    from pathlib import Path
    try:
        with open("out/filler", "ab", buffering=0) as filler:
            while filler.write(bytes(512)):
                pass
    except OSError:
        pass
"""


@pytest.fixture
def repo(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Repo:
    repo = Repo(pytester, monkeypatch)
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.setenv("FAKE_BUILD", json.dumps({"record": str(repo.path / "record"), "sleep": 0.2}))
    return repo


def training(repo: Repo) -> None:
    """From now on sessions fill the cache, as real ones do, with a builder that takes no time."""
    conftest = repo.path / "conftest.py"
    conftest.write_text(conftest.read_text(encoding="utf-8") + TRAINING, encoding="utf-8")


def good_does(repo: Repo, body: str) -> None:
    doubles = repo.path / "doubles.py"
    text = doubles.read_text(encoding="utf-8")
    doubles.write_text(text.replace("def good(case):\n", f"def good(case):{body}"), encoding="utf-8")


def started(repo: Repo, *args: str, prefix: Sequence[str] = ()) -> subprocess.Popen[str]:
    """A session, in a process group of its own as a shell would start it."""
    command = [*prefix, sys.executable, "-m", "pytest", *QUIET, *args]
    return subprocess.Popen(
        command, cwd=repo.path, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )


def namespace(folder: Path, *mounting: str, then: str = 'exec "$@"') -> list[str]:
    """What to put before a command that is to run where the folder is mounted like this, and nobody else sees it.

    Skips the test where this process may not.
    """
    folder.mkdir(exist_ok=True)
    script = " && ".join([*mounting, then])
    prefix = ["unshare", "--mount", "sh", "-c", script, "sh"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("mounting needs privileges: no read-only and no small file system can be made here")
    return prefix


def read_only(folder: Path) -> list[str]:
    return namespace(folder, f"mount --bind '{folder}' '{folder}'", f"mount -o remount,bind,ro '{folder}'")


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.rglob("*")}


# -- two gates ---
def test_two_gates_at_once_train_once_and_are_both_right(repo):
    """Cold, then warm: `good` holds its baseline, `mixed` got worse on one row since."""
    repo.run("--bt-estimator=good", "--bt-estimator=mixed", "--bt-report=old.json")
    report = json.loads((repo.path / "old.json").read_text(encoding="utf-8"))
    for row in report["rows"]:
        if row["id"] == magnitude("mixed", 1):
            row |= {"verdict": "pass", "estimate": 0.8, "low": 0.75, "high": 0.86}
    (repo.path / "old.json").write_text(json.dumps(report), encoding="utf-8")
    training(repo)
    bytes_of: dict[str, list[bytes]] = {"good": [], "mixed": []}
    for workers in ((), ("-n2",), ()):
        gates = {
            name: started(
                repo, f"--bt-estimator={name}", "--bt-baseline=old.json", "--bt-fail-on=regression",
                f"--bt-report={name}.json", *workers,
            )
            for name in bytes_of
        }  # fmt: skip
        told = {name: gate.communicate(timeout=120)[0] for name, gate in gates.items()}
        assert (gates["good"].returncode, gates["mixed"].returncode) == (0, 1), told
        assert "against old.json: 0 regressions, " in told["good"]
        assert "against old.json: 1 regression, " in told["mixed"]
        assert f"  regression: {magnitude('mixed', 1)}: passed before, fail now" in told["mixed"]
        assert built(repo.path) == UNITS
        for name, found in bytes_of.items():
            found.append((repo.path / f"{name}.json").read_bytes())
    assert {len(set(found)) for found in bytes_of.values()} == {1}


# -- a killed worker ---
def test_a_worker_that_is_killed_costs_its_row_and_no_report(repo):
    good_does(repo, HANGING)
    names = ("a.json", "a.html", "a.md", "a.csv")
    running = started(
        repo, "-n2", "--bt-estimator=good", "--bt-estimator=mixed", *(f"--bt-report=out/{name}" for name in names)
    )
    victim = int(wait_for(lambda: text_of(repo.path / "hung"), 60))
    os.kill(victim, signal.SIGKILL)
    said, _ = running.communicate(timeout=120)
    assert running.returncode == 1, said
    rows = json.loads((repo.path / "out" / "a.json").read_text(encoding="utf-8"))["rows"]
    assert len(rows) == 3 + 2 * (ROWS - 3)
    (lost,) = [row for row in rows if row["verdict"] == "error"]
    assert (lost["estimator"], lost["seed"], lost["reason"]) == ("good", 1, DEATH)
    assert {row["verdict"] for row in rows if row["estimator"] == "good"} == {"pass", "error"}
    table = list(csv.DictReader(io.StringIO((repo.path / "out" / "a.csv").read_text(encoding="utf-8"))))
    assert [row["id"] for row in table if row["verdict"] == "error"] == [lost["id"]]
    assert DEATH in (repo.path / "out" / "a.md").read_text(encoding="utf-8")
    page = (repo.path / "out" / "a.html").read_text(encoding="utf-8")
    assert page.rstrip().endswith("</html>")
    assert DEATH in page
    assert sorted(path.name for path in (repo.path / "out").iterdir()) == sorted(names)


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


# -- a read-only cache ---
@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["serial", "xdist"])
def test_a_warm_read_only_cache_is_graded_on_and_stays_as_it_is(repo, workers):
    cache = repo.path / "cache"
    make(Recipe.load("tiny"), cache, SEEDS, DRAWS)
    before = contents(cache)
    training(repo)
    running = started(repo, "--bt-estimator=good", "--bt-report=a.json", *workers, prefix=read_only(cache))
    said, _ = running.communicate(timeout=120)
    assert running.returncode == 0, said
    assert len(json.loads((repo.path / "a.json").read_text(encoding="utf-8"))["rows"]) == ROWS
    assert contents(cache) == before
    assert built(repo.path) == UNITS


@pytest.mark.parametrize("kept", [False, True], ids=["empty", "half"])
@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["serial", "xdist"])
def test_a_cold_read_only_cache_is_one_sentence(repo, workers, kept):
    cache = repo.path / "cache"
    if kept:
        make(Recipe.load("tiny"), cache, SEEDS, [0])
    prefix = read_only(cache)
    before, trained = contents(cache), built(repo.path)
    training(repo)
    (repo.path / "a.json").write_text(OLD, encoding="utf-8")
    running = started(repo, "--bt-estimator=good", "--bt-report=a.json", *workers, prefix=prefix)
    said, _ = running.communicate(timeout=120)
    assert running.returncode == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in said.splitlines() if line.startswith("ERROR: ")]
    assert line.startswith(f"ERROR: the cache folder {cache} cannot be written (")
    assert "Read-only file system); choose another with --bt-cache-dir or BEHAVIORTRACE_CACHE" in line
    assert "Traceback" not in said
    assert contents(cache) == before
    assert built(repo.path) == trained
    assert text_of(repo.path / "a.json") == OLD


# -- a full disk ---
@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["serial", "xdist"])
def test_a_disk_that_fills_while_grading_costs_the_reports_on_it_alone(repo, workers):
    good_does(repo, FILLING)
    out = repo.path / "out"
    prefix = namespace(
        out,
        f"mount -t tmpfs -o size=64k tmpfs '{out}'",
        f"printf '{OLD}' > '{out}/a.json'",
        then=f"{{ \"$@\"; code=$?; ls -A '{out}' > left; cat '{out}/a.json' > kept; exit $code; }}",
    )
    reports = [f"--bt-report={name}" for name in ("out/a.json", "out/b.html", "c.json", "out/d.csv")]
    running = started(repo, "--bt-estimator=good", *reports, *workers, prefix=prefix)
    said, _ = running.communicate(timeout=120)
    assert running.returncode == 1, said
    for name in ("a.json", "b.html", "d.csv"):
        assert f"behaviortrace: the report {out / name} was not written: No space left on device" in said
    assert text_of(repo.path / "left").split() == ["a.json", "filler"]
    assert text_of(repo.path / "kept") == OLD
    assert len(json.loads(text_of(repo.path / "c.json"))["rows"]) == ROWS
    assert "Traceback" not in said


# -- Ctrl-C ---
@pytest.mark.parametrize("whom", ["group", "session"])
def test_ctrl_c_leaves_no_process_and_no_half_report(repo, whom):
    """As a terminal sends it, to every process; and to pytest's own alone, as a program would."""
    good_does(repo, HANGING)
    (repo.path / "a.json").write_text(OLD, encoding="utf-8")
    running = started(repo, "-n2", "--bt-estimator=good", "--bt-report=a.json", "--bt-report=a.html")
    wait_for(lambda: text_of(repo.path / "hung"), 60)
    family = psutil.Process(running.pid).children(recursive=True)
    assert len(family) >= 2
    (os.killpg if whom == "group" else os.kill)(running.pid, signal.SIGINT)
    said, _ = running.communicate(timeout=60)
    assert running.returncode == pytest.ExitCode.INTERRUPTED, said
    _, alive = psutil.wait_procs(family, timeout=30)
    assert alive == []
    assert text_of(repo.path / "a.json") == OLD
    assert not (repo.path / "a.html").exists()
    assert not list(repo.path.glob(".a.*"))
