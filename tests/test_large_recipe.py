"""The large recipe on a small policy of its architecture: real steps under its own settings, and what it needs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

import torch  # noqa: E402
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2TokenizerFast  # noqa: E402
from trl import GRPOTrainer  # noqa: E402

from pytest_behaviortrace.run import handover, requirements, training  # noqa: E402
from pytest_behaviortrace.run.architecture import QWEN2_5_1_5B, Architecture  # noqa: E402
from pytest_behaviortrace.run.integrity import IntegrityError  # noqa: E402
from pytest_behaviortrace.run.orchestrate import CannotTrain, ensure  # noqa: E402
from pytest_behaviortrace.run.policy import load_model, load_tokenizer, save_policy  # noqa: E402
from pytest_behaviortrace.run.recipe import Recipe, fixtures_folder  # noqa: E402
from pytest_behaviortrace.run.recorder import Capture, RolloutRecorder  # noqa: E402
from pytest_behaviortrace.run.sketch import BlockSketch  # noqa: E402

STEPS, WIDTH = 3, 2048


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A randomly initialised Qwen2: 12 query heads on 2 key heads, biases on both, tied tables, as the real one."""
    folder = tmp_path_factory.mktemp("policy")
    tokenizer = load_tokenizer(str(fixtures_folder() / "policy"))
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=96, intermediate_size=256, num_hidden_layers=3, num_attention_heads=12,
        num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id, bos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(config)
    with torch.no_grad():
        for layer in model.model.layers:
            for part in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
                part.bias.normal_(0.0, 0.02)
    save_policy(model, tokenizer, str(folder))
    return folder


@pytest.fixture(scope="module")
def recipe(policy: Path) -> Recipe:
    """Everything of the large recipe but its length: fewer steps, probes in one context, narrower sketches."""
    large = Recipe.load("qwen2.5-1.5b", policy=str(policy))
    return dataclasses.replace(
        large, cutoff=STEPS - 1, analysis_step=STEPS - 1, samples_per_probe=1, contexts=large.contexts[:1],
        sketch_width=WIDTH, sft=dataclasses.replace(large.sft, max_steps=2, min_steps=2),
        grpo=dataclasses.replace(large.grpo, steps=STEPS),
    )  # fmt: skip


class Watched(GRPOTrainer):  # type: ignore[misc]
    """The trainer of a run, noting under which settings its steps were really made."""

    made: list[Any]

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        kinds: set[torch.dtype] = set()
        calls: list[int] = []
        probe = model.model.layers[1].self_attn.q_proj

        def note(module: Any, given: Any, output: torch.Tensor) -> None:
            # Completions are sampled without gradients, rollouts recorded in evaluation mode.
            if module.training and torch.is_grad_enabled():
                calls.append(1)
                kinds.add(output.dtype)

        hook = probe.register_forward_hook(note)
        loss = super().training_step(model, inputs, num_items_in_batch)
        hook.remove()
        sketch = BlockSketch.for_model(model, WIDTH)
        gradients = {name: p.grad[None] for name, p in model.named_parameters() if p.grad is not None}
        self.made.append(
            SimpleNamespace(
                step=int(self.state.global_step), kinds=kinds, calls=len(calls), sketch=sketch.sketch(gradients)[0]
            )
        )
        return loss


@pytest.fixture(scope="module")
def run(recipe: Recipe) -> Any:
    """The planted run, and what was noted of each of its steps."""
    Watched.made = []
    behaviors = {plant.name: plant.behavior for plant in recipe.plants}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "GRPOTrainer", Watched)
        done = training.train(recipe, 0, planted=True, recorder=RolloutRecorder(Capture(WIDTH, behaviors)))
    return SimpleNamespace(done=done, made=Watched.made)


def test_the_small_policy_is_of_the_real_architecture(policy: Path) -> None:
    config = Qwen2Config.from_pretrained(policy)
    small = Architecture.of_config(config.to_dict())
    real = QWEN2_5_1_5B
    assert (small.heads, small.kv_heads, small.tied, small.qkv_bias) == (
        real.heads, real.kv_heads, real.tied, real.qkv_bias,
    )  # fmt: skip
    assert isinstance(load_tokenizer(str(policy)), Qwen2TokenizerFast)
    assert sum(p.numel() for p in load_model(str(policy)).parameters()) == small.parameters


def test_every_step_is_made_in_bfloat16_with_checkpoints(run: Any) -> None:
    assert [made.step for made in run.made] == list(range(STEPS))
    for made in run.made:
        assert made.kinds == {torch.bfloat16}
        assert made.calls == 2  # forward, and again before its backward pass


def test_its_own_loss_and_scales_are_recorded(run: Any, recipe: Recipe) -> None:
    rows = run.done.rows
    assert len(rows["row_id"]) == STEPS * 16
    assert run.done.learning_rate == [5e-6] * STEPS
    assert set(rows["loss_scale"]) == {1 / 16}  # loss_type grpo: a mean over the batch
    assert max(len(ids) for ids in rows["completion_ids"]) <= 64
    advantages = np.reshape(rows["advantage"], (-1, 4))
    assert np.allclose(advantages.mean(1), 0.0, atol=1e-5)
    spread = np.reshape(rows["reward"], (-1, 4)).std(1) > 0
    assert spread.any()
    assert np.allclose(advantages[spread].std(1, ddof=1), 1.0, atol=1e-2)  # scale_rewards group


def test_the_recorded_gradients_are_those_of_the_update(run: Any) -> None:
    rows, recorded = run.done.rows, run.done.recorder.recorded("gradients")
    assert len(recorded) == STEPS * 16
    weight = np.asarray(rows["advantage"]) * np.asarray(rows["loss_scale"])
    moved = 0
    for made in run.made:
        mine = slice(made.step * 16, (made.step + 1) * 16)
        summed = -(weight[mine] @ recorded.rows[mine])
        real = made.sketch.numpy()
        if np.linalg.norm(real) > 0:
            moved += 1
            cosine = summed @ real / np.linalg.norm(summed) / np.linalg.norm(real)
            assert cosine > 0.995
            assert np.linalg.norm(summed) == pytest.approx(np.linalg.norm(real), rel=0.03)
    assert moved
    start, end = run.done.start_state, run.done.end_state
    changed = [name for name in start if not torch.equal(start[name], end[name])]
    assert any("bias" in name for name in changed)
    assert any("embed_tokens" in name for name in changed)


# -- what it needs -----------------------------------------------------------------------------------------------------


def test_a_hub_policy_that_is_not_here_is_one_sentence_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda name, file: None)
    with pytest.raises(CannotTrain) as caught:
        ensure(Recipe.load("qwen2.5-1.5b"), [0], [], tmp_path / "cache")
    said = str(caught.value)
    assert said.startswith("the policy 'Qwen/Qwen2.5-1.5B-Instruct' of recipe 'qwen2.5-1.5b' is not on this machine")
    assert "`hf download Qwen/Qwen2.5-1.5B-Instruct`" in said
    assert "policy.source" in said
    assert "\n" not in said
    assert not (tmp_path / "cache").exists()
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda name, file: f"/hub/{name}/{file}")
    assert requirements.unmet(Recipe.load("qwen2.5-1.5b")) is None


def asking_for_vllm(recipe: Recipe) -> Recipe:
    return dataclasses.replace(recipe, grpo=dataclasses.replace(recipe.grpo, use_vllm=True))


def test_vllm_is_a_recipe_of_its_own_and_leaves_the_others_alone(recipe: Recipe, tmp_path: Path) -> None:
    assert asking_for_vllm(recipe).hash != recipe.hash
    assert handover.loads(handover.dumps(asking_for_vllm(recipe))) == asking_for_vllm(recipe)
    (tmp_path / "mine.toml").write_text('extends = "tiny"\n[grpo]\nuse_vllm = false\n')
    tiny = dataclasses.replace(Recipe.load(str(tmp_path / "mine.toml")), name="tiny")
    assert tiny.hash == Recipe.load("tiny").hash
    assert tiny.hash.startswith("89aa7c0f")  # of before there was a choice
    (tmp_path / "mine.toml").write_text('extends = "tiny"\n[grpo]\nuse_vllm = 1\n')
    with pytest.raises(ValueError, match=r"grpo\.use_vllm is 1; write true or false"):
        Recipe.load(str(tmp_path / "mine.toml"))


def test_vllm_without_package_or_gpu_is_one_sentence(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, real = asking_for_vllm(recipe), requirements.importlib.util.find_spec
    monkeypatch.setattr(requirements.importlib.util, "find_spec", lambda name: None if name == "vllm" else real(name))
    with pytest.raises(CannotTrain, match=r"use_vllm\), which is not installed; pip install 'trl\[vllm\]'"):
        ensure(wanted, [0], [], tmp_path)
    monkeypatch.setattr(requirements.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(CannotTrain, match="needs a GPU, and torch sees none here"):
        ensure(wanted, [0], [], tmp_path)
    with pytest.raises(IntegrityError, match="needs a GPU"):
        training.grpo_config(wanted, 0, str(tmp_path))
    assert requirements.unmet(recipe) is None


def test_vllm_is_asked_of_trl_beside_the_policy_and_without_its_correction(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = training.grpo_config(recipe, 0, str(tmp_path))
    assert not plain.use_vllm
    monkeypatch.setattr(training, "vllm_lacking", lambda gpu: None)
    asked = training.grpo_config(asking_for_vllm(recipe), 0, str(tmp_path))
    assert (asked.use_vllm, asked.vllm_mode, asked.vllm_importance_sampling_correction) == (True, "colocate", False)
    differing = {k for k, v in asked.to_dict().items() if plain.to_dict()[k] != v}
    assert differing == {"use_vllm"}
