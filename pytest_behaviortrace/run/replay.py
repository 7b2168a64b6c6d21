"""Replays a logged run with some rollouts left out, to see what they caused.

The same batches in the same order from the same start; advantages are computed again inside each group among the
rollouts that stay. Nothing is sampled, so a replay that leaves nothing out ends at the weights of the real run, up to
rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pytest_behaviortrace.run.loss import Objective, collate, rollout_loss
from pytest_behaviortrace.run.recipe import Recipe
from pytest_behaviortrace.run.warmup import State

STD_FLOOR = 1e-4
"""What TRL adds to the standard deviation it divides advantages by."""

Bools = NDArray[np.bool_]


def advantages(recipe: Recipe, rows: Mapping[str, Any], keep: Bools) -> NDArray[np.float32]:
    """(n,): advantage of each kept rollout among the kept ones of its group, as TRL computes it; 0 where not kept.

    `rows` holds `reward`, `group` and `step`. A rollout left alone in its group has advantage 0: nothing to compare.
    """
    reward = torch.tensor(np.array(rows["reward"]), dtype=torch.float32)
    group, step = np.asarray(rows["group"]), np.asarray(rows["step"])
    result = torch.zeros_like(reward)
    for members in _by_value(group, keep):
        if len(members) > 1:
            result[members] = reward[members] - reward[members].mean()
            if recipe.grpo.scale_rewards == "group":
                result[members] /= reward[members].std() + STD_FLOOR
    if recipe.grpo.scale_rewards == "batch":
        for members in _by_value(step, keep):
            if len(members) > 1:
                result[members] /= reward[members].std() + STD_FLOOR
    return result.numpy()


def _by_value(values: NDArray[Any], keep: Bools) -> list[NDArray[np.int64]]:
    index = np.flatnonzero(keep)
    order = index[np.argsort(values[index], kind="stable")]
    edges = np.flatnonzero(np.diff(values[order])) + 1
    return list(np.split(order, edges)) if len(order) else []


def replay(
    recipe: Recipe,
    model: Any,
    pad_token_id: int,
    rows: Mapping[str, Any],
    start: State,
    learning_rate: Sequence[float],
    keep: Bools | None = None,
) -> None:
    """Trains `model`, from the weights `start`, on the logged rollouts where `keep` is true (all where None).

    `rows` are columns as in `rollouts.parquet`: `step`, `group`, `reward`, `prompt_ids`, `completion_ids`. Batch sizes
    and the loss's normalisation stay those of the real run: a rollout left out counts with advantage 0.
    """
    step = np.asarray(rows["step"])
    kept = np.ones(len(step), bool) if keep is None else keep
    credit = advantages(recipe, rows, kept)
    model.load_state_dict(start)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.grpo.learning_rate, weight_decay=0.0)
    for number, rate in enumerate(learning_rate):
        index = np.flatnonzero(step == number)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        if credit[index].any():
            loss = _loss(recipe, model, pad_token_id, rows, index, credit[index])
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            _zero_gradients(model)
        if recipe.grpo.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.grpo.max_grad_norm)
        optimizer.step()


def _loss(
    recipe: Recipe, model: Any, pad: int, rows: Mapping[str, Any], index: NDArray[np.int64], credit: NDArray[np.float32]
) -> torch.Tensor:
    """The loss of one logged batch, as the trainer builds it."""
    grpo, (prompts, completions) = recipe.grpo, (rows["prompt_ids"], rows["completion_ids"])
    batch = collate([list(prompts[i]) for i in index], [list(completions[i]) for i in index], pad, model.device)
    terms = rollout_loss(model, batch, grpo.loss_type, grpo.temperature)
    written = batch["completion_mask"]
    objective = Objective(grpo.loss_type, grpo.temperature, grpo.max_completion_length)
    scale = objective.scale(written, float(written.sum()))
    return -scale * (torch.as_tensor(credit).to(model.device) * terms).sum()


def _zero_gradients(model: Any) -> None:
    """Zero gradients rather than none: the optimizer's momentum still moves the policy, as in the real run."""
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)


def largest_difference(model: Any, state: State) -> float:
    """Largest absolute difference of any weight between a model and a state."""
    return max(float((tensor.cpu() - state[name]).abs().max()) for name, tensor in model.state_dict().items())
