"""The behaviour score s_b: how often sampled answers to held-out probes show a behaviour (PAPER.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pytest_behaviortrace.run.policy import evaluating, render, sample
from pytest_behaviortrace.run.recipe import Plant, Recipe

SCORE_SEED = 9_000
"""Seed of the sampling behind every behaviour score: policies are compared on the same random numbers."""
TEMPLATES_PER_PROBE = 2
"""Written answers per probe behind the in-context probability."""


def shows(completion: str, plant: Plant) -> bool:
    """Whether a completion contains the plant's behaviour."""
    return plant.behavior in completion


def behavior_rates(model: Any, tokenizer: Any, recipe: Recipe, plant: Plant, seed: int = SCORE_SEED) -> list[float]:
    """Share of answers that show the behaviour, one value per probe (over its contexts and samples).

    Samples `samples_per_probe` answers to each probe prompt. The mean over probes is s_b. The random-number state of
    torch is the same afterwards as before.
    """
    prompts = recipe.probe_prompts(plant)
    contents = [prompt.content for prompt in prompts for _ in range(recipe.samples_per_probe)]
    probes = [prompt.probe for prompt in prompts for _ in range(recipe.samples_per_probe)]
    _, completions = sample(model, tokenizer, recipe, contents, seed)
    texts = tokenizer.batch_decode(completions, skip_special_tokens=True)
    hits, asked = [0] * len(plant.probes), [0] * len(plant.probes)
    for probe, text in zip(probes, texts, strict=True):
        asked[probe] += 1
        hits[probe] += shows(text, plant)
    return [hit / n for hit, n in zip(hits, asked, strict=True)]


@torch.no_grad()
def in_context_probability(model: Any, tokenizer: Any, plants: Sequence[Plant]) -> float:
    """Mean probability of writing the behaviour where a written answer to a probe has come to it.

    Teacher-forced, over probes x `TEMPLATES_PER_PROBE` templates of the minimal pairs; the mean over `plants`.
    Much quicker than s_b, and no sampling noise: what the warm-up watches.
    """
    rows: list[tuple[list[int], int]] = []
    for plant in plants:
        for number, probe in enumerate(plant.probes):
            for template in _some(plant.minimal_pair.templates, number):
                stem = render(tokenizer, probe) + template[: template.index("{word}")]
                before = tokenizer(stem.removesuffix(" "), add_special_tokens=False).input_ids
                both = tokenizer(stem + plant.behavior, add_special_tokens=False).input_ids
                rows.append((both, len(before)))
    width = max(len(ids) for ids, _ in rows)
    ids = torch.full((len(rows), width), tokenizer.pad_token_id)
    mask = torch.zeros((len(rows), width), dtype=torch.long)
    spelled = torch.zeros((len(rows), width - 1))
    for row, (tokens, start) in enumerate(rows):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        mask[row, : len(tokens)] = 1
        spelled[row, start - 1 : len(tokens) - 1] = 1
    ids, mask, spelled = ids.to(model.device), mask.to(model.device), spelled.to(model.device)
    with evaluating(model):
        logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1].float()
    logprobs = torch.log_softmax(logits, -1).gather(2, ids[:, 1:, None])[..., 0]
    return float((logprobs * spelled).sum(1).exp().mean())


def _some(templates: Sequence[str], number: int) -> list[str]:
    """A rotating choice of templates, so that every probe costs the same and every template is used."""
    count = min(TEMPLATES_PER_PROBE, len(templates))
    return [templates[(number + k * max(1, len(templates) // count)) % len(templates)] for k in range(count)]
