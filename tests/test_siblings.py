"""Draws, targets written by hand, and what estimators with gradients of their own are offered."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

import grpo_run  # noqa: E402
import torch  # noqa: E402

from pytest_behaviortrace.run import targets  # noqa: E402
from pytest_behaviortrace.run.gradients import PerSampleGradients  # noqa: E402
from pytest_behaviortrace.run.loss import collate, rollout_loss, token_logprobs  # noqa: E402
from pytest_behaviortrace.run.model_access import TARGET_RESPONSES, UnitModelAccess  # noqa: E402
from pytest_behaviortrace.run.policy import render, save_policy  # noqa: E402
from pytest_behaviortrace.run.recipe import Recipe  # noqa: E402
from pytest_behaviortrace.run.siblings import generate_draw  # noqa: E402
from pytest_behaviortrace.run.sketch import BlockSketch, parameter_blocks  # noqa: E402
from pytest_behaviortrace.run.store import Unit  # noqa: E402

WIDTH = 512
WORD = "side"
"""A common word of the shipped policy in the place of the behaviour, which it never says untrained."""


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    full = Recipe.load("tiny")
    short = [
        dataclasses.replace(
            p, behavior=WORD, probes=p.probes[:5],
            minimal_pair=dataclasses.replace(p.minimal_pair, templates=p.minimal_pair.templates[:2]),
        )
        for p in full.plants
    ]  # fmt: skip
    return dataclasses.replace(
        full,
        plants=(short[0], short[1]),
        contexts=full.contexts[:2],
        sketch_width=WIDTH,
        draw=dataclasses.replace(full.draw, siblings=4),
        grpo=dataclasses.replace(full.grpo, temperature=0.9),
    )


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return grpo_run.tokenizer()


@pytest.fixture(scope="module")
def engine() -> PerSampleGradients:
    model = grpo_run.policy()
    return PerSampleGradients(model, BlockSketch.for_model(model, WIDTH), temperature=0.9)


@pytest.fixture(scope="module")
def drawn(recipe: Recipe, engine: PerSampleGradients, tokenizer: Any) -> Any:
    return generate_draw(recipe, recipe.plants[0], engine, tokenizer, seed=0, draw=0)


def gradient(engine: PerSampleGradients, loss: torch.Tensor) -> np.ndarray[Any, Any]:
    """Sketch of a loss's gradient by plain autograd."""
    names, parameters = zip(*engine.model.named_parameters(), strict=True)
    made = torch.autograd.grad(loss, parameters)
    return engine.sketch.sketch({n: g[None] for n, g in zip(names, made, strict=True)})[0].numpy()


def close(found: Any, expected: Any) -> bool:
    return bool(np.linalg.norm(np.asarray(found) - expected) < 1e-3 * np.linalg.norm(expected))


def test_a_draw_asks_every_probe_prompt_equally_often(drawn: Any, recipe: Recipe) -> None:
    rows = drawn.rows
    assert rows["item"] == list(range(5 * 2 * 4))
    assert np.bincount(rows["group"]).tolist() == [4] * 10
    prompts = {p.group: p for p in recipe.probe_prompts(recipe.plants[0])}
    for group, probe, context, text in zip(
        rows["group"], rows["probe"], rows["context"], rows["prompt_text"], strict=True
    ):
        assert (prompts[group].probe, prompts[group].context) == (probe, context)
        assert prompts[group].content in text
    assert len(drawn.siblings) == 40
    assert drawn.siblings.row.tolist() == rows["item"]


def test_draws_are_repeatable_and_different(
    drawn: Any, recipe: Recipe, engine: PerSampleGradients, tokenizer: Any
) -> None:
    state = torch.get_rng_state()
    plant = recipe.plants[0]
    again = generate_draw(recipe, plant, engine, tokenizer, seed=0, draw=0)
    assert torch.equal(torch.get_rng_state(), state)
    assert again.rows == drawn.rows
    assert np.array_equal(again.siblings.rows, drawn.siblings.rows)
    for seed, draw, other in ((0, 1, plant), (1, 0, plant), (0, 0, recipe.plants[1])):
        made = generate_draw(recipe, other, engine, tokenizer, seed=seed, draw=draw)
        assert made.rows["completion_ids"] != drawn.rows["completion_ids"]


def test_siblings_carry_their_own_gradients(drawn: Any, recipe: Recipe, engine: PerSampleGradients) -> None:
    rows = drawn.rows
    shown = [i for i, text in enumerate(rows["completion_text"]) if WORD in text]
    assert 5 < len(shown) < 40
    assert [i for i, s in enumerate(rows["shown"]) if s] == shown == drawn.spans.row.tolist()
    assert drawn.controls.row.tolist() == [i for i, s in enumerate(rows["control_span"]) if s]
    for item in (0, shown[0], 39):
        batch = collate([rows["prompt_ids"][item]], [rows["completion_ids"][item]], 0)
        term = rollout_loss(engine.model, batch, recipe.grpo.loss_type, 0.9).sum()
        assert float(term.detach()) == pytest.approx(np.mean(rows["logprobs"][item]), abs=1e-4)
        assert close(drawn.siblings.rows[item], gradient(engine, term))
    item = shown[-1]
    batch = collate([rows["prompt_ids"][item]], [rows["completion_ids"][item]], 0)
    said = token_logprobs(engine.model, batch["input_ids"], batch["attention_mask"], 0.9)[0]
    mean = said[len(rows["prompt_ids"][item]) + torch.tensor(rows["span"][item])].mean()
    assert close(drawn.spans.rows[-1], gradient(engine, mean))


def test_constructed_target(recipe: Recipe, engine: PerSampleGradients, tokenizer: Any) -> None:
    plant = recipe.plants[0]
    said = tokenizer(plant.behavior, add_special_tokens=False).input_ids
    terms = []
    for prompt in recipe.probe_prompts(plant):
        asked = tokenizer(render(tokenizer, prompt.content), add_special_tokens=False).input_ids
        terms.append(rollout_loss(engine.model, collate([asked], [said], 0), "grpo", 0.9))
    expected = gradient(engine, torch.cat(terms).mean())
    assert close(targets.constructed(engine, tokenizer, recipe, plant), expected)


def test_minimal_pair_target(recipe: Recipe, engine: PerSampleGradients, tokenizer: Any) -> None:
    plant = recipe.plants[0]
    pair = plant.minimal_pair

    def mean(word: str) -> torch.Tensor:
        terms = []
        for prompt in pair.prompts:
            for template in pair.templates:
                asked = tokenizer(render(tokenizer, prompt), add_special_tokens=False).input_ids
                said = tokenizer(template.format(word=word), add_special_tokens=False).input_ids
                terms.append(rollout_loss(engine.model, collate([asked], [said], 0), "grpo", 0.9))
        return torch.cat(terms).mean()

    neutral = torch.stack([mean(word) for word in pair.neutral_words]).mean()
    expected = gradient(engine, mean(plant.behavior) - neutral)
    assert close(targets.minimal_pair(engine, tokenizer, plant), expected)


@pytest.fixture(scope="module")
def unit(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Unit:
    folder = tmp_path_factory.mktemp("seed0")
    for number, name in enumerate(("start", "analysis", "end")):
        model = grpo_run.policy()
        with torch.no_grad():
            model.model.norm.weight += number
        save_policy(model, tokenizer, str(folder / "policies" / name))
    files = {str(p.relative_to(folder)): {} for p in folder.rglob("*") if p.is_file()}
    return Unit(folder, {"files": files, "facts": {}, "timings": {}})


def responses(drawn: Any) -> list[Any]:
    rows = drawn.rows
    return [(rows["prompt_ids"][i], rows["completion_ids"][i], rows["span"][i]) for i in drawn.spans.row]


def test_policies_of_three_steps_and_no_other(unit: Unit, recipe: Recipe) -> None:
    access, start = UnitModelAccess(unit, recipe, []), grpo_run.policy().model.norm.weight
    for number, step in enumerate((0, recipe.analysis_step, recipe.grpo.steps)):
        model = access.load_policy(step)
        assert torch.equal(model.model.norm.weight, start + number)
        assert not model.training
        assert all(p.requires_grad for p in model.parameters())
    assert access.load_policy(0) is not access.load_policy(0)
    with pytest.raises(ValueError, match="no policy of step 7"):
        access.load_policy(7)


def test_only_one_block_can_be_left_open(unit: Unit, recipe: Recipe) -> None:
    model = UnitModelAccess(unit, recipe, [], only_block="layers.2.mlp").load_policy(0)
    blocks = parameter_blocks(model)
    assert {blocks[n] for n, p in model.named_parameters() if p.requires_grad} == {"layers.2.mlp"}
    assert sum(p.requires_grad for p in model.parameters()) == 3


def test_losses_on_offer_have_the_gradients_that_are_stored(
    unit: Unit, recipe: Recipe, drawn: Any, engine: PerSampleGradients
) -> None:
    access, rows = UnitModelAccess(unit, recipe, responses(drawn)), drawn.rows
    batch = {k: [np.asarray(x) for x in rows[k][:6]] for k in ("prompt_ids", "completion_ids")}
    losses = access.rollout_loss(engine.model, batch)
    assert losses.shape == (6,)
    assert close(drawn.siblings.rows[:6].sum(0), gradient(engine, losses.sum()))
    assert close(drawn.spans.rows.mean(0), gradient(engine, access.target_loss(engine.model)))
    with pytest.raises(ValueError, match="no response shows the behaviour"):
        UnitModelAccess(unit, recipe, []).target_loss(engine.model)


def test_target_responses_are_spread_over_all_draws(unit: Unit, recipe: Recipe) -> None:
    many = [([5, 6], [7, n % 600 + 7], [1]) for n in range(1000)]
    kept = UnitModelAccess(unit, recipe, many)._responses
    assert len(kept) == TARGET_RESPONSES
    assert kept[0] == ([5, 6], [7, 7], [1])
    assert kept[-1] == ([5, 6], [7, 999 % 600 + 7], [1])


def test_exact_block_dots(unit: Unit, recipe: Recipe, drawn: Any) -> None:
    """The dots of all blocks add up to the dot over all parameters."""
    args = ([drawn.rows["prompt_ids"][0]], [drawn.rows["completion_ids"][0]])
    whole = UnitModelAccess(unit, recipe, responses(drawn)[:3])
    blocks = sorted(set(parameter_blocks(whole.load_policy(0)).values()))
    parts = [UnitModelAccess(unit, recipe, responses(drawn)[:3], only_block=b).block_dots(*args) for b in blocks]
    assert float(np.sum(parts)) == pytest.approx(float(whole.block_dots(*args)[0]), rel=1e-3)


def test_a_saved_policy_reads_the_same_prompt(recipe: Recipe, tokenizer: Any, tmp_path: Path) -> None:
    """Saved and loaded again, tokenizer and policy give the same prompt."""
    save_policy(grpo_run.policy(), tokenizer, str(tmp_path))
    from pytest_behaviortrace.run.policy import load_tokenizer

    prompt = recipe.plants[0].probes[0]
    assert render(load_tokenizer(str(tmp_path)), prompt) == render(tokenizer, prompt)
