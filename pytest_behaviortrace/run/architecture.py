"""What a decoder-only policy of the Qwen2 or Llama kind costs, counted from its configuration: numbers, no tensors.

A multiplication with an addition counts as two FLOPs. Attention is counted in full, although half of it is masked, as
`torch.utils.flop_counter` counts it. Norms, activations and the softmax are left out: they cost bytes, not FLOPs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_behaviortrace.run.recipe import PolicySpec

_KINDS = ("qwen2", "llama", "mistral")


@dataclass(frozen=True)
class Architecture:
    """Sizes of a policy."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool
    """Whether the head is the embedding table."""
    qkv_bias: bool

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> Architecture:
        """From a `config.json`. Raises `ValueError` for a kind of policy whose cost is not known here."""
        kind = config.get("model_type")
        if kind not in _KINDS:
            raise ValueError(f"no budget for a policy of model_type {kind!r}; known: {', '.join(_KINDS)}")
        heads = config["num_attention_heads"]
        return cls(
            hidden=config["hidden_size"],
            intermediate=config["intermediate_size"],
            layers=config["num_hidden_layers"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            vocabulary=config["vocab_size"],
            tied=bool(config.get("tie_word_embeddings", False)),
            qkv_bias=kind == "qwen2",
        )

    @property
    def attended(self) -> int:
        """Width of all queries side by side."""
        return self.heads * self.head_dim

    @property
    def keyed(self) -> int:
        """Width of all keys, or all values, side by side."""
        return self.kv_heads * self.head_dim

    @property
    def table(self) -> int:
        """Numbers in the embedding table, and in the head."""
        return self.vocabulary * self.hidden

    @property
    def linear(self) -> int:
        """Numbers in the weights of all linear maps of the layers."""
        attention = 2 * self.hidden * self.attended + 2 * self.hidden * self.keyed
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def last_mlp(self) -> int:
        """Numbers in the weights of the last layer's MLP."""
        return 3 * self.hidden * self.intermediate

    @property
    def behind_last_keys(self) -> int:
        """Numbers in the last layer's weights that nothing but a token's own prediction depends on."""
        return 2 * self.hidden * self.attended + self.last_mlp

    @property
    def ends(self) -> int:
        """Numbers that go into and come out of all linear maps of the layers, for one token."""
        given = 5 * self.hidden + self.attended + self.intermediate
        made = 2 * self.hidden + self.attended + 2 * self.keyed + 2 * self.intermediate
        return self.layers * (given + made)

    @property
    def parameters(self) -> int:
        """Numbers in all; a tied table counts once."""
        biases = self.layers * (self.attended + 2 * self.keyed) if self.qkv_bias else 0
        norms = (2 * self.layers + 1) * self.hidden
        return self.table * (1 if self.tied else 2) + self.linear + biases + norms

    def body_flops(self, tokens: int, context: int) -> int:
        """Forward pass of `tokens` tokens through the layers, each attending to `context` tokens; without the head."""
        return 2 * self.linear * tokens + self.attention_flops(tokens, context)

    def attention_flops(self, tokens: int, context: int) -> int:
        """The part of `body_flops` in which tokens meet tokens: scores, and the sum of values."""
        return 4 * self.layers * self.attended * tokens * context

    def again_flops(self, tokens: int, context: int) -> int:
        """What of `body_flops` a checkpoint per layer computes again: all but each layer's last map, whose result
        nobody needs.
        """
        return self.body_flops(tokens, context) - 2 * self.layers * self.hidden * self.intermediate * tokens

    def head_flops(self, tokens: int) -> int:
        """Logits of `tokens` tokens."""
        return 2 * self.table * tokens

    def activation_bytes(self, tokens: int, mixed: bool = True) -> int:
        """What one forward pass leaves for a backward pass, without checkpoints.

        Per token and layer: around both norms three copies of the residual stream in float32; queries, keys and values
        before and after rotation, what attention gave and what was made of it, and the MLP's four vectors and its
        result, in bfloat16 where precision is mixed.
        """
        each = 2 if mixed else 4
        norms = 2 * 3 * 4 * self.hidden
        attention = each * (2 * (self.attended + 2 * self.keyed) + self.attended + self.hidden)
        mlp = each * (4 * self.intermediate + self.hidden)
        return tokens * self.layers * (norms + attention + mlp)

    def checkpoint_bytes(self, tokens: int) -> int:
        """What a forward pass with a checkpoint per layer leaves, and the one layer that is computed again."""
        return tokens * self.layers * 4 * self.hidden + self.activation_bytes(tokens) // self.layers


QWEN2_5_1_5B = Architecture(
    hidden=1536, intermediate=8960, layers=28, heads=12, kv_heads=2, head_dim=128, vocabulary=151936, tied=True,
    qkv_bias=True,
)  # fmt: skip
"""Sizes published with Qwen/Qwen2.5-1.5B-Instruct, so that its budget needs no copy of it."""

PUBLISHED = {"Qwen/Qwen2.5-1.5B-Instruct": QWEN2_5_1_5B, "Qwen/Qwen2.5-1.5B": QWEN2_5_1_5B}


def architecture_of(policy: PolicySpec) -> Architecture:
    """The sizes of a recipe's policy: from its folder, or as published. Raises `ValueError` where neither tells."""
    if policy.folder is not None:
        return Architecture.of_config(json.loads((policy.folder / "config.json").read_text(encoding="utf-8")))
    if policy.source not in PUBLISHED:
        raise ValueError(
            f"the sizes of {policy.source!r} are not known here; give the folder of a copy as policy.source"
        )
    return PUBLISHED[policy.source]
