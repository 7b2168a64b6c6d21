"""A budget counts what is really done: parameters and FLOPs of real policies, bytes of real units."""

from __future__ import annotations

import dataclasses
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import two_step
from torch.utils.flop_counter import FlopCounterMode, bmm_flop
from transformers import Qwen2Config, Qwen2ForCausalLM

from pytest_behaviortrace.__main__ import main
from pytest_behaviortrace.run import batching, footprint, training_pass, uses
from pytest_behaviortrace.run import budget as counting
from pytest_behaviortrace.run.architecture import QWEN2_5_1_5B, Architecture, architecture_of
from pytest_behaviortrace.run.budget import Assumed, Gpu, Work, budget
from pytest_behaviortrace.run.build import build_seed
from pytest_behaviortrace.run.capture import Capture
from pytest_behaviortrace.run.footprint import seed_bytes, sketch_set_bytes
from pytest_behaviortrace.run.gradients import PerSampleGradients
from pytest_behaviortrace.run.policy import load_model
from pytest_behaviortrace.run.recipe import PolicySpec, Recipe
from pytest_behaviortrace.run.sketch import BlockSketch
from pytest_behaviortrace.run.sketch_set import SketchSet
from pytest_behaviortrace.run.training import silent
from pytest_behaviortrace.run.training_pass import TrainingPass

REAL: dict[str, Any] = {
    "vocab_size": 151936,
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
SMALL = REAL | {
    "vocab_size": 640,
    "hidden_size": 96,
    "intermediate_size": 224,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 1,
}
ROWS, PROMPT, MADE = 3, 9, 12
TOKENS = PROMPT + MADE


def small(**changes: Any) -> tuple[Any, Architecture]:
    config = Qwen2Config(**(SMALL | changes), attn_implementation="eager")
    return Qwen2ForCausalLM(config), Architecture.of_config(config.to_dict())


def in_place(added: Any, a: Any, b: Any, out_shape: Any = None, **unused: Any) -> int:
    return int(bmm_flop(a, b))


def flops(block: Any) -> int:
    """FLOPs of what the block runs, forward and backward, as torch counts them."""
    # The product in place, of which torch knows the other form only.
    with FlopCounterMode(display=False, custom_mapping={torch.ops.aten.baddbmm_: in_place}) as counter:
        block()
    return int(counter.get_total_flops())


# -- the policy --------------------------------------------------------------------------------------------------------


def test_the_published_sizes_are_those_of_the_real_architecture() -> None:
    with torch.device("meta"):
        policy = Qwen2ForCausalLM(Qwen2Config(**REAL))
    assert sum(p.numel() for p in policy.parameters()) == QWEN2_5_1_5B.parameters == 1_543_714_304
    assert Architecture.of_config(policy.config.to_dict()) == QWEN2_5_1_5B
    assert architecture_of(Recipe.load("qwen2.5-1.5b").policy) == QWEN2_5_1_5B


@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": False}, {"num_key_value_heads": 3}])
def test_parameters_are_those_of_any_policy_of_the_kind(changes: dict[str, Any]) -> None:
    policy, sizes = small(**changes)
    assert sizes.parameters == sum(p.numel() for p in policy.parameters())


def test_the_shipped_policy_is_read_from_its_folder() -> None:
    spec = Recipe.load("tiny").policy
    policy = load_model(spec.location)
    assert architecture_of(spec).parameters == sum(p.numel() for p in policy.parameters())


def test_an_unknown_policy_has_no_budget(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="sizes of 'somebody/else' are not known here; give the folder"):
        architecture_of(PolicySpec("somebody/else"))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    with pytest.raises(ValueError, match="model_type 'mamba'; known: qwen2"):
        architecture_of(PolicySpec(str(tmp_path)))


# -- FLOPs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_flops_of_a_step_are_those_torch_counts(checkpointing: bool) -> None:
    policy, sizes = small()
    ids = torch.randint(0, 640, (ROWS, TOKENS))
    if checkpointing:
        policy.activation_checkpointing_enable()
    policy.train()
    body = sizes.body_flops(ROWS * TOKENS, TOKENS)
    assert flops(lambda: policy.model(ids)) == pytest.approx(body, rel=0.02)

    def step() -> None:
        policy.model(ids, use_cache=False).last_hidden_state.square().mean().backward()

    counted = counting.updating(sizes, ROWS, PROMPT, MADE, checkpointing).flops - 4 * sizes.head_flops(ROWS * MADE)
    assert flops(step) == pytest.approx(counted, rel=0.02)
    assert counted > (3.5 if checkpointing else 2.9) * body


def test_the_flops_of_sampling_are_those_torch_counts() -> None:
    policy, sizes = small()
    ids = torch.randint(1, 640, (ROWS, PROMPT))
    settings = {"max_new_tokens": MADE, "min_new_tokens": MADE, "do_sample": False, "pad_token_id": 0}
    real = flops(lambda: policy.generate(ids, attention_mask=torch.ones_like(ids), **settings))
    assert counting.generating(sizes, ROWS, PROMPT, MADE, 0.0, 4).flops == pytest.approx(real, rel=0.03)


@pytest.mark.parametrize("tied", [True, False])
def test_recording_adds_to_a_step_the_flops_that_are_counted(tied: bool) -> None:
    policy, sizes = small(tie_word_embeddings=tied)
    capture, sketch = Capture(policy), BlockSketch.for_model(policy, 256)
    ids, mask = torch.randint(1, 640, (ROWS, TOKENS)), torch.ones(ROWS, TOKENS, dtype=torch.long)

    def step(watched: bool) -> None:
        settings: dict[str, Any] = {"temperature": 1.0, "autocast": nullcontext}
        watch = TrainingPass(capture, sketch, ids, mask, MADE, torch.ones(ROWS), **settings)
        with watch if watched else nullcontext():
            hidden = policy.model(ids, attention_mask=mask, use_cache=False).last_hidden_state[:, PROMPT - 1 : -1]
            said = torch.log_softmax(policy.lm_head(hidden), -1).gather(2, ids[:, PROMPT:, None])[..., 0]
            if watched:
                watch.predicted(said)
            said.mean().backward()
        if watched:
            assert (watch.result().norm > 0).all()

    extra = flops(lambda: step(True)) - flops(lambda: step(False))
    counted = counting.recording_inside(sizes, ROWS, PROMPT, MADE)
    assert counted.flops + counted.flops32 == pytest.approx(extra, rel=0.03)
    assert counted.bytes > 12 * ROWS * sizes.parameters


@pytest.mark.parametrize("sets", [1, 2, 3])
def test_the_flops_of_a_pass_of_the_recorder_s_own_are_those_torch_counts(
    sets: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Three rows are few: they would run forward once more instead of taking several backward passes.
    monkeypatch.setattr(batching, "FEW_SAMPLES", 0)
    policy, sizes = small()
    engine = PerSampleGradients(policy, BlockSketch.for_model(policy, 256))
    ids, mask = torch.randint(0, 640, (ROWS, TOKENS)), torch.ones(ROWS, TOKENS, dtype=torch.long)
    weights = torch.zeros(ROWS, TOKENS)
    weights[:, PROMPT:] = 1.0
    engine(ids, mask, [weights])  # the check of the head, made once, is left out
    real = flops(lambda: engine(ids, mask, [weights] * sets))
    counted = counting.recording_alone(sizes, ROWS, PROMPT, MADE, sets)
    assert counted.flops + counted.flops32 == pytest.approx(real, rel=0.03)


# -- bytes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("items", [1, 300])
def test_a_sketch_set_is_as_large_as_counted(items: int, tmp_path: Path) -> None:
    rows = np.ones((items, 500), np.float32)
    SketchSet(rows, np.ones(items, np.float32), np.arange(items)).write(tmp_path, "gradients")
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == sketch_set_bytes(items, 500)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_seed_s_unit_has_the_sets_and_the_bytes_that_are_counted(tmp_path: Path) -> None:
    recipe, tokens = two_step.recipe(), 0
    build_seed(recipe, two_step.SEED, tmp_path, silent)
    found = {path.name.removesuffix(".row.npy"): len(np.load(path)) for path in tmp_path.glob("*.row.npy")}
    for name in ("rollouts", "null_rollouts"):
        table = pq.read_table(tmp_path / f"{name}.parquet")
        tokens += sum(len(ids) for kind in ("prompt_ids", "completion_ids") for ids in table[kind].to_pylist())
    every = Assumed(shown=1.0, zero=0.5)
    kinds = {name.removesuffix(f"_{plant.name}") for name in found for plant in recipe.plants}
    assert {k for k in kinds if not k.endswith(tuple(p.name for p in recipe.plants))} == counting.sets(
        recipe, every
    ).keys()
    assert counting.sets(recipe, every)["gradients"] == found["gradients"] == recipe.n_rollouts
    counted = seed_bytes(architecture_of(recipe.policy), recipe, found, tokens)
    real = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    # A store's manifest is not counted; tables this small are mostly headers, and three tokenizers lie beside.
    assert counted == pytest.approx(real, rel=0.05)


def test_the_sizes_of_a_pass_are_those_of_the_engine() -> None:
    """The budget is counted without torch, and so has its own copies."""
    for module, names in {
        batching: ("ROWS_PER_PASS", "TOKENS_PER_PASS"),
        training_pass: ("SAMPLES_SIDE_BY_SIDE", "MOST_LOGITS"),
        uses: ("MOST_ELEMENTS",),
    }.items():
        for name in names:
            assert getattr(footprint, name) == getattr(module, name)


# -- the whole ---------------------------------------------------------------------------------------------------------


def test_work_adds_up_and_a_faster_gpu_takes_less_time() -> None:
    one = Work(1e12, 2e12, 3e9, 5.0)
    gpu = Gpu(tflops=1.0, tflops32=1.0, bandwidth=1e9, utilisation=0.5)
    assert one.seconds(gpu) == pytest.approx(2 + 4 + 6 + 5)
    assert (one + one) == one * 2
    assert (one * 3).seconds(gpu) == pytest.approx(3 * one.seconds(gpu))
    recipe = Recipe.load("qwen2.5-1.5b")
    slow, fast = budget(recipe), budget(recipe, Gpu(tflops=900, tflops32=60, bandwidth=3.3e12))
    assert fast.seed_seconds < slow.seed_seconds
    assert fast.draw_seconds < slow.draw_seconds
    assert fast.training_peak == slow.training_peak


def test_the_large_recipe_is_counted_as_written_down() -> None:
    """The figures of the README: a change of recipe or code that moves them must be seen."""
    found = budget(Recipe.load("qwen2.5-1.5b"))
    assert found.recipe.n_rollouts == 16_000
    assert found.training_peak < found.gpu.memory
    assert found.training["weights"] == 4 * 1_543_714_304
    rows = 16_000 + 8_000 + 1_600 + 1_600
    assert found.disk["seed"] < (rows + 1_000) * 2 * 65_536 + 3 * 4 * 1_543_714_304 + 10**9
    assert found.disk["seed"] > rows * 2 * 65_536 + 3 * 4 * 1_543_714_304
    assert found.seed_seconds == pytest.approx(sum(w.seconds(found.gpu) for w in found.seed.values()))


def test_vllm_samples_sooner_and_takes_its_share_of_memory() -> None:
    recipe = Recipe.load("qwen2.5-1.5b")
    with_vllm = dataclasses.replace(recipe, grpo=dataclasses.replace(recipe.grpo, use_vllm=True))
    plain, quick = budget(recipe), budget(with_vllm)
    assert quick.seed_seconds < plain.seed_seconds
    assert quick.training_peak == plain.training_peak + 24 * counting.GB


def test_shorter_and_fewer_cost_less() -> None:
    recipe = Recipe.load("qwen2.5-1.5b")
    short = dataclasses.replace(recipe, grpo=dataclasses.replace(recipe.grpo, max_completion_length=32))
    assert budget(short).seed_seconds < budget(recipe).seed_seconds
    assert budget(recipe, None, Assumed(shown=0.1)).disk["seed"] < budget(recipe).disk["seed"]
    # A rollout of advantage zero takes a pass of its own, another only what its step brings anyway.
    assert budget(recipe, None, Assumed(zero=0.1)).seed_seconds < budget(recipe).seed_seconds


def test_the_budget_is_printed_with_its_assumptions(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [
        "train",
        "--recipe",
        "qwen2.5-1.5b",
        "--budget",
        "--gpu-tflops",
        "400",
        "--gpu-memory",
        "20",
        "--gpu-bandwidth",
        "3",
    ]
    assert main(asked) == 0
    out = capsys.readouterr().out
    assert "1,543,714,304 parameters, 16,000 rollouts a run, sketches of 65,536" in out
    assert "assumed: 400 TFLOP/s bfloat16, 19.5 float32, 3 TB/s" in out
    assert "30% of advantage zero" in out
    assert "nothing was measured" in out
    assert out.endswith("a seed does not fit on a GPU of 20.0 GB\na draw does not fit on a GPU of 20.0 GB\n")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--gpu-tflops", "400"], "say what --budget counts for"),
        (["--budget", "--gpu-tflops", "0"], "'0' is not a number above 0"),
        (["--budget", "--gpu-memory", "nan"], "'nan' is not a number above 0"),
        (["--budget", "--gpu-memory", "8e10"], "--gpu-memory is in GB, and no GPU has 8e+10"),
        (["--budget", "--gpu-utilisation", "1.5"], "is a share, at most 1"),
        (["--budget", "--gpu-adds", "1e10"], "unrecognized arguments: --gpu-adds"),
        (["--budget", "--recipe", "nonesuch"], "recipes: "),
    ],
)
def test_usage_errors_exit_2_and_say_why(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["train", *arguments])
    assert caught.value.code == 2
    assert complaint in capsys.readouterr().err
