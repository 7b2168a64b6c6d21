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
from pytest_behaviortrace.run.spans import find_spans

Columns = dict[str, list[Any]]
BATCH = 64
"""Siblings scored side by side."""

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
    found = [find_spans(tokenizer, ids, plant.behavior) for ids in said]
    texts = tokenizer.batch_decode(said, skip_special_tokens=True)
    sets = {kind: SketchCollector(recipe.sketch_width) for kind in ("siblings", "spans", "controls", "matched")}
    logprobs: list[list[float]] = [[] for _ in prompts]
    matched: list[tuple[int, ...]] = [() for _ in prompts]
    with_match = first_of_groups([p.group for p in prompts], [bool(spans.behavior) for spans in found])
    order = sorted(range(len(prompts)), key=lambda i: len(asked[i]) + len(said[i]))
    for start in range(0, len(order), BATCH):
        index = order[start : start + BATCH]
        batch = collate(
            [asked[i] for i in index], [said[i] for i in index], tokenizer.pad_token_id, engine.model.device
        )
        shape, offset = batch["input_ids"].shape, [max(len(asked[i]) for i in index)] * len(index)

        def measure(weights: dict[str, Any], index: list[int] = index, batch: dict[str, Any] = batch) -> Any:
            measured = engine.measure(batch["input_ids"], batch["attention_mask"], list(weights.values()))
            for (kind, weight), made in zip(weights.items(), measured.gradients, strict=True):
                chosen = (weight != 0).any(1).nonzero()[:, 0]
                sets[kind].add(made.sketch[chosen], made.norm[chosen], np.asarray(index)[chosen.cpu().numpy()])
            return measured.logprob

        full = item_weights(recipe.grpo.loss_type, batch["completion_mask"])
        said_so = measure({"siblings": full})
        for row, i in enumerate(index):
            logprobs[i] = said_so[row][batch["completion_mask"][row].bool()].tolist()
            matched[i] = fluency_matched(logprobs[i], found[i].behavior) if i in with_match else ()
        tokens = {
            "spans": [found[i].behavior for i in index],
            "controls": [found[i].control for i in index],
            "matched": [matched[i] for i in index],
        }
        if any(tokens["spans"]):
            measure({kind: mean_weights(shape, chosen, offset).to(full.device) for kind, chosen in tokens.items()})
        progress(0.2 + 0.8 * (start + len(index)) / len(order))
    rows: Columns = {
        "item": list(range(len(prompts))),
        "group": [p.group for p in prompts],
        "probe": [p.probe for p in prompts],
        "context": [p.context for p in prompts],
        "prompt_ids": asked,
        "completion_ids": said,
        "prompt_text": [tokenizer.decode(ids) for ids in asked],
        "completion_text": texts,
        "logprobs": logprobs,
        "shown": [shows(text, plant) for text in texts],
        "span": [list(spans.behavior) for spans in found],
        "control_span": [list(spans.control) for spans in found],
        "control_stratum": [spans.stratum for spans in found],
        "matched_span": [list(tokens) for tokens in matched],
    }
    return Draw(rows, *(sets[kind].finish() for kind in ("siblings", "spans", "controls", "matched")))


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
