"""What every method of the engine's benchmark is measured on: a policy, rollouts it sampled, targets, exact scores.

The loss is the same for all: the mean log-probability of a rollout's completion, advantage 1. All rollouts are equally
long, so nobody pads, and methods that take no attention mask compute the same thing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForCausalLM, Qwen2Config

from pytest_behaviortrace.run.policy import load_model
from pytest_behaviortrace.run.recipe import Recipe, fixtures_folder

ROLLOUTS, TOKENS, PROMPT, TARGETS = 32, 60, 20, 4
"""Rollouts, tokens of each, those of them in the prompt, and rollouts whose gradients are the targets."""


class Scores(NamedTuple):
    """What a method says of the rollouts."""

    dots: torch.Tensor
    """(n,): inner product of each rollout's gradient with the mean target."""
    squares: torch.Tensor | None
    """(n,): squared norms of the gradients, where the method gives them along the way."""


@dataclass(frozen=True)
class Setting:
    """A policy with rollouts and targets. Token tensors are (n, tokens)."""

    model: Any
    ids: torch.Tensor
    mask: torch.Tensor
    weights: torch.Tensor
    """float32: 1 / completion length at every token of the completion, else 0."""
    queries: torch.Tensor
    """(targets, tokens): the rollouts whose gradients are the targets."""
    targets: list[dict[str, torch.Tensor]]
    """Parameter name -> gradient, of each query's own loss."""
    width: int
    """Buckets of the sketch."""

    @property
    def device(self) -> torch.device:
        """Where it all lies."""
        return self.ids.device

    @property
    def mean_target(self) -> dict[str, torch.Tensor]:
        """Parameter name -> mean of the targets."""
        return {name: torch.stack([t[name] for t in self.targets]).mean(0) for name in self.targets[0]}

    def frozen_copy(self) -> Any:
        """A copy of the model, for methods that leave something on it, without weight gradients that nobody asks for.

        One table stays trainable, so that a backward pass still reaches every layer.
        """
        model = copy.deepcopy(self.model).requires_grad_(False)
        model.get_input_embeddings().weight.requires_grad_(True)
        return model


def loss(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """() summed loss of rollouts (n, tokens); the last token is never read, logits are made where they are needed."""
    kept = TOKENS - PROMPT
    logits = model(input_ids=ids[:, :-1], use_cache=False, logits_to_keep=kept).logits
    said = F.cross_entropy(logits.flatten(0, 1), ids[:, PROMPT:].flatten(), reduction="sum")
    return -said / kept


def loss_with_all_logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """The same loss as most libraries compute it: logits of every token, then those of the prompt left out."""
    logits = model(input_ids=ids, use_cache=False).logits[:, PROMPT - 1 : -1]
    said = F.cross_entropy(logits.flatten(0, 1), ids[:, PROMPT:].flatten(), reduction="sum")
    return -said / (TOKENS - PROMPT)


def one_by_one(model: Any, ids: torch.Tensor) -> Iterator[dict[str, torch.Tensor]]:
    """Parameter name -> gradient, rollout after rollout, one backward pass each; overwritten by the next."""
    for row in ids:
        model.zero_grad(set_to_none=True)
        torch.autograd.backward(loss(model, row[None]))
        yield {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad(set_to_none=True)


def policy(kind: str, dtype: torch.dtype, device: str) -> tuple[Any, int]:
    """The policy of that name and the width of its sketch."""
    if kind == "tiny":
        return load_model(str(fixtures_folder() / "policy")), Recipe.load("tiny").sketch_width
    torch.manual_seed(0)
    if kind == "12m":
        config: Any = Qwen2Config(
            vocab_size=4096, hidden_size=384, intermediate_size=1152, num_hidden_layers=6, num_attention_heads=6,
            num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=True,
        )  # fmt: skip
        width = Recipe.load("tiny").sketch_width
    else:
        config = AutoConfig.for_model(
            "qwen2", vocab_size=151_936, hidden_size=1536, intermediate_size=8960, num_hidden_layers=28,
            num_attention_heads=12, num_key_value_heads=2, max_position_embeddings=4096, tie_word_embeddings=True,
        )  # fmt: skip
        width = Recipe.load("qwen2.5-1.5b").sketch_width
    build: Any = AutoModelForCausalLM.from_config
    with torch.device(device):
        return build(config, dtype=dtype), width


def make(kind: str, width: int | None = None, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Setting:
    """Random prompts, completions the policy samples, and the gradients of some more rollouts as targets."""
    model, recipe_width = policy(kind, dtype, device)
    model.to(device).eval()
    torch.manual_seed(1)
    prompts = torch.randint(5, model.config.vocab_size, (ROLLOUTS + TARGETS, PROMPT), device=device)
    length = TOKENS - PROMPT
    rollouts = model.generate(
        prompts, attention_mask=torch.ones_like(prompts), do_sample=True, max_new_tokens=length, min_new_tokens=length,
        pad_token_id=0, suppress_tokens=[0], top_k=0,
    )  # fmt: skip
    rollouts = rollouts.clone()  # out of inference mode
    ids, queries = rollouts[:ROLLOUTS], rollouts[ROLLOUTS:]
    weights = torch.zeros(ids.shape, device=device)
    weights[:, PROMPT:] = 1 / length
    targets = [{name: g.clone() for name, g in given.items()} for given in one_by_one(model, queries)]
    return Setting(model, ids, torch.ones_like(ids), weights, queries, targets, width or recipe_width)


def reference(setting: Setting, dtype: torch.dtype = torch.float64) -> Scores:
    """Scores and squared norms by autograd in that precision, one rollout at a time."""
    model = copy.deepcopy(setting.model).to(dtype)
    target, dots, squares = setting.mean_target, [], []
    for gradient in one_by_one(model, setting.ids):
        dots.append(sum(float((g.double() * target[name].double()).sum()) for name, g in gradient.items()))
        squares.append(sum(float(g.double().square().sum()) for g in gradient.values()))
    return Scores(torch.tensor(dots, dtype=torch.float64), torch.tensor(squares, dtype=torch.float64))


Method = Callable[[], Scores | None]
"""One timed run over all rollouts; a floor returns nothing."""
