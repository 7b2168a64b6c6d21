"""A folder that is there whole or not at all: made beside its place under another name, renamed once it is finished.

What fails or is interrupted leaves nothing; a killed process leaves its unfinished folder, which the next one that
makes the same folder removes. A lock in it, which the system frees when its holder dies, tells it from one in use.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from pytest_behaviortrace.wording import place

LOCK = ".lock"
_UNFINISHED = re.compile(r"\..+\.unfinished-[0-9a-f]{8}")
_NO_LOCKS = (OSError, NotImplementedError)
"""What a file system without locks answers; there nothing of others is removed."""


def require_free(target: Path) -> None:
    """Raise `ValueError` where a folder is in use, or cannot be put in place in one step."""
    shown = place(target)
    if _holds_the_current(target):
        raise ValueError(f"{shown} is the current folder or holds it, and is not replaced; give a new folder in it")
    if os.path.lexists(target) and not (target.is_dir() and not any(target.iterdir())):
        raise ValueError(f"{shown} exists already; give a folder that is new or empty")
    if os.path.ismount(target):
        raise ValueError(f"{shown} is a mount point, which cannot be put in place in one step; give a folder in it")


def _holds_the_current(target: Path) -> bool:
    """Whether whoever stands in the current folder would stand in one that is gone, were the target replaced."""
    try:
        current = Path.cwd().resolve()
    except OSError:  # it is gone already
        return False
    real = Path(os.path.realpath(target))
    return real == current or real in current.parents


@contextlib.contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """A new folder to write into, which takes the place of `target` (new, or empty) when the block ends well.

    Raises `ValueError` where `target` is in use or a mount point, and `OSError`; then nothing is left of it.
    """
    target = Path(os.path.realpath(target))  # what a link leads to is replaced, not the link
    require_free(target)
    missing = [folder for folder in (target.parent, *target.parent.parents) if not folder.exists()]
    room = target.parent / f".{target.name}.unfinished-{secrets.token_hex(4)}"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target)
        room.mkdir()
        lock = FileLock(room / LOCK)
        with contextlib.suppress(*_NO_LOCKS):
            lock.acquire(timeout=0)
        try:
            yield room
            if os.name == "nt":  # no folder with an open file in it can be renamed there, or be put on another
                _unlock(lock, room)
                with contextlib.suppress(FileNotFoundError):
                    target.rmdir()
            os.replace(room, target)
        finally:
            _unlock(lock, target if target.is_dir() and not room.exists() else room)
    except BaseException:
        shutil.rmtree(room, ignore_errors=True)
        for folder in missing:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def is_unfinished(path: Path) -> bool:
    """Whether a path is, or lies in, a folder that is being made or whose maker was killed."""
    return any(_UNFINISHED.fullmatch(part) for part in Path(os.path.realpath(path)).parts)


def _sweep(target: Path) -> None:
    """Remove what processes that died have left of the same folder."""
    for path in target.parent.iterdir():
        if not (path.name.startswith(f".{target.name}.unfinished-") and _UNFINISHED.fullmatch(path.name)):
            continue
        lock = FileLock(path / LOCK)
        try:
            lock.acquire(timeout=0)
        except (Timeout, *_NO_LOCKS):
            continue
        lock.release()
        shutil.rmtree(path, ignore_errors=True)


def _unlock(lock: FileLock, room: Path) -> None:
    with contextlib.suppress(OSError):
        if os.name != "nt":
            (room / LOCK).unlink()
    lock.release()
    with contextlib.suppress(OSError):
        (room / LOCK).unlink()
