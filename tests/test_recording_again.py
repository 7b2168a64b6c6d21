"""What `record` refuses to mix into one record, and what a crash costs: real processes, killed and resumed."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

import grpo_run  # noqa: E402
import recording_process  # noqa: E402
import torch  # noqa: E402
from interrupted_run import Interrupt, again, interrupt, same  # noqa: E402
from recording_process import BEHAVIORS, KILLED_AT, SAVE_STEPS, STEPS, WIDTH  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from pytest_behaviortrace import record  # noqa: E402
from pytest_behaviortrace.run.integrity import IntegrityError  # noqa: E402
from pytest_behaviortrace.run.policy import load_model  # noqa: E402
from pytest_behaviortrace.run.recorded import RecordedRunError, open_run  # noqa: E402
from pytest_behaviortrace.run.rows import RecordingError  # noqa: E402


def weights(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = load_model(str(folder)).state_dict()
    return found


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# -- nothing is mixed --------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return interrupt(tmp_path_factory.mktemp("interrupted"))


@pytest.fixture
def begun(interrupted: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(interrupted, tmp_path, dirs_exist_ok=True))


def brevity(completions: list[Any], **unused: Any) -> list[float]:
    return [-float(len(str(c))) for c in completions]


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"learning_rate": 2e-3}, "learning_rate 0.001 there, 0.002 here"),
        ({"min_p": 0.1}, "min_p null there, 0.1 here"),
        ({"generation_kwargs": {"no_repeat_ngram_size": 3}}, "generation_kwargs .* there, .* here"),
        ({"reward": brevity}, r'rewards \[".*"\] there, \["brevity"\] here'),
        ({"width": 2 * WIDTH}, f"width {WIDTH} there, {2 * WIDTH} here"),
        ({"behaviors": {"of": " of"}}, r"behaviors is .* there, absent here"),
        ({"temperature": 0.5, "seed": 9}, r"seed \d+ there, 9 here; temperature 0.9 there, 0.5 here"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_another_run_is_not_mixed_in(changed: dict[str, Any], named: str, begun: Path) -> None:
    with pytest.raises(RecordingError, match=rf"beginning of another run \({named}\)"):
        again(begun, **changed)


def test_another_number_of_processes_is_told(begun: Path) -> None:
    path = begun / "record" / "recording.json"
    path.write_text(path.read_text().replace('"processes": 1', '"processes": 2'))
    with pytest.raises(RecordingError, match="record was recorded with 2 processes, now 1; start 2 to resume the run"):
        again(begun)


def test_a_run_that_starts_again_is_not_mixed_in(begun: Path) -> None:
    with pytest.raises(
        RecordingError, match=r"holds an earlier start \(steps 0-3 are recorded\), and this run begins at step 0"
    ):
        again(begun).train()


def test_other_weights_are_not_mixed_in(begun: Path) -> None:
    path = begun / "work" / f"checkpoint-{KILLED_AT}" / "model.safetensors"
    changed = load_file(path)
    changed["model.norm.weight"][0] += 1e-3
    save_file(changed, path, metadata={"format": "pt"})
    with pytest.raises(IntegrityError, match=rf"resumes at step {KILLED_AT} with weights that are not those"):
        again(begun).train(resume_from_checkpoint=True)


def test_a_record_that_is_gone_is_not_resumed(begun: Path) -> None:
    shutil.rmtree(begun / "record")
    with pytest.raises(RecordingError, match=r"record is new, but the trainer resumes from step 4, .* give the folder"):
        again(begun).train(resume_from_checkpoint=True)


def test_what_is_known_of_the_run_may_be_lost(begun: Path) -> None:
    path = begun / "record" / "recording.json"
    for text in ("{", "[]", '{"run": 3, "checkpoints": {}, "start": {}}'):
        path.write_text(text)
        with pytest.raises(RecordingError, match=r"recording\.json is damaged; restore it, or record"):
            again(begun)
    path.unlink()
    with pytest.raises(RecordingError, match=r"recording\.json is missing, and without it the shards"):
        again(begun)


def test_finished_and_foreign_folders_are_refused(whole: Any, tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="holds a finished record; give another folder"):
        record(grpo_run.trainer(tmp_path / "work"), whole[1].path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("dear diary", encoding="utf-8")
    with pytest.raises(RecordingError, match="is not empty and no record; give a new folder"):
        record(grpo_run.trainer(tmp_path / "work"), tmp_path / "mine")
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["notes.txt"]


# -- crashes -----------------------------------------------------------------------------------------------------------
def test_the_same_trainer_goes_on_after_ctrl_c(whole: Any, tmp_path: Path) -> None:
    trainer = recording_process.trainer(tmp_path / "work")
    trainer.add_callback(Interrupt())
    record(trainer, tmp_path / "record", behaviors=BEHAVIORS, width=WIDTH)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    trainer.train(resume_from_checkpoint=True)
    assert same(whole[1], open_run(tmp_path / "record"))


@pytest.mark.parametrize("where", ["step", "save", "seal"])
def test_a_killed_run_is_resumed(where: str, whole: Any, tmp_path: Path) -> None:
    """SIGKILL in a step, between a checkpoint and the end of its step, and while the record is being closed."""
    command = [sys.executable, "-W", "ignore", recording_process.__file__, tmp_path / "work", tmp_path / "record"]
    killed = subprocess.run([*command, "--kill", where], capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    with pytest.raises(RecordedRunError, match="its recording was broken off"):
        open_run(tmp_path / "record")
    assert (tmp_path / "work" / f"checkpoint-{KILLED_AT}").is_dir()
    if where == "step":
        done = subprocess.run([*command, "--resume"], capture_output=True)
        assert done.returncode == 0, done.stderr
    else:
        recording_process.main([str(tmp_path / "work"), str(tmp_path / "record"), "--resume"])
    resumed = open_run(tmp_path / "record")
    assert not (tmp_path / "record" / "shards").exists()
    if where == "seal":  # asked to resume a run that was over, transformers makes one step more
        assert resumed.facts["steps"] == STEPS + 1
        assert same(whole[1], resumed, rows=8 * STEPS)
    else:
        assert same(whole[1], resumed)
        assert equal(weights(resumed.unit.policy("end")), dict(whole[0].model.state_dict()))
    checkpoints = sorted((tmp_path / "work").glob("checkpoint-*"))
    assert len(checkpoints) >= STEPS // SAVE_STEPS
    assert json.loads((checkpoints[-1] / "trainer_state.json").read_text())["global_step"] >= STEPS
