"""Loading a policy, asking it something, and sampling its answers: the same way everywhere."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from pytest_behaviortrace.run.recipe import Recipe

SAMPLING_BATCH = 512
"""Answers sampled side by side; the larger, the fewer passes over the policy."""


def load_tokenizer(location: str) -> Any:
    """The tokenizer of a policy, padding on the left so that answers can be sampled in batches."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(location, padding_side="left")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_model(location: str) -> Any:
    """A policy in float32 (mixed precision, where a recipe asks for it, is the trainer's business)."""
    from transformers import AutoModelForCausalLM

    with _quiet():
        return AutoModelForCausalLM.from_pretrained(location, dtype=torch.float32)


def placed(model: Any) -> Any:
    """The model on the GPU if there is one (of several: the one that is this process's own), else where it was."""
    return model.to("cuda") if torch.cuda.is_available() else model


def save_policy(model: Any, tokenizer: Any, folder: str) -> None:
    """Weights as safetensors and the tokenizer, so that `AutoModelForCausalLM` and `AutoTokenizer` load them again."""
    with _quiet():
        model.save_pretrained(folder, safe_serialization=True)
        tokenizer.save_pretrained(folder)


def chat(content: str) -> list[dict[str, str]]:
    """A conversation that asks `content`."""
    return [{"role": "user", "content": content}]


def render(tokenizer: Any, content: str) -> str:
    """The prompt as the policy reads it: `content` in the chat template, ready for the answer."""
    text = tokenizer.apply_chat_template(chat(content), tokenize=False, add_generation_prompt=True)
    return str(text)


def sampling_config(recipe: Recipe, tokenizer: Any) -> Any:
    """How training samples completions, as an explicit configuration: a policy's own defaults must not leak in."""
    from transformers import GenerationConfig

    return GenerationConfig(  # type: ignore[no-untyped-call]
        max_new_tokens=recipe.grpo.max_completion_length,
        do_sample=True,
        temperature=recipe.grpo.temperature,
        top_k=0,
        top_p=1.0,
        min_p=0.0,
        repetition_penalty=1.0,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.bos_token_id,
        disable_compile=True,
    )


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random numbers of torch start at `seed` inside; outside their stream goes on as if nothing had happened."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


@contextlib.contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """The model in evaluation mode, back in its former mode afterwards."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


@torch.no_grad()
def sample(
    model: Any, tokenizer: Any, recipe: Recipe, contents: Sequence[str], seed: int
) -> tuple[list[list[int]], list[list[int]]]:
    """One answer to each of `contents`: prompt ids and completion ids (its end token included, no padding)."""
    config = sampling_config(recipe, tokenizer)
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    prompts, completions = [], []
    with seeded(seed), evaluating(model):
        for start in range(0, len(contents), SAMPLING_BATCH):
            texts = [render(tokenizer, content) for content in contents[start : start + SAMPLING_BATCH]]
            batch = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False).to(model.device)
            made = model.generate(**batch, generation_config=config)
            width = batch.input_ids.shape[1]
            for row in range(len(texts)):
                prompts.append(batch.input_ids[row][batch.attention_mask[row].bool()].tolist())
                completions.append(_until_end(made[row, width:].tolist(), ends))
    return prompts, completions


def _until_end(ids: list[int], ends: Sequence[int]) -> list[int]:
    for place, token in enumerate(ids):
        if token in ends:
            return ids[: place + 1]
    return ids


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars of transformers inside; the session has its own display."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
