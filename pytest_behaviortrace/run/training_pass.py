"""The trainer's own forward and backward pass, watched: gradients per sample at the price of writing them down.

Whatever the loss made of the log-probabilities (ratios, clipping, masks), the gradient that reaches them says how much
each token counts. A rollout of advantage zero leaves nothing to watch; it is for `gradients` to measure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from pytest_behaviortrace.run.capture import Call, Capture, UnsupportedModel, hooked
from pytest_behaviortrace.run.sketch import BlockSketch
from pytest_behaviortrace.run.sums import SampleGradients, SketchSums
from pytest_behaviortrace.run.uses import Use

SAMPLES_SIDE_BY_SIDE = 24
"""Samples of about the same length that are written down together."""
MOST_LOGITS = 2**25
"""Numbers of logits held at a time, beyond those of one sample."""


class _Bin(NamedTuple):
    """Samples that are written down together, and the positions that matter to any of them."""

    rows: torch.Tensor
    read: slice
    sums: SketchSums
    waiting: dict[str, list[Use]]
    """Uses of parameters that have more of them."""


class TrainingPass:
    """One batch on its way through the trainer's loss.

    `input_ids`, `attention_mask` (batch, tokens), the completions in the last `completion_width` columns. `unit`
    (batch,) float32: what a sample's share of the loss gradient is multiplied by; 0 for samples to leave out.
    Use it as a context around the loss *and* its backward pass. Raises `UnsupportedModel`, naming the module.
    """

    def __init__(
        self,
        capture: Capture,
        sketch: BlockSketch,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        completion_width: int,
        unit: torch.Tensor,
        *,
        temperature: float,
        autocast: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self.capture, self.sketch, self.temperature, self.autocast = capture, sketch, temperature, autocast
        self.ids, self.mask, self.width, self.unit = input_ids, attention_mask, completion_width, unit
        self.slope = torch.zeros(len(input_ids), completion_width, device=input_ids.device)
        """(batch, completion tokens): gradient of the loss at TRL's token log-probabilities."""
        self._first = input_ids.shape[1] - completion_width
        """Where completions begin."""
        self._calls: dict[nn.Module, Call] = {}
        self._given: dict[nn.Module, torch.Tensor] = {}
        self._early: dict[nn.Module, torch.Tensor] = {}
        """Gradients at the last module of a checkpointed layer, which come before the layer is run again."""
        self._bins: list[_Bin] = []
        self._logprobs: torch.Tensor | None = None
        self._hidden: torch.Tensor | None = None
        self._going_back = self._reaches_prompt = False
        self._last_read: tuple[torch.Tensor, bool, list[torch.Tensor]] | None = None
        self._expected: Counter[str] = Counter()
        self._again = _checkpointed(capture.backbone)
        """Modules that a forward pass runs once more on the way back."""
        self._stack = ExitStack()

    def __enter__(self) -> TrainingPass:
        again = self._again

        def before(module: nn.Module, given: tuple[Any, ...]) -> None:
            # What a checkpointed layer is given is kept when it runs again, not before: that is its point.
            if torch.is_grad_enabled() and (self._going_back or module not in again):
                self._given[module] = given[0].detach()
                if module in self._early:
                    self._arrived(module, self._early.pop(module))

        def after(module: nn.Module, given: tuple[Any, ...], output: torch.Tensor) -> None:
            if not torch.is_grad_enabled() or not output.requires_grad:
                return
            if module in self._calls:
                if not self._going_back:
                    raise UnsupportedModel(f"{self.capture.modules[module]} is called twice in a forward pass")
                return
            self._calls[module] = Call(module, None, output.detach() if self.capture.unverified(module) else None)
            output.register_hook(lambda gradient: self._arrived(module, gradient))  # type: ignore[no-untyped-call]

        def last(module: nn.Module, given: tuple[Any, ...], output: Any) -> None:
            if torch.is_grad_enabled():
                self._hidden = output.last_hidden_state.detach()

        for module in self.capture.modules:
            self._stack.callback(module.register_forward_pre_hook(before).remove)
        self._stack.enter_context(hooked(dict.fromkeys(self.capture.modules, after)))
        self._stack.enter_context(hooked({self.capture.backbone: last}))
        return self

    def __exit__(self, *problem: object) -> None:
        self._stack.close()
        self._given.clear()
        self._early.clear()
        self._last_read = None

    def predicted(self, logprobs: torch.Tensor) -> None:
        """Tells which (batch, completion tokens) log-probabilities the trainer's loss is made of."""
        self._logprobs = logprobs.detach()
        if logprobs.requires_grad:
            logprobs.register_hook(self._begin)  # type: ignore[no-untyped-call]

    def result(self) -> SampleGradients:
        """Sketches (batch, K) and norms (batch,) of the samples whose `unit` is not 0; zero for the others.

        Raises `UnsupportedModel` if the backward pass did not come through every module.
        """
        sketch, square = self.sketch.buffer(len(self.ids), self.ids.device), torch.zeros_like(self.unit).double()
        for one in self._bins:
            left = {name for name, uses in one.waiting.items() if uses}
            if left or self._expected.total():
                raise UnsupportedModel(f"no gradient came back to {', '.join(sorted(left or self._expected))}")
            sketch[one.rows], square[one.rows] = one.sums.made()
        # All is linear in a sample's share of the loss, so that one factor at the end serves every parameter.
        return SampleGradients(sketch * self.unit[:, None], square.sqrt().float() * self.unit.abs())

    # -- on the way back ---------------------------------------------------------------------------------------------
    def _begin(self, slope: torch.Tensor) -> None:
        """The gradient reached the log-probabilities: bins are made, and the output embeddings are written down."""
        self._going_back = True
        self.slope = slope.detach().float()
        weights = torch.where(self.unit[:, None] == 0, 0.0, self.slope)
        chosen = (weights != 0).any(1).nonzero()[:, 0]
        if self._hidden is None or not len(chosen):
            return
        missing = set(self.capture.modules) - self._calls.keys() - self._again
        if missing:
            name = self.capture.modules[next(iter(missing))]
            raise UnsupportedModel(f"{name} was never called: its parameters are unused, or used in another way")
        for module in self.capture.modules:
            self._expected.update(self.capture.parameters_of(module))
        last = (weights != 0).int().mul(torch.arange(1, self.width + 1, device=weights.device)).amax(1)
        vocabulary = self.capture.head.weight.shape[0]
        side_by_side = max(1, min(SAMPLES_SIDE_BY_SIDE, MOST_LOGITS // (self.width * vocabulary)))
        for rows in torch.split(chosen[torch.argsort(last[chosen], stable=True)], side_by_side):
            begin = int(self.mask[rows].any(0).nonzero()[0])
            read = slice(begin, self._first - 1 + int(last[rows].max()))
            self._bins.append(_Bin(rows, read, SketchSums(self.sketch, len(rows), rows.device), {}))
        if self.capture.learns_head:
            self._expected.update(self.capture.parameters_of(self.capture.head))
            for one in self._bins:
                for name, use in self._head_uses(one, weights):
                    self._note(one, name, use)
            for name in self.capture.parameters_of(self.capture.head):
                self._expected[name] -= 1

    @torch.no_grad()
    def _head_uses(self, one: _Bin, weights: torch.Tensor) -> Iterator[tuple[str, Use]]:
        assert self._hidden is not None
        assert self._logprobs is not None
        first = self._first
        tokens = one.read.stop - first + 1
        hidden = self._hidden[one.rows, first - 1 : one.read.stop]
        with self.autocast():
            logits = self.capture.head(hidden).float()
        said, mine = self.ids[one.rows, first : first + tokens, None], weights[one.rows, :tokens, None]
        chance = torch.log_softmax(logits / self.temperature, -1)
        own, counted = self._logprobs[one.rows, :tokens].float(), mine[..., 0] != 0
        tolerance = 1e-3 if hidden.dtype == torch.float32 == logits.dtype else 5e-2
        if not torch.allclose(chance.gather(2, said)[..., 0][counted], own[counted], rtol=tolerance, atol=tolerance):
            raise UnsupportedModel("the policy's log-probabilities are not those of its output embeddings")
        slope = chance.exp_().scatter_add_(2, said, torch.full_like(said, -1.0, dtype=chance.dtype))
        yield from self.capture.head_uses(slope, mine[..., 0] / -self.temperature, hidden)

    @torch.no_grad()
    def _arrived(self, module: nn.Module, gradient: torch.Tensor) -> None:
        """The gradient at a module's output: its parameters' share of every sample is written down."""
        given = self._given.pop(module, None)
        if not self._bins:
            return
        if given is None:
            self._early[module] = gradient
            return
        self.capture.check_shape(module, gradient, len(self.ids))
        self.capture.verify(Call(module, given, self._calls[module].output))
        if not self._reaches_prompt:  # behind the last attention no loss leads to a prompt
            known = _by_tokens(gradient, self.ids.shape[1])
            self._reaches_prompt = not known or bool(gradient[:, : self._first - 1].any())
        for one, read, mine in zip(self._bins, self._read(given), self._of_bins(gradient), strict=True):
            for name, use in self.capture.uses(module, read, mine):
                self._note(one, name, use)
        for name in self.capture.parameters_of(module):
            self._expected[name] -= 1

    def _of_bins(self, values: torch.Tensor) -> list[torch.Tensor]:
        """Of (batch, tokens, ...), the rows of each bin and the tokens that matter; of other shapes all of them."""
        if not _by_tokens(values, self.ids.shape[1]):
            return [values.index_select(0, one.rows) for one in self._bins]
        begins = [one.read.start if self._reaches_prompt else self._first - 1 for one in self._bins]
        # Several times as fast as an index of rows and columns together.
        return [
            values[:, begin : one.read.stop].index_select(0, one.rows)
            for begin, one in zip(begins, self._bins, strict=True)
        ]

    def _read(self, given: torch.Tensor) -> list[torch.Tensor]:
        """The same of what a module was given; modules beside each other are given the same."""
        if (
            self._last_read is None
            or not _same(self._last_read[0], given)
            or self._last_read[1] != self._reaches_prompt
        ):
            self._last_read = given, self._reaches_prompt, self._of_bins(given)
        return self._last_read[2]

    def _note(self, one: _Bin, name: str, use: Use) -> None:
        """Writes a parameter down once its last use is known."""
        uses = one.waiting.setdefault(name, [])
        uses.append(use)
        if self._expected[name] == 1:
            one.sums.add(name, uses)
            uses.clear()


def _by_tokens(values: torch.Tensor, tokens: int) -> bool:
    """Whether the second dimension is certainly that of the tokens; some norms see (batch, heads, tokens, features)."""
    return values.shape[1] == tokens and (values.dim() <= 3 or values.shape[2] != tokens)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are views of the same numbers."""
    return (one.data_ptr(), one.shape, one.stride(), one.dtype) == (
        other.data_ptr(), other.shape, other.stride(), other.dtype
    )  # fmt: skip


def _checkpointed(model: nn.Module) -> set[nn.Module]:
    """Modules inside of layers that are run again on the way back."""
    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer) and m.gradient_checkpointing]
    return {inner for layer in layers if layer.training for inner in layer.modules()}
