"""The folder of a run that is being recorded: whose it is, who writes to it now, and which checkpoints belong to it."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from pytest_behaviortrace.run.integrity import IntegrityError
from pytest_behaviortrace.run.lock import NoLocks, OwnedLock
from pytest_behaviortrace.run.manifest import MANIFEST
from pytest_behaviortrace.run.ranks import Ranks
from pytest_behaviortrace.run.record_arguments import cannot_use
from pytest_behaviortrace.run.rows import RecordingError
from pytest_behaviortrace.run.shard_files import SHARDS, UNFINISHED, changed_file, hashes, steps_on_record

_LOCK = ".recording"
NO_PART = (SHARDS, UNFINISHED, f".{UNFINISHED}", f"{_LOCK}.lock", f"{_LOCK}.owner.json")
"""What lies in the folder only while it is recorded into."""
_NAMED = 6
"""Differences that a refusal names."""


class RecordFolder:
    """Used by the first process of a launch alone; the lock is that of all of them."""

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self.path = path
        self.identity: dict[str, Any] = json.loads(json.dumps(identity))
        """What must be the same when a run is resumed."""
        self._lock = OwnedLock(path / _LOCK)
        self._held = False

    # -- who writes --------------------------------------------------------------------------------------------------
    def claim(self) -> None:
        """Makes the folder, or finds the beginning of this very run in it. Raises `RecordingError` for any other."""
        try:
            self._refuse_foreign()  # before a lock is written into somebody's folder
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                self.hold()
                if not (self.path / UNFINISHED).exists():
                    (self.path / SHARDS).mkdir(exist_ok=True)
                    self.write({"run": self.identity, "checkpoints": {}, "start": {}})
            finally:
                self.release()
        except OSError as error:
            raise cannot_use(self.path, error) from None

    def hold(self) -> None:
        """Takes the lock, unless it is held, and looks again at what the folder holds. Raises `RecordingError`."""
        if not self._held:
            try:
                self._held = self._lock.acquire()
            except NoLocks:
                raise RecordingError(
                    f"the file system of {self.path} has no file locks (flock), without which two processes could "
                    f"record into one folder; give a folder elsewhere"
                ) from None
            if not self._held:
                raise RecordingError(
                    f"{self.path} is being recorded by {self._lock.owner()}; give another folder, or wait"
                )
        self._refuse_foreign()

    def release(self) -> None:
        """Gives the lock back, if it is held: the run may be resumed by another process."""
        if self._held:
            self._held = False
            self._lock.release()

    def _refuse_foreign(self) -> None:
        if (self.path / MANIFEST).exists():
            raise RecordingError(f"{self.path} holds a finished record; give another folder for this run")
        if (self.path / UNFINISHED).exists():
            there = self.read()["run"]
            if (count := there.get("processes")) != self.identity["processes"]:  # other settings follow from it
                raise RecordingError(
                    f"{self.path} was recorded with {count} processes, now {self.identity['processes']}; start {count} "
                    f"to resume the run, or give another folder"
                )
            if different := _differences(there, self.identity):
                raise RecordingError(
                    f"{self.path} holds the beginning of another run ({different}); two runs are never mixed: "
                    f"give another folder, or delete this one"
                )
        elif (self.path / SHARDS).is_dir() and any((self.path / SHARDS).iterdir()):
            raise RecordingError(
                f"{self.path / UNFINISHED} is missing, and without it the shards there cannot be told from those of "
                f"another run; record the run again in another folder"
            )
        elif self.path.is_dir() and any(p.name not in NO_PART for p in self.path.iterdir()):
            raise RecordingError(f"{self.path} is not empty and no record; give a new folder")

    # -- what is known of the run ------------------------------------------------------------------------------------
    def read(self) -> dict[str, Any]:
        """The content of `recording.json`. Raises `RecordingError` if it is missing or damaged."""
        path = self.path / UNFINISHED
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if not all(isinstance(content[name], dict) for name in ("run", "checkpoints", "start")):
                raise ValueError
        except FileNotFoundError:
            problem = "is missing"
        except (OSError, ValueError, KeyError, TypeError):
            problem = "is damaged"
        else:
            return dict(content)
        raise RecordingError(f"{path} {problem}; restore it, or record the run again in another folder")

    def write(self, content: Mapping[str, Any]) -> None:
        """Replaces `recording.json`. Raises `OSError` on a full disk."""
        making = self.path / f".{UNFINISHED}"
        making.write_text(json.dumps(content, indent=1, sort_keys=True), encoding="utf-8")
        making.replace(self.path / UNFINISHED)

    def note_checkpoint(self, step: int, fingerprint: str) -> None:
        """Whoever resumes at `step` is known by its weights."""
        content = self.read()
        content["checkpoints"][str(step)] = fingerprint
        self.write(content)

    def check_resumed(self, step: int, fingerprint: str) -> None:
        """Raises `RecordingError` or `IntegrityError` unless a checkpoint of this run was resumed from."""
        known = self.read()["checkpoints"]
        if not known and not any((self.path / SHARDS).glob("step-*")):
            raise RecordingError(
                f"{self.path} is new, but the trainer resumes from step {step}, and the rollouts before it are on no "
                f"record there: give the folder that the run was recorded into, or train from the start (without "
                f"resume_from_checkpoint)"
            )
        if known.get(str(step)) != fingerprint:
            raise IntegrityError(
                f"the run resumes at step {step} with weights that are not those of a checkpoint of the run in "
                f"{self.path}; resume from another one"
            )

    def note_start(self) -> None:
        """Keeps the sha256 of the files of the policy that the run began with."""
        self.write(self.read() | {"start": hashes(self.path / "policies" / "start")})

    def check_start(self) -> None:
        """Raises `IntegrityError` unless that policy is what was written."""
        folder, known = self.path / "policies" / "start", self.read()["start"]
        if (problem := changed_file(folder, known) if known else "nothing is known of it") is not None:
            raise IntegrityError(
                f"the policy that the run began with, {folder}, is damaged ({problem}); restore it from a copy, "
                f"or record the run again in another folder"
            )

    def finished(self) -> None:
        """The record is whole: deletes what it was made of. Until then that is all there is of it."""
        shutil.rmtree(self.path / SHARDS)
        (self.path / UNFINISHED).unlink()
        self._held = False
        self._lock.forget()  # whoever waits at its file finds a finished record
        for name in NO_PART[3:]:  # where an open file cannot be deleted
            with suppress(OSError):
                (self.path / name).unlink()


def together(accelerator: Any, work: Callable[[], None]) -> None:
    """Has the first process do `work`; what it refuses, all refuse. All processes call it."""
    ranks = Ranks(int(accelerator.process_index), int(accelerator.num_processes), str(accelerator.device))
    kinds: dict[str, type[Exception]] = {"RecordingError": RecordingError, "IntegrityError": IntegrityError}
    refused: list[str] | None = None
    if ranks.first:
        try:
            work()
        except (RecordingError, IntegrityError) as error:
            refused = [type(error).__name__, str(error)]
    if (said := ranks.tell(refused)) is not None:
        raise kinds[said[0]](said[1])


@contextmanager
def writing(path: Path, step: int) -> Iterator[None]:
    """Inside, a disk that refuses to be written to is one `RecordingError`."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        number = getattr(error, "errno", None)
        full = number == errno.ENOSPC or "no space left" in str(error).lower() or "os error 28" in str(error).lower()
        reason = "no space left on device" if full else getattr(error, "strerror", None) or str(error)
        todo = "free space" if full else "mend this"
        raise RecordingError(
            f"{path}: {reason} at step {step} ({steps_on_record(path / SHARDS)}); {todo} and resume the training "
            f"from its last checkpoint"
        ) from None


def _differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """`learning_rate 0.001 there, 0.0005 here; ...`; empty if there are none."""
    found = []
    for name in here:
        old, new = there.get(name), here[name]
        if isinstance(old, dict) and isinstance(new, dict):
            what = "" if name == "settings" else f"{name} "
            found += [
                f"{what}{key} {_value(old, key)} there, {_value(new, key)} here"
                for key in sorted({*old, *new})
                if (key in old, old.get(key)) != (key in new, new.get(key))
            ]
        elif old != new:
            found.append(f"{name} {json.dumps(old)} there, {json.dumps(new)} here")
    more = [f"and {len(found) - _NAMED} more"] if len(found) > _NAMED else []
    return "; ".join(found[:_NAMED] + more)


def _value(values: Mapping[str, Any], key: str) -> str:
    return json.dumps(values[key], ensure_ascii=False) if key in values else "absent"
