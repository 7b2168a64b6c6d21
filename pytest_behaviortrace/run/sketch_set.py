"""Gradient sketches of a set of items, collected as they are made and kept out of memory."""

from __future__ import annotations

import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pytest_behaviortrace.run.formats import write_sketches


@dataclass(frozen=True, eq=False)
class SketchSet:
    """m sketches in the order of their items; the shape `write_sketches` takes."""

    rows: NDArray[np.float32]
    """(m, K)"""
    norm: NDArray[np.float32]
    """(m,): exact norms of the full gradients."""
    row: NDArray[np.int64]
    """(m,): the item each sketch belongs to, rising."""

    def __len__(self) -> int:
        """Number of sketches m."""
        return len(self.rows)

    def write(self, folder: Path, name: str) -> None:
        """Writes the set into a unit's folder."""
        write_sketches(folder, name, self.rows, self.norm, self.row)


class SketchCollector:
    """Takes sketches batch by batch into an unnamed file, so that a run's worth of them needs no memory."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._file: Any = None
        self._norm: list[NDArray[np.float32]] = []
        self._row: list[NDArray[np.int64]] = []

    def add(self, rows: torch.Tensor, norm: torch.Tensor, items: NDArray[np.int64]) -> None:
        """Adds sketches (m, K) with norms (m,) of items (m,)."""
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the collector goes
            weakref.finalize(self, self._file.close)
        self._file.write(np.ascontiguousarray(rows.detach().cpu().numpy(), np.float32).tobytes())
        self._norm.append(norm.detach().cpu().numpy().astype(np.float32))
        self._row.append(np.asarray(items, np.int64))

    def finish(self) -> SketchSet:
        """Everything added so far, in the order of items. Raises `ValueError` for an item that came twice."""
        row = np.concatenate(self._row) if self._row else np.zeros(0, np.int64)
        norm = np.concatenate(self._norm) if self._norm else np.zeros(0, np.float32)
        if len(np.unique(row)) != len(row):
            raise ValueError("a rollout was recorded twice")
        if not len(row):
            return SketchSet(np.zeros((0, self.width), np.float32), norm, row)
        self._file.flush()
        rows: Any = np.memmap(self._file, np.float32, "r", shape=(len(row), self.width))
        order = np.argsort(row, kind="stable")
        if np.array_equal(order, np.arange(len(row))):
            return SketchSet(rows, norm, row)
        return SketchSet(rows[order], norm[order], row[order])
