"""A recorded run while it is being recorded: one folder per optimizer step and process, put together at the end.

A shard holds the rollouts whose loss was first computed in its step, with their sketches. It appears under its name
when it is whole; what a crash leaves behind has another name.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pytest_behaviortrace.run.formats import (
    Sketches,
    read_array,
    read_table,
    write_array,
    write_sketches,
    write_stretches,
    write_table,
)
from pytest_behaviortrace.run.integrity import IntegrityError
from pytest_behaviortrace.run.rows import Row
from pytest_behaviortrace.run.shard_files import describe_shard, shard_name, shards

CHUNK = 256
"""Sketches moved at a time."""


class ShardSink:
    """Keeps the rows and sketches of one optimizer step of one process, and writes them as a shard."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder, self.rank = folder, rank
        self._rows: list[Row] = []
        self._sets: dict[str, list[tuple[torch.Tensor, torch.Tensor, NDArray[np.int64]]]] = {}

    def add_rows(self, rows: Sequence[Row]) -> None:
        """Takes rollouts whose first loss was computed."""
        self._rows += rows

    def add_sketches(self, kind: str, rows: torch.Tensor, norm: torch.Tensor, row_ids: NDArray[np.int64]) -> None:
        """Takes sketches (m, K) with exact norms (m,)."""
        self._sets.setdefault(kind, []).append((rows.cpu(), norm.cpu(), row_ids))

    def drop(self) -> None:
        """Forgets what came since the last commit: the steps are made again."""
        self._rows, self._sets = [], {}

    def commit(self, step: int, learning_rate: float) -> None:
        """Writes what came since the last call as the shard of a step.

        Raises `OSError` on a full disk, `NotFinite` for gradients that are not finite; nothing is left of the shard.
        """
        name = shard_name(step, self.rank)
        making = self.folder / f".making-{name}"
        shutil.rmtree(making, ignore_errors=True)
        try:
            making.mkdir(parents=True)
            self._write(making, step, learning_rate)
            os.replace(making, self.folder / name)
        except BaseException:
            shutil.rmtree(making, ignore_errors=True)
            raise
        self.drop()

    def _write(self, making: Path, step: int, learning_rate: float) -> None:
        rows = sorted(self._rows, key=lambda row: int(row["row_id"]))
        columns = {column: [row[column] for row in rows] for column in (rows[0] if rows else {})}
        write_table(making, "rollouts", columns)
        for kind, parts in self._sets.items():
            index = np.concatenate([ids for *_, ids in parts])
            order = np.argsort(index)
            sketches = torch.cat([made for made, *_ in parts]).numpy()[order]
            norms = torch.cat([norm for _, norm, _ in parts]).numpy()[order]
            write_sketches(making, kind, sketches, norms, index[order])
        write_table(making, "step", {"step": [step], "learning_rate": [learning_rate]})
        describe_shard(making, step, self.rank)


def next_row(folder: Path, together: int) -> int:
    """The first row id after those of all shards, at the start of a generation batch of `together` rollouts."""
    last = max((int(max(t["row_id"])) for p in shards(folder).values() if (t := _rollouts(p))), default=-1)
    return -(-(last + 1) // together) * together


def merge(folder: Path, out: Path, behaviors: Sequence[str]) -> dict[str, Any]:
    """Writes the run's table, sketch sets, loss scales, learning rates and targets by step into `out`.

    Returns facts: number of rollouts and of steps. Sketches are moved a few at a time. Raises `IntegrityError` for a
    rollout that occurs twice.
    """
    parts = list(shards(folder).values())
    tables = [table for path in parts if (table := _rollouts(path))]
    row_ids = np.concatenate([np.asarray(table["row_id"]) for table in tables])
    if len(np.unique(row_ids)) != len(row_ids):
        raise IntegrityError(f"a rollout is recorded twice in {folder}")
    order = np.argsort(row_ids)
    place = {int(row_id): item for item, row_id in enumerate(row_ids[order])}
    columns: dict[str, Any] = {}
    for name in tables[0]:
        values = [value for table in tables for value in table[name]]
        columns[name] = [values[i] for i in order]
    columns["recorded_id"], columns["row_id"] = columns["row_id"], list(range(len(order)))
    scale = np.asarray(columns.pop("loss_scale"), np.float64)
    write_table(out, "rollouts", columns)
    write_array(out, "loss_scale", scale)
    rate = {int(t["step"][0]): float(t["learning_rate"][0]) for t in (read_table(p / "step.parquet") for p in parts)}
    write_array(out, "learning_rate", np.array([rate[step] for step in sorted(rate)]))
    width = 0
    for kind in sorted({kind for part in parts for kind in whole_sets(part)}):
        width = _merge_set(parts, out, kind, place)
    for name in behaviors:
        _targets_by_step(out, name, np.asarray(columns["step"]), len(rate), width)
    return {"n_rollouts": len(order), "steps": len(rate)}


def shown(out: Path, behaviors: Sequence[str]) -> dict[str, int]:
    """Behaviour -> how many of the rollouts that were merged into `out` show it."""
    table = read_table(out / "rollouts.parquet")
    return {name: sum(len(span) > 0 for span in table[f"span_{name}"]) for name in behaviors}


def _rollouts(path: Path) -> Mapping[str, Any]:
    table: Mapping[str, Any] = read_table(path / "rollouts.parquet")
    return table


def whole_sets(part: Path) -> list[str]:
    """Names of the sketch sets of a shard."""
    return sorted(p.name.removesuffix(".npy") for p in part.glob("*.npy") if "." not in p.name.removesuffix(".npy"))


def sketches(part: Path, kind: str) -> Sketches:
    """A sketch set of a shard, memory-mapped."""
    return Sketches(*(read_array(part / f"{kind}{what}.npy") for what in ("", ".scale", ".norm", ".row")))


def _merge_set(parts: Sequence[Path], out: Path, kind: str, place: Mapping[int, int]) -> int:
    """One sketch set from all shards, in the order of items; returns its width K."""
    sets = [sketches(part, kind) for part in parts if (part / f"{kind}.npy").exists()]
    item = np.concatenate([[place[int(row)] for row in made.row] for made in sets])
    whose = np.concatenate([np.full(len(made.row), number) for number, made in enumerate(sets)])
    within = np.concatenate([np.arange(len(made.row)) for made in sets])
    order, width = np.argsort(item), int(sets[0].half.shape[1])

    def halves() -> Iterator[NDArray[np.float16]]:
        for start in range(0, len(order), CHUNK):
            picked = order[start : start + CHUNK]
            chunk = np.empty((len(picked), width), np.float16)
            for number in np.unique(whose[picked]):
                mine = whose[picked] == number
                chunk[mine] = sets[number].half[within[picked[mine]]]
            yield chunk

    write_stretches(out, kind, np.dtype(np.float16), (len(order), width), halves())
    for what in ("scale", "norm"):
        write_array(out, f"{kind}.{what}", np.concatenate([getattr(made, what) for made in sets])[order])
    write_array(out, f"{kind}.row", item[order].astype(np.int32))
    return width


def _targets_by_step(out: Path, name: str, step: NDArray[np.int64], steps: int, width: int) -> None:
    """(S, K): mean span gradient of each step's own rollouts, zero where none shows the behaviour."""
    kind = f"spans_{name}"
    made = sketches(out, kind) if (out / f"{kind}.npy").exists() else None

    def means() -> Iterator[NDArray[np.float32]]:
        for number in range(steps):
            mean = np.zeros((1, width))
            for item in np.flatnonzero(step[made.row] == number) if made is not None else ():
                assert made is not None
                mean += made.float32(np.array([item]))
            count = 0 if made is None else np.count_nonzero(step[made.row] == number)
            yield (mean / max(count, 1)).astype(np.float32)

    write_stretches(out, f"targets_by_step_{name}", np.dtype(np.float32), (steps, width), means())
