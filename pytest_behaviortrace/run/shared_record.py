"""What several processes record of one run: each writes its shards, the first puts them together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pytest_behaviortrace.run.formats import read_table, write_table
from pytest_behaviortrace.run.ranks import Ranks
from pytest_behaviortrace.run.rows import Collected, Columns
from pytest_behaviortrace.run.shard_files import check_complete, shards
from pytest_behaviortrace.run.shards import CHUNK, ShardSink, sketches, whole_sets


@dataclass(frozen=True)
class SharedRecord:
    """One run's record in a folder that every process sees."""

    ranks: Ranks
    folder: Path

    def sink(self) -> ShardSink:
        """Where this process's recorder puts its rollouts."""
        return ShardSink(self.folder, self.ranks.rank)

    def join(self, steps: int, width: int, rewarded: Mapping[str, Sequence[Any]]) -> tuple[Collected, Columns]:
        """Everything that the processes recorded, and the rows of `rewarded` of all of them; empty but on rank 0.

        Raises `IntegrityError` if a step of a process is missing.
        """
        write_table(self.folder, _rewards(self.ranks.rank), rewarded)
        self.ranks.wait()
        collected, columns = Collected(width), Columns({name: [] for name in rewarded})
        if self.ranks.first:
            check_complete(self.folder, steps, self.ranks.count)
            for path in shards(self.folder).values():
                _read(path, collected)
            for rank in range(self.ranks.count):
                for name, values in read_table(self.folder / f"{_rewards(rank)}.parquet").items():
                    columns[name] += _plain(values)
        return collected, columns


def _rewards(rank: int) -> str:
    return f"rewards-rank-{rank:04d}"


def _read(path: Path, into: Collected) -> None:
    """Adds one shard."""
    table = {name: _plain(values) for name, values in read_table(path / "rollouts.parquet").items()}
    into.add_rows([dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)])
    for kind in whole_sets(path):
        made = sketches(path, kind)
        for start in range(0, len(made), CHUNK):
            part = slice(start, start + CHUNK)
            rows, norm = torch.from_numpy(made.float32(part)), torch.from_numpy(np.array(made.norm[part]))
            into.add_sketches(kind, rows, norm, np.asarray(made.row[part], np.int64))


def _plain(values: Any) -> list[Any]:
    """A column as a process that recorded it held it."""
    if isinstance(values, np.ndarray):
        return list(values.tolist())
    return [value.tolist() if isinstance(value, np.ndarray) else value for value in values]
