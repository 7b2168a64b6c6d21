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


class Use(Protocol):
    """One summand of a parameter's per-sample gradient (batch, rows, columns)."""

    def add_rows(self, values: torch.Tensor, start: int, stop: int, *, fresh: bool) -> None:
        """Adds rows start..stop of the gradient to `values` (batch, stop - start, columns).

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

    def add_rows(self, values: torch.Tensor, start: int, stop: int, *, fresh: bool) -> None:
        beta = 0 if fresh else 1
        values.baddbmm_(self.gradient[:, :, start:stop].transpose(1, 2), self.given, beta=beta)

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

    def add_rows(self, values: torch.Tensor, start: int, stop: int, *, fresh: bool) -> None:
        if fresh:
            values.zero_()
        sample, token = ((self.ids >= start) & (self.ids < stop)).nonzero(as_tuple=True)
        row = sample * (stop - start) + self.ids[sample, token] - start
        values.view(-1, values.shape[2]).index_add_(0, row, self.gradient[sample, token])

    def placed(self, parameter: Parameter) -> Lookup:
        rows, columns = parameter.on(self.gradient.device)
        signed = self.gradient * rows.sign[self.ids][..., None]
        return Lookup(rows.rank[self.ids], columns.place(signed))


@dataclass(frozen=True)
class Whole:
    """A bias or a norm's scale: one row, small enough to be written down at once."""

    gradient: torch.Tensor
    """(batch, columns)"""

    def add_rows(self, values: torch.Tensor, start: int, stop: int, *, fresh: bool) -> None:
        if fresh:
            values.zero_()
        values[:, 0] += self.gradient

    def placed(self, parameter: Parameter) -> Whole:
        rows, columns = parameter.on(self.gradient.device)
        return Whole(columns.place(self.gradient * rows.sign[0]))


def written_down(
    uses: Sequence[Use], batch: int, rows: int, columns: int, scratch: torch.Tensor
) -> Iterator[tuple[int, torch.Tensor]]:
    """(first row, (batch, some rows, columns)) of the sum of a parameter's uses, a few rows at a time.

    `scratch` holds what is written, one row of every sample at least; what is yielded is overwritten by what comes
    next.
    """
    step = max(1, min(rows, scratch.numel() // (batch * columns)))
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        values = scratch[: batch * (stop - start) * columns].view(batch, stop - start, columns)
        for number, use in enumerate(uses):
            use.add_rows(values, start, stop, fresh=number == 0)
        yield start, values


def scratch_for(batch: int, columns: int, device: torch.device | str) -> torch.Tensor:
    """Room for `written_down`."""
    return torch.empty(max(CHUNK_ELEMENTS, batch * columns), device=device)
