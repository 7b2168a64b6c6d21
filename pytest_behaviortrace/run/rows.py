"""Rows of a recorded run: what is kept of a rollout, and a place in memory to keep it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from pytest_behaviortrace.run.sketch_set import SketchCollector, SketchSet
from pytest_behaviortrace.run.spans import behavior_tokens, decoded

Row = dict[str, Any]
Columns = dict[str, list[Any]]


class RecordingError(RuntimeError):
    """TRL, or the run, did something that the recorder does not understand."""


class Sink(Protocol):
    """Where recorded rollouts go."""

    def add_rows(self, rows: Sequence[Row]) -> None:
        """Takes rollouts whose first loss was computed."""

    def add_sketches(self, kind: str, rows: torch.Tensor, norm: torch.Tensor, row_ids: NDArray[np.int64]) -> None:
        """Takes sketches (m, K) with exact norms (m,) of some of the rollouts that are handed over next."""


class Collected:
    """A sink that keeps the rows, and the sketches in an unnamed file."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._rows: dict[int, Row] = {}
        self._sets: dict[str, SketchCollector] = {}

    def add_rows(self, rows: Sequence[Row]) -> None:
        """Takes rollouts. Raises `RecordingError` for one that came before."""
        for row in rows:
            if row["row_id"] in self._rows:
                raise RecordingError(f"rollout {row['row_id']} was recorded twice; a recorder records one run")
            self._rows[row["row_id"]] = row

    def add_sketches(self, kind: str, rows: torch.Tensor, norm: torch.Tensor, row_ids: NDArray[np.int64]) -> None:
        """Takes sketches (m, K) with exact norms (m,)."""
        self._sets.setdefault(kind, SketchCollector(self.width)).add(rows, norm, row_ids)

    def columns(self) -> Columns:
        """Columns of every row, in the order of row ids."""
        rows = [self._rows[row_id] for row_id in sorted(self._rows)]
        return {name: [row[name] for row in rows] for name in (rows[0] if rows else {})}

    def sketches(self, kind: str) -> SketchSet:
        """All sketches of a kind, in the order of row ids."""
        return self._sets.setdefault(kind, SketchCollector(self.width)).finish()


def generated_rows(
    trainer: Any,
    row_ids: Sequence[int],
    output: Mapping[str, Any],
    rewards: NDArray[np.float64] | None,
    behaviors: Mapping[str, Any],
) -> Iterator[Row]:
    """What is known of each rollout of a generation batch: ids, texts, group, advantage, rewards, behaviour spans."""
    if missing := {"prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages"} - output.keys():
        raise RecordingError(f"TRL's generation batch lacks {', '.join(sorted(missing))}")
    tokenizer = trainer.processing_class
    prompts = unpadded(output["prompt_ids"], output["prompt_mask"])
    completions = unpadded(output["completion_ids"], output["completion_mask"])
    advantages, said = output["advantages"], dict[tuple[int, ...], str]()
    if advantages.dim() != 1:
        raise RecordingError("the trainer gives every token an advantage of its own; a rollout has no single one")
    for place, (row_id, advantage) in enumerate(zip(row_ids, advantages.tolist(), strict=True)):
        completion = completions[place]
        text, asked = decoded(tokenizer, completion), tuple(prompts[place])
        if asked not in said:  # the rollouts of a group share theirs
            said[asked] = tokenizer.decode(prompts[place], clean_up_tokenization_spaces=False)
        row: Row = {
            "row_id": row_id,
            "group": row_id // int(trainer.num_generations),
            "prompt_ids": prompts[place],
            "completion_ids": completion,
            "prompt_text": said[asked],
            "completion_text": text,
            "advantage": advantage,
        }
        if rewards is not None:
            weights = trainer.reward_weights.cpu().numpy().astype(np.float64)
            row["reward"] = float(np.nansum(rewards[place] * weights))
            names = zip(reward_columns(trainer.reward_func_names), rewards[place].tolist(), strict=True)
            row |= dict(names)
        for name, behavior in behaviors.items():
            row[f"span_{name}"] = list(behavior_tokens(tokenizer, completion, text, behavior))
        yield row


def reward_columns(names: Sequence[str]) -> list[str]:
    """A column for each reward function: `reward_{name}`, numbered where several have one name."""
    found: list[str] = []
    for name in names:
        column, number = f"reward_{name}", 1
        while column in found:
            number += 1
            column = f"reward_{name}_{number}"
        found.append(column)
    return found


def unpadded(values: torch.Tensor, mask: torch.Tensor) -> list[list[Any]]:
    """Rows of `values` (batch, tokens) without what `mask` leaves out."""
    # One by one, tensors cost five times as much.
    rows, attended = values.detach().cpu().numpy(), mask.bool().cpu().numpy()
    return [row[kept].tolist() for row, kept in zip(rows, attended, strict=True)]
