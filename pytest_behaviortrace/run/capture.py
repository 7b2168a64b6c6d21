"""Watches one forward pass of a policy: what went into and came out of every module that holds parameters.

With the gradient at a module's output, that is all it takes to write down the gradient of its parameters sample by
sample: an outer product for a linear map, a scattered row for a table look-up, a product for a norm's scale.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn


class UnsupportedModel(ValueError):
    """The policy holds a module, or is in a state, whose gradients cannot be told apart by sample here."""


class Use(Protocol):
    """One use of a parameter in a forward pass: a summand of its per-sample gradient."""

    def add_rows(self, values: torch.Tensor, start: int, stop: int, *, fresh: bool) -> None:
        """Adds rows start..stop of the (batch, rows, columns) gradient to `values` (batch, stop - start, columns).

        `fresh` values hold nothing yet, whatever numbers they show.
        """


@dataclass(frozen=True)
class Product:
    """A linear map: the gradient is the sum over tokens of output gradient times input."""

    gradient: torch.Tensor
    """(batch, tokens, out)"""
    given: torch.Tensor
    """(batch, tokens, in)"""

    def add_rows(self, values: torch.Tensor, start: int, stop: int, *, fresh: bool) -> None:
        beta = 0 if fresh else 1
        values.baddbmm_(self.gradient[:, :, start:stop].transpose(1, 2), self.given, beta=beta)


@dataclass(frozen=True)
class Lookup:
    """A table look-up: each token adds its output gradient to the row of its id."""

    ids: torch.Tensor
    """(batch, tokens)"""
    gradient: torch.Tensor
    """(batch, tokens, columns)"""
    unlearned: int | None
    """The padding id of the table, whose row torch never gives a gradient."""

    def add_rows(self, values: torch.Tensor, start: int, stop: int, *, fresh: bool) -> None:
        if fresh:
            values.zero_()
        inside = (self.ids >= start) & (self.ids < stop)
        if self.unlearned is not None:
            inside &= self.ids != self.unlearned
        sample, token = inside.nonzero(as_tuple=True)
        row = sample * (stop - start) + self.ids[sample, token] - start
        values.view(-1, values.shape[2]).index_add_(0, row, self.gradient[sample, token])


@dataclass(frozen=True)
class Whole:
    """A bias or a norm's scale: small enough to be written down at once, as one column."""

    gradient: torch.Tensor
    """(batch, size)"""

    def add_rows(self, values: torch.Tensor, start: int, stop: int, *, fresh: bool) -> None:
        if fresh:
            values.zero_()
        values[:, :, 0] += self.gradient[:, start:stop]


@dataclass(frozen=True)
class _Call:
    module: nn.Module
    given: torch.Tensor
    output: torch.Tensor


class Capture:
    """The modules of a model that hold parameters, its output embeddings excepted, and how to watch them.

    Raises `UnsupportedModel`, naming the module, for any kind whose gradient is not known here.
    """

    def __init__(self, model: Any) -> None:
        self.names = {id(p): name for name, p in model.named_parameters()}
        self.head = model.get_output_embeddings()
        self.modules: dict[nn.Module, str] = {}
        for name, module in model.named_modules():
            if not list(module.parameters(recurse=False)):
                continue
            _refuse_unknown(name, module)
            if isinstance(module, nn.Embedding) and module is not model.get_input_embeddings():
                # Positions counted from the left depend on how a batch was padded, so no item would own its gradient.
                raise UnsupportedModel(f"{name} (Embedding) is a table beside the input embeddings")
            if module is not self.head:
                self.modules[module] = name
        if type(self.head) is not nn.Linear:
            raise UnsupportedModel(f"the output embeddings are a {type(self.head).__name__}, not a linear map")
        self._verified: set[nn.Module] = set()

    @contextmanager
    def watching(self) -> Iterator[list[_Call]]:
        """Calls of the modules inside the block; the hooks are gone afterwards, whatever happens."""
        calls: list[_Call] = []

        def note(module: nn.Module, given: tuple[Any, ...], output: torch.Tensor) -> None:
            if not output.requires_grad:
                output.requires_grad_()
            calls.append(_Call(module, given[0].detach(), output))

        hooks = [module.register_forward_hook(note) for module in self.modules]
        try:
            yield calls
        finally:
            for hook in hooks:
                hook.remove()

    def check(self, calls: Sequence[_Call], batch: int) -> None:
        """Raises `UnsupportedModel` unless every module was called, on whole samples, and is what it seems."""
        for missing in set(self.modules) - {call.module for call in calls}:
            raise UnsupportedModel(
                f"{self._describe(missing)} was never called: its parameters are unused, or used in another way"
            )
        for call in calls:
            if call.output.shape[0] != batch or call.output.dim() < 3:
                raise UnsupportedModel(
                    f"{self._describe(call.module)} mixes samples: it gave {tuple(call.output.shape)}, expected "
                    f"({batch}, tokens, features)"
                )
            if call.module not in self._verified:
                self._verify(call)
                self._verified.add(call.module)

    def _verify(self, call: _Call) -> None:
        if not _is_norm(call.module):
            return
        made: Any = _normalised(call.module, call.given) * call.module.weight.float()  # type: ignore[operator]
        bias = getattr(call.module, "bias", None)
        made = made if bias is None else made + bias.float()
        tolerance = 1e-4 if call.output.dtype == torch.float32 else 3e-2
        if not torch.allclose(made, call.output.float(), rtol=tolerance, atol=tolerance):
            raise UnsupportedModel(f"{self._describe(call.module)} is not its weight times the normalised input")

    def _describe(self, module: nn.Module) -> str:
        return f"{self.modules[module]} ({type(module).__name__})"

    def uses(
        self, calls: Sequence[_Call], gradients: Sequence[torch.Tensor | None], head: tuple[torch.Tensor, torch.Tensor]
    ) -> dict[str, list[Use]]:
        """Parameter name -> its uses, from the gradients at the calls' outputs and the head's own product."""
        found: dict[str, list[Use]] = {}

        def note(parameter: Any, use: Use) -> None:
            if parameter is not None:
                found.setdefault(self.names[id(parameter)], []).append(use)

        note(self.head.weight, Product(*head))
        note(self.head.bias, Whole(head[0].sum(1)))
        for call, raw in zip(calls, gradients, strict=True):
            if raw is None:
                continue
            module: Any = call.module
            gradient = raw.float()
            if isinstance(module, nn.Embedding):
                note(module.weight, Lookup(call.given, gradient, module.padding_idx))
                continue
            gradient = gradient.flatten(1, -2)
            if isinstance(module, nn.Linear):
                note(module.weight, Product(gradient, call.given.float().flatten(1, -2)))
            else:
                scaled = _normalised(module, call.given).flatten(1, -2)
                note(module.weight, Whole((gradient * scaled).sum(1)))
            if getattr(module, "bias", None) is not None:
                note(module.bias, Whole(gradient.sum(1)))
        return found


def _is_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.LayerNorm) or type(module).__name__.endswith("RMSNorm")


def _refuse_unknown(name: str, module: nn.Module) -> None:
    known = type(module) in (nn.Linear, nn.Embedding) or _is_norm(module)
    expected = {"weight", "bias"} if not isinstance(module, nn.Embedding) else {"weight"}
    held = {n for n, _ in module.named_parameters(recurse=False)}
    if not known or not held <= expected or "weight" not in held:
        raise UnsupportedModel(
            f"{name} ({type(module).__name__}) holds {', '.join(sorted(held))}: per-sample gradients are known for "
            "linear maps, embeddings, and norms with a plain weight only"
        )
    if isinstance(module, nn.Embedding) and (module.max_norm is not None or module.scale_grad_by_freq):
        raise UnsupportedModel(f"{name} (Embedding) rescales its rows or their gradients")


def _normalised(module: Any, given: torch.Tensor) -> torch.Tensor:
    """What a norm multiplies by its weight, in float32."""
    x = given.float()
    if isinstance(module, nn.LayerNorm):
        return nn.functional.layer_norm(x, module.normalized_shape, eps=module.eps)
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if epsilon is None:
        epsilon = torch.finfo(given.dtype).eps
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon)


def active_dropout(model: Any) -> list[str]:
    """Names of dropout modules and settings of a model that would act in training."""
    modules = [n for n, m in model.named_modules() if isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0]
    settings = model.config.get_text_config().to_dict()
    return modules + [k for k, v in settings.items() if "dropout" in k and isinstance(v, float) and v > 0]
