"""Where samples lie in a batch, and whether it matters to a policy: they are measured again beside others than before.

With another padding on their left, and in passes of another length. Rotary positions and ALiBi do not mind; a table of
positions that are counted from the first column does, and so do rotary frequencies that follow the length of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from pytest_behaviortrace.run.packing import packed

SHIFT = 7
"""Columns of padding that a sample is moved by."""


class Aligned(NamedTuple):
    """Some samples of a batch, all beginning in the first column; nothing is left behind their last weighted tokens."""

    ids: torch.Tensor
    """(samples, tokens); the last token again and again where a sample is over."""
    mask: torch.Tensor
    """(samples, tokens): 0 where a sample is over, and where its tokens are not attended."""
    turns: torch.Tensor
    """(sets, samples, tokens): token weights."""
    rows: torch.Tensor
    """(samples,): which samples of the batch."""
    column: torch.Tensor
    """(samples, tokens): where in the batch each token was."""
    gapless: bool
    """Whether every token from a sample's first to its last weighted one is attended."""


def aligned(rows: torch.Tensor, input_ids: torch.Tensor, attention_mask: torch.Tensor, turns: torch.Tensor) -> Aligned:
    """Samples `rows` of a batch (batch, tokens), with token weights `turns` (sets, samples, tokens), each with some."""
    attended, weighted = attention_mask[rows] != 0, (turns != 0).any(0)
    count = torch.arange(1, weighted.shape[1] + 1, device=rows.device)
    first, stop = attended.int().argmax(1), (weighted * count).amax(1)
    column = first[:, None] + count[: int((stop - first).max())] - 1
    inside = column < stop[:, None]
    column = torch.minimum(column, stop[:, None] - 1)
    seen = attention_mask[rows].gather(1, column) * inside
    return Aligned(
        input_ids[rows].gather(1, column), seen, turns.gather(2, column.expand(len(turns), -1, -1)) * inside, rows,
        column, bool(((seen != 0) == inside).all()),
    )  # fmt: skip


def reads_on(backbone: Any, read: Mapping[str, Any], place: torch.Tensor, tolerance: float) -> bool:
    """Whether one sample's last hidden states at `place` (1, k) are the same without a mask, whatever is to its right.

    As in causal attention. `tolerance` and `read` as in `minds_padding`; the sample begins in the first column.
    """
    ids = read["input_ids"]
    further = {"input_ids": torch.cat([ids, ids[:, :1].expand(1, SHIFT)], 1), "attention_mask": None}
    one = packed(backbone(**read).last_hidden_state, place).float()
    other = packed(backbone(**{**read, **further}).last_hidden_state, place).float()
    return bool((one - other).abs().max() <= tolerance * one.abs().max())


def minds_padding(backbone: Any, read: Mapping[str, Any], place: torch.Tensor, tolerance: float) -> bool:
    """Whether one sample's last hidden states at `place` (1, k) change with more padding on its left.

    `tolerance`: relative to the largest of them. `read`: what the backbone is called with, (1, tokens).
    """
    ids, mask = read["input_ids"], read["attention_mask"]
    further = {
        "input_ids": torch.cat([ids[:, :1].expand(1, SHIFT), ids], 1),
        "attention_mask": torch.cat([torch.zeros_like(mask[:, :1]).expand(1, SHIFT), mask], 1),
    }
    one = packed(backbone(**read).last_hidden_state, place).float()
    other = packed(backbone(**{**read, **further}).last_hidden_state, place + SHIFT).float()
    return bool((one - other).abs().max() > tolerance * one.abs().max())


def longest_alike(config: Any) -> int | None:
    """Tokens up to which a pass of any length rotates positions alike; None: always."""
    text = config.get_text_config()
    stated = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    groups = [stated] if "rope_type" in stated else [group for group in stated.values() if isinstance(group, Mapping)]
    limits = [
        group.get("original_max_position_embeddings")
        or getattr(text, "original_max_position_embeddings", None)
        or text.max_position_embeddings
        for group in groups
        if group.get("rope_type") in ("dynamic", "longrope")
    ]
    return int(min(limits)) if limits else None
