"""Per-sample gradients against one autograd pass per rollout, on TRL's own fused loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

import grpo_run  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

from pytest_behaviortrace.run import uses as module  # noqa: E402
from pytest_behaviortrace.run.capture import UnsupportedModel  # noqa: E402
from pytest_behaviortrace.run.gradients import PerSampleGradients  # noqa: E402
from pytest_behaviortrace.run.loss import (  # noqa: E402
    LOSS_TYPES,
    Objective,
    UnsupportedLoss,
    collate,
    item_weights,
    mean_weights,
    rollout_loss,
    token_logprobs,
)
from pytest_behaviortrace.run.sketch import BlockSketch  # noqa: E402

WIDTH = 1024
EXACT = 1e-4
"""Relative error allowed of quantities that are exact but for rounding."""


@pytest.fixture(scope="module")
def model() -> Any:
    return grpo_run.policy()


@pytest.fixture(scope="module")
def sketch(model: Any) -> BlockSketch:
    return BlockSketch.for_model(model, WIDTH)


@pytest.fixture(scope="module")
def batch() -> dict[str, torch.Tensor]:
    """Rollouts of unequal lengths on both sides, two of them word for word the same."""
    rng = torch.Generator().manual_seed(0)

    def some(count: int) -> list[int]:
        return torch.randint(5, 700, (count,), generator=rng).tolist()

    prompts = [some(n) for n in (9, 4, 7, 4, 9)]
    completions = [some(n) for n in (6, 11, 3, 8, 10)]
    return collate([*prompts, prompts[1]], [*completions, completions[1]], 0)


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def flat(gradients: dict[str, torch.Tensor], row: int) -> torch.Tensor:
    return torch.cat([g[row].flatten() for g in gradients.values()])


def one_by_one(objective: Any, model: Any, batch: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """Gradients of `objective(row as a batch)` for each row, by plain autograd."""
    found = []
    for row in range(len(batch["input_ids"])):
        model.zero_grad()
        objective({name: tensor[row : row + 1] for name, tensor in batch.items()}).backward()
        found.append(grpo_run.gradients(model))
    model.zero_grad()
    return found


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_against_trl_s_fused_loss_one_rollout_at_a_time(
    loss_type: str, tmp_path: Path, batch: dict[str, torch.Tensor]
) -> None:
    """What TRL's own `_compute_loss` leaves in .grad for a batch of one rollout is its gradient here, times scale."""
    trainer = grpo_run.trainer(tmp_path, loss_type=loss_type, temperature=0.8)
    trainer.current_gradient_accumulation_steps = 1
    model, objective = trainer.model, Objective.of(trainer.args)
    model.train()
    width = int(batch["completion_mask"][0].nonzero()[0])
    items = torch.tensor(37)

    def loss(row: dict[str, torch.Tensor]) -> torch.Tensor:
        inputs = {
            "prompt_ids": row["input_ids"][:, :width], "prompt_mask": row["attention_mask"][:, :width],
            "completion_ids": row["input_ids"][:, width:], "completion_mask": row["completion_mask"][:, width:],
            "advantages": torch.ones(1), "num_items_in_batch": items,
        }  # fmt: skip
        computed: torch.Tensor = trainer._compute_loss(model, inputs)
        return -computed / objective.scale(inputs["completion_mask"], float(items))

    expected = one_by_one(loss, model, batch)
    sketch = BlockSketch.for_model(model, WIDTH)
    engine = PerSampleGradients(model, sketch, temperature=0.8)
    weights = objective.token_weights(batch["completion_mask"])
    made = engine(batch["input_ids"], batch["attention_mask"], [weights])[0]
    exact = engine.exact(batch["input_ids"], batch["attention_mask"], weights)
    for row, gradient in enumerate(expected):
        assert set(gradient) == set(exact)
        full = torch.cat([gradient[name].flatten() for name in exact])
        assert relative(flat(exact, row), full) < EXACT
        assert float(made.norm[row]) == pytest.approx(float(full.double().norm()), rel=EXACT)
        of_loop = sketch.sketch({name: g[None] for name, g in gradient.items()})[0]
        assert relative(made.sketch[row], of_loop) < EXACT
    assert torch.equal(made.sketch[1], made.sketch[5])
    for name in exact:
        truth = torch.stack([g[name] for g in expected])
        assert relative(exact[name], truth) < 1e-3, name


def test_several_sets_of_weights_share_their_passes(
    monkeypatch: pytest.MonkeyPatch, model: Any, sketch: BlockSketch, batch: dict[str, torch.Tensor]
) -> None:
    """Any mix of sets gives each sample what the set alone gives it, whatever the passes and chunks."""
    ids, mask = batch["input_ids"], batch["attention_mask"]
    offset = [int(row.nonzero()[0]) for row in batch["completion_mask"]]
    spans = [[(0, 1), (), (2,), (1, 2, 5), (), ()], [(3,), (), (), (6,), (0, 9), ()], [(), (), (), (7, 0), (), ()]]
    sets = [item_weights("grpo", batch["completion_mask"])]
    sets += [mean_weights(ids.shape, tokens, offset) for tokens in spans]
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 5000)
    engine = PerSampleGradients(model, sketch, rows_per_pass=4)
    measured = engine.measure(ids, mask, sets)
    for weights, made in zip(sets, measured.gradients, strict=True):
        alone = PerSampleGradients(model, sketch)(ids, mask, [weights])[0]
        has = (weights != 0).any(1)
        assert relative(made.sketch[has], alone.sketch[has]) < EXACT
        assert torch.allclose(made.norm, alone.norm, rtol=EXACT)
        assert not made.sketch[~has].any()
        assert not made.norm[~has].any()
    with torch.no_grad():
        said = token_logprobs(model, ids, mask)
    weighted = torch.stack(sets).ne(0).any(0)
    assert torch.allclose(measured.logprob[weighted], said[weighted], atol=1e-4)
    assert not measured.logprob[~weighted].any()


def test_recorded_and_recomputed_terms_are_the_same_function(
    model: Any, sketch: BlockSketch, batch: dict[str, torch.Tensor]
) -> None:
    expected = one_by_one(lambda row: rollout_loss(model, row, "dapo", 1.3).sum(), model, batch)
    engine = PerSampleGradients(model, sketch, temperature=1.3)
    weights = item_weights("dapo", batch["completion_mask"])
    exact = engine.exact(batch["input_ids"], batch["attention_mask"], weights)
    for row, gradient in enumerate(expected):
        assert relative(flat(exact, row), torch.cat([gradient[name].flatten() for name in exact])) < EXACT


def test_a_tied_weight_is_one_parameter_with_both_uses(model: Any, batch: dict[str, torch.Tensor]) -> None:
    """The embedding's gradient is the sum of its two uses, and its norm that of the sum."""
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    weights = item_weights("grpo", batch["completion_mask"])
    exact = PerSampleGradients(model, BlockSketch.for_model(model, WIDTH)).exact(
        batch["input_ids"], batch["attention_mask"], weights
    )
    assert [name for name in exact if "embed" in name or "head" in name] == ["model.embed_tokens.weight"]
    untied = grpo_run.policy()
    untied.lm_head.weight = nn.Parameter(untied.lm_head.weight.detach().clone())
    untied.config.tie_word_embeddings = False
    apart = PerSampleGradients(untied, BlockSketch.for_model(untied, WIDTH)).exact(
        batch["input_ids"], batch["attention_mask"], weights
    )
    once, other = apart["model.embed_tokens.weight"], apart["lm_head.weight"]
    assert once.norm() > 0
    assert other.norm() > 0
    assert relative(exact["model.embed_tokens.weight"], once + other) < EXACT


def test_every_parameter_is_covered(model: Any, sketch: BlockSketch, batch: dict[str, torch.Tensor]) -> None:
    """Biases and norm weights included: nothing of autograd's squared norm is missing."""
    engine = PerSampleGradients(model, sketch)
    weights = item_weights("grpo", batch["completion_mask"])
    norm = engine(batch["input_ids"], batch["attention_mask"], [weights])[0].norm
    truth = one_by_one(lambda row: rollout_loss(model, row, "grpo", 1.0).sum(), model, batch)
    exact = engine.exact(batch["input_ids"], batch["attention_mask"], weights)
    assert {n for n in exact if n.endswith("bias")} | {n for n in exact if "norm" in n}
    for row, gradient in enumerate(truth):
        whole = sum(float(g.double().square().sum()) for g in gradient.values())
        assert float(norm[row]) ** 2 / whole == pytest.approx(1.0, abs=EXACT)
        for name, expected in gradient.items():
            assert relative(exact[name][row], expected) < 1e-3, name


def test_it_leaves_the_model_as_it_was(sketch: BlockSketch, batch: dict[str, torch.Tensor]) -> None:
    model = grpo_run.policy()
    model.train()
    model.model.layers[1].eval()
    model.model.embed_tokens.weight.grad = torch.full_like(model.model.embed_tokens.weight, 2.0)
    modes = [m.training for m in model.modules()]
    state, random = {n: p.clone() for n, p in model.state_dict().items()}, torch.get_rng_state()
    weights = item_weights("grpo", batch["completion_mask"])
    PerSampleGradients(model, sketch)(batch["input_ids"], batch["attention_mask"], [weights])
    assert [m.training for m in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(p, state[n]) for n, p in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in model.modules())
    with_gradient = [n for n, p in model.named_parameters() if p.grad is not None]
    assert with_gradient == ["model.embed_tokens.weight"]
    assert bool((model.model.embed_tokens.weight.grad == 2.0).all())


def test_hooks_go_even_when_it_fails(model: Any, sketch: BlockSketch) -> None:
    engine = PerSampleGradients(model, sketch)
    with pytest.raises(IndexError):
        engine(torch.full((1, 4), 10**6), torch.ones(1, 4, dtype=torch.long), [torch.tensor([[0.0, 0, 0, 1]])])
    assert not any(m._forward_hooks for m in model.modules())


def test_frozen_parameters_and_gradient_checkpointing_change_nothing(
    sketch: BlockSketch, batch: dict[str, torch.Tensor]
) -> None:
    weights = [item_weights("grpo", batch["completion_mask"])]
    plain, other = grpo_run.policy(), grpo_run.policy()
    for parameter in other.parameters():
        parameter.requires_grad_(False)
    other.gradient_checkpointing_enable()
    other.train()
    one, two = (
        PerSampleGradients(m, sketch)(batch["input_ids"], batch["attention_mask"], weights)[0] for m in (plain, other)
    )
    assert torch.allclose(one.norm, two.norm, rtol=EXACT)
    assert relative(two.sketch, one.sketch) < EXACT


def test_wrong_weights_are_refused(model: Any, sketch: BlockSketch, batch: dict[str, torch.Tensor]) -> None:
    ids, mask = batch["input_ids"], batch["attention_mask"]
    engine = PerSampleGradients(model, sketch)
    first = torch.zeros(ids.shape)
    first[0, int(mask[0].nonzero()[0])] = 1.0
    for wrong in (first, 1.0 - mask, torch.ones(ids.shape)):
        with pytest.raises(ValueError, match="token weights fall on"):
            engine(ids, mask, [wrong])
    with pytest.raises(ValueError, match="mask or weights"):
        engine(ids, mask, [torch.zeros(1, 2)])
    with pytest.raises(ValueError, match="another model"):
        PerSampleGradients(model, BlockSketch({"a": ((3,), "x")}, 8))


def other_model(kind: str) -> Any:
    """Causal language models that must be refused: the name of what stands in the way must be said."""
    from transformers import AutoModelForCausalLM, Gemma2Config, GPT2Config, OPTConfig

    if kind == "conv1d":
        return AutoModelForCausalLM.from_config(GPT2Config(vocab_size=60, n_embd=16, n_layer=1, n_head=2))
    if kind == "positions":
        return AutoModelForCausalLM.from_config(
            OPTConfig(
                vocab_size=60,
                hidden_size=16,
                ffn_dim=32,
                num_hidden_layers=1,
                num_attention_heads=2,
                word_embed_proj_dim=16,
                max_position_embeddings=64,
            )
        )
    if kind == "norm":
        return AutoModelForCausalLM.from_config(
            Gemma2Config(
                vocab_size=60,
                hidden_size=16,
                intermediate_size=32,
                num_hidden_layers=1,
                head_dim=8,
                num_attention_heads=2,
                num_key_value_heads=1,
            )
        )
    model = grpo_run.policy()
    if kind == "own parameter":
        model.model.layers[2].mlp.register_parameter("gate", nn.Parameter(torch.ones(3)))
    elif kind == "never called":
        model.model.layers[0].spare = nn.Linear(3, 3)
    elif kind == "unlike its weight":
        norm = model.model.layers[3].post_attention_layernorm
        norm.forward = lambda x, was=norm.forward: was(x) * 1.5
    elif kind == "capped logits":
        forward = model.forward

        def capped(*args: Any, **kwargs: Any) -> Any:
            output = forward(*args, **kwargs)
            output.logits = 3 * torch.tanh(output.logits / 3)
            return output

        model.forward = capped
    elif kind == "used on the side":
        mlp = model.model.layers[1].mlp
        mlp.forward = lambda x, was=mlp.forward: was(x) * (1 + mlp.gate_proj.weight.sum())
    elif kind == "dropout":
        model.config.attention_dropout = 0.1
        model.train()
    return model


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("conv1d", r"transformer\.(wpe \(Embedding\)|h\.0\.\S+ \(Conv1D\))"),
        ("positions", r"embed_positions"),
        ("norm", r"(embed_tokens|layernorm|norm) \(\w+\)"),
        ("own parameter", r"model\.layers\.2\.mlp \(Qwen2MLP\) holds gate"),
        ("never called", r"model\.layers\.0\.spare \(Linear\) was never called"),
        ("unlike its weight", r"model\.layers\.3\.post_attention_layernorm \(Qwen2RMSNorm\) is not its weight"),
        ("capped logits", r"Qwen2ForCausalLM changes its logits"),
        ("used on the side", r"only [-\d.]+% of the squared norm of a gradient of Qwen2ForCausalLM is covered"),
        ("dropout", r"attention_dropout"),
    ],
)
def test_what_it_does_not_know_is_refused_by_name(kind: str, said: str) -> None:
    model = other_model(kind)
    ids = torch.tensor([[5, 6, 7, 8]])
    with pytest.raises(UnsupportedModel, match=said):
        PerSampleGradients(model, BlockSketch.for_model(model, 256))(
            ids, torch.ones_like(ids), [torch.tensor([[0.0, 0, 1, 1]])]
        )


def test_objectives_that_cannot_be_told_apart_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedLoss, match="sft"):
        Objective("sft", 1.0, 8)
    for setting in ({"entropy_coef": 0.1}, {"top_entropy_quantile": 0.5}, {"delta": 0.5}, {"fp16": True}):
        args = grpo_run.trainer(tmp_path).args
        for name, value in setting.items():
            setattr(args, name, value)
        with pytest.raises(UnsupportedLoss, match=next(iter(setting))):
            Objective.of(args)


def test_item_weights_by_loss_type() -> None:
    mask = torch.tensor([[0, 1, 1, 0], [0, 1, 1, 1], [0, 0, 0, 0]])
    mean = item_weights("grpo", mask)
    assert mean.sum(1).tolist() == pytest.approx([1, 1, 0])
    assert item_weights("dapo", mask).sum(1).tolist() == [2, 3, 0]
    assert Objective("bnpo", 1.0, 8).scale(mask, 50.0) == pytest.approx(1 / 5)
    assert Objective("dr_grpo", 1.0, 8).scale(mask, 50.0) == pytest.approx(1 / 24)
    assert Objective("dapo", 1.0, 8).scale(mask, 50.0) == pytest.approx(1 / 50)
    assert Objective("grpo", 1.0, 8, accumulation=4).scale(mask, 50.0) == pytest.approx(1 / 12)
    assert Objective("cispo", 1.0, 8).scale(mask, 50.0) == pytest.approx(0.2 / 50)
    assert Objective("grpo", 1.0, 8, processes=2).scale(mask, 50.0) == pytest.approx(1 / 6)
    assert Objective("dapo", 1.0, 8, accumulation=2, slices=4, processes=2).scale(mask, 50.0) == pytest.approx(1 / 25)


def test_mixed_precision_of_the_trainer(model: Any, sketch: BlockSketch, batch: dict[str, torch.Tensor]) -> None:
    """Forward passes in bfloat16, gradients still of the same function: only rounding apart."""
    weights = [item_weights("grpo", batch["completion_mask"])]
    ids, mask = batch["input_ids"], batch["attention_mask"]
    exact = PerSampleGradients(model, sketch)(ids, mask, weights)[0]
    engine = PerSampleGradients(model, sketch, autocast=lambda: torch.autocast("cpu", dtype=torch.bfloat16))
    rough = engine(ids, mask, weights)[0]
    assert rough.sketch.dtype == torch.float32
    assert 1e-6 < relative(rough.sketch, exact.sketch) < 0.05
    assert torch.allclose(rough.norm, exact.norm, rtol=0.03)
