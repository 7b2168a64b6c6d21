"""Uses of a parameter in a forward pass: what it takes to write down its gradient sample by sample.

An outer product for a linear map, a scattered row for a table look-up, a product for a norm's scale. A parameter used
twice (a tied weight) has the sum of its uses as gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from pytest_behaviortrace.run.hashing import Parameter

CHUNK_ELEMENTS = 2**20
"""Numbers of per-sample gradients held at a time (4 MiB: what is written is read again while it is in the cache)."""
LARGE = 2**17
"""Numbers in a matrix that is written down sample by sample: long rows of one product, instead of strips of many."""
MOST_ELEMENTS = 2**24
"""Numbers of one sample's gradient held at a time."""

Piece = tuple[slice, int, torch.Tensor]
"""Samples, first row, (samples, some rows, columns)."""


class Use(Protocol):
    """One summand of a parameter's per-sample gradient (batch, rows, columns)."""

    def add_rows(self, values: torch.Tensor, samples: slice, start: int, stop: int, *, fresh: bool) -> None:
        """Adds rows start..stop of some samples' gradients to `values` (samples, stop - start, columns).

        `fresh` values hold nothing yet, whatever numbers they show.
        """

    def placed(self, parameter: Parameter) -> Use:
        """The same use with rows and columns in the order, and with the signs, of a sketch."""


@dataclass(frozen=True)
class Product:
    """A linear map: the gradient is the sum over tokens of output gradient times input."""

    gradient: torch.Tensor
    """(batch, tokens, rows)"""
    given: torch.Tensor
    """(batch, tokens, columns)"""

    def add_rows(self, values: torch.Tensor, samples: slice, start: int, stop: int, *, fresh: bool) -> None:
        beta = 0 if fresh else 1
        values.baddbmm_(self.gradient[samples, :, start:stop].transpose(1, 2), self.given[samples], beta=beta)

    def placed(self, parameter: Parameter) -> Product:
        rows, columns = parameter.on(self.gradient.device)
        return Product(rows.place(self.gradient), columns.place(self.given))


@dataclass(frozen=True)
class Lookup:
    """A table look-up: each token adds its output gradient to the row of its id."""

    ids: torch.Tensor
    """(batch, tokens)"""
    gradient: torch.Tensor
    """(batch, tokens, columns), zero where an id is not learned (the padding id of the table)."""

    def add_rows(self, values: torch.Tensor, samples: slice, start: int, stop: int, *, fresh: bool) -> None:
        if fresh:
            values.zero_()
        ids = self.ids[samples]
        sample, token = ((ids >= start) & (ids < stop)).nonzero(as_tuple=True)
        row = sample * (stop - start) + ids[sample, token] - start
        values.view(-1, values.shape[2]).index_add_(0, row, self.gradient[samples][sample, token])

    def placed(self, parameter: Parameter) -> Lookup:
        rows, columns = parameter.on(self.gradient.device)
        signed = self.gradient * rows.sign[self.ids][..., None]
        return Lookup(rows.rank[self.ids], columns.place(signed))


@dataclass(frozen=True)
class Whole:
    """A bias or a norm's scale: one row, small enough to be written down at once."""

    gradient: torch.Tensor
    """(batch, columns)"""

    def add_rows(self, values: torch.Tensor, samples: slice, start: int, stop: int, *, fresh: bool) -> None:
        if fresh:
            values.zero_()
        values[:, 0].add_(self.gradient[samples])

    def placed(self, parameter: Parameter) -> Whole:
        rows, columns = parameter.on(self.gradient.device)
        return Whole(columns.place(self.gradient * rows.sign[0]))


def written_down(uses: Sequence[Use], batch: int, rows: int, columns: int, device: torch.device) -> Iterator[Piece]:
    """(samples, first row, (samples, some rows, columns)): the sum of a parameter's uses, piece by piece.

    What is yielded is overwritten by what comes next.
    """
    if rows * columns >= LARGE:
        together, strip = max(1, CHUNK_ELEMENTS // (rows * columns)), min(rows, max(1, MOST_ELEMENTS // columns))
    else:
        together, strip = batch, min(rows, max(1, CHUNK_ELEMENTS // (batch * columns)))
    scratch = torch.empty(min(together, batch) * strip * columns, device=device)
    for first in range(0, batch, together):
        samples = slice(first, min(first + together, batch))
        count = samples.stop - samples.start
        for start in range(0, rows, strip):
            stop = min(start + strip, rows)
            values = scratch[: count * (stop - start) * columns].view(count, stop - start, columns)
            for number, use in enumerate(uses):
                use.add_rows(values, samples, start, stop, fresh=number == 0)
            yield samples, start, values
