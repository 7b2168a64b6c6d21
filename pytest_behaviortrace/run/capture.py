"""Watches a forward pass of a policy: what went into and came out of every module that holds trainable parameters.

With the gradient at a module's output, that is all it takes to write down the gradient of its parameters sample by
sample (`uses`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from pytest_behaviortrace.run.sketch import trainable
from pytest_behaviortrace.run.uses import Lookup, Product, Use, Whole


class UnsupportedModel(ValueError):
    """The policy holds a module, or is in a state, whose gradients cannot be told apart by sample here."""


@dataclass(eq=False)
class Call:
    """One call of a module in a forward pass."""

    module: nn.Module
    given: torch.Tensor | None
    """Input; None where it is not known yet."""
    output: torch.Tensor | None
    """None where it is not needed."""


class Capture:
    """The modules of a model that hold trainable parameters, its output embeddings apart, and how to watch them.

    Raises `UnsupportedModel`, naming the module, for any kind whose gradient is not known here.
    """

    def __init__(self, model: Any) -> None:
        self.names = {id(p): name for name, p in trainable(model).items()}
        plain = without_adapters(model)
        self.backbone: nn.Module = plain.base_model
        self.head: Any = in_use(plain.get_output_embeddings())
        embedding = in_use(plain.get_input_embeddings())
        self.modules: dict[nn.Module, str] = {}
        for name, module in model.named_modules():
            if not any(id(p) in self.names for p in module.parameters(recurse=False)):
                continue
            _refuse_unknown(name, module)
            if isinstance(module, nn.Embedding) and module is not embedding:
                # Positions counted from the left depend on how a batch was padded, so no item would own its gradient.
                raise UnsupportedModel(f"{name} (Embedding) is a table beside the input embeddings")
            if module is not self.head:
                self.modules[module] = name
        if getattr(model.config.get_text_config(), "final_logit_softcapping", None):
            raise UnsupportedModel(f"{type(plain).__name__} caps its logits after the output embeddings")
        if type(self.head) is not nn.Linear:
            raise UnsupportedModel(f"the output embeddings are a {type(self.head).__name__}, not a linear map")
        self._verified: set[nn.Module] = set()
        self._own = {
            module: [self.names[id(p)] for p in module.parameters(recurse=False) if id(p) in self.names]
            for module in (*self.modules, self.head)
        }

    @property
    def learns_head(self) -> bool:
        """Whether the output embeddings have a trainable parameter."""
        return any(id(p) in self.names for p in self.head.parameters())

    @contextmanager
    def watching(self) -> Iterator[list[Call]]:
        """Calls of the modules inside the block; the hooks are gone afterwards, whatever happens."""
        calls: list[Call] = []

        def note(module: nn.Module, given: tuple[Any, ...], output: torch.Tensor) -> None:
            if not output.requires_grad:
                output.requires_grad_()
            calls.append(Call(module, given[0].detach(), output))

        with hooked(dict.fromkeys(self.modules, note)):
            yield calls

    def check(self, calls: Sequence[Call], batch: int) -> None:
        """Raises `UnsupportedModel` unless every module was called, on whole samples, and is what it seems."""
        for missing in set(self.modules) - {call.module for call in calls}:
            raise UnsupportedModel(
                f"{self._describe(missing)} was never called: its parameters are unused, or used in another way"
            )
        for call in calls:
            assert call.output is not None
            self.check_shape(call.module, call.output, batch)
            self.verify(call)

    def check_shape(self, module: nn.Module, output: torch.Tensor, batch: int) -> None:
        """Raises `UnsupportedModel` unless an output, or the gradient at it, is (batch, tokens, features)."""
        if output.shape[0] != batch or output.dim() < 3:
            raise UnsupportedModel(
                f"{self._describe(module)} mixes samples: it gave {tuple(output.shape)}, expected "
                f"({batch}, tokens, features)"
            )

    def unverified(self, module: nn.Module) -> bool:
        """Whether `verify` still wants to see a call of the module, input and output."""
        return _is_norm(module) and module not in self._verified

    def verify(self, call: Call) -> None:
        """Once per module: raises `UnsupportedModel` for a norm that is not its weight times the normalised input."""
        if not self.unverified(call.module):
            return
        assert call.given is not None
        assert call.output is not None
        made: Any = _normalised(call.module, call.given) * call.module.weight.float()  # type: ignore[operator]
        bias = getattr(call.module, "bias", None)
        made = made if bias is None else made + bias.float()
        tolerance = 1e-4 if call.output.dtype == torch.float32 else 3e-2
        if not torch.allclose(made, call.output.float(), rtol=tolerance, atol=tolerance):
            raise UnsupportedModel(f"{self._describe(call.module)} is not its weight times the normalised input")
        self._verified.add(call.module)

    def _describe(self, module: nn.Module) -> str:
        return f"{self.modules[module]} ({type(module).__name__})"

    def parameters_of(self, module: nn.Module) -> list[str]:
        """Names of a module's own trainable parameters."""
        return self._own[module]

    def uses(self, module: Any, given: torch.Tensor, gradient: torch.Tensor) -> Iterator[tuple[str, Use]]:
        """(parameter name, use) of one call, from its input and the gradient (samples, tokens, ...) at its output."""
        gradient = gradient.float()
        if isinstance(module, nn.Embedding):
            if module.padding_idx is not None:  # torch never gives its row a gradient
                gradient = gradient * (given != module.padding_idx)[..., None]
            yield self.names[id(module.weight)], Lookup(given, gradient)
            return
        gradient = gradient.flatten(1, -2)
        bias = getattr(module, "bias", None)
        if bias is not None and id(bias) in self.names:
            yield self.names[id(bias)], Whole(gradient.sum(1))
        if id(module.weight) not in self.names:
            return
        if isinstance(module, nn.Linear):
            yield self.names[id(module.weight)], Product(gradient, given.float().flatten(1, -2))
        else:
            yield self.names[id(module.weight)], Whole(_at_scale(module, given, gradient))

    def head_uses(self, slope: torch.Tensor, counts: torch.Tensor, hidden: torch.Tensor) -> Iterator[tuple[str, Use]]:
        """The same for the output embeddings: gradient at the logits, and what these were made of.

        `slope` (samples, tokens, V) times `counts` (samples, tokens) is the gradient; `hidden` (samples, tokens, d).
        """
        if id(self.head.weight) in self.names:
            yield self.names[id(self.head.weight)], Product(slope, hidden.float() * counts[..., None])
        if self.head.bias is not None and id(self.head.bias) in self.names:
            yield self.names[id(self.head.bias)], Whole((counts[:, None] @ slope)[:, 0])


@contextmanager
def hooked(hooks: dict[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Forward hooks inside the block; gone afterwards, whatever happens."""
    handles = [module.register_forward_hook(hook) for module, hook in hooks.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def without_adapters(model: Any) -> Any:
    """The causal language model inside a PEFT model; any other model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def in_use(module: Any) -> Any:
    """The copy of a module that PEFT trains in its place (`modules_to_save`); any other module itself."""
    copies = getattr(module, "modules_to_save", None)
    return copies[module.active_adapters[0]] if copies else module


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
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + _epsilon(module, given))


def _epsilon(module: Any, given: torch.Tensor) -> float:
    """What an RMSNorm adds to the mean square."""
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    return float(torch.finfo(given.dtype).eps if epsilon is None else epsilon)


def _at_scale(module: Any, given: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """(samples, features): gradient at a norm's weight; `gradient` (samples, places, features) is at its output."""
    if isinstance(module, nn.LayerNorm):
        return (gradient * _normalised(module, given).flatten(1, -2)).sum(1)
    # The sum over places is a product with their factors: one pass over the features less for each that is saved.
    x = given.float().flatten(1, -2)
    factor = torch.rsqrt(torch.linalg.vector_norm(x, dim=-1).square() / x.shape[-1] + _epsilon(module, given))
    return torch.bmm(factor[:, None], gradient * x)[:, 0]


def active_dropout(model: Any) -> list[str]:
    """Names of dropout modules and settings of a model that would act in training."""
    modules = [n for n, m in model.named_modules() if isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0]
    settings = model.config.get_text_config().to_dict()
    return modules + [k for k, v in settings.items() if "dropout" in k and isinstance(v, float) and v > 0]
