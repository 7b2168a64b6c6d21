"""Block-wise CountSketch of gradients (PAPER.md, Gradient embedding): unbiased inner products in few numbers.

Every coordinate of a parameter block falls into one of n buckets with one sign, and a bucket holds the signed sum of
its coordinates. Blocks stand side by side, so inner products of sketches add up over blocks.

The hash is chosen so that no table of it is needed: a matrix gets its rows and its columns in a random order, every row
and every column a random sign, and is then written row after row around the block's ring of n buckets, from a random
place on. An outer product u v' is sketched by permuting u and v (before they are multiplied), and a sum over laps: only
reads and writes in a row, which any machine repeats to the bit. n is odd and prime to every number of columns, so that
no two entries of a column meet while a matrix has at most n rows.

For gradients x, y with matrices X_p, Y_p of the parameters of a block, over random orders, signs and places:
    E<Sx, Sy> = <x, y>
    Var<Sx, Sy> <= (|x|^2 |y|^2 + <x, y>^2 + sum_p (|X_p Y_p'|^2 + |X_p' Y_p|^2)) / n x (1 + r)
summed over blocks. The first two terms are those of a CountSketch of independent hashes; the others come from signs
that whole rows and columns share, and only from wraps of equal columns (rows > n) or equal rows (columns > n). r is the
unevenness of where differences of places fall, below n / size. `tests/test_sketch.py` measures both.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pytest_behaviortrace.run.hashing import Parameter

SKETCH_SEED = 0
"""Seed of the hash behind every sketch of a store: sketches can be compared only under one seed."""
LEAST_WIDTH = 32
"""Buckets that even the smallest block gets, where the sketch is wide enough."""

_LAYER = re.compile(r"(?:^|\.)(?:layers|blocks|h)\.(\d+)\.(.+)$")


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

    `parameters` maps names, in the order that numbers the coordinates, to shape and block.
    """

    def __init__(
        self, parameters: Mapping[str, tuple[Sequence[int], str]], width: int, seed: int = SKETCH_SEED
    ) -> None:
        self.width, self.seed = width, seed
        self.parameters: dict[str, Parameter] = {}
        start, sizes = 0, dict[str, int]()
        for name, (shape, block) in parameters.items():
            rows, columns = _matrix(shape)
            self.parameters[name] = made = Parameter(start, rows, columns, block, seed)
            start, sizes[block] = start + made.size, sizes.get(block, 0) + made.size
        self.size = start
        """Coordinates in all."""
        widths = allot_widths(sizes, width)
        self.blocks: dict[str, slice] = {}
        place = 0
        for block in sorted(widths, key=_reading_order):
            self.blocks[block] = slice(place, place + widths[block])
            place += widths[block]
        self.rings = {block: self._ring(block, widths[block]) for block in self.blocks}
        """Block -> length n of its ring; the few buckets beyond it stay empty."""
        self._shifts = {name: p.shift(self.rings[p.block]) for name, p in self.parameters.items()}

        self._vectors: dict[tuple[tuple[str, ...], torch.device], tuple[torch.Tensor, torch.Tensor]] = {}

    def _ring(self, block: str, width: int) -> int:
        columns = {p.columns for p in self.parameters.values() if p.block == block and p.rows > 1}
        return next(n for n in range(width, 0, -1) if n % 2 and all(math.gcd(n, c) == 1 for c in columns))

    @classmethod
    def for_model(cls, model: Any, width: int, seed: int = SKETCH_SEED) -> BlockSketch:
        """The sketch of a model's trainable parameters (`trainable`); a tied weight counts once."""
        blocks = parameter_blocks(model)
        return cls({name: (tuple(p.shape), blocks[name]) for name, p in trainable(model).items()}, width, seed)

    def buffer(self, batch: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """(batch, width) float32 zeros to `add` to."""
        return torch.zeros(batch, self.width, device=device)

    def add(self, buffer: torch.Tensor, name: str, first_row: int, values: torch.Tensor) -> None:
        """Adds rows of a parameter's gradients to a buffer (batch, width), in place.

        `values` (batch, rows, columns): rows at the places first_row, first_row + 1, ..., their rows and columns in
        the parameter's order and with its signs, as `placed` makes them.
        """
        parameter = self.parameters[name]
        ring = self.rings[parameter.block]
        flat, first = values.flatten(1), self.blocks[parameter.block].start
        target = buffer[:, first : first + ring]
        at = (self._shifts[name] + first_row * parameter.columns) % ring
        head = min(ring - at, flat.shape[1])
        target[:, at : at + head].add_(flat[:, :head])
        laps, rest = divmod(flat.shape[1] - head, ring)
        if laps:
            target.add_(flat[:, head : head + laps * ring].view(-1, laps, ring).sum(1))
        if rest:
            target[:, :rest].add_(flat[:, -rest:])

    def add_rows(self, buffer: torch.Tensor, name: str, places: torch.Tensor, values: torch.Tensor) -> None:
        """Adds single rows of a parameter's gradients to a buffer (batch, width), in place.

        `places` (batch, m): where each sample's rows stand in the parameter's order; `values` (batch, m, columns): the
        rows themselves, as in `add`.
        """
        parameter = self.parameters[name]
        ring, first = self.rings[parameter.block], self.blocks[parameter.block].start
        begin = self._shifts[name] + places * parameter.columns
        at = (begin[..., None] + torch.arange(parameter.columns, device=values.device)) % ring + first
        buffer.scatter_add_(1, at.flatten(1), values.flatten(1))

    def add_vectors(self, buffer: torch.Tensor, names: tuple[str, ...], values: torch.Tensor) -> None:
        """Adds whole gradients of parameters of one row to a buffer (batch, width), in place.

        `values` (batch, coordinates of all of them, side by side), in their own order and without signs.
        """
        key = names, values.device
        if key not in self._vectors:
            each = [self._vector(name, values.device) for name in names]
            self._vectors = {key: (torch.cat([at for at, _ in each]), torch.cat([sign for _, sign in each]))}
        at, sign = self._vectors[key]
        buffer.scatter_add_(1, at.expand(values.shape), values * sign)

    def _vector(self, name: str, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """(size,), (size,): bucket and sign of each coordinate of a parameter of one row."""
        parameter = self.parameters[name]
        rows, columns = parameter.on(device)
        at = (self._shifts[name] + columns.rank) % self.rings[parameter.block] + self.blocks[parameter.block].start
        return at, rows.sign[0] * columns.sign

    def placed(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """(batch, rows, columns): whole gradients of a parameter, (batch, *shape), as `add` takes them."""
        p = self.parameters[name]
        rows, columns = p.on(values.device)
        by_columns = columns.place(values.reshape(len(values), p.rows, p.columns))
        return rows.place(by_columns.transpose(1, 2)).transpose(1, 2)

    def sketch(self, gradients: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """(batch, width) float32 sketches of gradients given as name -> (batch, *shape); absent parameters are zero.

        Raises `KeyError` for a parameter that is not in the sketch, `ValueError` for a wrong number of coordinates.
        """
        first = next(iter(gradients.values()))
        buffer = self.buffer(len(first), first.device)
        for name, values in gradients.items():
            size = values[0].numel()
            if size != self.parameters[name].size:
                raise ValueError(f"{name}: {size} coordinates, expected {self.parameters[name].size}")
            self.add(buffer, name, 0, self.placed(name, values.float()))
        return buffer


def trainable(model: Any) -> dict[str, Any]:
    """Name -> parameter of those that require gradients; of all, where none does (a policy that was only loaded)."""
    named = dict(model.named_parameters())
    return {name: p for name, p in named.items() if p.requires_grad} or named


def _matrix(shape: Sequence[int]) -> tuple[int, int]:
    """Rows and columns under which a parameter is written down: a vector is one row."""
    rows = shape[0] if len(shape) > 1 else 1
    return rows, math.prod(shape) // max(rows, 1)


def _reading_order(block: str) -> tuple[int, int, str]:
    """Embedding, layers by number, others by name, norms, head."""
    ends = {"embedding": 0, "norms": 3, "head": 4}
    if block in ends:
        return ends[block], 0, ""
    layer = re.match(r"layers\.(\d+)\.", block)
    return (1, int(layer[1]), block) if layer else (2, 0, block)
