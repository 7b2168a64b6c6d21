"""Arrays with one row per item, of any size: small ones in memory, large ones in an unnamed file mapped for reading.

An array that this module made is an ordinary (n, K) float32 `numpy.ndarray` either way. Large ones cost no memory that
the system could not take back, and nothing can write to them: their file was opened for reading only.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import tempfile
import weakref
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
Fill = Callable[[slice, F32], None]
"""Fills the rows of a stretch, (rows, K), whose content is undefined before."""

LARGE = 64 << 20
"""Bytes from which an array lies in a file. The embedded run's largest has 42 MB."""
STRETCH = 8 << 20
"""Bytes of float32 rows that are made or read at a time. Twice as much, in double precision, is still below the size
from which the C library maps and clears fresh memory for every temporary."""


class ReadOnlyMap(mmap.mmap):
    """Pages of a file that was opened for reading only: neither flags nor pointers can make them writable."""


def made(n: int, width: int, fill: Fill) -> F32:
    """(n, width) float32, read-only, filled stretch by stretch.

    Rows of zeros take no room in a file. Raises `OSError`, saying what to do, where there is no room for the file.
    """
    if n * width * 4 < LARGE:
        rows = np.empty((n, width), np.float32)
        for part in stretches(n, width):
            fill(part, rows[part])
        rows.flags.writeable = False
        return rows
    try:
        return _filed(n, width, fill)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        size, folder = f"{n * width * 4 / 1e9:.1f} GB", tempfile.gettempdir()
        raise OSError(error.errno, f"no room for {size} of gradients in {folder}; TMPDIR moves them") from error


def _filed(n: int, width: int, fill: Fill) -> F32:
    writing, name = tempfile.mkstemp(prefix="behaviortrace-rows-")
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(os.fdopen(writing, "wb", buffering=0))
        reading = os.open(name, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        stack.callback(os.close, reading)
        if os.name != "nt":  # where a file in use can be deleted no crash leaves it behind
            os.unlink(name)
        buffer = np.empty((min(n, rows_of(width)), width), np.float32)
        for part in stretches(n, width):
            block = buffer[: part.stop - part.start]
            fill(part, block)
            for start, stop in _runs(np.asarray(block.any(axis=1))):
                file.seek((part.start + start) * width * 4)
                _write(file, block[start:stop])
        file.truncate(n * width * 4)
        pages = ReadOnlyMap(reading, n * width * 4, access=mmap.ACCESS_READ)
    if os.name == "nt":
        weakref.finalize(pages, _remove, name)
    return np.frombuffer(pages, np.float32).reshape(n, width)


def _write(file: Any, block: F32) -> None:
    rest = memoryview(cast(Any, block)).cast("B")
    while rest:
        rest = rest[file.write(rest) :]


def _runs(mask: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """First and past-last index of every run of True."""
    edges = np.flatnonzero(np.diff(mask.astype(np.int8), prepend=0, append=0))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]


def _remove(name: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name)


def rows_of(width: int) -> int:
    """Rows of that many buckets in a stretch."""
    return max(1, STRETCH // (4 * max(width, 1)))


def stretches(n: int, width: int) -> Iterator[slice]:
    """The n rows in stretches of a bounded size."""
    size = rows_of(width)
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))


def in_stretches(rows: NDArray[Any]) -> Iterator[tuple[slice, NDArray[Any]]]:
    """The rows in stretches; a mapped array's pages are given back after each, so that none piles up in memory."""
    for part in stretches(len(rows), rows.shape[1]):
        yield part, rows[part]
        give_back(rows)


def give_back(rows: NDArray[Any]) -> None:
    """Let go of a mapped array's pages; they stay in the system's file cache, where the next look finds them."""
    pages = _pages(rows)
    if pages is not None and hasattr(pages, "madvise"):
        pages.madvise(mmap.MADV_DONTNEED)


def sealed(value: Any) -> bool:
    """Whether an array lies in a file that this process cannot write to through it."""
    return isinstance(value, np.ndarray) and isinstance(_pages(value), ReadOnlyMap)


def frozen(rows: NDArray[Any]) -> bool:
    """Whether neither the array nor any it is a view of can be written to as it is."""
    return not any(base.flags.writeable for base in _bases(rows))


def owner(rows: NDArray[Any]) -> Any:
    """What holds the memory behind an array: a map of a file, or the array it is a view of."""
    return _pages(rows) or _bases(rows)[-1]


def _bases(rows: NDArray[Any]) -> list[NDArray[Any]]:
    found = [rows]
    while isinstance(found[-1].base, np.ndarray):
        found.append(found[-1].base)
    return found


def _pages(rows: NDArray[Any]) -> mmap.mmap | None:
    """The map behind an array, if nothing in it could be lost: ours, or a `numpy.memmap` opened for reading only."""
    bases = _bases(rows)
    root = bases[-1].base
    if isinstance(root, memoryview):  # numpy wraps what it takes by the buffer protocol
        root = root.obj
    if isinstance(root, ReadOnlyMap):
        return root
    read_only = any(isinstance(base, np.memmap) and base.mode == "r" for base in bases)
    return root if read_only and isinstance(root, mmap.mmap) else None


def scaled(
    rows: F32, factor: NDArray[np.floating[Any]] | None = None, times: NDArray[np.floating[Any]] | None = None
) -> F32:
    """(n, K): every row times its factor (n,), or divided by its own norm where none is given; zero rows stay zero.

    `times` (n,): another factor of every row, applied after that.
    """
    first, second = (None if f is None else f[:, None].astype(np.float32) for f in (factor, times))

    def fill(part: slice, out: F32) -> None:
        block = rows[part]
        if first is not None:
            np.multiply(block, first[part], out=out)
        else:
            norm = np.linalg.norm(block, axis=1, keepdims=True)
            out[:] = 0.0
            np.divide(block, norm, out=out, where=norm > 0)
        if second is not None:
            out *= second[part]
        give_back(rows)

    return made(*_shape(rows), fill)


def picked(rows: F32, more: F32, order: NDArray[np.integer[Any]]) -> F32:
    """(len(order), K): the rows of both arrays, `more` counted on from the end of `rows`, in that order."""

    def fill(part: slice, out: F32) -> None:
        index = order[part]
        first = index < len(rows)
        out[first] = rows[index[first]]
        out[~first] = more[index[~first] - len(rows)]
        give_back(rows)

    return made(len(order), rows.shape[1], fill)


def _shape(rows: F32) -> tuple[int, int]:
    return cast(tuple[int, int], rows.shape)
