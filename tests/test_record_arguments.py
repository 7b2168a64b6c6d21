"""What `record` is given and cannot use is one sentence, and leaves no trace."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

import grpo_run  # noqa: E402
from trl import GRPOTrainer  # noqa: E402

from pytest_behaviortrace import record  # noqa: E402
from pytest_behaviortrace.run.recorded import open_run  # noqa: E402
from pytest_behaviortrace.run.rows import RecordingError  # noqa: E402


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Writes its checkpoints into the folder `work`."""
    return grpo_run.trainer(tmp_path_factory.mktemp("base") / "work")


@pytest.mark.parametrize(
    ("behaviors", "kind", "told"),
    [
        (["a+"], TypeError, "behaviors is a dict of names and regular expressions"),
        ("a+", TypeError, "behaviors is a dict of names and regular expressions"),
        ({"a": 3}, TypeError, "the behaviour 'a' is a regular expression as a str"),
        ({"a": b"e+"}, TypeError, "the behaviour 'a' is a regular expression as a str"),
        ({"a": re.compile("e+")}, TypeError, "the behaviour 'a' is a regular expression as a str"),
        ({3: "e"}, TypeError, "the name of a behaviour is a str, not 3"),
        ({"a b": "x"}, ValueError, "'a b' cannot name a behaviour"),
        ({"ok": "("}, ValueError, "is no regular expression"),
        ({"a": ""}, ValueError, "and so every completion"),
        ({"a": ".*"}, ValueError, "and so every completion"),
        ({"a": r"[\s\S]+"}, ValueError, "and so every completion"),
        ({"a": ".+"}, ValueError, "and so every completion"),
        ({"a": "e", "A": "o"}, ValueError, "would be one file on some systems"),
    ],
)
def test_behaviours_that_cannot_be_recorded(
    behaviors: Any, kind: type[Exception], told: str, trainer: Any, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=told):
        record(trainer, tmp_path / "record", behaviors=behaviors)
    assert not list(tmp_path.iterdir())


def test_only_grpo_trainers_are_recorded(tmp_path: Path) -> None:
    for other, named in ((None, "NoneType"), (object(), "object"), (GRPOTrainer, "not GRPOTrainer")):
        with pytest.raises(TypeError, match=rf"record takes a trl\.GRPOTrainer.* {named}"):
            record(other, tmp_path / "record")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", [None, 3, b"record"])
def test_what_is_no_path(path: Any, trainer: Any) -> None:
    with pytest.raises(TypeError, match="record takes the path of a folder, a str or a Path, not "):
        record(trainer, path)


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("", "names no folder"),
        ("a\0b", "names no folder"),
        ("a" * 300, "cannot be used as the folder of a record: File name too long"),
        ("file", "file is a file; give the path of a new folder"),
        ("file/record", "cannot be used as the folder of a record: Not a directory"),
    ],
)
def test_paths_that_make_no_folder(
    path: str, told: str, trainer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("mine", encoding="utf-8")
    with pytest.raises(RecordingError, match=told):
        record(trainer, path)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_the_checkpoints_folder_is_no_record(trainer: Any, tmp_path: Path) -> None:
    work = Path(trainer.args.output_dir)
    (tmp_path / "link").symlink_to(work.parent)
    for path in (work, work.parent, tmp_path / "link", tmp_path / "link" / "work"):
        with pytest.raises(RecordingError, match="is, or contains, the output_dir that the trainer writes"):
            record(trainer, path)
    with pytest.raises(RecordingError, match="lies in a checkpoint"):
        record(trainer, work / "checkpoint-2" / "record")
    record(trainer, work / "record").detach()
    assert (work / "record" / "recording.json").exists()


def test_width_is_a_whole_number(trainer: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="width is a whole number of buckets, not '512'"):
        record(trainer, tmp_path / "record", width="512")  # type: ignore[arg-type]


def test_a_behaviour_that_no_rollout_shows_is_told_at_the_end(tmp_path: Path) -> None:
    made = grpo_run.trainer(tmp_path / "work", max_steps=1)
    record(made, tmp_path / "record", behaviors={"never": "QZ#QZ"}, width=512)
    with pytest.warns(UserWarning, match="the behaviour 'never', 'QZ#QZ', matches none of the 8 rollouts recorded in"):
        made.train()
    assert open_run(tmp_path / "record").facts["n_rollouts"] == 8
