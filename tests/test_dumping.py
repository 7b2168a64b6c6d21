"""Dumps: what is refused in one sentence, and the names in ids of rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from problems import make_problem

from pytest_behaviortrace import dumping
from pytest_behaviortrace.__main__ import main
from pytest_behaviortrace.dumping import Writer, dump, name_in
from pytest_behaviortrace.estimator import claims, needs
from pytest_behaviortrace.loading import load_problem
from pytest_behaviortrace.questions import Question
from pytest_behaviortrace.scorecard import Row

FLUENCY = "checks/test_fluency_control.py::test_fluency_control[{}-seed0-draw1]"


@pytest.mark.parametrize("name", ["gas", "token-gas", "package.module:name", "a[b]-seed1", "run-run", "x-draw1"])
def test_the_name_of_the_estimator_stands_in_the_id(name: str) -> None:
    assert name_in(FLUENCY.format(name)) == name
    assert name_in(f"checks/test_reward_control.py::test_reward_control[{name}-run]") == name
    assert name_in(f"checks/test_seed_stability.py::test_seed_stability[{name}-window-precision]") == name


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("gas", "'gas' is no id of a row; copy one from pytest"),
        ("checks/test_fluency.py::test_fluency[gas-seed0]", "is no id of a row"),
        ("checks/test_headroom.py::test_headroom[seed0]", "puts no estimator on trial"),
        ("checks/test_stress.py::test_stress[gas-finite]", "shows the whole problem as source"),
        (FLUENCY.format("gas").replace("draw1", "draw7"), "neither a check nor a row"),
        (FLUENCY.format("gass"), "unknown estimator 'gass'; did you mean 'gas'"),
    ],
)
def test_a_row_that_cannot_be_dumped_is_one_sentence(row: str, message: str, tmp_path: Path) -> None:
    command = ["dump", row, f"--out={tmp_path / 'dump'}", f"--cache-dir={tmp_path / 'cache'}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest_behaviortrace", *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stdout
    assert message in done.stderr.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").touch()
    with pytest.raises(ValueError, match="exists already; give a folder that is new or empty"):
        dump("gas", FLUENCY.format("gas"), tmp_path, cache_dir=tmp_path / "cache")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_the_command_shows_a_path_escaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "turned\u202e\x1b[2J"
    (folder / "problem-0").mkdir(parents=True)
    row = Row(FLUENCY.format("gas"), "gas", "test_fluency_control", 0, 1, "pass", reason="fine")
    asked = Question("rollouts", 6, None, None, "which?")
    monkeypatch.setattr(dumping, "dump", lambda *_, **__: dumping.Dumped(row, (folder / "problem-0",), (asked,)))
    assert main(["dump", row.id, f"--out={folder}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all(line.isprintable() for line in lines)
    assert lines[1].startswith(ascii(str(folder / "problem-0")))


def test_a_folder_with_a_nul_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^folder='a\\x00b' has a NUL character"):
        dump("gas", FLUENCY.format("gas"), "a\0b", cache_dir=tmp_path)


@needs(gradients=True)
@claims(target_sign=True)
def mine(problem: Any) -> Any:
    return problem.gradients @ problem.target


def written(tmp_path: Path, times: int = 1) -> Path:
    writer = Writer(mine, tmp_path)
    assert writer.needs is mine.needs  # type: ignore[attr-defined]
    assert writer.claims is mine.claims  # type: ignore[attr-defined]
    for k in range(times):
        problem = make_problem(np.arange(12.0).reshape(6, 2) + k).scoped(writer.needs)
        assert np.array_equal(writer(problem), mine(problem))
    (tmp_path / "row.json").write_text(json.dumps({"problems": [*writer.questions]}), "utf-8")
    return tmp_path


def test_a_dump_of_one_problem_is_loaded_by_its_folder(tmp_path: Path) -> None:
    folder = written(tmp_path)
    for path in (folder, str(folder), folder / "problem-0"):
        assert np.array_equal(mine(load_problem(path)), np.load(folder / "problem-0" / "scores.npy"))
    problem = load_problem(folder)
    assert problem.rng.normal() == make_problem(np.zeros((6, 2))).rng.normal()


def test_of_several_one_is_chosen(tmp_path: Path) -> None:
    folder = written(tmp_path, times=11)
    with pytest.raises(ValueError, match=r"holds 11 problems \(problem-0, .*problem-9, problem-10\); load one of them"):
        load_problem(folder)
    assert load_problem(folder / "problem-10").gradients[0, 0] == 10.0


def test_what_is_no_dump_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no dumped problem"):
        load_problem(tmp_path)


def save(room: Path, name: str, array: Any) -> None:
    np.save(room / f"{name}.npy", array)


def edit(room: Path, **changes: Any) -> None:
    """Change parts of a problem's description; a dict is merged into what is there."""
    path = room / "problem.json"
    said = json.loads(path.read_text("utf-8"))
    for part, change in changes.items():
        said[part] = {**said[part], **change} if isinstance(change, dict) else change
    path.write_text(json.dumps(said), "utf-8")


def cut(path: Path, by: int) -> None:
    path.write_bytes(path.read_bytes()[:-by])


def write(room: Path, name: str, place: Any, value: float) -> None:
    """Another number in an array that is as large as before."""
    array = np.load(room / f"{name}.npy")
    array[place] = value
    save(room, name, array)


def pipe(path: Path) -> None:
    """A thing that is no file; to read this one would wait forever."""
    path.unlink()
    os.mkfifo(path) if hasattr(os, "mkfifo") else path.mkdir()


def both(room: Path, name: str, array: Any) -> None:
    """Another array, and a description that agrees with it."""
    save(room, name, array)
    edit(room, files={name: [np.lib.format.dtype_to_descr(array.dtype), list(array.shape)]})


def moved(room: Path, value: Any) -> None:
    """Gradients as plain data in place of an array."""
    arrays = json.loads((room / "problem.json").read_text("utf-8"))["arrays"]
    edit(room, plain={"gradients": value}, arrays=[name for name in arrays if name != "gradients"])


DAMAGE: dict[str, tuple[Any, str]] = {
    "missing-column": (lambda room: (room / "step.npy").unlink(), "step.npy is missing"),
    "missing-array": (lambda room: (room / "gradients.npy").unlink(), "gradients.npy is missing"),
    "rows": (
        lambda room: save(room, "gradients", np.zeros((5, 2), np.float32)),
        "gradients.npy holds 5 x 2 float32 where 6 x 2 float32 were written",
    ),
    "width": (lambda room: save(room, "target", np.zeros(3, np.float32)), "target.npy holds 3 float32 where 2 float32"),
    "dtype": (lambda room: save(room, "gradients", np.zeros((6, 2))), "holds 6 x 2 float64 where 6 x 2 float32"),
    "texts": (lambda room: save(room, "advantage", np.array(["a"] * 6)), "advantage.npy holds 6 <U1 where 6 float64"),
    "pickle": (
        lambda room: np.save(room / "advantage.npy", np.array([{}] * 6), allow_pickle=True),
        "advantage.npy holds 6 object where 6 float64",
    ),
    "truncated": (lambda room: cut(room / "gradients.npy", 5), "gradients.npy holds 43 bytes of numbers where 48"),
    "header-only": (lambda room: cut(room / "reward.npy", 100), "reward.npy is no array, or cut short"),
    "empty-file": (lambda room: (room / "reward.npy").write_bytes(b""), "reward.npy is no array, or cut short"),
    "folder": (lambda room: ((room / "step.npy").unlink(), (room / "step.npy").mkdir()), "step.npy cannot be read"),
    "json": (lambda room: (room / "problem.json").write_text("{"), "problem.json is not JSON, or cut short"),
    "json-gone": (lambda room: (room / "problem.json").unlink(), "problem.json is missing"),
    "json-bytes": (lambda room: (room / "problem.json").write_bytes(b"\xff\xfe"), "problem.json is not JSON"),
    "list": (lambda room: (room / "problem.json").write_text("[1]"), "is not what a dump of this version writes"),
    "other-json": (lambda room: (room / "problem.json").write_text('{"a": 1}'), "it states no schema"),
    "only-a-schema": (lambda room: (room / "problem.json").write_text('{"schema": 1}'), "it has no 'facts'"),
    "schema": (lambda room: edit(room, schema=7), "problem.json has schema 7, and this version reads 1"),
    "schema-flag": (lambda room: edit(room, schema=True), "problem.json has schema True, and this version reads 1"),
    "schema-float": (lambda room: edit(room, schema=1.0), "problem.json has schema 1.0, and this version reads 1"),
    "declared-schema-float": (
        lambda room: (room / "declared.json").write_text('{"schema": 2.0, "needs": ["gradients"]}'),
        "declared.json has schema 2.0, and this version reads 2",
    ),
    "shape-flag": (
        lambda room: (save(room, "target", np.ones(1)), edit(room, files={"target": ["<f8", [True]]})),
        r"problem.json says of target.npy a shape that is none, \[True\]",
    ),
    "nan-gradients": (
        lambda room: write(room, "gradients", (4, 1), np.nan),
        r"gradients.npy has nan at \[4, 1\], where only finite numbers are written",
    ),
    "inf-target": (lambda room: write(room, "target", 1, -np.inf), r"target.npy has -inf at \[1\], where only finite"),
    "nan-advantage": (lambda room: write(room, "advantage", 5, np.nan), r"advantage.npy has nan at \[5\], where only"),
    "nan-reward": (lambda room: write(room, "reward", 0, np.nan), r"reward.npy has nan at \[0\], where only finite"),
    "inf-rate": (lambda room: write(room, "learning_rate", 2, np.inf), r"learning_rate.npy has inf at \[2\]"),
    "declared": (lambda room: (room / "declared.json").write_text("{"), "declared.json is not JSON"),
    "declared-schema": (
        lambda room: (room / "declared.json").write_text('{"schema": 1, "needs": ["gradients"]}'),
        "declared.json has schema 1, and this version reads 2",
    ),
    "declared-needs": (
        lambda room: (room / "declared.json").write_text('{"schema": 2, "needs": [{"a": 1}]}'),
        "declared.json does not say what the estimator declares",
    ),
    "kind": (lambda room: edit(room, facts={"kind": "people"}), "problem.json names unknown items, 'people'"),
    "carried": (lambda room: edit(room, facts={"carried": ["labels"]}), "carries an unknown need, 'labels'"),
    "seed": (lambda room: edit(room, facts={"rng_seed": [-1]}), "a seed of random numbers that is none"),
    "fifo": (lambda room: pipe(room / "target.npy"), "target.npy cannot be read .it is no regular file"),
    "fifo-json": (lambda room: pipe(room / "problem.json"), "problem.json cannot be read .it is no regular file"),
    "plain-gradients": (lambda room: moved(room, 3), "problem.json has 'gradients' in another form than a dump"),
    "plain-list": (lambda room: moved(room, [3] * 6), "problem.json has 'gradients' in another form than a dump"),
    "plain-unknown": (lambda room: edit(room, plain={"model": "x"}), "problem.json has 'model' in another form"),
    "ragged-gradients": (lambda room: edit(room, arrays=[], ragged=["gradients"]), "has 'gradients' in another form"),
    "outside": (
        lambda room: edit(room, arrays=["../x"], files={"../x": ["<f4", [1]]}), "names an unknown array, '../x'"
    ),
    "column-of-texts": (lambda room: both(room, "advantage", np.array(["a"] * 6)), "advantage.npy holds <U1 where flo"),
    "array-of-flags": (lambda room: both(room, "target", np.ones(2, bool)), "target.npy holds bool where floating"),
    "complex": (lambda room: both(room, "target", np.ones(2, complex)), "target.npy holds complex128 where floating"),
    "step-of-floats": (lambda room: both(room, "step", np.ones(6)), "step.npy holds float64 where whole numbers"),
    "mask-of-floats": (
        lambda room: both(room, "behavior_mask", np.ones(18)), "behavior_mask.npy holds float64 where truth values"
    ),
    "seed-flag": (lambda room: edit(room, facts={"rng_seed": [True]}), "a seed of random numbers that is none"),
    "block-list": (lambda room: edit(room, plain={"blocks": []}), "has blocks in another form"),
    "block-float": (lambda room: edit(room, plain={"blocks": {"all": [0.0, 1.5]}}), "whose ends are no whole numbers"),
    "absent": (lambda room: edit(room, absent={"reference": 3}), "says of 'reference' that it is not served"),
    "parts": (lambda room: edit(room, arrays=["gradients", 3]), "does not say what 3.npy holds"),
    "unlisted": (lambda room: edit(room, arrays=["gradients", "target"]), "gradient_norm is missing, which the"),
    "blocks": (lambda room: edit(room, plain={"blocks": {"all": [0, 3]}}), "a block 'all' that lies outside"),
    "behaviour": (lambda room: edit(room, plain={"behavior": 3}), "a behaviour that is no text"),
    "text-count": (lambda room: edit(room, plain={"prompt_text": ["a"]}), "has 1 of 'prompt_text' for 6 items"),
    "text-kind": (lambda room: edit(room, plain={"prompt_text": [1] * 6}), "has a 'prompt_text' that is no text"),
    "agreed": (
        lambda room: (save(room, "target", np.zeros(3, np.float32)), edit(room, files={"target": ["<f4", [3]]})),
        r"target.npy has shape \(3,\), which does not fit the other arrays \(2\)",
    ),
    "ends": (
        lambda room: save(room, "prompt_ids.ends", np.array([3, 6, 9, 12, 15, 99])),
        "prompt_ids.ends.npy does not divide prompt_ids.npy among 6 items",
    ),
}  # fmt: skip


@needs(gradients=True, text=True, behavior=True)
def reader(problem: Any) -> Any:
    return np.zeros(len(problem))


@pytest.mark.parametrize(("damage", "said"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_dump_is_refused_before_the_estimator_sees_it(damage: Any, said: str, tmp_path: Path) -> None:
    Writer(reader, tmp_path)(make_problem(np.arange(12.0).reshape(6, 2)))
    room = tmp_path / "problem-0"
    assert len(load_problem(room)) == 6
    damage(room)
    with pytest.raises(ValueError, match=said) as caught:
        load_problem(room)
    text = str(caught.value)
    assert text.startswith(f"{room} is not a whole dump: ")
    assert text.endswith("; dump the row again")
    assert "\n" not in text


def test_rewards_of_what_was_never_trained_on_are_nan_and_nothing_else(tmp_path: Path) -> None:
    siblings = make_problem(np.arange(12.0).reshape(6, 2), kind="siblings", reward=[np.nan] * 6)
    Writer(reader, tmp_path)(siblings)
    room = tmp_path / "problem-0"
    assert np.isnan(load_problem(room).reward).all()
    write(room, "reward", 3, np.inf)
    with pytest.raises(ValueError, match=r"reward.npy has inf at \[3\], where only finite"):
        load_problem(room)


def test_a_bad_number_is_found_in_any_stretch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_behaviortrace.rows.STRETCH", 16)
    Writer(reader, tmp_path)(make_problem(np.arange(12.0).reshape(6, 2)))
    write(tmp_path / "problem-0", "reference", (5, 0), np.nan)
    with pytest.raises(ValueError, match=r"reference.npy has nan at \[5, 0\]"):
        load_problem(tmp_path / "problem-0")


def test_a_problem_without_items_is_whole(tmp_path: Path) -> None:
    Writer(reader, tmp_path)(make_problem(np.zeros((0, 2))))
    assert len(load_problem(tmp_path / "problem-0").prompt_text) == 0


def test_a_full_disk_is_no_fault_of_the_estimator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pytest_behaviortrace.dumping.write_problem", full)
    writer = Writer(mine, tmp_path)
    with pytest.raises(OSError, match="No space left"):
        writer(make_problem(np.zeros((6, 2))))
    assert writer.failed is not None
