"""Tables, arrays and gradient sketches as files: Parquet and `.npy`, never pickle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pytest_behaviortrace.rows import give_back, in_stretches, made, rows_of

Column = NDArray[Any] | list[Any]


class NotFinite(ValueError):
    """Gradients with NaN or infinity among their numbers."""


def write_array(folder: Path, name: str, array: ArrayLike) -> None:
    """Write `{name}.npy`. Raises `ValueError` for object arrays, which would need pickle, `OSError` on a full disk."""
    values = np.asarray(array)
    if values.dtype.hasobject:
        raise ValueError(f"array {name!r} holds Python objects; they would need pickle")
    values = np.asarray(values, order="C")
    with (folder / f"{name}.npy").open("wb") as stream:
        # Not np.save: its fast path (ndarray.tofile) drops the error number, and a full disk could not be told apart.
        np.lib.format.write_array_header_1_0(stream, np.lib.format.header_data_from_array_1_0(values))
        stream.write(values.reshape(-1).view(np.uint8).data if values.size else b"")


def write_table(folder: Path, name: str, columns: Mapping[str, Sequence[Any] | NDArray[Any]]) -> None:
    """Write `{name}.parquet` from columns of equal length.

    Scalars keep their type (int64, float64, bool, string); lists of integers are stored as int32, of floats as float32.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays = {column: _arrow(pa.array(values)) for column, values in columns.items()}
    pq.write_table(pa.table(arrays), folder / f"{name}.parquet", compression="zstd")


def _arrow(array: Any) -> Any:
    import pyarrow as pa

    if not pa.types.is_list(array.type):
        return array
    value = array.type.value_type
    if pa.types.is_floating(value):
        return array.cast(pa.list_(pa.float32()))
    if pa.types.is_integer(value) or pa.types.is_null(value):
        return array.cast(pa.list_(pa.int32()))
    return array


def write_sketches(
    folder: Path, name: str, rows: NDArray[np.floating[Any]], norm: ArrayLike, row: ArrayLike | None = None
) -> None:
    """Write a set of m gradient sketches in row-scaled half precision.

    `rows` (m, K) float32; `norm` (m,) exact gradient norms; `row` (m,) index of the item each sketch belongs to
    (None: item i has sketch i). Files: `{name}.npy` float16, each row divided by its largest magnitude,
    `{name}.scale.npy`, `{name}.norm.npy` float32, `{name}.row.npy` int32.
    Raises `ValueError` on wrong shapes or an item that occurs twice, and `NotFinite`.
    """
    rows = np.asarray(rows, dtype=np.float32)
    norms = np.asarray(norm, dtype=np.float32)
    if rows.ndim != 2:
        raise ValueError(f"sketches {name!r}: rows must have shape (m, K), not {rows.shape}")
    index = np.arange(len(rows), dtype=np.int32) if row is None else np.asarray(row, dtype=np.int32)
    if norms.shape != (len(rows),) or index.shape != (len(rows),):
        raise ValueError(f"sketches {name!r}: {len(rows)} rows, but norm {norms.shape} and row {index.shape}")
    if not np.isfinite(norms).all():
        raise NotFinite(f"sketches {name!r}: not finite")
    if index.size and (index.min() < 0 or len(np.unique(index)) != len(index)):
        raise ValueError(f"sketches {name!r}: item indices must be distinct and not negative")
    scale = np.zeros(len(rows), np.float32)

    def halves() -> Iterator[NDArray[np.float16]]:
        for part, block in in_stretches(rows):
            if not np.isfinite(block).all():
                raise NotFinite(f"sketches {name!r}: not finite")
            size = np.abs(block).max(axis=1, initial=0.0)
            size[size == 0.0] = 1.0
            scale[part] = size
            yield (block / size[:, None]).astype(np.float16)

    write_stretches(folder, name, np.dtype(np.float16), rows.shape, halves())
    write_array(folder, f"{name}.scale", scale)
    write_array(folder, f"{name}.norm", norms)
    write_array(folder, f"{name}.row", index)


def write_stretches(
    folder: Path, name: str, dtype: np.dtype[Any], shape: tuple[int, ...], stretches: Iterable[NDArray[Any]]
) -> None:
    """Write `{name}.npy` from stretches of its rows, so that never all of it is in memory."""
    with (folder / f"{name}.npy").open("wb") as stream:
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(stream, header)
        for values in stretches:
            stream.write(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data if values.size else b"")


def read_array(path: Path) -> NDArray[Any]:
    """A `.npy` file, memory-mapped and read-only."""
    try:
        return cast("NDArray[Any]", np.load(path, mmap_mode="r", allow_pickle=False))
    except ValueError:  # an array without elements cannot be mapped
        return cast("NDArray[Any]", np.load(path, allow_pickle=False))


def read_table(path: Path) -> Table:
    """A table as columns, each read on first use."""
    return Table(path)


class Table(Mapping[str, Column]):
    """Columns of a Parquet file: numbers and flags as read-only arrays, strings as a list, lists as a list of arrays.

    Each is read when it is first asked for: the texts of a long run take more memory than all that grading needs.
    """

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet as pq

        self._path, self._names = path, tuple(pq.read_schema(path, memory_map=True).names)
        self._read: dict[str, Column] = {}

    def __getitem__(self, name: str) -> Column:
        if name not in self._read:
            if name not in self._names:
                raise KeyError(name)
            import pyarrow.parquet as pq

            content = pq.read_table(self._path, columns=[name], use_threads=False, memory_map=True)
            self._read[name] = _column(content.column(name).combine_chunks())
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _column(values: Any) -> Column:
    import pyarrow as pa

    if isinstance(values, pa.ChunkedArray):
        values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], type=values.type)
    if pa.types.is_list(values.type):
        flat = values.flatten().to_numpy(zero_copy_only=False)
        flat.flags.writeable = False
        ends = np.cumsum(values.value_lengths().to_numpy(zero_copy_only=False))
        return np.split(flat, ends[:-1]) if len(ends) else []
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        return cast("list[Any]", values.to_pylist())
    array = np.array(values.to_numpy(zero_copy_only=False))
    array.flags.writeable = False
    return array


@dataclass(frozen=True, eq=False)
class Sketches:
    """A set of m gradient sketches; half precision on disk, memory-mapped, widened to float32 on demand."""

    half: NDArray[np.float16]
    """(m, K), each row divided by its `scale`."""
    scale: NDArray[np.float32]
    norm: NDArray[np.float32]
    """(m,) exact norm of the full gradient behind each sketch."""
    row: NDArray[np.int32]
    """(m,) index of the item each sketch belongs to."""

    def __len__(self) -> int:
        """Number of sketches m."""
        return len(self.half)

    @property
    def width(self) -> int:
        """Buckets per sketch, K."""
        return int(self.half.shape[1])

    def float32(self, index: ArrayLike | slice | None = None) -> NDArray[np.float32]:
        """Sketches as (m, K) float32, or those at `index` (positions in this set, or a mask over it)."""
        chosen: Any = slice(None) if index is None else index if isinstance(index, slice) else np.asarray(index)
        if isinstance(chosen, np.ndarray) and chosen.size == 0:
            chosen = chosen.astype(np.intp)
        wide = self.half[chosen].astype(np.float32)
        wide *= self.scale[chosen][..., None]
        return cast("NDArray[np.float32]", wide)

    def dense(
        self, n: int, index: NDArray[np.integer[Any]] | None = None, factor: NDArray[np.floating[Any]] | None = None
    ) -> NDArray[np.float32]:
        """(n, K) float32, read-only, with one row per item 0..n-1, zero where an item has no sketch.

        `index` (m,): only these items, in this order, (m, K). `factor`: one for each row of the result, (n,) or (m,).
        Made stretch by stretch from the mapped file; a large result lies in a file of its own (`rows.made`).
        """
        place = np.full(n, -1, np.int64)
        place[self.row] = np.arange(len(self))
        at = place if index is None else place[index]
        factors = None if factor is None else np.asarray(factor, np.float32)[:, None]
        halves = np.empty((min(len(at), rows_of(self.width)), self.width), np.float16)

        def fill(part: slice, out: NDArray[np.float32]) -> None:
            here = at[part]
            there = here >= 0
            if there.all():
                np.take(self.half, here, axis=0, out=halves[: len(here)], mode="clip")
                out[:] = halves[: len(here)]
                out *= self.scale[here][:, None]
            else:
                out[:] = 0.0
                out[there] = self.float32(here[there])
            if factors is not None:
                out *= factors[part]
            give_back(self.half)

        return made(len(at), self.width, fill)

    def dense_norm(self, n: int) -> NDArray[np.float32]:
        """(n,) exact norms, zero where an item has no sketch."""
        full = np.zeros(n, dtype=np.float32)
        full[self.row] = self.norm
        return full

    def has(self, n: int) -> NDArray[np.bool_]:
        """(n,) whether each item has a sketch."""
        full = np.zeros(n, dtype=np.bool_)
        full[self.row] = True
        return full
