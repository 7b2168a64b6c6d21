"""Folders that are there whole or not at all: what an error, Ctrl-C, SIGKILL and another process leave."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_behaviortrace.whole_folder import is_unfinished, require_free, whole_folder

HOLDER = """
import os, signal, sys
from pathlib import Path
from pytest_behaviortrace.whole_folder import whole_folder
with whole_folder(Path(sys.argv[1])) as room:
    (room / "half").touch()
    print(room, flush=True)
    sys.stdin.readline()
    if sys.argv[2] == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def holder(target: Path, end: str) -> subprocess.Popen[str]:
    """Another process with an unfinished folder, up to a line on its standard input."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(target), end], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert is_unfinished(Path(process.stdout.readline().strip()) / "half")
    return process


def let_go(process: subprocess.Popen[str]) -> int:
    process.communicate("\n", timeout=60)
    return process.returncode


def test_it_is_there_when_the_block_ends(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b"
    with whole_folder(target) as room:
        (room / "file").write_text("x")
        assert not target.exists()
        assert is_unfinished(room)
    assert names(target) == ["file"]
    assert names(target.parent) == ["b"]
    assert not is_unfinished(target)
    assert (target.stat().st_mode & 0o777) == 0o777 & ~umask()


def umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt(), SystemExit(3)]
)
def test_what_breaks_off_leaves_nothing(error: BaseException, tmp_path: Path) -> None:
    def write(target: Path) -> None:
        with whole_folder(target) as room:
            (room / "problem-0").mkdir()
            (room / "problem-0" / "half").touch()
            raise error

    with pytest.raises(type(error)):
        write(tmp_path / "a" / "b")
    assert names(tmp_path) == []


def test_an_empty_folder_is_taken_and_given_back(tmp_path: Path) -> None:
    target = tmp_path / "mine"
    target.mkdir()
    with pytest.raises(KeyError), whole_folder(target):
        raise KeyError
    assert names(tmp_path) == ["mine"]
    (tmp_path / "link").symlink_to(target, target_is_directory=True)
    with whole_folder(tmp_path / "link") as room:
        (room / "file").touch()
    assert names(target) == ["file"]
    assert (tmp_path / "link").is_symlink()


def test_a_folder_in_use_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    (tmp_path / "other").touch()
    for name in ("mine", "other"):
        with pytest.raises(ValueError, match="exists already"), whole_folder(tmp_path / name):
            raise AssertionError("nobody gets here")
    assert names(tmp_path) == ["mine", "other"]
    assert names(tmp_path / "mine") == ["file"]


@pytest.mark.parametrize("given", [".", "..", "../../here", "absolute", "link"])
def test_the_current_folder_is_not_replaced(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It could be, being empty; whoever ran it would stand in a folder that is gone."""
    here = tmp_path / "here" / "sub"
    here.mkdir(parents=True)
    (tmp_path / "link").symlink_to(here)
    monkeypatch.chdir(here)
    target = {"absolute": here, "link": tmp_path / "link"}.get(given, Path(given))
    with pytest.raises(ValueError, match="is the current folder or holds it, and is not replaced; give a new folder"):
        require_free(target)
    with pytest.raises(ValueError, match="is the current folder or holds it"), whole_folder(target):
        raise AssertionError("nobody gets here")
    assert Path.cwd() == here
    with whole_folder(Path("new")):
        pass
    assert names(here) == ["new"]


def test_a_path_is_shown_escaped(tmp_path: Path) -> None:
    target = tmp_path / "turned\u202e\x1b[2J"
    (target / "file").mkdir(parents=True)
    with pytest.raises(ValueError, match="exists already") as caught:
        require_free(target)
    assert str(caught.value).isprintable()
    assert "turned\\u202e\\x1b[2J" in str(caught.value)


def test_what_was_put_there_meanwhile_stays(tmp_path: Path) -> None:
    target = tmp_path / "mine"

    def write() -> None:
        with whole_folder(target):
            target.mkdir()
            (target / "theirs").touch()

    with pytest.raises(OSError, match="mine"):
        write()
    assert names(tmp_path) == ["mine"]
    assert names(target) == ["theirs"]


def test_a_mount_point_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "ismount", lambda path: path == tmp_path / "mine")
    (tmp_path / "mine").mkdir()
    with pytest.raises(ValueError, match=r"is a mount point, .*; give a folder in it"), whole_folder(tmp_path / "mine"):
        raise AssertionError("nobody gets here")


@pytest.mark.skipif(os.name == "nt", reason="SIGKILL")
def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    target = tmp_path / "mine"
    assert let_go(holder(target, "dies")) == -9
    (left,) = names(tmp_path)
    assert is_unfinished(tmp_path / left)
    with whole_folder(tmp_path / "other"):  # another folder's is not its business
        pass
    assert names(tmp_path) == [left, "other"]
    with whole_folder(target):
        assert left not in names(tmp_path)
    assert names(tmp_path) == ["mine", "other"]


def test_a_living_process_keeps_its_own(tmp_path: Path) -> None:
    target = tmp_path / "mine"
    process = holder(target, "ends")
    with pytest.raises(KeyError), whole_folder(target):
        raise KeyError
    (left,) = names(tmp_path)
    assert names(tmp_path / left) == [".lock", "half"]
    assert let_go(process) == 0
    assert names(tmp_path) == ["mine"]
    assert names(target) == ["half"]


def test_without_locks_it_is_written_and_nothing_of_others_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*args: Any, **named: Any) -> Any:
        raise NotImplementedError("no flock")

    monkeypatch.setattr("filelock.BaseFileLock.acquire", none)
    other = tmp_path / ".mine.unfinished-00000000"
    other.mkdir()
    with whole_folder(tmp_path / "mine"):
        pass
    assert names(tmp_path) == [other.name, "mine"]
