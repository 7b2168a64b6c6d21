"""Two processes record one run: the rollouts, gradients and weights of one process that is fed the same rollouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launching import launch

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

import grpo_run  # noqa: E402
import one_of_two  # noqa: E402
import torch  # noqa: E402

from pytest_behaviortrace.run.formats import read_array, read_table  # noqa: E402
from pytest_behaviortrace.run.manifest import verified_manifest  # noqa: E402
from pytest_behaviortrace.run.recorder import Capture, RolloutRecorder  # noqa: E402
from pytest_behaviortrace.run.recording import record  # noqa: E402
from pytest_behaviortrace.run.rows import RecordingError  # noqa: E402

SCRIPT = str(Path(one_of_two.__file__))
NEAR = 1e-4


@pytest.fixture(scope="module")
def by_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    code, out = launch(folder, SCRIPT, "rollouts", str(folder))
    assert code == 0, out
    return folder


class Joined:
    """What both processes wrote of a run, in the order of row ids."""

    def __init__(self, folder: Path, name: str) -> None:
        self.parts = [folder / f"{name}-{rank}" for rank in range(2)]
        tables = [read_table(part / "rollouts.parquet") for part in self.parts]
        self.ids = [list(table["row_id"]) for table in tables]
        order = np.argsort(np.concatenate(self.ids))
        self.columns = {c: [v for t in tables for v in t[c]] for c in tables[0]}
        self.columns = {c: [values[i] for i in order] for c, values in self.columns.items()}

    def arrays(self, name: str) -> list[np.ndarray[Any, Any]]:
        return [read_array(part / f"{name}.npy") for part in self.parts]

    def sketches(self, kind: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        row, rows, norm = (np.concatenate(self.arrays(f"{kind}-{what}")) for what in ("row", "rows", "norm"))
        order = np.argsort(row)
        return row[order], rows[order], norm[order]


@pytest.fixture(params=sorted(one_of_two.RUNS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def fed(folder: Path, name: str, logged: Joined) -> Any:
    """One process that is fed the rollouts of two, a step at a time."""
    recorder = RolloutRecorder(Capture(one_of_two.WIDTH, one_of_two.COMMON))
    settings = one_of_two.RUNS[name]
    whole = {"per_device_train_batch_size": 2 * settings["per_device_train_batch_size"]}
    trainer = grpo_run.trainer(folder, recorder, **{**settings, **whole})
    said = [[int(t) for t in ids] for ids in logged.columns["completion_ids"]]

    def generate(prompt_ids: list[Any], *args: Any, **named: Any) -> Any:
        return [said.pop(0) for _ in prompt_ids], None

    trainer._generate_single_turn = generate
    trainer.train()
    assert not said
    return trainer, recorder


def test_gradients_and_weights_are_those_of_one_process(by_two: Path, name: str, tmp_path: Path) -> None:
    two = Joined(by_two, name)
    trainer, recorder = fed(tmp_path, name, two)
    one = recorder.columns()
    assert one["row_id"] == two.columns["row_id"] == list(range(16))
    assert [list(ids) for ids in two.columns["prompt_ids"]] == one["prompt_ids"]
    assert two.columns["group"] == one["group"]
    for column in ("advantage", "loss_scale", "reward"):
        np.testing.assert_allclose(two.columns[column], one[column], rtol=1e-5, atol=1e-7)
    assert np.abs(one["advantage"]).max() > 0.1
    for kind in ("gradients", "spans_of"):
        row, rows, norm = two.sketches(kind)
        alone = recorder.recorded(kind)
        assert row.tolist() == alone.row.tolist()
        assert len(row) > 0
        apart = np.linalg.norm(rows - alone.rows, axis=1) / np.linalg.norm(alone.rows, axis=1)
        assert apart.max() < NEAR
        np.testing.assert_allclose(norm, alone.norm, rtol=NEAR)
    weights = torch.cat([p.detach().flatten() for p in trainer.model.parameters()]).numpy()
    start = torch.cat([p.detach().flatten() for p in grpo_run.policy().parameters()]).numpy()
    moved = np.linalg.norm(weights - start)
    assert moved > 1e-2
    assert np.linalg.norm(two.arrays("weights")[0] - weights) / moved < 1e-3


def test_both_processes_end_at_the_same_weights_and_checked_the_sum(by_two: Path, name: str) -> None:
    two = Joined(by_two, name)
    first, second = two.arrays("weights")
    np.testing.assert_array_equal(first, second)
    assert [bool(done) for done in two.arrays("checked")] == [True, True]


def test_each_process_has_its_part_of_every_step(by_two: Path, name: str) -> None:
    two = Joined(by_two, name)
    assert [sorted(ids) for ids in two.ids] == [[0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]]
    assert two.columns["step"] == [0] * 8 + [1] * 8
    first, second = (two.columns["completion_ids"][part] for part in (slice(0, 4), slice(4, 8)))
    assert [list(ids) for ids in first] != [list(ids) for ids in second]  # random numbers of their own


def test_what_processes_tell_each_other(tmp_path: Path) -> None:
    code, out = launch(tmp_path, SCRIPT, "talk", str(tmp_path))
    assert code == 0, out
    first, second = ((tmp_path / f"told-{rank}").read_text(encoding="utf-8").splitlines() for rank in range(2))
    assert first[:3] == second[:3]
    assert first[0] == "{'from': 0, 'text': 'ö'}"
    assert first[1] == "{'a': [7], 'b': [0.0, 0.0]}"
    assert first[2] == repr([[0.0, 0.3] * 3, [1.0, 0.4] * 4, [0.0, 0.5] * 5])
    assert first[3] == "none"
    assert second[3] == "IntegrityError: process 1 ended at other weights than process 0"


def test_a_record_of_two_processes_is_resumed_and_sealed_once(tmp_path: Path) -> None:
    code, _ = launch(tmp_path, SCRIPT, "begin", str(tmp_path))
    place = tmp_path / "record"
    assert code != 0
    assert not (place / "manifest.json").exists()
    alone = grpo_run.trainer(tmp_path / "alone", **{**one_of_two.PATIENT, "per_device_train_batch_size": 8})
    with pytest.raises(RecordingError, match="was recorded with 2 processes, now 1; start 2"):
        record(alone, place, width=one_of_two.WIDTH)
    code, out = launch(tmp_path, SCRIPT, "resume", str(tmp_path))
    assert code == 0, out
    manifest = verified_manifest(place)
    assert (manifest["facts"]["n_rollouts"], manifest["facts"]["steps"], manifest["facts"]["processes"]) == (24, 3, 2)
    table = read_table(place / "rollouts.parquet")
    assert sorted(table["recorded_id"]) == list(range(24))
    assert sorted(read_array(place / "gradients.row.npy")) == list(range(24))
    assert not (place / "shards").exists()
    for rank in range(2):
        assert "holds a finished record" in (tmp_path / f"refused-{rank}").read_text(encoding="utf-8")
