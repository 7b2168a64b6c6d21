"""A unit's manifest: what it is, what made it, and the sha256 of every file; written last, checked before reading."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

SCHEMA = 1
"""Version of the store's layout; part of the cache key, so another layout is never read by mistake."""

MANIFEST = "manifest.json"
_FIELDS = {"schema", "unit", "recipe", "key", "suite", "versions", "files", "facts", "timings", "sha256"}


class MissingUnit(LookupError):
    """A unit that is not in the store."""

    def __init__(self, unit: str, path: Path) -> None:
        super().__init__(f"{unit} is not in the store ({path})")
        self.unit, self.path = unit, path


class DamagedUnit(Exception):
    """A unit in the store that must not be used: names the unit, the file and what is wrong with it."""

    def __init__(self, unit: str, path: Path, file: str, problem: str) -> None:
        super().__init__(f"{unit} in the store is damaged: {file} {problem} ({path})")
        self.unit, self.path, self.file, self.problem = unit, path, file, problem


def sha256_of(path: Path) -> str:
    """Hex sha256 of a file's content."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def files_under(folder: Path) -> Iterator[tuple[str, Path]]:
    """Every file of a unit folder with its POSIX path relative to it, sorted, the manifest left out."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path != folder / MANIFEST:
            yield path.relative_to(folder).as_posix(), path


def flush(path: Path) -> None:
    """Force a file, or the list of files of a folder, to disk (Windows cannot open folders, nor needs to)."""
    if path.is_dir() and os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def seal(folder: Path, description: Mapping[str, Any], *, without: Collection[str] = ()) -> dict[str, Any]:
    """Finish a unit folder: flush every file to disk, hash it, and write the manifest last. Returns the manifest.

    `description` holds every manifest field but `schema`, `files` and `sha256` (the manifest's own hash). Files and
    folders named in `without` lie in the folder and are no part of the unit.
    Raises `TypeError` if the description is not JSON (a tensor, a numpy number), `OSError` if the disk is full.
    """
    files: dict[str, dict[str, Any]] = {}
    for relative, path in files_under(folder):
        if PurePosixPath(relative).parts[0] in without:
            continue
        flush(path)
        files[relative] = {"sha256": sha256_of(path), "bytes": path.stat().st_size}
    for path in [p for p in folder.rglob("*") if p.is_dir()]:
        flush(path)
    manifest: dict[str, Any] = {"schema": SCHEMA, **description, "files": files}
    manifest["sha256"] = _own_hash(manifest)
    with (folder / MANIFEST).open("w", encoding="utf-8") as stream:
        json.dump(manifest, stream, indent=1, sort_keys=True, allow_nan=False)
        stream.flush()
        os.fsync(stream.fileno())
    flush(folder)
    return manifest


def read_manifest(folder: Path, *, renamed: bool = False) -> dict[str, Any]:
    """The manifest of a unit folder, whole and self-consistent; its files are not looked at.

    `renamed`: the folder may have another name than the unit had when it was sealed.
    Raises `MissingUnit` if there is no such folder, `DamagedUnit` if the manifest is absent, unreadable or altered, and
    `PermissionError`, as the checks below do, for what this user may not read: nobody knows whether that is damaged.
    """
    unit = folder.name
    try:
        text = (folder / MANIFEST).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        if not folder.is_dir():
            raise MissingUnit(unit, folder) from None
        raise DamagedUnit(unit, folder, MANIFEST, "is missing") from None
    except PermissionError:
        raise  # it may be whole, for who may read it
    except (OSError, UnicodeDecodeError) as error:
        raise DamagedUnit(unit, folder, MANIFEST, f"cannot be read: {error}") from error
    try:
        manifest = json.loads(text)
    except ValueError:
        raise DamagedUnit(unit, folder, MANIFEST, "is not valid JSON") from None
    if not isinstance(manifest, dict) or not manifest.keys() >= _FIELDS:
        raise DamagedUnit(unit, folder, MANIFEST, "lacks required fields")
    if manifest["sha256"] != _own_hash(manifest):
        raise DamagedUnit(unit, folder, MANIFEST, "was altered: its own sha256 does not match")
    if manifest["unit"] != unit and not renamed:
        raise DamagedUnit(unit, folder, MANIFEST, f"belongs to {manifest['unit']}")
    for relative in manifest["files"]:
        parts = PurePosixPath(relative)
        if parts.is_absolute() or ".." in parts.parts:
            raise DamagedUnit(unit, folder, MANIFEST, f"names a file outside the unit: {relative}")
    return manifest


def check_sizes(folder: Path, manifest: Mapping[str, Any]) -> tuple[tuple[int, ...], ...]:
    """Check that every file is there with its size; returns a fingerprint of their file-system state.

    Raises `DamagedUnit` naming the first file that is missing or has another size.
    """
    unit, stamps = folder.name, []
    for relative, entry in manifest["files"].items():
        try:
            stat = (folder / relative).stat()
        except PermissionError:
            raise
        except OSError:
            raise DamagedUnit(unit, folder, relative, "is missing") from None
        if stat.st_size != entry["bytes"]:
            raise DamagedUnit(unit, folder, relative, f"has {stat.st_size:,} bytes instead of {entry['bytes']:,}")
        stamps.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return tuple(stamps)


def check_hashes(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Check the sha256 of every file; raises `DamagedUnit` naming the first that differs."""
    for relative, entry in manifest["files"].items():
        try:
            digest = sha256_of(folder / relative)
        except PermissionError:
            raise
        except OSError as error:
            raise DamagedUnit(folder.name, folder, relative, f"cannot be read: {error}") from error
        if digest != entry["sha256"]:
            raise DamagedUnit(folder.name, folder, relative, "was altered: its sha256 does not match")


_checked: dict[tuple[Any, ...], tuple[str, str] | None] = {}
"""What this process has hashed: None if it was fine, else the file and its problem."""


def verified_manifest(folder: Path, *, renamed: bool = False) -> dict[str, Any]:
    """The manifest of a unit whose every file has been checked against its sha256.

    Hashing happens once per process and unit, and again when the manifest or any file changed on disk since.
    Raises `MissingUnit` or `DamagedUnit`.
    """
    manifest = read_manifest(folder, renamed=renamed)
    key = (str(folder), manifest["sha256"], check_sizes(folder, manifest))
    if key not in _checked:
        try:
            check_hashes(folder, manifest)
            _checked[key] = None
        except DamagedUnit as error:
            _checked[key] = (error.file, error.problem)
    if (problem := _checked[key]) is not None:
        raise DamagedUnit(folder.name, folder, *problem)
    return manifest


def analysis_policy(manifest: Mapping[str, Any]) -> str:
    """Fingerprint of a seed unit's analysis policy: the sha256 of its weights file (of all of them, if sharded).

    A draw remembers the fingerprint it was generated from, so that draws and seeds of different builds never mix.
    """
    weights = {
        relative: entry["sha256"]
        for relative, entry in manifest["files"].items()
        if relative.startswith("policies/analysis/") and relative.endswith(".safetensors")
    }
    if len(weights) == 1:
        return str(next(iter(weights.values())))
    return hashlib.sha256(json.dumps(weights, sort_keys=True).encode()).hexdigest()


def _own_hash(manifest: Mapping[str, Any]) -> str:
    body = {name: value for name, value in manifest.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(body, sort_keys=True, allow_nan=False).encode()).hexdigest()
