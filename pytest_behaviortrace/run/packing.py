"""Tokens that matter, side by side: where few have a weight, few need to pass the last MLP and the output embeddings.

Behind the last attention every token goes its own way, so what no weight follows from can be left out there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


def places(wanted: torch.Tensor) -> torch.Tensor:
    """(batch, k): where the True of each row of `wanted` (batch, tokens) are, k the most of any row; at least 1.

    Rows with fewer are filled up with places that are not wanted, so that none occurs twice.
    """
    most = max(1, int(wanted.sum(1).max()))
    return torch.argsort(wanted.logical_not().to(torch.int8), dim=1, stable=True)[:, :most]


def packed(values: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    """(batch, k, ...): what (batch, tokens, ...) holds at `place` (batch, k)."""
    return values.flatten(0, 1).index_select(0, _flat(place, values.shape[1])).view(*place.shape, *values.shape[2:])


def last_mlp(backbone: nn.Module) -> nn.Module | None:
    """The MLP of the last layer, if it is made of linear maps; None where there is no such module."""
    layers = getattr(backbone, "layers", None)
    found = getattr(layers[-1], "mlp", None) if isinstance(layers, nn.ModuleList) and len(layers) else None
    if not isinstance(found, nn.Module) or any(isinstance(m, nn.ModuleList) for m in found.modules()):
        return None
    owners = [m for m in found.modules() if any(True for _ in m.parameters(recurse=False))]
    return found if owners and all(isinstance(m, nn.Linear) for m in owners) else None


@contextmanager
def only_at(module: nn.Module | None, place: torch.Tensor) -> Iterator[None]:
    """Inside the block `module` sees the tokens at `place` (batch, k) alone, and gives zero elsewhere."""
    if module is None:
        yield
        return
    shape: list[torch.Size] = []

    def before(module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        shape[:] = [given[0].shape]
        return (packed(given[0], place), *given[1:])

    def after(module: nn.Module, given: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
        batch, tokens, *rest = shape[0]
        everywhere = output.new_zeros(batch * tokens, *rest)
        return everywhere.index_copy(0, _flat(place, tokens), output.flatten(0, 1)).view(batch, tokens, *rest)

    handles = [module.register_forward_pre_hook(before), module.register_forward_hook(after)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _flat(place: torch.Tensor, tokens: int) -> torch.Tensor:
    return (place + tokens * torch.arange(len(place), device=place.device)[:, None]).flatten()
