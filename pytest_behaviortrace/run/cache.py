"""Where units are kept on disk, under which key, and how that folder is listed and cleared."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal, Protocol

from pytest_behaviortrace.run.leftovers import BUILD_PREFIX as BUILD_PREFIX
from pytest_behaviortrace.run.leftovers import remove_unit
from pytest_behaviortrace.run.lock import all_locked
from pytest_behaviortrace.run.manifest import (
    SCHEMA,
    DamagedUnit,
    MissingUnit,
    check_hashes,
    check_sizes,
    read_manifest,
)
from pytest_behaviortrace.suite import SUITE

LIBRARIES = ("torch", "transformers", "trl")
"""Libraries whose version changes what a run produces: part of the key."""

LOGS = "logs"
_RECIPE_FOLDER = re.compile(r"(?P<recipe>.+)-(?P<key>[0-9a-f]{12})")
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_ROOM_WORDS = re.compile(r"No space left on device|Disk quota exceeded|File too large|\d+ requested and \d+ written")
"""What libraries write who drop the error number: safetensors (Rust), and last of all `ndarray.tofile`."""


class Identified(Protocol):
    """What the cache needs to know of a recipe."""

    @property
    def name(self) -> str:
        """Name of the recipe."""

    @property
    def hash(self) -> str:
        """Hex sha256 of everything that determines a run."""


class CacheError(Exception):
    """The cache folder cannot be used; the message says why and what to do."""


class Unwritable(CacheError):
    """The cache folder cannot be written."""


class NoAccess(CacheError):
    """Something in the cache folder is not this user's to read, or to write."""


class NoRoom(CacheError):
    """The disk of the cache folder is full; nothing half-written was published."""


class InUse(CacheError):
    """Another process is building in the folder that was to be cleared."""


def default_cache_dir() -> Path:
    """`$BEHAVIORTRACE_CACHE` if set, else the user's cache folder of this platform."""
    chosen = os.environ.get("BEHAVIORTRACE_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    from platformdirs import user_cache_path

    return user_cache_path("behaviortrace", appauthor=False)


def library_versions() -> dict[str, str]:
    """Installed versions of the libraries that determine a run, read from package metadata (nothing is imported)."""
    return {name: metadata.version(name) for name in LIBRARIES}


def cache_key(recipe: Identified) -> str:
    """Hex sha256 over the recipe, the suite version, the store's layout and the library versions."""
    parts = {"recipe": recipe.hash, "suite": SUITE, "schema": SCHEMA, "versions": library_versions()}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def recipe_folder(cache_dir: Path, recipe: Identified) -> Path:
    """Folder that holds the units of a recipe under the current key; it need not exist."""
    return cache_dir / f"{recipe.name}-{cache_key(recipe)[:12]}"


def no_room(error: BaseException) -> bool:
    """Whether an exception, or one that caused it, says that the disk is full (some libraries only say so in text)."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in _NO_ROOM:
            return True
        if _NO_ROOM_WORDS.search(str(seen)):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def no_room_error(cache_dir: Path) -> NoRoom:
    """The sentence for a full disk."""
    try:
        free = f"{human_bytes(shutil.disk_usage(cache_dir).free)} free"
    except OSError:
        free = "free space unknown"
    return NoRoom(
        f"no room left for the cache at {cache_dir} ({free}). Nothing half-written was published and finished units "
        f"are kept. Free some space (see python -m pytest_behaviortrace cache), or choose another folder with "
        f"--bt-cache-dir or BEHAVIORTRACE_CACHE."
    )


def no_access(error: PermissionError) -> NoAccess:
    """The sentence for what this user may not read, or write."""
    return NoAccess(
        f"{error.filename} cannot be read, or not be written, by this user ({error.strerror}). Change its permissions, "
        f"or choose another cache folder with --bt-cache-dir or BEHAVIORTRACE_CACHE."
    )


def require_writable(folder: Path) -> None:
    """Create a folder if need be and prove that files can be written in it.

    Raises `NoRoom` on a full disk, else `Unwritable`; both say what to do.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"writable?")
    except OSError as error:
        if no_room(error):
            raise no_room_error(folder) from error
        raise Unwritable(
            f"the cache folder {folder} cannot be written ({error.strerror or error}). "
            f"Choose another with --bt-cache-dir or BEHAVIORTRACE_CACHE."
        ) from error


State = Literal["complete", "damaged", "unreadable", "unfinished"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One unit, or one leftover of a build, in the cache."""

    recipe: str
    key: str
    unit: str
    path: Path
    bytes: int
    age: float
    """Seconds since it was finished (for leftovers: last written)."""
    state: State
    problem: str = ""
    stale: bool = False
    """Made under another suite version, store layout or library version than the current ones."""
    about: str = ""
    """Of a draw of a recorded run: the behaviour and the run; empty for others, and for draws that do not tell."""


def entries(cache_dir: Path, *, hashes: bool = False) -> list[Entry]:
    """Everything in the cache, sorted by folder and unit. `hashes` also checks every file's content, not only sizes."""
    return [
        _entry(folder, unit, hashes)
        for folder in _recipe_folders(cache_dir)
        for unit in sorted(folder.iterdir())
        if unit.is_dir() and unit.name != LOGS
    ]


def _entry(folder: Path, unit: Path, hashes: bool) -> Entry:
    match = _RECIPE_FOLDER.fullmatch(folder.name)
    assert match is not None, "only recipe folders are listed"
    state: State = "complete"
    problem, about, stale, finished = "", "", False, unit.stat().st_mtime
    if unit.name.startswith("."):
        state = "unfinished"
    else:
        try:
            manifest = read_manifest(unit)
            stale = (
                manifest["schema"] != SCHEMA or manifest["suite"] != SUITE or manifest["versions"] != library_versions()
            )
            if "behavior" in manifest["facts"]:
                about = f"{manifest['facts']['behavior']!r} of {manifest['facts'].get('run', 'a run')}"
            check_sizes(unit, manifest)
            if hashes:
                check_hashes(unit, manifest)
        except (DamagedUnit, MissingUnit) as error:
            state, problem = "damaged", str(error)
        except PermissionError as error:
            state, problem = "unreadable", f"{error.filename}: {error.strerror}"
    age = max(0.0, time.time() - finished)
    name = unit.name.removeprefix(BUILD_PREFIX)
    return Entry(match["recipe"], match["key"], name, unit, folder_bytes(unit), age, state, problem, stale, about)


def table(cache_dir: Path, found: list[Entry]) -> str:
    """Entries as lines of text, with a total."""
    if not found:
        return f"nothing in {cache_dir}"
    rows = [("recipe", "key", "unit", "size", "age", "state")]
    for entry in found:
        state = f"{entry.state}, stale" if entry.stale else entry.state
        size, age = human_bytes(entry.bytes), human_seconds(entry.age)
        rows.append((entry.recipe, entry.key, entry.unit, size, age, f"{state}  {entry.about}".rstrip()))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines += [f"  {entry.problem}" for entry in found if entry.problem]
    total = human_bytes(sum(entry.bytes for entry in found))
    return "\n".join([*lines, f"{total} in {cache_dir}"])


def clear(cache_dir: Path, *, recipe: str | None = None, stale: bool = False, leftovers: bool = False) -> list[Entry]:
    """Delete units and return what was deleted: everything, or only those of one recipe, stale ones, or leftovers.

    Raises `InUse` before deleting anything if a process is building in a folder concerned.
    """

    def doomed(entry: Entry) -> bool:
        return (
            (recipe is None or entry.recipe == recipe)
            and (not stale or entry.stale)
            and (not leftovers or entry.state == "unfinished")
        )

    victims = [entry for entry in entries(cache_dir) if doomed(entry)]
    everything = not stale and not leftovers
    folders = sorted({entry.path.parent for entry in victims})
    if everything:
        folders = [f for f in _recipe_folders(cache_dir) if recipe is None or f.name[:-13] == recipe]
    with all_locked(folders) as busy:
        if busy:
            raise InUse(f"{busy}; nothing was deleted")
        for entry in victims:
            remove_unit(entry.path)
        for folder in folders:
            if everything or not any(path.name != LOGS for path in folder.iterdir()):
                shutil.rmtree(folder, ignore_errors=True)
    return victims


def folder_bytes(folder: Path) -> int:
    """Bytes of all files under a folder."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except (FileNotFoundError, PermissionError):
            continue
    return total


def human_bytes(count: float) -> str:
    """For example `312 MB`."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def human_seconds(seconds: float) -> str:
    """For example `4 min`."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _recipe_folders(cache_dir: Path) -> list[Path]:
    if not cache_dir.is_dir():
        return []
    return [p for p in sorted(cache_dir.iterdir()) if p.is_dir() and _RECIPE_FOLDER.fullmatch(p.name)]
