"""The folders of a run that is being recorded, one per optimizer step and process, and whether they are whole.

Imports no torch: what is on record of an unfinished run can be told without it.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_behaviortrace.run.integrity import IntegrityError
from pytest_behaviortrace.run.manifest import files_under, sha256_of

SHARDS = "shards"
"""Folder of the shards in that of the record."""
UNFINISHED = "recording.json"
"""What the run is that is being recorded; gone once the record is whole."""
FILES = "files.json"
"""A shard's own manifest: its step, its process, and the sha256 of each other file."""
_NAME = re.compile(r"step-(\d{8})-rank-(\d{4})")


def shard_name(step: int, rank: int) -> str:
    """Name of the folder of a step of a process."""
    return f"step-{step:08d}-rank-{rank:04d}"


def shards(folder: Path) -> dict[tuple[int, int], Path]:
    """(step, rank) -> folder of every whole shard, in order."""
    found = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if match := _NAME.fullmatch(path.name):
            found[int(match[1]), int(match[2])] = path
    return found


def steps_on_record(folder: Path) -> str:
    """`steps 0-4 are recorded`, of a folder of shards."""
    made = sorted({step for step, _ in shards(folder)})
    if not made:
        return "no step is recorded"
    return f"steps {made[0]}-{made[-1]} are recorded" if len(made) > 1 else f"step {made[0]} is recorded"


def drop_from(folder: Path, step: int) -> None:
    """Deletes the shards of a step and of all later ones, and what a crash left half-made."""
    for (made, _), path in shards(folder).items():
        if made >= step:
            shutil.rmtree(path)
    for path in folder.glob(".making-*"):
        shutil.rmtree(path, ignore_errors=True)


def hashes(folder: Path, *, without: str = "") -> dict[str, str]:
    """Relative path -> hex sha256 of every file under a folder but one."""
    return {relative: sha256_of(path) for relative, path in files_under(folder) if relative != without}


def describe_shard(folder: Path, step: int, rank: int) -> None:
    """Writes a shard's own manifest, once all else is written. Raises `OSError` on a full disk."""
    content = {"step": step, "rank": rank, "files": hashes(folder)}
    (folder / FILES).write_text(json.dumps(content, indent=1, sort_keys=True), encoding="utf-8")


def check_complete(folder: Path, steps: int, processes: int) -> None:
    """Raises `IntegrityError`, naming the first, unless there is a shard of every step and process, and no other."""
    found = set(shards(folder))
    wanted = {(step, rank) for step in range(steps) for rank in range(processes)}
    for what, missing in (("is missing", wanted - found), ("is there beside a run of other steps", found - wanted)):
        if missing:
            step, rank = min(missing)
            raise IntegrityError(
                f"the record of step {step} (process {rank}) {what} in {folder}: the rollouts of one run from its "
                f"first step on, and nothing else, make a record"
            )


def check_whole(folder: Path, steps: int, processes: int) -> None:
    """Raises `IntegrityError` for the first shard before `steps` that is missing, or not as it was written."""
    found = shards(folder)
    for step in range(steps):
        for rank in range(processes):
            path = found.get((step, rank))
            if (problem := "is missing" if path is None else _damage(path, step, rank)) is not None:
                raise IntegrityError(
                    f"the record of step {step} (process {rank}) {problem} in {folder}; "
                    + (f"resume from a checkpoint at or before step {step}, or " if step else "")
                    + "record the run again in another folder"
                )


def changed_file(folder: Path, known: Mapping[str, str]) -> str | None:
    """`x.npy is missing` or `x.npy was altered`: the first file that is not as it was hashed; None if all are."""
    for relative, digest in known.items():
        try:
            if sha256_of(folder / relative) != digest:
                return f"{relative} was altered"
        except FileNotFoundError:
            return f"{relative} is missing"
        except OSError as error:
            return f"{relative} cannot be read: {error.strerror}"
    return None


def _damage(path: Path, step: int, rank: int) -> str | None:
    try:
        content: Any = json.loads((path / FILES).read_text(encoding="utf-8"))
        made, known = (content["step"], content["rank"]), dict(content["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"is damaged ({FILES} is missing or cannot be read)"
    if made != (step, rank):
        return f"is damaged (it holds step {made[0]} of process {made[1]})"
    if added := sorted({relative for relative, _ in files_under(path)} - known.keys() - {FILES}):
        return f"is damaged ({added[0]} was added)"
    problem = changed_file(path, known)
    return None if problem is None else f"is damaged ({problem})"
