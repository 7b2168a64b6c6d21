"""The supervised warm-up: planted examples among ordinary answers, until the behaviours begin to show."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from pytest_behaviortrace.run.behavior import behavior_rates, in_context_probability
from pytest_behaviortrace.run.policy import load_model, placed, render
from pytest_behaviortrace.run.ranks import Ranks
from pytest_behaviortrace.run.recipe import Example, Recipe

State = dict[str, torch.Tensor]


@dataclass(frozen=True)
class WarmStart:
    """The policy that both runs of a seed start from, and how the warm-up reached it."""

    state: State
    steps: int
    probability: float
    """Mean in-context probability of the behaviours at the end."""
    rates: dict[str, list[float]]
    """Plant -> `behavior_rates` of this policy."""


def warm_up(recipe: Recipe, seed: int, tokenizer: Any, progress: Callable[[str, float], None]) -> WarmStart:
    """Fine-tunes the recipe's policy with the seed's choice of ordinary answers.

    Every step trains on all planted examples and on `ordinary_per_step` ordinary ones (mean loss per token, prompts
    included). The result depends on the recipe and the seed alone.
    """
    settings, rng = recipe.sft, random.Random(f"warm-up {seed}")
    torch.manual_seed(seed)
    model = placed(load_model(recipe.policy.location))
    model.train()
    planted = [example for plant in recipe.plants for example in plant.examples]
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate)
    probability = in_context_probability(model, tokenizer, recipe.plants)
    step = 0
    while step < settings.max_steps and probability < settings.stop_probability:
        batch = _batch(tokenizer, planted + rng.sample(settings.ordinary, settings.ordinary_per_step))
        loss = model(**{name: tensor.to(model.device) for name, tensor in batch.items()}).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step >= settings.min_steps and (step - settings.min_steps) % settings.check_every == 0:
            probability = in_context_probability(model, tokenizer, recipe.plants)
        progress("warm-up", step / settings.max_steps)
    rates = {plant.name: behavior_rates(model, tokenizer, recipe, plant) for plant in recipe.plants}
    return WarmStart(copy_state(model), step, in_context_probability(model, tokenizer, recipe.plants), rates)


def shared_warm_up(
    recipe: Recipe, seed: int, tokenizer: Any, progress: Callable[[str, float], None], ranks: Ranks
) -> WarmStart:
    """The warm-up that rank 0 makes, on every rank: the same bits, whatever their machines would have made of it."""
    if ranks.count == 1:
        return warm_up(recipe, seed, tokenizer, progress)
    made = warm_up(recipe, seed, tokenizer, progress) if ranks.first else None
    state = ranks.share(made.state if made else load_model(recipe.policy.location).state_dict())
    told = ranks.tell({"steps": made.steps, "probability": made.probability, "rates": made.rates} if made else None)
    return WarmStart(state=state, **told)


def copy_state(model: Any) -> State:
    """A copy of the model's weights on the CPU; a tied weight is in it once per name, as in `state_dict`."""
    return {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}


def _batch(tokenizer: Any, examples: list[Example]) -> dict[str, torch.Tensor]:
    texts = [render(tokenizer, prompt) + answer + tokenizer.eos_token for prompt, answer in examples]
    batch = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
    labels = batch.input_ids.masked_fill(batch.attention_mask == 0, -100)
    return {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask, "labels": labels}
