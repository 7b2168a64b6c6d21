"""Draws of a recorded run: its own prompts asked again at its last policy, sampled and sketched as in training."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from pytest_behaviortrace.run.gradients import PerSampleGradients
from pytest_behaviortrace.run.policy import evaluating, load_model, load_tokenizer, seeded
from pytest_behaviortrace.run.recorded import (
    ASKED,
    LEAST_SIBLINGS,
    MOST_PROMPTS,
    SIBLINGS,
    TINY,
    RecordedRunError,
    RunQuestion,
    compiled,
)
from pytest_behaviortrace.run.siblings import BATCH, KINDS, MATCHED_PER_GROUP, Answers, columns, measure
from pytest_behaviortrace.run.sketch import BlockSketch
from pytest_behaviortrace.run.spans import decoded, find_spans, occurrences
from pytest_behaviortrace.run.store import Built, Unit, write_table

LAST = 0.25
"""Share of the run's steps that counts as its end: whose prompts showed the behaviour there is asked first."""
ENOUGH_PROMPTS = 24
"""Prompts from the end of the run below which earlier ones are asked as well: with 22, intervals were too wide to
decide anything (issue 2, section 1)."""
MATCHED_SPANS = MOST_PROMPTS * MATCHED_PER_GROUP
"""Fluency-matched spans of a draw, at most about: as in the embedded run."""
MOST_LOGITS = 2**28
"""Numbers of one batch's logits: 1 GiB in single precision."""


def build_draw(
    question: RunQuestion, seed: int, draw: int, run: Unit, folder: Path, progress: Callable[[str, float], None]
) -> Built:
    """Sample siblings of the run's prompts from its last policy, and write them with their gradients."""
    begin, facts, pattern = time.perf_counter(), run.facts, compiled(question.behavior)
    torch.set_num_threads(1)
    tokenizer, model = load_policy(run)
    if sum(p.numel() for p in model.parameters()) > TINY:
        torch.set_num_threads(os.cpu_count() or 1)
    sketch = BlockSketch.for_model(model, facts["sketch"]["width"])
    _require_layout(sketch, facts)
    table: Mapping[str, Any] = run.table("rollouts")
    shown = [bool(occurrences(text, pattern)) for text in table["completion_text"]]
    prompts = chosen_prompts(table["prompt_ids"], np.asarray(table["step"]), shown)
    each = max(LEAST_SIBLINGS, SIBLINGS // len(prompts))
    group = [number for number in range(len(prompts)) for _ in range(each)]
    longest = max(map(len, prompts)) + facts["max_completion_length"]
    batch = max(1, min(BATCH, MOST_LOGITS // (longest * model.config.get_text_config().vocab_size)))
    said = sample(
        model, tokenizer, [prompts[g] for g in group], facts, draw_seed(question, draw), batch * 8,
        lambda done: progress("siblings", 0.3 * done),
    )  # fmt: skip
    answers = Answers(
        [prompts[g] for g in group],
        said,
        [decoded(tokenizer, ids) for ids in said],
        [find_spans(tokenizer, ids, pattern) for ids in said],
        group,
    )
    engine = PerSampleGradients(model, sketch, temperature=facts["temperature"], rows_per_pass=batch)
    measured = measure(
        answers, engine, tokenizer, facts["loss_type"], lambda done: progress("gradients", 0.3 + 0.7 * done), batch,
        matched_per_group=max(MATCHED_PER_GROUP, MATCHED_SPANS // len(prompts)),
    )  # fmt: skip
    now_shown = [bool(occurrences(text, pattern)) for text in answers.texts]
    rows = {
        "item": list(range(len(group))),
        "group": group,
        "probe": group,  # one context each: a prompt is a cluster of its own
        **columns(answers, measured, tokenizer, now_shown),
    }
    write_table(folder, f"siblings_{ASKED}", rows)
    for kind in KINDS:
        name = f"siblings_{ASKED}" if kind == "siblings" else f"sibling_{kind}_{ASKED}"
        measured.sets[kind].finish().write(folder, name)
    # For whoever lists the cache.
    asked = {"behavior": question.behavior, "run": Path(question.path).name}
    found = {"n_siblings": len(group), "prompts": len(prompts), "n_shown": sum(now_shown), **asked}
    return Built(found, {"siblings": time.perf_counter() - begin})


def load_policy(run: Unit) -> tuple[Any, Any]:
    """Tokenizer and model of the end of the run, in single precision, on an accelerator if there is one.

    What the run trained requires gradients, and nothing else. Of a PEFT run: the base model with its adapter.
    Raises `RecordedRunError` where peft or the base model is not at hand.
    """
    location = run.policy("end")
    tokenizer = load_tokenizer(str(location))
    model: Any = _with_adapter(run, location) if run.facts["peft"] else load_model(str(location))
    if (trained := run.facts.get("trained")) is not None:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in trained)
    return tokenizer, model.to("cuda" if torch.cuda.is_available() else "cpu")


def _with_adapter(run: Unit, location: Path) -> Any:
    try:
        from peft import PeftConfig, PeftModel
    except ImportError:
        raise RecordedRunError("the run trained a PEFT adapter; install peft to sample from it") from None
    name = run.facts.get("adapter") or "default"
    folder = str(location if name == "default" else location / name)  # where peft puts an adapter of that name
    config = PeftConfig.from_pretrained(folder)
    # Of the record, which has it absolute: a worker runs in another folder than the trainer did.
    base = run.facts.get("base") or config.base_model_name_or_path
    try:
        # Not AutoPeftModel: it cuts the embeddings down to the tokenizer's size.
        model = AutoModelForCausalLM.from_pretrained(base, revision=config.revision, dtype=torch.float32)
    except (OSError, TypeError, ValueError) as error:
        raise RecordedRunError(
            f"the run trained an adapter of the base model {base!r}, which cannot be loaded here: {error}"
        ) from error
    return PeftModel.from_pretrained(model, folder, adapter_name=name, is_trainable=True)


def _require_layout(sketch: BlockSketch, facts: Mapping[str, Any]) -> None:
    blocks = {name: [part.start, part.stop] for name, part in sketch.blocks.items()}
    if blocks != {name: list(ends) for name, ends in facts["blocks"].items()}:
        raise RecordedRunError(
            "the run's gradients were sketched in another layout of parameter blocks than this version makes of its "
            "policy: they cannot be compared with fresh ones; record the run again"
        )


def chosen_prompts(prompt_ids: Sequence[Any], step: np.ndarray[Any, Any], shown: Sequence[bool]) -> list[list[int]]:
    """At most `MOST_PROMPTS` distinct prompts whose rollouts showed the behaviour, those most often shown last first.

    Prompts of the last steps; fewer than `ENOUGH_PROMPTS` of them are filled up with those that showed it earlier. A
    prompt that never did is not asked: its siblings would hardly differ in the behaviour.
    """
    late = step >= (1.0 - LAST) * (int(step.max()) + 1)
    counts: dict[tuple[int, ...], list[int]] = {}
    for ids, is_late, has in zip(prompt_ids, late, shown, strict=True):
        if has:
            counts.setdefault(tuple(int(i) for i in ids), [0, 0])[0 if is_late else 1] += 1
    ranked = sorted(counts, key=lambda ids: (-counts[ids][0], -counts[ids][1], ids))
    recent = [ids for ids in ranked if counts[ids][0]]
    kept = recent[:MOST_PROMPTS] if len(recent) >= ENOUGH_PROMPTS else ranked[:ENOUGH_PROMPTS]
    return [list(ids) for ids in kept]


def draw_seed(question: RunQuestion, draw: int) -> int:
    """Seed of the sampling of one draw, another one for every run, question and draw."""
    return int(question.hash[:12], 16) + draw


@torch.no_grad()
def sample(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Sequence[int]],
    facts: Mapping[str, Any],
    seed: int,
    batch: int,
    progress: Callable[[float], None] = lambda fraction: None,
) -> list[list[int]]:
    """A completion of each prompt under the run's own sampling settings: its ids, end token included, no padding."""
    from transformers import GenerationConfig

    ends = facts.get("eos_token_ids") or [tokenizer.eos_token_id]
    settings = {
        "max_new_tokens": facts["max_completion_length"],
        "do_sample": True,
        "temperature": facts["temperature"],
        "top_p": 1.0 if facts["top_p"] is None else facts["top_p"],
        "top_k": facts["top_k"] or 0,
        "min_p": facts.get("min_p") or 0.0,
        "repetition_penalty": facts.get("repetition_penalty") or 1.0,
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": ends,
        "bos_token_id": tokenizer.bos_token_id,
    }
    settings |= facts.get("generation_kwargs") or {}
    config = GenerationConfig(**settings, disable_compile=True)  # type: ignore[no-untyped-call]
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    said: list[list[int]] = [[] for _ in prompts]
    with seeded(seed), evaluating(model):
        for start in range(0, len(order), batch):
            index = order[start : start + batch]
            width = max(len(prompts[i]) for i in index)
            ids = torch.full((len(index), width), tokenizer.pad_token_id)
            mask = torch.zeros_like(ids)
            for row, i in enumerate(index):
                ids[row, width - len(prompts[i]) :] = torch.as_tensor(prompts[i])
                mask[row, width - len(prompts[i]) :] = 1
            ids, mask = ids.to(model.device), mask.to(model.device)
            made = model.generate(input_ids=ids, attention_mask=mask, generation_config=config)
            for row, i in zip(made[:, width:].tolist(), index, strict=True):
                end = next((place + 1 for place, token in enumerate(row) if token in ends), len(row))
                said[i] = row[:end]
            progress((start + len(index)) / len(order))
    return said
