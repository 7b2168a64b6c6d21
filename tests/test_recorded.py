"""Recorded runs as they are read: what is refused and in which words, questions, and the draws kept in the cache."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import recorded_world as world

from pytest_behaviortrace.run import handover, sketch
from pytest_behaviortrace.run.cache import entries, table
from pytest_behaviortrace.run.orchestrate import TrainingFailed, ensure_draws
from pytest_behaviortrace.run.progress import Lines
from pytest_behaviortrace.run.recorded import (
    SKETCH_SEED,
    AskedRun,
    RecordedRunError,
    RecordedStore,
    RunQuestion,
    compiled,
    literal,
    open_run,
)


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return world.write_run(tmp_path / "myrun")


def state(folder: Path) -> dict[str, tuple[int, str]]:
    """Every file under a folder with the time of its last change and its content's hash."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def reseal(folder: Path, **facts: object) -> None:
    """The run with other facts, sealed anew."""
    import recorded_run

    (folder / "manifest.json").unlink()
    recorded_run.finish(folder, world.facts(**facts))


# -- reading -----------------------------------------------------------------------------------------------------------
def test_a_run_reads_back(run_folder: Path) -> None:
    run = open_run(run_folder)
    assert run.facts["loss_type"] == "dapo"
    assert len(run.table["row_id"]) == run.facts["n_rollouts"]
    assert run.recorded_as(world.BEHAVIOR) == "code"
    assert run.recorded_as("code") is None


def test_a_run_may_be_moved_and_renamed(run_folder: Path, tmp_path: Path) -> None:
    first = open_run(run_folder)
    moved = Path(shutil.move(run_folder, tmp_path / "somewhere else"))
    again = open_run(moved)
    assert again.sha256 == first.sha256
    assert again.ask(world.BEHAVIOR).hash == RunQuestion("", first.sha256, world.BEHAVIOR).hash


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(RecordedRunError, match=r"nowhere is no folder; give the folder that record"):
        open_run(tmp_path / "nowhere")


def test_still_being_recorded(run_folder: Path) -> None:
    (run_folder / "manifest.json").unlink()
    with pytest.raises(RecordedRunError, match=r"holds no manifest\.json: the run is still being recorded"):
        open_run(run_folder)


@pytest.mark.parametrize("file", ["rollouts.parquet", "gradients.npy", "policies/end/model.safetensors"])
def test_a_damaged_file_is_named(run_folder: Path, file: str) -> None:
    damaged = bytearray((run_folder / file).read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (run_folder / file).write_bytes(damaged)
    with pytest.raises(RecordedRunError, match=rf"myrun is damaged: {file} was altered.*record again"):
        open_run(run_folder)


def test_a_missing_file_is_named(run_folder: Path) -> None:
    (run_folder / "learning_rate.npy").unlink()
    with pytest.raises(RecordedRunError, match=r"damaged: learning_rate\.npy is missing"):
        open_run(run_folder)


def test_an_altered_manifest(run_folder: Path) -> None:
    manifest = json.loads((run_folder / "manifest.json").read_text())
    manifest["facts"]["temperature"] = 2.0
    (run_folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(RecordedRunError, match=r"damaged: manifest\.json was altered"):
        open_run(run_folder)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"kind": "planted"}, "is no recorded run but 'myrun' of a cache of planted runs"),
        ({"sketch": {"width": 64, "seed": 7}}, "sketched with seed 7, this version sketches with 0"),
    ],
)
def test_a_run_of_another_kind_or_sketch(run_folder: Path, facts: dict, words: str) -> None:
    reseal(run_folder, **facts)
    with pytest.raises(RecordedRunError, match=words):
        open_run(run_folder)


def test_a_run_without_a_fact(run_folder: Path) -> None:
    import recorded_run

    (run_folder / "manifest.json").unlink()
    recorded_run.finish(run_folder, {k: v for k, v in world.facts().items() if k != "top_p"})
    with pytest.raises(RecordedRunError, match="lacks the fact 'top_p'"):
        open_run(run_folder)


def test_a_run_without_its_last_policy(run_folder: Path) -> None:
    shutil.rmtree(run_folder / "policies")
    reseal(run_folder)
    with pytest.raises(RecordedRunError, match="lacks policies/end"):
        open_run(run_folder)


def test_the_seed_of_the_sketch_is_the_sketch_s_own() -> None:
    assert SKETCH_SEED == sketch.SKETCH_SEED


# -- questions ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("behavior", "words"),
    [
        ("(", r"'\(' is not a regular expression: missing \)"),
        ("x*", "matches the empty string, and so everything"),
        ("", "matches the empty string"),
        ("nothing like it", "matches no completion of the 320 rollouts of .*myrun"),
        ("(?=QZ)", "matches no completion"),
        ("Item", "matches every one of the 320 rollouts"),
    ],
)
def test_a_question_that_cannot_be_asked(run_folder: Path, behavior: str, words: str) -> None:
    with pytest.raises(RecordedRunError, match=words) as caught:
        open_run(run_folder).ask(behavior)
    assert "\n" not in str(caught.value)


def test_the_key_of_draws_depends_on_run_and_question_alone(run_folder: Path) -> None:
    question = open_run(run_folder).ask("QZXBT")
    assert dataclasses.replace(question, path="/elsewhere").hash == question.hash
    assert dataclasses.replace(question, behavior="QZXB").hash != question.hash
    assert dataclasses.replace(question, run_sha256="0" * 64).hash != question.hash


def test_a_question_is_handed_over_whole(run_folder: Path) -> None:
    question = open_run(run_folder).ask(r"QZ[A-Z]{3}\b")
    assert handover.loads(handover.dumps(question)) == question


@pytest.mark.parametrize(
    ("behavior", "expected"),
    [("QZXBT", "QZXBT"), (r"a\.b", "a.b"), (r"\(x\)", "(x)"), ("a.b", None), (r"\d", None), ("(?i)q", None)],
)
def test_literal(behavior: str, expected: str | None) -> None:
    assert literal(behavior) == expected
    if expected is not None:
        assert compiled(behavior).fullmatch(expected)


# -- draws -------------------------------------------------------------------------------------------------------------
def test_draws_are_made_once_by_processes_of_their_own(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    before, cache = state(run_folder), tmp_path / "cache"
    question = open_run(run_folder).ask(world.BEHAVIOR)
    store = ensure_draws(question, range(2), cache, Lines(shown := io.StringIO()), builder="fake_draw_builder")
    assert isinstance(store, RecordedStore)
    assert store.draw(0, 1).facts["behavior"] == world.BEHAVIOR
    assert [(e.recipe, e.unit, e.state) for e in entries(cache)] == [
        ("recorded", "draw0", "complete"),
        ("recorded", "draw1", "complete"),
    ]
    said = shown.getvalue().splitlines()
    assert said[0].endswith(f"completions of the run's last policy for behaviour {world.BEHAVIOR!r}")
    assert said[1].endswith("to do: draw0, draw1")
    assert f"complete  {world.BEHAVIOR!r} of " in table(cache, entries(cache))
    made = state(cache)
    ensure_draws(question, range(2), cache, builder="no_such_builder")  # a hit builds nothing
    assert state(cache) == made
    assert state(run_folder) == before


def test_a_builder_that_fails_says_so(run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setenv("FAKE_DRAW", "fail")
    question = open_run(run_folder).ask(world.BEHAVIOR)
    with pytest.raises(TrainingFailed, match=r"(?s)sampling draw0 failed: exit code 1\..*no policy here"):
        ensure_draws(question, [0], tmp_path / "cache", builder="fake_draw_builder")
    # A sentence of our own is told alone; the traceback is in the log.
    monkeypatch.setenv("FAKE_DRAW", "refuse")
    with pytest.raises(TrainingFailed) as caught:
        ensure_draws(question, [0], tmp_path / "cache", builder="fake_draw_builder")
    log = caught.value.log
    assert str(caught.value) == f"sampling draw0 failed: its base is not here; put it back\nfull log: {log}"
    assert "Traceback" in log.read_text(encoding="utf-8")


def test_a_draw_of_another_run_is_not_used(run_folder: Path, tmp_path: Path) -> None:
    question = open_run(run_folder).ask(world.BEHAVIOR)
    store = world.write_draws(tmp_path / "cache", question)
    assert store.problems([0], range(2)) == {}
    other = RecordedStore(tmp_path / "cache", dataclasses.replace(question, run_sha256="1" * 64))
    assert other.folder != store.folder


def test_a_damaged_draw_is_built_again(run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    question = open_run(run_folder).ask(world.BEHAVIOR)
    store = world.write_draws(tmp_path / "cache", question)
    (store.folder / "draw1" / "siblings_asked.npy").write_bytes(b"")
    assert list(store.problems([0], range(2))) == ["draw1"]
    ensure_draws(question, range(2), tmp_path / "cache", builder="fake_draw_builder")
    assert store.problems([0], range(2)) == {}


def test_a_run_that_changed_meanwhile_is_refused(run_folder: Path, tmp_path: Path) -> None:
    question = open_run(run_folder).ask(world.BEHAVIOR)
    store = world.write_draws(tmp_path / "cache", question)
    reseal(run_folder, temperature=0.5)
    with pytest.raises(RecordedRunError, match="holds another run than when this session began"):
        store.seed(0)


def test_the_cache_may_not_lie_in_the_run(run_folder: Path, tmp_path: Path) -> None:
    asked = AskedRun.at("myrun", run_folder, world.BEHAVIOR)
    asked.require_outside(tmp_path / "myrun-cache")
    with pytest.raises(RecordedRunError, match="lies inside the recorded run myrun"):
        asked.require_outside(run_folder / "cache")


def test_shown_is_what_the_regex_finds(run_folder: Path) -> None:
    run = open_run(run_folder)
    shown = run.shown(compiled(world.BEHAVIOR))
    assert np.array_equal(shown, [len(span) > 0 for span in run.table["span_code"]])
