"""Whether it matters to a policy where a sample lies in a batch: rows are measured again beside other rows than before.

With another padding on their left, and in passes of another length. Rotary positions and ALiBi do not mind; a table of
positions that are counted from the first column does, and so do rotary frequencies that follow the length of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from pytest_behaviortrace.run.packing import packed

SHIFT = 7
"""Columns of padding that a sample is moved by."""


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
