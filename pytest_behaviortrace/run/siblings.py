"""Draws: fresh siblings of the analysis policy, with the gradients of their terms, spans and control spans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_behaviortrace.run.behavior import shows
from pytest_behaviortrace.run.gradients import PerSampleGradients
from pytest_behaviortrace.run.loss import collate, item_weights, mean_weights
from pytest_behaviortrace.run.policy import sample
from pytest_behaviortrace.run.recipe import Plant, Recipe
from pytest_behaviortrace.run.sketch_set import SketchCollector, SketchSet
from pytest_behaviortrace.run.spans import Spans, find_spans

Columns = dict[str, list[Any]]
BATCH = 64
"""Siblings scored side by side."""
KINDS = ("siblings", "spans", "controls", "matched")
"""Sets of gradients: of whole terms, behaviour spans, control spans, fluency-matched spans."""

MATCHED_PER_GROUP = 5
"""Completions of a prompt group whose fluency-matched span is recorded: enough for the check, in a bounded cache."""


@dataclass(frozen=True, eq=False)
class Draw:
    """Siblings of one plant's probes, and gradients with the sibling index each belongs to."""

    rows: Columns
    siblings: SketchSet
    spans: SketchSet
    controls: SketchSet
    matched: SketchSet
    """Of the stretch whose fluency is nearest to the behaviour span's; see `fluency_matched`."""


def draw_seed(seed: int, draw: int, plant: Plant, recipe: Recipe) -> int:
    """Seed of the sampling of one draw: different for every seed, draw and plant."""
    return 1_000_003 * (seed + 1) + 1_009 * (draw + 1) + [p.name for p in recipe.plants].index(plant.name)


def generate_draw(
    recipe: Recipe,
    plant: Plant,
    engine: PerSampleGradients,
    tokenizer: Any,
    seed: int,
    draw: int,
    progress: Callable[[float], None] = lambda fraction: None,
) -> Draw:
    """Siblings of every probe prompt of a plant, sampled as in training, with their gradients at the same policy."""
    prompts = [p for p in recipe.probe_prompts(plant) for _ in range(recipe.draw.siblings)]
    contents = [p.content for p in prompts]
    asked, said = sample(engine.model, tokenizer, recipe, contents, draw_seed(seed, draw, plant, recipe))
    progress(0.2)
    answers = Answers(
        asked,
        said,
        tokenizer.batch_decode(said, skip_special_tokens=True),
        [find_spans(tokenizer, ids, plant.behavior) for ids in said],
        [p.group for p in prompts],
    )
    measured = measure(answers, engine, tokenizer, recipe.grpo.loss_type, lambda done: progress(0.2 + 0.8 * done))
    rows: Columns = {
        "item": list(range(len(prompts))),
        "group": answers.group,
        "probe": [p.probe for p in prompts],
        "context": [p.context for p in prompts],
        **columns(answers, measured, tokenizer, [shows(text, plant) for text in answers.texts]),
    }
    return Draw(rows, *(measured.sets[kind].finish() for kind in KINDS))


@dataclass(frozen=True, eq=False)
class Answers:
    """Siblings as they were sampled, one entry each."""

    asked: list[list[int]]
    """Prompt ids."""
    said: list[list[int]]
    """Completion ids, the end token included."""
    texts: list[str]
    spans: list[Spans]
    group: list[int]


@dataclass(frozen=True, eq=False)
class Measured:
    """What the policy thought of the siblings' tokens, their gradients, and their fluency-matched spans."""

    logprobs: list[list[float]]
    matched: list[tuple[int, ...]]
    sets: dict[str, SketchCollector]
    """By the names in `KINDS`."""


def measure(
    answers: Answers,
    engine: PerSampleGradients,
    tokenizer: Any,
    loss_type: str,
    progress: Callable[[float], None] = lambda fraction: None,
    batch_size: int = BATCH,
    matched_per_group: int = MATCHED_PER_GROUP,
) -> Measured:
    """Gradients of siblings at the engine's policy: of their terms under `loss_type`, and of their spans."""
    asked, said, found = answers.asked, answers.said, answers.spans
    sets = {kind: SketchCollector(engine.sketch.width) for kind in KINDS}
    logprobs: list[list[float]] = [[] for _ in asked]
    matched: list[tuple[int, ...]] = [() for _ in asked]
    with_match = first_of_groups(answers.group, [bool(spans.behavior) for spans in found], matched_per_group)
    order = sorted(range(len(asked)), key=lambda i: len(asked[i]) + len(said[i]))
    for start in range(0, len(order), batch_size):
        index = order[start : start + batch_size]
        batch = collate(
            [asked[i] for i in index], [said[i] for i in index], tokenizer.pad_token_id, engine.model.device
        )
        shape, offset = batch["input_ids"].shape, [max(len(asked[i]) for i in index)] * len(index)

        def take(weights: dict[str, Any], index: list[int] = index, batch: dict[str, Any] = batch) -> Any:
            measured = engine.measure(batch["input_ids"], batch["attention_mask"], list(weights.values()))
            for (kind, weight), made in zip(weights.items(), measured.gradients, strict=True):
                chosen = (weight != 0).any(1).nonzero()[:, 0]
                sets[kind].add(made.sketch[chosen], made.norm[chosen], np.asarray(index)[chosen.cpu().numpy()])
            return measured.logprob

        full = item_weights(loss_type, batch["completion_mask"])
        said_so = take({"siblings": full})
        for row, i in enumerate(index):
            logprobs[i] = said_so[row][batch["completion_mask"][row].bool()].tolist()
            matched[i] = fluency_matched(logprobs[i], found[i].behavior) if i in with_match else ()
        tokens = {
            "spans": [found[i].behavior for i in index],
            "controls": [found[i].control for i in index],
            "matched": [matched[i] for i in index],
        }
        if any(tokens["spans"]):
            take({kind: mean_weights(shape, chosen, offset).to(full.device) for kind, chosen in tokens.items()})
        progress((start + len(index)) / len(order))
    return Measured(logprobs, matched, sets)


def columns(answers: Answers, measured: Measured, tokenizer: Any, shown: Sequence[bool]) -> Columns:
    """Columns of a table of siblings, less those that say which prompt each answers."""
    return {
        "prompt_ids": answers.asked,
        "completion_ids": answers.said,
        "prompt_text": [tokenizer.decode(ids) for ids in answers.asked],
        "completion_text": answers.texts,
        "logprobs": measured.logprobs,
        "shown": list(shown),
        "span": [list(spans.behavior) for spans in answers.spans],
        "control_span": [list(spans.control) for spans in answers.spans],
        "control_stratum": [spans.stratum for spans in answers.spans],
        "matched_span": [list(tokens) for tokens in measured.matched],
    }


def first_of_groups(groups: Sequence[int], shown: Sequence[bool], most: int = MATCHED_PER_GROUP) -> set[int]:
    """The first `most` items of every group that show the behaviour."""
    found: dict[int, list[int]] = {}
    for item, (group, shows_it) in enumerate(zip(groups, shown, strict=True)):
        if shows_it and len(found.setdefault(group, [])) < most:
            found[group].append(item)
    return {item for items in found.values() for item in items}


def fluency_matched(logprobs: Sequence[float], span: Sequence[int]) -> tuple[int, ...]:
    """The stretch of a completion with as many tokens as `span`, clear of it, and the nearest mean log-probability.

    The first of equally near ones; the last token, which ends the completion, is no candidate. Empty where there is
    none. At a saturated policy every other code word is less fluent than the behaviour: only a control chosen for its
    fluency leaves room above a score that knows nothing else (pitfall P5).
    """
    values, taken, count = np.asarray(logprobs, np.float64), set(span), len(span)
    starts = [k for k in range(len(values) - count) if not taken & set(range(k, k + count))]
    if not count or not starts:
        return ()
    goal = values[list(span)].mean()
    best = min(starts, key=lambda k: abs(float(values[k : k + count].mean() - goal)))
    return tuple(range(best, best + count))
