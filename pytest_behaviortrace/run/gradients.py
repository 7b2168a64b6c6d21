"""Exact per-item gradients of weighted token log-probabilities: their CountSketches and their norms.

One forward pass (without a fused head, whose product hooks cannot see) serves every item on the same completion; each
further item on it costs a backward pass, shared with the other completions of the pass. Nothing of a model's size is
held per item: each parameter's gradients are made, sketched and dropped a few rows at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from pytest_behaviortrace.run.capture import Capture, UnsupportedModel, Use, active_dropout
from pytest_behaviortrace.run.sketch import BlockSketch

CHUNK_ELEMENTS = 2**23
"""Numbers of per-item gradients held at a time (32 MiB)."""
LEAST_ROWS = 12
"""Completions worth a pass of their own when they need fewer backward passes than the rest."""
BATCH = 64
"""Completions of a pass."""


class Item(NamedTuple):
    """A completion and what is asked of it: the gradient of sum_t weights[t] log p(completion_ids[t] | before)."""

    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]
    weights: Sequence[float]
    """One per completion token."""


@dataclass(frozen=True, eq=False)
class Gradients:
    """Gradients of m items."""

    sketch: NDArray[np.float32]
    """(m, K)"""
    norm: NDArray[np.float32]
    """(m,): exact Euclidean norms of the full gradients."""

    @classmethod
    def join(cls, parts: Sequence[Gradients], width: int) -> Gradients:
        """All parts one after the other; of K = `width` where there are none."""
        if not parts:
            return cls(np.zeros((0, width), np.float32), np.zeros(0, np.float32))
        return cls(np.concatenate([p.sketch for p in parts]), np.concatenate([p.norm for p in parts]))


@dataclass
class _Row:
    """A completion, and the items on it by their weights."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    items: dict[tuple[float, ...], list[int]] = field(default_factory=dict)


class PerItemGradients:
    """Gradients of items at a model's present weights, p being the softmax of its logits / temperature.

    The model is run in evaluation mode (so gradient checkpointing and random numbers play no part) and left as it was:
    mode, `.grad`, hooks. Raises `UnsupportedModel`, naming the module, for a model it does not know exactly.
    """

    def __init__(self, model: Any, sketch: BlockSketch, temperature: float = 1.0) -> None:
        self.model, self.sketch, self.temperature = model, sketch, temperature
        self.capture = Capture(model)
        self._shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
        sizes = {name: int(torch.Size(shape).numel()) for name, shape in self._shapes.items()}
        if {name: p.size for name, p in sketch.parameters.items()} != sizes:
            raise ValueError("the sketch was laid out for another model: its parameters differ")
        self._head_verified = False

    @property
    def device(self) -> torch.device:
        """Where the model lies."""
        device: torch.device = self.capture.head.weight.device
        return device

    def __call__(self, items: Sequence[Item], batch: int = BATCH, pad: int = 0) -> Gradients:
        """Sketch and exact norm of every item's gradient, in the order of the items.

        `batch` completions make a pass; `pad` is any token id. Items without weight have the gradient zero.
        """
        sketches = torch.zeros(len(items), self.sketch.width, device=self.device)
        squares = torch.zeros(len(items), dtype=torch.float64, device=self.device)
        for index, size, uses in self._backward_passes(items, batch, pad):
            buffer = self.sketch.buffer(size, self.device)
            square = torch.zeros(size, dtype=torch.float64, device=self.device)
            for name, start, values in self._values(uses, size):
                self.sketch.add(buffer, name, start, values)
                square += torch.linalg.vector_norm(values, dim=1).double().square()
            made = self.sketch.finish(buffer)
            for row, members in enumerate(index):
                sketches[members], squares[members] = made[row], square[row]
        return Gradients(sketches.cpu().numpy(), squares.sqrt().float().cpu().numpy())

    def exact(self, items: Sequence[Item], batch: int = BATCH, pad: int = 0) -> dict[str, torch.Tensor]:
        """Parameter name -> (items, *shape): the full gradients themselves. For small models only."""
        full = {name: torch.zeros(len(items), *shape) for name, shape in self._shapes.items()}
        for index, size, uses in self._backward_passes(items, batch, pad):
            for name, start, values in self._values(uses, size):
                for row, members in enumerate(index):
                    full[name].view(len(items), -1)[members, start : start + values.shape[1]] = values[row].cpu()
        return full

    def _backward_passes(
        self, items: Sequence[Item], batch: int, pad: int
    ) -> Iterator[tuple[list[list[int]], int, dict[str, list[Use]]]]:
        """For each backward pass: the items that each of its first samples is, its number of samples, and all uses."""
        for rows in _passes(_merged(items), batch):
            ids, mask, weights = _batch_of(rows, pad, self.device)
            for turn, uses in enumerate(self._backward(ids, mask, weights)):
                index = [list(row.items.values())[turn] for row in rows if turn < len(row.items)]
                yield index, len(rows), uses

    def _backward(self, ids: torch.Tensor, mask: torch.Tensor, weights: torch.Tensor) -> Iterator[dict[str, list[Use]]]:
        """The uses of every parameter under each set of `weights` (sets, batch, tokens), after one forward pass."""
        weighted = (weights != 0).flatten(0, 1).any(0).nonzero()
        # The last weighted token is predicted, never read: the pass can stop before it.
        low, last = int(weighted[0]), int(weighted[-1])
        with _undisturbed(self.model), torch.enable_grad(), self.capture.watching() as calls:
            hidden = self.model.base_model(
                input_ids=ids[:, :last], attention_mask=mask[:, :last], use_cache=False
            ).last_hidden_state[:, low - 1 :]
        self.capture.check(calls, len(ids))
        given, head = hidden.detach().float(), self.capture.head
        with torch.no_grad():
            logits = head(hidden.detach()).float()
        self._verify_head(ids, mask, logits, low, last)
        said = ids[:, low : last + 1, None]
        chance = torch.softmax(logits / self.temperature, -1)
        for turn, mine in enumerate(weights[:, :, low : last + 1, None] / self.temperature):
            slope = (chance * -mine).scatter_add_(2, said, mine)
            with _full_precision(self.device):
                pull = (slope @ head.weight.detach().float()).to(hidden.dtype)
            outputs, more = [call.output for call in calls], turn + 1 < len(weights)
            gradients = torch.autograd.grad(hidden, outputs, pull, retain_graph=more, allow_unused=True)
            yield self.capture.uses(calls, gradients, (slope, given))

    def _values(self, uses: dict[str, list[Use]], batch: int) -> Iterator[tuple[str, int, torch.Tensor]]:
        """(parameter name, first coordinate, (batch, coordinates) float32), a few rows of a parameter at a time."""
        for name, parts in uses.items():
            rows, columns = (*self._shapes[name], 1)[:2]
            step = max(1, CHUNK_ELEMENTS // (batch * columns))
            for start in range(0, rows, step):
                stop = min(start + step, rows)
                values = torch.zeros(batch, stop - start, columns, device=self.device)
                with _full_precision(self.device):
                    for part in parts:
                        part.add_rows(values, start, stop)
                yield name, start * columns, values.view(batch, -1)

    @torch.no_grad()
    def _verify_head(self, ids: torch.Tensor, mask: torch.Tensor, logits: torch.Tensor, low: int, last: int) -> None:
        """Once: the model's own logits must be a linear map of its last hidden states, without caps or scales."""
        if self._head_verified:
            return
        with _undisturbed(self.model):
            own = self.model(input_ids=ids[:1], attention_mask=mask[:1], use_cache=False).logits
        tolerance = 1e-3 if self.capture.head.weight.dtype == own.dtype == torch.float32 else 5e-2
        seen = mask[0, low - 1 : last].bool()
        if not torch.allclose(own[0, low - 1 : last].float()[seen], logits[0][seen], rtol=tolerance, atol=tolerance):
            raise UnsupportedModel(f"{type(self.model).__name__} changes its logits after the output embeddings")
        self._head_verified = True


def padded(items: Sequence[Item], pad: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Token ids, attention mask and token weights of items, all (items, tokens), padded as TRL pads.

    Prompts are padded on the left, completions on the right. Raises `ValueError` for an item without prompt or with
    other than one weight per completion token.
    """
    left, right = max(len(i.prompt_ids) for i in items), max(len(i.completion_ids) for i in items)
    ids = torch.full((len(items), left + right), pad)
    mask, weights = torch.zeros_like(ids), torch.zeros(len(items), left + right)
    for row, (prompt, completion, given) in enumerate(items):
        if len(given) != len(completion) or not len(prompt):
            raise ValueError(f"item {row}: {len(prompt)} + {len(completion)} tokens, {len(given)} weights")
        first, stop = left - len(prompt), left + len(completion)
        ids[row, first:left] = torch.as_tensor(prompt, dtype=torch.long)
        ids[row, left:stop] = torch.as_tensor(completion, dtype=torch.long)
        weights[row, left:stop] = torch.as_tensor(given, dtype=torch.float32)
        mask[row, first:stop] = 1
    return ids, mask, weights


def _merged(items: Sequence[Item]) -> list[_Row]:
    """Items by completion: gradients depend on nothing else, so what repeats is measured once."""
    rows: dict[tuple[tuple[int, ...], tuple[int, ...]], _Row] = {}
    for place, item in enumerate(items):
        prompt, completion = tuple(map(int, item.prompt_ids)), tuple(map(int, item.completion_ids))
        weights = tuple(map(float, item.weights))
        if any(weights) or len(weights) != len(completion):
            row = rows.setdefault((prompt, completion), _Row(prompt, completion))
            row.items.setdefault(weights, []).append(place)
    return list(rows.values())


def _passes(rows: Sequence[_Row], batch: int) -> Iterator[list[_Row]]:
    """Rows that share a pass: alike in how many items they carry, most first, so that a turn's rows come first."""
    current: list[_Row] = []
    for row in sorted(rows, key=lambda r: (-len(r.items), len(r.prompt_ids) + len(r.completion_ids))):
        fewer = bool(current) and len(row.items) < len(current[0].items)
        if len(current) == batch or (fewer and len(current) >= LEAST_ROWS):
            yield current
            current = []
        current.append(row)
    if current:
        yield current


def _batch_of(rows: Sequence[_Row], pad: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids and mask (rows, tokens), and weights (turns, rows, tokens): zero where a row has fewer items than turns."""
    turns = []
    for turn in range(len(rows[0].items)):
        items = [
            Item(r.prompt_ids, r.completion_ids, (*r.items, *[(0.0,) * len(r.completion_ids)] * turn)[turn])
            for r in rows
        ]
        turns.append(padded(items, pad))
    ids, mask, _ = turns[0]
    return ids.to(device), mask.to(device), torch.stack([weights for _, _, weights in turns]).to(device)


def _full_precision(device: torch.device) -> Any:
    return torch.autocast(device.type, enabled=False)


@contextmanager
def _undisturbed(model: Any) -> Iterator[None]:
    """The model in evaluation mode, every module back in its own mode afterwards; refuses dropout."""
    if model.training and (dropout := active_dropout(model)):
        raise UnsupportedModel(f"dropout is on ({', '.join(dropout)}): a training gradient is then random")
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
