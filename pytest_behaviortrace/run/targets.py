"""Targets written by hand: the gradient of producing a behaviour where no response of the policy shows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_behaviortrace.run.gradients import PerSampleGradients
from pytest_behaviortrace.run.loss import collate, mean_weights
from pytest_behaviortrace.run.policy import render
from pytest_behaviortrace.run.recipe import Plant, Recipe

BATCH = 64
"""Written replies measured side by side."""


def constructed(engine: PerSampleGradients, tokenizer: Any, recipe: Recipe, plant: Plant) -> NDArray[np.float32]:
    """(K,): mean gradient of the behaviour's tokens put at the very start of the reply, over all probe prompts."""
    prompts = [prompt.content for prompt in recipe.probe_prompts(plant)]
    return _mean_gradient(engine, tokenizer, [(prompt, plant.behavior) for prompt in prompts])


def minimal_pair(engine: PerSampleGradients, tokenizer: Any, plant: Plant) -> NDArray[np.float32]:
    """(K,): gradient of a written sentence with the behaviour minus that of the same sentence with a neutral word.

    Teacher-forced, each a mean over the sentence's tokens; the mean over prompts x templates x neutral words
    (PAPER.md, "Targets").
    """
    pair = plant.minimal_pair

    def mean(word: str) -> NDArray[np.float32]:
        written = [(prompt, template.format(word=word)) for prompt in pair.prompts for template in pair.templates]
        return _mean_gradient(engine, tokenizer, written)

    neutral = np.mean([mean(word) for word in pair.neutral_words], axis=0)
    return np.asarray(mean(plant.behavior) - neutral, np.float32)


def _mean_gradient(
    engine: PerSampleGradients, tokenizer: Any, written: Sequence[tuple[str, str]]
) -> NDArray[np.float32]:
    """(K,): mean over (prompt, reply) pairs of the gradient of the reply's mean log-probability."""
    asked = [tokenizer(render(tokenizer, prompt), add_special_tokens=False).input_ids for prompt, _ in written]
    said = [tokenizer(reply, add_special_tokens=False).input_ids for _, reply in written]
    total = np.zeros(engine.sketch.width)
    for start in range(0, len(written), BATCH):
        prompts, replies = asked[start : start + BATCH], said[start : start + BATCH]
        batch = collate(prompts, replies, tokenizer.pad_token_id, engine.model.device)
        offset = [max(len(ids) for ids in prompts)] * len(prompts)
        weights = mean_weights(batch["input_ids"].shape, [range(len(ids)) for ids in replies], offset)
        made = engine(batch["input_ids"], batch["attention_mask"], [weights.to(engine.model.device)])[0]
        total += made.sketch.sum(0).double().cpu().numpy()
    return np.asarray(total / len(written), np.float32)
