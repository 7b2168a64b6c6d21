"""Policies to which it matters where a rollout lies in a batch are refused; head-first norms are written down whole."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    OPTConfig,
    Qwen2Config,
    StableLmConfig,
)

from pytest_behaviortrace.run.capture import Capture, UnsupportedModel
from pytest_behaviortrace.run.gradients import PerSampleGradients
from pytest_behaviortrace.run.placing import aligned, longest_alike
from pytest_behaviortrace.run.sketch import BlockSketch
from pytest_behaviortrace.run.training_pass import TrainingPass

ROWS, PROMPT, MADE = 4, 6, 5
SMALL = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 60, "max_position_embeddings": 64,
}  # fmt: skip


def policy(config: Any) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).float().eval()


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Prompts padded on the left by 0, 1, 3 and 4, completions of all lengths on the right."""
    ids = torch.randint(3, 60, (ROWS, PROMPT + MADE), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    for row, (left, right) in enumerate([(0, 0), (1, 2), (3, 0), (4, 1)]):
        mask[row, :left] = 0
        mask[row, PROMPT + MADE - right :] = 0
    weights = torch.randn(ROWS, PROMPT + MADE, generator=torch.Generator().manual_seed(2)) * mask
    weights[:, :PROMPT] = 0
    return ids, mask, weights


def one_by_one(model: Any, ids: torch.Tensor, mask: torch.Tensor, weights: torch.Tensor) -> list[dict[str, Any]]:
    """Gradients of each row by autograd, in the batch as it is padded."""
    found = []
    for row in range(ROWS):
        model.zero_grad()
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        said = torch.log_softmax(logits[:, :-1], -1).gather(2, ids[:, 1:, None])[..., 0]
        (said * weights[:, 1:])[row].sum().backward()
        found.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    model.zero_grad()
    return found


def engine(model: Any, **settings: Any) -> PerSampleGradients:
    return PerSampleGradients(model, BlockSketch.for_model(model, 512), **settings)


@pytest.mark.parametrize("rows", [2, 32])
def test_positions_counted_from_the_first_column_are_refused_although_their_table_is_frozen(rows: int) -> None:
    model = policy(GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=60, n_positions=64, **no_dropout()))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("ln_" in name)
    with pytest.raises(UnsupportedModel, match="GPT2LMHeadModel counts positions from the first column of a batch"):
        engine(model, rows_per_pass=rows)(*batch()[:2], [batch()[2]])


def test_samples_begin_in_the_first_column_and_end_with_their_last_weighted_token() -> None:
    ids, mask, weights = batch()
    weights[1, -3:] = 0
    some = aligned(torch.tensor([1, 3]), ids, mask, weights[None, [1, 3]])
    assert some.mask.tolist() == [[1] * 7, [1] * 6 + [0]]
    assert some.gapless
    assert torch.equal(some.ids[0], ids[1, 1:8])
    assert torch.equal(some.ids[1, :6], ids[3, 4:10])
    assert torch.equal(some.column[0], torch.arange(1, 8))
    assert torch.equal(some.turns[0, 1, :6], weights[3, 4:10])


def test_where_a_sample_is_over_nothing_is_attended_and_nothing_counts() -> None:
    ids, mask, weights = batch()
    weights[2, PROMPT + 2 :] = 0
    some = aligned(torch.arange(ROWS), ids, mask, weights[None])
    assert some.ids.shape == (ROWS, PROMPT + MADE)
    assert some.mask.sum(1).tolist() == [PROMPT + MADE, PROMPT + MADE - 3, PROMPT + 2 - 3, PROMPT + MADE - 5]
    torch.testing.assert_close(some.turns[0].sum(1), weights.sum(1))
    assert ((some.turns[0] != 0) <= (some.mask != 0)).all()
    assert some.gapless
    mask[0, 2] = 0
    assert not aligned(torch.arange(ROWS), ids, mask, weights[None]).gapless


def small_qwen() -> Any:
    return policy(Qwen2Config(**SMALL))


@pytest.mark.parametrize("case", ["causal", "gap", "looks ahead without a mask"])
def test_a_mask_is_left_out_only_where_it_hides_nothing(case: str) -> None:
    model, (ids, mask, weights), seen = small_qwen(), batch(), []
    if case == "gap":
        mask[0, 2] = 0
    if case == "looks ahead without a mask":
        for layer in model.model.layers:
            layer.self_attn.is_causal = False
    truth, measuring = one_by_one(model, ids, mask, weights), engine(model)
    made = measuring.exact(ids, mask, weights)
    with torch.no_grad():
        handle = model.model.register_forward_pre_hook(
            lambda module, args, named: seen.append(named["attention_mask"] is None), with_kwargs=True
        )
        measuring.exact(ids, mask, weights)
        handle.remove()
    assert seen == [case == "causal"]
    for row in range(ROWS):
        for name, gradient in truth[row].items():
            torch.testing.assert_close(made[name][row], gradient, rtol=1e-3, atol=1e-5)


def no_dropout() -> dict[str, float]:
    return {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def test_positions_counted_by_the_mask_are_exact() -> None:
    sizes = {"ffn_dim": 48, "word_embed_proj_dim": 32, "dropout": 0.0, "attention_dropout": 0.0}
    model = policy(OPTConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=60, **sizes))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("q_proj" in name)
    (ids, mask, weights) = batch()
    made = engine(model, rows_per_pass=2).exact(ids, mask, weights)
    for row, truth in enumerate(one_by_one(model, ids, mask, weights)):
        for name, gradient in truth.items():
            torch.testing.assert_close(made[name][row], gradient, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("limit", "refused"), [(PROMPT + MADE - 1, True), (PROMPT + MADE, False)])
def test_rotations_that_follow_the_length_are_refused_beyond_their_limit(limit: int, refused: bool) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
    model = policy(LlamaConfig(**{**SMALL, "max_position_embeddings": limit}, rope_parameters=rope))
    assert longest_alike(model.config) == limit
    ids, mask, weights = batch()
    if refused:
        with pytest.raises(UnsupportedModel, match=f"by the length of a batch beyond {limit} tokens"):
            engine(model, rows_per_pass=2)(ids, mask, [weights])
        return
    made = engine(model, rows_per_pass=2).exact(ids, mask, weights)
    for row, truth in enumerate(one_by_one(model, ids, mask, weights)):
        for name, gradient in truth.items():
            torch.testing.assert_close(made[name][row], gradient, rtol=1e-3, atol=1e-5)


def test_ordinary_rotations_know_no_limit() -> None:
    assert longest_alike(Qwen2Config(**SMALL)) is None


def test_capped_logits_are_refused_by_name() -> None:
    config = Qwen2Config(**SMALL)
    config.final_logit_softcapping = 30.0
    with pytest.raises(UnsupportedModel, match="Qwen2ForCausalLM caps its logits"):
        Capture(policy(config))


@pytest.mark.parametrize("left_out", [0, 2])
def test_norms_over_heads_before_tokens_are_exact_whoever_is_left_out(left_out: int) -> None:
    """The longest prompt left out, no other reaches the first column: what is cut there must be tokens, not heads."""
    model = policy(StableLmConfig(**SMALL, qk_layernorm=True))
    model.train()
    (ids, mask, weights), unit = batch(), torch.ones(ROWS)
    unit[left_out] = 0.0
    truth, sketch = one_by_one(model, ids, mask, weights), BlockSketch.for_model(model, 512)
    watch = TrainingPass(Capture(model), sketch, ids, mask, MADE, unit, temperature=1.0, autocast=nullcontext)
    with watch:
        hidden = model.model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state[:, PROMPT - 1 : -1]
        said = torch.log_softmax(model.lm_head(hidden), -1).gather(2, ids[:, PROMPT:, None])[..., 0]
        watch.predicted(said)
        (said * weights[:, PROMPT:]).sum().backward()
    made = watch.result()
    for row in set(range(ROWS)) - {left_out}:
        expected = sketch.sketch({name: gradient[None] for name, gradient in truth[row].items()})[0]
        assert float((made.sketch[row] - expected).norm() / expected.norm()) < 1e-5
        norm = sum(float(gradient.double().square().sum()) for gradient in truth[row].values()) ** 0.5
        assert float(made.norm[row]) == pytest.approx(norm, rel=1e-5)
