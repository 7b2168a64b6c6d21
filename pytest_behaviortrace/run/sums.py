"""What is kept of per-sample gradients as they are written down: their sketch and squared norm, or inner products."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import torch

from pytest_behaviortrace.run.sketch import BlockSketch
from pytest_behaviortrace.run.uses import Lookup, Use, Whole, written_down

SPARSE_ROWS = 4
"""A table of more than this many rows per token is never written down for look-ups alone."""


class SampleGradients(NamedTuple):
    """Gradients of a batch under one set of token weights."""

    sketch: torch.Tensor
    """(batch, K) float32; zero where a sample has no weight."""
    norm: torch.Tensor
    """(batch,) float32: exact Euclidean norms of the full gradients."""


class Sums(Protocol):
    """Takes the uses of one parameter after the other, for the same samples."""

    def add(self, name: str, uses: Sequence[Use]) -> None:
        """Takes all uses of a parameter."""


class SketchSums:
    """Sketches and squared norms of `batch` samples."""

    def __init__(self, sketch: BlockSketch, batch: int, device: torch.device) -> None:
        self._sketch, self._batch, self._device = sketch, batch, device
        self._made = sketch.buffer(batch, device)
        self._square = torch.zeros(batch, dtype=torch.float64, device=device)
        self._vectors: dict[str, torch.Tensor] = {}
        self._norms: dict[tuple[int, int], list[torch.Tensor]] = {}
        """Samples (first, beyond the last) -> norms of pieces of theirs that are not yet in `_square`."""

    def made(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Sketches (batch, K) float32 and squared norms (batch,) float64 of what was taken."""
        if self._vectors:
            names, values = tuple(self._vectors), torch.cat(list(self._vectors.values()), 1)
            self._vectors = {}
            self._sketch.add_vectors(self._made, names, values)
            self._square += torch.linalg.vector_norm(values, dim=1).double().square()
        for (first, stop), norms in self._norms.items():
            self._square[first:stop] += torch.stack(norms).double().square().sum(0)
        self._norms = {}
        return self._made, self._square

    def add(self, name: str, uses: Sequence[Use]) -> None:
        """Takes all uses of a parameter."""
        if all(isinstance(use, Whole) for use in uses):
            self._vectors[name] = _together(uses)  # small and many: they wait for each other
            return
        parameter = self._sketch.parameters[name]
        placed = [use.placed(parameter) for use in uses]
        if _is_sparse(placed, parameter.rows):
            for use in placed:
                assert isinstance(use, Lookup)
                self._sketch.add_rows(self._made, name, use.ids, use.gradient)
            self._square += _square_of_rows(placed)
            return
        for samples, start, values in written_down(
            placed, self._batch, parameter.rows, parameter.columns, self._device
        ):
            self._sketch.add(self._made[samples], name, start, values)
            norm = torch.linalg.vector_norm(values.flatten(1), dim=1)
            self._norms.setdefault((samples.start, samples.stop), []).append(norm)


class DotSums:
    """Exact inner products of `batch` samples with q given gradients, and squared norms."""

    def __init__(self, targets: Mapping[str, torch.Tensor], batch: int, device: torch.device) -> None:
        self._targets, self._batch, self._device = targets, batch, device
        count = next(iter(targets.values())).shape[0]
        self.dots = torch.zeros(batch, count, dtype=torch.float64, device=device)
        """(batch, q)"""
        self.square = torch.zeros(batch, dtype=torch.float64, device=device)
        """(batch,)"""

    def add(self, name: str, uses: Sequence[Use]) -> None:
        """Takes all uses of a parameter."""
        target = self._targets[name]  # (q, rows, columns)
        rows, columns = target.shape[1:]
        if _is_sparse(uses, rows):
            for use in uses:
                assert isinstance(use, Lookup)
                for number, table in enumerate(target):
                    self.dots[:, number] += (use.gradient * table[use.ids]).flatten(1).sum(1).double()
            self.square += _square_of_rows(uses)
            return
        wanted = target.flatten(1)
        for samples, start, values in written_down(uses, self._batch, rows, columns, self._device):
            flat = values.flatten(1)
            self.dots[samples] += (flat @ wanted[:, start * columns : start * columns + flat.shape[1]].T).double()
            self.square[samples] += torch.linalg.vector_norm(flat, dim=1).double().square()


class WholeSums:
    """The gradients themselves, name -> (batch, rows, columns). For small models only."""

    def __init__(self, shapes: Mapping[str, tuple[int, int]], batch: int, device: torch.device) -> None:
        self._batch, self._device = batch, device
        self.full = {name: torch.zeros(batch, *shape, device=device) for name, shape in shapes.items()}

    def add(self, name: str, uses: Sequence[Use]) -> None:
        """Takes all uses of a parameter."""
        rows, columns = self.full[name].shape[1:]
        for samples, start, values in written_down(uses, self._batch, rows, columns, self._device):
            self.full[name][samples, start : start + values.shape[1]] += values


def _together(uses: Iterable[Use]) -> torch.Tensor:
    """(batch, columns): the sum of uses of one row."""
    first, *others = (use.gradient for use in uses if isinstance(use, Whole))
    return sum(others, first)


def _is_sparse(uses: Sequence[Use], rows: int) -> bool:
    return all(isinstance(use, Lookup) and rows > SPARSE_ROWS * use.ids.shape[1] for use in uses)


def _square_of_rows(uses: Iterable[Use]) -> torch.Tensor:
    """(batch,): squared norms of sums of look-ups, by inner products of the tokens that share an id."""
    looked = [use for use in uses if isinstance(use, Lookup)]
    ids = torch.cat([use.ids for use in looked], 1)
    gradient = torch.cat([use.gradient for use in looked], 1)
    same = ids[:, :, None] == ids[:, None, :]
    products = gradient @ gradient.transpose(1, 2)
    return torch.where(same, products, 0.0).double().sum((1, 2))
