"""Dumps: what is refused in one sentence, and the names in ids of rows."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from problems import make_problem

from pytest_behaviortrace.dumping import Writer, dump, load_problem, name_in
from pytest_behaviortrace.estimator import claims, needs

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
    (tmp_path / "row.json").write_text(json.dumps({"problems": [room.name for room in writer.rooms]}), "utf-8")
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


def test_what_is_no_whole_dump_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no dumped problem"):
        load_problem(tmp_path)
    room = written(tmp_path) / "problem-0"
    shutil.copytree(room, tmp_path / "other")
    (room / "step.npy").unlink()
    with pytest.raises(ValueError, match=r"is not a whole dump .*FileNotFoundError"):
        load_problem(room)
    (tmp_path / "other" / "problem.json").write_text("{")
    with pytest.raises(ValueError, match=r"is not a whole dump .*JSONDecodeError"):
        load_problem(tmp_path / "other")


def test_a_full_disk_is_no_fault_of_the_estimator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pytest_behaviortrace.dumping.write_problem", full)
    writer = Writer(mine, tmp_path)
    with pytest.raises(OSError, match="No space left"):
        writer(make_problem(np.zeros((6, 2))))
    assert writer.failed is not None
