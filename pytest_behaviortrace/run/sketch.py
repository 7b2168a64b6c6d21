"""Block-wise CountSketch of gradients (PAPER.md, Gradient embedding): unbiased inner products in few numbers.

Every coordinate of a parameter block is hashed to one bucket of that block and one sign; a bucket holds the signed sum
of its coordinates. Blocks stand side by side, so inner products of sketches add up over blocks. For gradients x, y and
a block of width w, E<Sx, Sy> = <x, y> and Var<Sx, Sy> <= (|x|^2 |y|^2 + <x, y>^2) / w, summed over blocks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

SKETCH_SEED = 0
"""Seed of the hash behind every sketch of a store: sketches can be compared only under one seed."""
LEAST_WIDTH = 32
"""Buckets that even the smallest block gets, where the sketch is wide enough."""
CHUNK = 2**22
"""Coordinates hashed at a time; a bound on memory, without influence on the result."""
CACHE_BYTES = 256 * 2**20
"""Hashes kept between calls; what does not fit is computed again."""

_GAMMA, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_LAYER = re.compile(r"(?:^|\.)(?:layers|blocks|h)\.(\d+)\.(.+)$")


@dataclass(frozen=True)
class Parameter:
    """Where a parameter stands: global index of its first coordinate, number of coordinates, and its block."""

    start: int
    size: int
    block: str


def splitmix64(index: torch.Tensor, seed: int) -> torch.Tensor:
    """The `index`-th output of the SplitMix64 generator seeded by the finaliser of `seed`: 64 bits as int64."""
    state = _signed(_finalise(seed + _GAMMA))
    # int64 products wrap like unsigned ones; only right shifts need their sign bits masked.
    z = (index + 1) * _signed(_GAMMA) + state
    z = (z ^ _shift(z, 30)) * _signed(_MIX_1)
    z = (z ^ _shift(z, 27)) * _signed(_MIX_2)
    return z ^ _shift(z, 31)


def _finalise(z: int) -> int:
    z &= 2**64 - 1
    z = (z ^ (z >> 30)) * _MIX_1 % 2**64
    z = (z ^ (z >> 27)) * _MIX_2 % 2**64
    return z ^ (z >> 31)


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def _shift(z: torch.Tensor, by: int) -> torch.Tensor:
    return (z >> by) & ((1 << (64 - by)) - 1)


def allot_widths(sizes: Mapping[str, int], width: int) -> dict[str, int]:
    """Buckets of each block, `width` in all, from the blocks' numbers of coordinates.

    In proportion to the square root of the size: halfway between equal compression of all blocks and equal precision
    of all blocks. Every block gets at least `LEAST_WIDTH` (less, but an equal least share, in narrow sketches).
    Raises `ValueError` when there are fewer buckets than blocks.
    """
    if not sizes or width < len(sizes):
        raise ValueError(f"a sketch of width {width} cannot hold {len(sizes)} blocks: one bucket each at least")
    least = min(LEAST_WIDTH, max(1, width // (2 * len(sizes))))
    spare = width - least * len(sizes)
    weight = {name: size**0.5 for name, size in sizes.items()}
    total = sum(weight.values())
    share = {name: spare * weight[name] / total for name in sizes}
    widths = {name: least + int(share[name]) for name in sizes}
    # Largest remainders first, so that the sum is exact whatever the rounding.
    for name in sorted(sizes, key=lambda n: int(share[n]) - share[n])[: width - sum(widths.values())]:
        widths[name] += 1
    return widths


def parameter_blocks(model: Any) -> dict[str, str]:
    """Parameter name -> block: "embedding", "layers.0.attention", "layers.0.mlp", ..., "norms", "head" (if untied).

    Names are those of `model.named_parameters()`, where a tied weight occurs once. Parts of a layer beside attention
    and MLP, and modules outside of layers, are blocks under their own names.
    """
    owners = {id(p): module for module in model.modules() for p in module.parameters(recurse=False)}
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    looked_up = {id(p) for p in embedding.parameters()}
    headed = set() if head is None else {id(p) for p in head.parameters()}
    blocks = {}
    for name, parameter in model.named_parameters():
        if id(parameter) in looked_up:
            blocks[name] = "embedding"
        elif id(parameter) in headed:
            blocks[name] = "head"
        elif "norm" in type(owners[id(parameter)]).__name__.lower():
            blocks[name] = "norms"
        else:
            blocks[name] = _block_by_name(name)
    return blocks


def _block_by_name(name: str) -> str:
    found = _LAYER.search(name)
    if not found:
        return name.rsplit(".", 1)[0]
    layer, rest = found.groups()
    part = rest.split(".")[0]
    if "attn" in part or "attention" in part:
        part = "attention"
    elif "mlp" in part or "feed_forward" in part or part == "ffn":
        part = "mlp"
    return f"layers.{layer}.{part}"


class BlockSketch:
    """A CountSketch per parameter block, side by side in `width` buckets.

    `parameters` maps names, in the order that numbers the coordinates, to number of coordinates and block.
    """

    def __init__(self, parameters: Mapping[str, tuple[int, str]], width: int, seed: int = SKETCH_SEED) -> None:
        sizes: dict[str, int] = {}
        for size, block in parameters.values():
            sizes[block] = sizes.get(block, 0) + size
        widths = allot_widths(sizes, width)
        self.width, self.seed = width, seed
        self.parameters: dict[str, Parameter] = {}
        start = 0
        for name, (size, block) in parameters.items():
            self.parameters[name] = Parameter(start, size, block)
            start += size
        self.size = start
        """Coordinates in all."""
        self.blocks: dict[str, slice] = {}
        place = 0
        for block in sorted(widths, key=_reading_order):
            self.blocks[block] = slice(place, place + widths[block])
            place += widths[block]
        self._bins: dict[tuple[str, int, str], torch.Tensor] = {}
        self.cached_bytes = 0
        """Bytes of hashes kept between calls."""

    @classmethod
    def for_model(cls, model: Any, width: int, seed: int = SKETCH_SEED) -> BlockSketch:
        """The sketch of a model's parameters (a tied weight counts once), whether they require gradients or not."""
        blocks = parameter_blocks(model)
        return cls({name: (p.numel(), blocks[name]) for name, p in model.named_parameters()}, width, seed)

    def bins(self, name: str, number: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """(m,) int64: bucket of each coordinate, plus `width` where its sign is negative.

        The coordinates are chunk `number` of a parameter: those from `number` * `CHUNK` on, `CHUNK` at most.
        """
        key = (name, number, str(device))
        if key in self._bins:
            return self._bins[key]
        parameter = self.parameters[name]
        block = self.blocks[parameter.block]
        first, last = number * CHUNK, min((number + 1) * CHUNK, parameter.size)
        hashed = splitmix64(torch.arange(parameter.start + first, parameter.start + last, device=device), self.seed)
        # The low half decides the bucket (multiply and shift), the top bit the sign: independent bits.
        bucket = ((hashed & 0xFFFFFFFF) * (block.stop - block.start) >> 32) + block.start
        found: torch.Tensor = bucket + (hashed < 0) * self.width
        size = found.numel() * found.element_size()
        if self.cached_bytes + size <= CACHE_BYTES:
            self._bins[key] = found
            self.cached_bytes += size
        return found

    def buffer(self, batch: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """(batch, 2 width) float32 zeros to `add` to: sums of coordinates with positive, then with negative sign."""
        return torch.zeros(batch, 2 * self.width, device=device)

    def add(self, buffer: torch.Tensor, name: str, start: int, values: torch.Tensor) -> None:
        """Adds coordinates start, start + 1, ... of a parameter's gradients, `values` (batch, m), to a buffer."""
        stop = start + values.shape[1]
        for number in range(start // CHUNK, -(-stop // CHUNK)):
            low, high = max(start, number * CHUNK), min(stop, (number + 1) * CHUNK)
            bins = self.bins(name, number, values.device)[low - number * CHUNK : high - number * CHUNK]
            buffer.index_add_(1, bins, values[:, low - start : high - start].float())

    def finish(self, buffer: torch.Tensor) -> torch.Tensor:
        """(batch, width): the sketches whose coordinates were added to the buffer."""
        return buffer[:, : self.width] - buffer[:, self.width :]

    def sketch(self, gradients: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """(batch, width) float32 sketches of gradients given as name -> (batch, *shape); absent parameters are zero.

        Raises `KeyError` for a parameter that is not in the sketch, `ValueError` for a wrong number of coordinates.
        """
        batch, device = _batch_of(gradients)
        buffer = self.buffer(batch, device)
        for name, values in gradients.items():
            flat = values.reshape(batch, -1)
            if flat.shape[1] != self.parameters[name].size:
                raise ValueError(f"{name}: {flat.shape[1]} coordinates, expected {self.parameters[name].size}")
            self.add(buffer, name, 0, flat)
        return self.finish(buffer)


def _batch_of(gradients: Mapping[str, torch.Tensor]) -> tuple[int, torch.device]:
    first = next(iter(gradients.values()))
    return len(first), first.device


def _reading_order(block: str) -> tuple[int, int, str]:
    """Embedding, layers by number, others by name, norms, head."""
    ends = {"embedding": 0, "norms": 3, "head": 4}
    if block in ends:
        return ends[block], 0, ""
    layer = re.match(r"layers\.(\d+)\.", block)
    return (1, int(layer[1]), block) if layer else (2, 0, block)
