"""What estimators with gradients of their own are offered: policies, the trainer's objective, the target's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pytest_behaviortrace.run.loss import collate, mean_weights, rollout_loss, weighted_logprob
from pytest_behaviortrace.run.policy import load_model
from pytest_behaviortrace.run.recipe import Recipe
from pytest_behaviortrace.run.sketch import parameter_blocks
from pytest_behaviortrace.run.store import Unit

TARGET_RESPONSES = 128
"""Responses behind `target_loss`; more cost time on every call and change the mean little."""

Response = tuple[Sequence[int], Sequence[int], Sequence[int]]
"""Prompt ids, completion ids, and token indices of the behaviour in the completion."""


class UnitModelAccess:
    """`problem.ModelAccess` over one seed's unit. With `only_block`, loaded policies train that block alone."""

    def __init__(
        self, unit: Unit, recipe: Recipe, responses: Sequence[Response], *, only_block: str | None = None
    ) -> None:
        self._unit, self._recipe, self._block = unit, recipe, only_block
        # Evenly spread, so that every probe and draw keeps its share.
        spread = np.linspace(0, len(responses) - 1, TARGET_RESPONSES).astype(int)
        kept = np.unique(spread) if len(responses) else spread[:0]
        self._responses = [tuple(_lists(responses[i])) for i in kept]
        self._loss_type, self._temperature = recipe.grpo.loss_type, recipe.grpo.temperature

    @property
    def steps(self) -> dict[int, str]:
        """Steps that have a policy."""
        return {0: "start", self._recipe.analysis_step: "analysis", self._recipe.grpo.steps: "end"}

    def load_policy(self, step: int) -> Any:
        """The policy as it was before the update of `step`: a fresh copy, in float32.

        Raises `ValueError` for a step other than the start (0), the analysis step and the end.
        """
        if step not in self.steps:
            raise ValueError(f"no policy of step {step} was kept; there are {sorted(self.steps)}")
        model = load_model(str(self._unit.policy(self.steps[step])))
        model.eval()
        if self._block is not None:
            blocks = parameter_blocks(model)
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(blocks[name] == self._block)
        return model

    def rollout_loss(self, model: Any, batch: Mapping[str, Any]) -> torch.Tensor:
        """(items,): the objective term of each item, unit advantage. `batch`: `prompt_ids` and `completion_ids`.

        The sign is that of the objective, so gradients point where a rewarded item pushes the policy.
        """
        prompts, completions = (_lists(batch[name]) for name in ("prompt_ids", "completion_ids"))
        ids = collate(prompts, completions, _pad(model), model.device)
        return rollout_loss(model, ids, self._loss_type, self._temperature)

    def target_loss(self, model: Any) -> torch.Tensor:
        """Scalar: mean log-probability of the behaviour's tokens in responses that are not among the items.

        Raises `ValueError` when no response of the draws shows the behaviour.
        """
        if not self._responses:
            raise ValueError("no response shows the behaviour: there is no target to take a loss of")
        prompts, completions, spans = zip(*self._responses, strict=True)
        batch = collate(prompts, completions, _pad(model), model.device)
        offset = [max(len(p) for p in prompts)] * len(prompts)
        weights = mean_weights(batch["input_ids"].shape, spans, offset).to(model.device)
        return weighted_logprob(model, batch, weights, self._temperature).mean()

    def block_dots(self, prompt_ids: Sequence[Any], completion_ids: Sequence[Any]) -> NDArray[np.float64]:
        """(items,): exact inner product of each item's gradient with the target's, at the analysis policy.

        Over the parameters that require grad there: one block, or all.
        """
        model = self.load_policy(self._recipe.analysis_step)
        parameters = [p for p in model.parameters() if p.requires_grad]
        target = torch.autograd.grad(self.target_loss(model), parameters, allow_unused=True)
        dots = []
        for prompt, completion in zip(prompt_ids, completion_ids, strict=True):
            term = self.rollout_loss(model, {"prompt_ids": [prompt], "completion_ids": [completion]}).sum()
            own = torch.autograd.grad(term, parameters, allow_unused=True)
            pairs = [(a, b) for a, b in zip(own, target, strict=True) if a is not None and b is not None]
            dots.append(sum(float((a.double() * b.double()).sum()) for a, b in pairs))
        return np.array(dots)


def _lists(sequences: Sequence[Any]) -> list[list[int]]:
    """Copies as plain lists: arrays out of a problem are read-only, which torch warns about."""
    return [[int(token) for token in sequence] for sequence in sequences]


def _pad(model: Any) -> int:
    return int(model.config.pad_token_id or 0)
