"""Who builds what: file locks that say who holds them, so that processes and machines share one cache folder.

* One lock per unit: whoever trains a unit holds it from before the first byte until the unit is published. Disjoint
  seeds are trained side by side, the same unit never twice, and what lies about under a unit's name while its lock is
  free was left by the dead.
* One lock per building process, and a gate that it passes when it begins: who clears a folder holds the gate and every
  lock in it, so nothing is cleared while anybody builds there, and nobody begins to build while it is cleared.
* A few places for workers per machine, user and cache folder: that many run at a time, whichever process started them.
  A machine is told by its host name.

All lie in `.locks` beside the recipe folders, never in them, so that clearing a folder cannot delete a held lock. The
system releases a lock when its holder dies, however it dies; no lock file is ever removed to break a lock.

On a network file system. `filelock` locks with `flock`, which Linux clients of NFS turn into byte-range locks of the
server. Every machine must mount the folder with locks that reach the server: NFS 4 (or 3 with lockd) without `nolock`
and `local_lock`, Lustre with `flock` and not `localflock`, SMB without `nobrl`. A lock of a machine that died is freed
when the server's lease for it ends (NFS 4: about 90 s), with NFS 3 only when the machine is up again. A file system
that answers "no locks" is refused in one sentence; one that keeps locks to each machine cannot be told from here, and
must not be used by two machines at a time: they may train the same unit and sweep what the other is writing. Units are
published by a rename inside one folder, which servers of these systems do at once, of files flushed to the server
before; a reader that still sees an older state through cached attributes finds a unit absent, or its sizes or hashes
wrong, and never reads half of it. Before a process decides that a unit is to be trained it writes into the folder,
which makes its client ask for the folder's present state. Clocks play no part. Object stores and folders synchronised
by copying (S3 mounts, Dropbox, rsync) have neither such locks nor such renames and are not supported: train locally,
copy finished units.
"""

from __future__ import annotations

import contextlib
import errno
import inspect
import json
import os
import re
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

LOCKS = ".locks"
_PROCESS = "process-"
_WITHOUT_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}
_STRICT: dict[str, Any] = (
    # Marker files in place of locks outlive their holder on another machine; newer versions fall back to them unasked.
    {"fallback_to_soft": False} if "fallback_to_soft" in inspect.signature(FileLock.__init__).parameters else {}
)


class NoLocks(OSError):
    """The file system of the cache has no file locks."""

    def __init__(self, place: Path) -> None:
        super().__init__(
            f"the file system of {place} has no file locks (flock), without which a cache cannot be built safely; "
            f"mount it with locks, or choose another folder with --bt-cache-dir or BEHAVIORTRACE_CACHE"
        )


class OwnedLock:
    """A file lock with a note beside it on who holds it. Released by the system when its holder dies."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = FileLock(path.with_name(f"{path.name}.lock"), **_STRICT)
        self._owner = path.with_name(f"{path.name}.owner.json")

    def acquire(self, timeout: float = 0.0) -> bool:
        """Take the lock, waiting at most `timeout` seconds; False if somebody else still holds it then.

        Raises `NoLocks` where the file system has none.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire(timeout=timeout, poll_interval=0.05)
        except Timeout:
            return False
        except NotImplementedError:
            raise NoLocks(self._path.parent) from None
        except OSError as error:
            if error.errno in _WITHOUT_LOCKS:
                raise NoLocks(self._path.parent) from error
            raise
        about = {"pid": os.getpid(), "host": machine(), "since": time.time()}
        with contextlib.suppress(OSError):
            self._owner.write_text(json.dumps(about), encoding="utf-8")
        return True

    def release(self) -> None:
        """Give the lock back."""
        with contextlib.suppress(OSError):
            self._owner.unlink()
        self._lock.release()

    def forget(self) -> None:
        """Give back a lock whose name nobody will use again, and remove its file."""
        with contextlib.suppress(OSError):
            Path(self._lock.lock_file).unlink()
        self.release()

    def owner(self) -> str:
        """Who holds the lock, for a message: `process 4711 on host, since 14:03:12`."""
        try:
            about = json.loads(self._owner.read_text(encoding="utf-8"))
            since = time.strftime("%H:%M:%S", time.localtime(about["since"]))
            return f"process {about['pid']} on {about['host']}, since {since}"
        except (OSError, ValueError, KeyError, TypeError):
            return "another process"


class BuildLock(OwnedLock):
    """The right to build one unit of a recipe folder; without a unit, to begin to build in it or to clear it."""

    def __init__(self, folder: Path, unit: str | None = None) -> None:
        place = folder.parent / LOCKS
        super().__init__(place / folder.name if unit is None else place / folder.name / unit)


def machine() -> str:
    """Name of this machine, as locks tell it."""
    return socket.gethostname()


def worker_place(cache_dir: Path, count: int) -> OwnedLock | str:
    """One of this machine's and user's `count` places for workers, taken; or who holds one, if none is free."""
    user = getattr(os, "getuid", lambda: 0)()
    name = re.sub(r"[^\w-]", "_", machine())
    places = [OwnedLock(cache_dir / LOCKS / "workers" / f"{name}-{user}-{number}") for number in range(count)]
    for place in places:
        if place.acquire():
            return place
    return places[0].owner()


@contextlib.contextmanager
def building(folder: Path, tell: Callable[[str], None]) -> Iterator[None]:
    """Inside, this process is one that builds in a recipe folder; waits, saying so, while the folder is cleared."""
    gate, told = BuildLock(folder), False
    while not gate.acquire(0.5):
        if not told:
            tell(f"waiting for {gate.owner()}, to let others build in {folder}")
        told = True
    mine = BuildLock(folder, f"{_PROCESS}{uuid.uuid4().hex}")
    try:
        mine.acquire()
    finally:
        gate.release()
    try:
        yield
    finally:
        mine.forget()


@contextlib.contextmanager
def all_locked(folders: list[Path]) -> Iterator[str | None]:
    """Hold every lock of several folders, or none: yields None, or a sentence on who builds in one of them."""
    held: list[BuildLock] = []
    busy: str | None = None
    try:
        for folder in folders:
            busy = _hold_all(folder, held)
            if busy:
                break
        yield busy
    finally:
        for lock in held:
            lock.release()


def _hold_all(folder: Path, held: list[BuildLock]) -> str | None:
    """Take the gate of a folder, then every other lock in it (nobody can make one meanwhile); or say who has one."""
    gate = BuildLock(folder)
    if not gate.acquire(0.5):
        return f"{folder} is in use by {gate.owner()}"
    held.append(gate)
    for path in sorted((folder.parent / LOCKS / folder.name).glob("*.lock")):
        lock = BuildLock(folder, path.stem)
        if not lock.acquire():
            return f"{folder} is being built by {lock.owner()}"
        held.append(lock)
    return None
