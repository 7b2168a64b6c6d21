"""Processes that sample from one recorded run at a time share the work; what is lacking is told before they begin."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import recorded_run
import recorded_world as world
from build_sessions import leftovers, wait_for, workers_of

from pytest_behaviortrace.run import recorded
from pytest_behaviortrace.run.orchestrate import SIDE_BY_SIDE, CannotTrain, ensure_draws, side_by_side
from pytest_behaviortrace.run.recorded import RecordedStore, RunQuestion, open_run

SESSION = """
import sys
from pathlib import Path
from pytest_behaviortrace.run import orchestrate, progress, recorded
question = recorded.open_run(Path(sys.argv[1])).ask(sys.argv[3])
display = progress.display_for(sys.stdout)
orchestrate.ensure_draws(question, range(3), Path(sys.argv[2]), display, builder="fake_draw_builder")
print("ready")
"""


@pytest.fixture
def question(tmp_path: Path) -> RunQuestion:
    return open_run(world.write_run(tmp_path / "myrun")).ask(world.BEHAVIOR)


@pytest.fixture
def noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where draws note that they were begun; each takes a second."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setenv("FAKE_DRAW_RECORD", str(tmp_path / "record"))
    monkeypatch.setenv("FAKE_DRAW_SLEEP", "1.0")
    return tmp_path / "record"


def session(question: RunQuestion, cache: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SESSION, question.path, str(cache), question.behavior]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ))


def test_three_sessions_sample_each_draw_once(question: RunQuestion, noted: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    sessions = [session(question, cache) for _ in range(3)]
    most = 0
    while any(s.poll() is None for s in sessions):
        most = max(most, len(workers_of(cache)))
    outputs = [s.communicate() for s in sessions]
    assert all(out.endswith("ready\n") for out, _ in outputs), outputs
    assert sorted(noted.read_text().split()) == ["draw0", "draw1", "draw2"]
    assert most == SIDE_BY_SIDE
    store = RecordedStore(cache, question)
    assert store.missing([0], range(3)) == []
    assert leftovers(store) == []


def test_a_session_that_waits_says_for_what(question: RunQuestion, noted: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with_places = session(question, cache)
    wait_for(lambda: noted.exists() and len(noted.read_text().split()) == SIDE_BY_SIDE, 30.0)
    out, err = session(question, cache).communicate(timeout=60)
    assert f"waiting for process {with_places.pid} on" in out, (out, err)
    assert with_places.wait(60) == 0
    with_places.communicate()


def test_a_large_policy_is_sampled_from_by_one_worker_at_a_time(
    question: RunQuestion, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert side_by_side(question) == SIDE_BY_SIDE
    monkeypatch.setattr(recorded, "TINY", 1)  # its weights have 7 bytes
    assert side_by_side(question) == 1


def test_an_adapter_without_peft_is_told_before_anything_starts(
    tmp_path: Path, noted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = world.write_run(tmp_path / "adapter")
    (folder / "manifest.json").unlink()
    recorded_run.finish(folder, world.facts(peft=True))
    question = open_run(folder).ask(world.BEHAVIOR)
    assert side_by_side(question) == 1
    ensure_draws(question, [0], tmp_path / "cache", builder="fake_draw_builder")
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(CannotTrain, match="trained a PEFT adapter, and peft is not installed; pip install peft"):
        ensure_draws(question, range(2), tmp_path / "cache", builder="fake_draw_builder")
    assert noted.read_text().split() == ["draw0"]
