"""A damaged or shared folder, a full disk, gradients that are not finite: one sentence, and nothing is sealed."""

from __future__ import annotations

import errno
import os
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

import torch  # noqa: E402
from interrupted_run import again, interrupt, same  # noqa: E402
from recording_process import STEPS  # noqa: E402
from transformers import TrainerCallback  # noqa: E402

from pytest_behaviortrace.run import shards  # noqa: E402
from pytest_behaviortrace.run.integrity import IntegrityError  # noqa: E402
from pytest_behaviortrace.run.recorded import RecordedRunError, open_run  # noqa: E402
from pytest_behaviortrace.run.rows import RecordingError  # noqa: E402


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return interrupt(tmp_path_factory.mktemp("interrupted"))


@pytest.fixture
def begun(interrupted: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(interrupted, tmp_path, dirs_exist_ok=True))


# -- damage ----------------------------------------------------------------------------------------------------------
STEP_1 = "record/shards/step-00000001-rank-0000"


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-20] ^= 255
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (
            lambda base: shutil.rmtree(base / STEP_1),
            r"step 1 \(process 0\) is missing .*at or before step 1, or record",
        ),
        (lambda base: flip(base / STEP_1 / "gradients.npy"), r"step 1 .*\(gradients.npy was altered\)"),
        (lambda base: flip(base / STEP_1 / "rollouts.parquet"), r"step 1 .*\(rollouts.parquet was altered\)"),
        (lambda base: (base / STEP_1 / "step.parquet").unlink(), r"step 1 .*\(step.parquet is missing\)"),
        (lambda base: (base / STEP_1 / "files.json").unlink(), r"step 1 .*\(files.json is missing"),
        (lambda base: (base / STEP_1 / "x.npy").touch(), r"step 1 .*\(x.npy was added\)"),
        (lambda base: exchange(base), r"step 0 .*\(it holds step 1 of process 0\).*; record the run again"),
        (lambda base: shutil.rmtree(base / "record/policies"), r"began with, .* is damaged \(.* is missing\)"),
        (lambda base: flip(base / "record/policies/start/model.safetensors"), r"\(model.safetensors was altered\)"),
    ],
)
def test_damage_is_told_before_anything_is_dropped(damage: Any, told: str, begun: Path) -> None:
    damage(begun)
    later = begun / "record" / "shards" / "step-00000003-rank-0000"
    trainer = again(begun)
    with pytest.raises(IntegrityError, match=told):
        trainer.train(resume_from_checkpoint=str(begun / "work" / "checkpoint-2"))
    assert later.is_dir()


def exchange(base: Path) -> None:
    """Steps 0 and 1 under each other's names."""
    one, other = base / "record/shards/step-00000000-rank-0000", base / STEP_1
    one.rename(base / "aside")
    other.rename(one)
    (base / "aside").rename(other)


def test_steps_after_the_checkpoint_may_be_damaged(whole: Any, begun: Path) -> None:
    """And a shard that breaks while training goes on is not sealed."""
    flip(begun / "record" / "shards" / "step-00000003-rank-0000" / "gradients.npy")
    trainer = again(begun)
    trainer.train(resume_from_checkpoint=str(begun / "work" / "checkpoint-2"))
    assert same(whole[1], open_run(begun / "record"))


class Damage(TrainerCallback):  # type: ignore[misc]
    """Damages an early shard in the last step."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        if state.global_step == STEPS - 1:
            flip(self.path)


def test_what_is_damaged_is_never_sealed(begun: Path) -> None:
    trainer = again(begun)
    trainer.add_callback(Damage(begun / STEP_1 / "gradients.npy"))
    with pytest.raises(IntegrityError, match=r"step 1 \(process 0\) is damaged"):
        trainer.train(resume_from_checkpoint=True)
    with pytest.raises(RecordedRunError, match="steps 0-5 are recorded, not sealed: resume the training to its end"):
        open_run(begun / "record")


# -- one at a time -----------------------------------------------------------------------------------------------------
class Intruder(TrainerCallback):  # type: ignore[misc]
    """In the middle of a run, somebody else records into its folder."""

    def __init__(self, base: Path, other: Any) -> None:
        self.base, self.other = base, other
        self.told: list[str] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        for attempt in (lambda: again(self.base), self.other.train):
            with pytest.raises(RecordingError) as refused:
                attempt()
            self.told.append(str(refused.value))


def test_a_folder_is_recorded_into_by_one_at_a_time(tmp_path: Path) -> None:
    other = again(tmp_path, max_steps=2)  # begins to record before the first trains
    trainer = again(tmp_path, max_steps=2)
    intruder = Intruder(tmp_path, other)
    trainer.add_callback(intruder)
    trainer.train()
    assert len(intruder.told) == 4
    for said in intruder.told:
        assert f"record is being recorded by process {os.getpid()} on {socket.gethostname()}" in said
        assert said.endswith("; give another folder, or wait")
    assert len(open_run(tmp_path / "record").table["step"]) == 16
    assert not list((tmp_path / "record").glob(".*"))
    with pytest.raises(RecordingError, match="holds a finished record"):
        other.train()


# -- what the disk and the numbers do ----------------------------------------------------------------------------------
def test_a_full_disk_is_told_and_the_run_resumed(whole: Any, begun: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    trainer = again(begun)
    with monkeypatch.context() as patch:
        patch.setattr(shards, "write_sketches", full)
        with pytest.raises(RecordingError) as told:
            trainer.train(resume_from_checkpoint=True)
    assert str(told.value) == (
        f"{begun / 'record'}: no space left on device at step 4 (steps 0-3 are recorded); free space and resume the "
        f"training from its last checkpoint"
    )
    assert not list((begun / "record" / "shards").glob(".making*"))
    trainer.train(resume_from_checkpoint=True)
    assert same(whole[1], open_run(begun / "record"))


def test_gradients_that_are_not_finite_are_told(begun: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = shards.ShardSink.add_sketches

    def broken(sink: Any, kind: str, rows: torch.Tensor, *rest: Any) -> None:
        own(sink, kind, rows * float("nan"), *rest)

    monkeypatch.setattr(shards.ShardSink, "add_sketches", broken)
    with pytest.raises(RecordingError, match=r"gradients of step 4 are not finite .* look at the learning rate \(here"):
        again(begun).train(resume_from_checkpoint=True)
