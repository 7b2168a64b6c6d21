"""One builder per recipe folder and machine: a file lock that says who holds it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout


class BuildLock:
    """The right to build in, or clear, one recipe folder. Released by the system when its holder dies.

    The lock file lies beside the folder, never in it, so that clearing the folder cannot delete a held lock.
    """

    def __init__(self, folder: Path) -> None:
        place = folder.parent / ".locks"
        self._lock = FileLock(place / f"{folder.name}.lock")
        self._owner = place / f"{folder.name}.owner.json"

    def acquire(self, timeout: float = 0.0) -> bool:
        """Take the lock, waiting at most `timeout` seconds; False if somebody else still holds it then."""
        Path(self._lock.lock_file).parent.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire(timeout=timeout, poll_interval=0.05)
        except Timeout:
            return False
        about = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}
        with contextlib.suppress(OSError):
            self._owner.write_text(json.dumps(about), encoding="utf-8")
        return True

    def release(self) -> None:
        """Give the lock back."""
        with contextlib.suppress(OSError):
            self._owner.unlink()
        self._lock.release()

    def owner(self) -> str:
        """Who holds the lock, for a message: `process 4711 on host, since 14:03:12`."""
        try:
            about = json.loads(self._owner.read_text(encoding="utf-8"))
            since = time.strftime("%H:%M:%S", time.localtime(about["since"]))
            return f"process {about['pid']} on {about['host']}, since {since}"
        except (OSError, ValueError, KeyError, TypeError):
            return "another process"


@contextlib.contextmanager
def all_locked(folders: list[Path]) -> Iterator[str | None]:
    """Hold the locks of several folders, or none of them: yields None, or a sentence on who holds one."""
    held: list[BuildLock] = []
    busy: str | None = None
    try:
        for folder in folders:
            lock = BuildLock(folder)
            if not lock.acquire():
                busy = f"{folder} is being built by {lock.owner()}"
                break
            held.append(lock)
        yield busy
    finally:
        for lock in held:
            lock.release()
