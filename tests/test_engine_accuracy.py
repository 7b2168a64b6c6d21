"""How exact the engine is: against autograd in float64, and its sketches over 200 hash seeds against their theory."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

import grpo_run  # noqa: E402
import torch  # noqa: E402

from pytest_behaviortrace.run.gradients import PerSampleGradients  # noqa: E402
from pytest_behaviortrace.run.loss import collate, item_weights, rollout_loss  # noqa: E402
from pytest_behaviortrace.run.sketch import BlockSketch  # noqa: E402

EXACT = 1e-4
"""Relative error allowed of what is exact but for rounding in float32."""
SEEDS = 200
TEMPERATURE = 0.9


def small(tied: bool) -> Any:
    """A policy so small that 200 sketches of it take seconds."""
    from transformers import AutoModelForCausalLM, Qwen2Config

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=60, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, tie_word_embeddings=tied, initializer_range=0.2,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config).eval()


def rollouts(vocabulary: int, count: int, seed: int) -> dict[str, torch.Tensor]:
    """Prompts and completions of unequal lengths."""
    rng = torch.Generator().manual_seed(seed)

    def some(count: int) -> list[int]:
        return torch.randint(1, vocabulary, (count,), generator=rng).tolist()

    return collate([some(4 + i % 3) for i in range(count)], [some(12 - i % 5) for i in range(count)], 0)


def in_float64(model: Any, batch: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """Parameter name -> gradient of each rollout's own term, by autograd in float64."""
    precise, found = copy.deepcopy(model).double(), []
    for row in range(len(batch["input_ids"])):
        precise.zero_grad()
        one = {name: tensor[row : row + 1] for name, tensor in batch.items()}
        rollout_loss(precise, one, "grpo", TEMPERATURE).sum().backward()
        found.append(grpo_run.gradients(precise))
    assert all(g.dtype == torch.float64 for gradient in found for g in gradient.values())
    return found


def product(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return sum(float((one[name].double() * other[name].double()).sum()) for name in one)


POLICIES = {"shipped": grpo_run.policy, "tied": lambda: small(True), "untied": lambda: small(False)}


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_exact_quantities_are_those_of_float64_autograd(policy: Any) -> None:
    """Gradients, norms, and the sketch (of the float64 gradient under the same hash), on every rollout."""
    model = policy()
    batch = rollouts(model.config.vocab_size, 6, 0)
    truth = in_float64(model, batch)
    sketch = BlockSketch.for_model(model, 512)
    engine = PerSampleGradients(model, sketch, temperature=TEMPERATURE)
    weights = item_weights("grpo", batch["completion_mask"])
    made = engine(batch["input_ids"], batch["attention_mask"], [weights])[0]
    full = engine.exact(batch["input_ids"], batch["attention_mask"], weights)
    for row, gradient in enumerate(truth):
        whole = math.sqrt(product(gradient, gradient))
        assert float(made.norm[row]) == pytest.approx(whole, rel=EXACT)
        assert set(full) == set(gradient)
        away = math.sqrt(sum(float((full[name][row] - g).square().sum()) for name, g in gradient.items()))
        assert away < EXACT * whole
        of_truth = sketch.sketch({name: g[None] for name, g in gradient.items()})[0]
        assert float((made.sketch[row] - of_truth).norm()) < EXACT * float(of_truth.norm())


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_exact_inner_products_are_those_of_float64_autograd(policy: Any) -> None:
    """With gradients of other rollouts and with a random direction, without materialising a gradient."""
    model = policy()
    batch, other = rollouts(model.config.vocab_size, 6, 0), rollouts(model.config.vocab_size, 2, 1)
    torch.manual_seed(2)
    targets = [{name: g.float() for name, g in gradient.items()} for gradient in in_float64(model, other)]
    targets.append({name: torch.randn_like(p) for name, p in model.named_parameters()})
    engine: Any = PerSampleGradients(model, BlockSketch.for_model(model, 512), temperature=TEMPERATURE)
    weights = item_weights("grpo", batch["completion_mask"])
    dots, norms = engine.dots(batch["input_ids"], batch["attention_mask"], weights, targets)
    assert dots.shape == (6, 3)
    for row, gradient in enumerate(in_float64(model, batch)):
        assert float(norms[row]) == pytest.approx(math.sqrt(product(gradient, gradient)), rel=EXACT)
        for number, target in enumerate(targets):
            # Relative to the norms: a product of nearly orthogonal gradients has no digits of its own to keep.
            scale = math.sqrt(product(gradient, gradient) * product(target, target))
            expected = product(gradient, target)
            assert float(dots[row, number]) == pytest.approx(expected, abs=EXACT * scale, rel=0)


def variance(sketch: BlockSketch, one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Of an inner product of two CountSketches: over i != j of a block, x_i^2 y_j^2 + x_i y_i x_j y_j, over its width.

    (Charikar, Chen, Farach-Colton 2002, worked out for independent buckets and signs and summed over blocks.)
    """
    whole = 0.0
    for block, place in sketch.blocks.items():
        names = [name for name, parameter in sketch.parameters.items() if parameter.block == block]
        x, y = (torch.cat([g[name].flatten() for name in names]).double() for g in (one, other))
        pairs = (x @ x) * (y @ y) + (x @ y) ** 2 - 2 * ((x * y) ** 2).sum()
        whole += float(pairs) / (place.stop - place.start)
    return whole


def test_sketches_are_unbiased_with_the_stated_variance_over_200_seeds() -> None:
    """The engine's own sketches of each rollout against a target's, one hash seed after the other."""
    width, count = 256, 5
    model = small(tied=True)
    batch, other = rollouts(60, count, 0), rollouts(60, 1, 1)
    truth, (target,) = in_float64(model, batch), in_float64(model, other)
    weights = item_weights("grpo", batch["completion_mask"])
    found = torch.zeros(SEEDS, count, 2, dtype=torch.float64)
    for seed in range(SEEDS):
        sketch = BlockSketch.for_model(model, width, seed=seed)
        engine = PerSampleGradients(model, sketch, temperature=TEMPERATURE)
        made = engine(batch["input_ids"], batch["attention_mask"], [weights])[0].sketch.double()
        wanted = sketch.sketch({name: g[None] for name, g in target.items()})[0].double()
        found[seed] = torch.stack([made @ wanted, made.square().sum(1)], 1)
    ratios = []
    for row, gradient in enumerate(truth):
        for column, partner in enumerate((target, gradient)):
            theory = variance(sketch, gradient, partner)
            values = found[:, row, column]
            assert abs(float(values.mean()) - product(gradient, partner)) < 4 * math.sqrt(theory / SEEDS)
            ratios.append(float(values.var()) / theory)
    # One variance estimated from 200 draws is off by a tenth or more; their mean over ten pairs by less.
    assert all(0.6 < ratio < 1.6 for ratio in ratios), ratios
    assert sum(ratios) / len(ratios) == pytest.approx(1.0, abs=0.2)
