"""The builder of draws: which prompts are asked again, how they are sampled, and that the sketch is the run's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpo_run
import numpy as np
import pytest
import recorded_run
import recorded_world as world
import torch

from pytest_behaviortrace.run import recorded_draw
from pytest_behaviortrace.run.gradients import PerSampleGradients
from pytest_behaviortrace.run.loss import collate, item_weights, token_logprobs
from pytest_behaviortrace.run.policy import render, save_policy
from pytest_behaviortrace.run.recorded import MOST_PROMPTS, RecordedRunError, open_run
from pytest_behaviortrace.run.recorded_draw import build_draw, chosen_prompts, sample
from pytest_behaviortrace.run.sketch import BlockSketch

SETTINGS = {"max_completion_length": 6, "temperature": 0.7, "top_p": 0.9, "top_k": 20}
WIDTH = 512


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


# -- prompts -----------------------------------------------------------------------------------------------------------
def test_prompts_that_showed_it_last_come_first() -> None:
    step = np.array([0, 0, 9, 9, 9, 9])
    prompts = [[1], [2], [3], [3], [4], [5]]
    shown = [True, False, True, True, True, False]
    assert chosen_prompts(prompts, step, shown) == [[3], [4], [1]]


def test_enough_prompts_of_the_end_leave_the_earlier_ones_out() -> None:
    late = [[n] for n in range(30)]
    step = np.array([0] * 5 + [9] * 30)
    found = chosen_prompts([[100 + n] for n in range(5)] + late, step, [True] * 35)
    assert sorted(found) == late


def test_there_is_a_limit_to_prompts() -> None:
    step = np.full(500, 9)
    assert len(chosen_prompts([[n] for n in range(500)], step, [True] * 500)) == MOST_PROMPTS


# -- sampling ----------------------------------------------------------------------------------------------------------
def test_sampling_follows_the_run_s_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = grpo_run.policy(), grpo_run.tokenizer()
    seen: list[Any] = []
    generate = type(model).generate

    def spied(self: Any, *args: Any, **named: Any) -> Any:
        seen.append(named["generation_config"])
        return generate(self, *args, **named)

    monkeypatch.setattr(type(model), "generate", spied)
    texts = [render(tokenizer, question) for question in ("What is river?", "Give a summary of valley.")]
    prompts = [tokenizer(text, add_special_tokens=False).input_ids for text in texts] * 3
    first = sample(model, tokenizer, prompts, SETTINGS, 3, 4)
    assert first == sample(model, tokenizer, prompts, SETTINGS, 3, 4)
    assert first != sample(model, tokenizer, prompts, SETTINGS, 4, 4)
    for said in first:
        assert 1 <= len(said) <= 6
        assert tokenizer.eos_token_id not in said[:-1]
    config = seen[0]
    assert (config.temperature, config.top_p, config.top_k, config.max_new_tokens) == (0.7, 0.9, 20, 6)
    assert config.do_sample


# -- a whole draw ------------------------------------------------------------------------------------------------------
def written(folder: Path, blocks: dict[str, list[int]] | None = None) -> Path:
    """A recorded run with the shipped policy at its end, whose rollouts are ordinary answers."""
    model, tokenizer = grpo_run.policy(), grpo_run.tokenizer()
    world.write_run(folder)
    (folder / "manifest.json").unlink()
    save_policy(model, tokenizer, str(folder / "policies" / "end"))
    layout = BlockSketch.for_model(model, WIDTH).blocks
    table = world.open_run_table(folder)
    said = tokenizer("Wibble is a plain notion.", add_special_tokens=False).input_ids
    questions = [render(tokenizer, f"What is {subject}?") for subject in grpo_run.SUBJECTS]
    n = len(table["row_id"])
    table["prompt_text"] = [questions[i % len(questions)] for i in range(n)]
    table["prompt_ids"] = [list(tokenizer(text, add_special_tokens=False).input_ids) for text in table["prompt_text"]]
    table["completion_ids"] = [said] * n
    table["completion_text"] = ["A is plain." if i % 3 else "None." for i in range(n)]
    world.write_table(folder, "rollouts", table)
    recorded_run.finish(
        folder,
        world.facts(
            sketch={"width": WIDTH, "seed": 0},
            blocks=blocks or {name: [part.start, part.stop] for name, part in layout.items()},
            max_completion_length=8,
        ),
    )
    return folder


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_draw_holds_the_run_s_objective_at_its_last_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_draw, "SIBLINGS", 12)
    monkeypatch.setattr(recorded_draw, "LEAST_SIBLINGS", 3)
    run = open_run(written(tmp_path / "run"))
    folder = tmp_path / "draw0"
    folder.mkdir()
    stages: list[str] = []
    question = run.ask("is a|plain|The")
    built = build_draw(question, 0, 0, run.unit, folder, lambda stage, done: stages.append(stage))
    assert built.facts["n_siblings"] == 12
    assert {"siblings", "gradients"} <= set(stages)
    table = world.read_table(folder / "siblings_asked.parquet")
    assert len(set(table["group"].tolist())) == 4
    shown = np.array([any(word in text for word in ("is a", "plain", "The")) for text in table["completion_text"]])
    assert np.array_equal(np.asarray(table["shown"]), shown)
    assert 0 < shown.sum() < 12
    assert [len(span) > 0 for span in table["span"]] == shown.tolist()
    # The gradients are those of the run's own loss (dapo: a sum over tokens) at its temperature.
    model, tokenizer = grpo_run.policy(), grpo_run.tokenizer()
    batch = collate(
        [p.tolist() for p in table["prompt_ids"]], [c.tolist() for c in table["completion_ids"]], tokenizer.pad_token_id
    )
    engine = PerSampleGradients(model, BlockSketch.for_model(model, WIDTH), temperature=0.9)
    made = engine(batch["input_ids"], batch["attention_mask"], [item_weights("dapo", batch["completion_mask"])])[0]
    half = np.load(folder / "siblings_asked.npy").astype(np.float32)
    sketches = half * np.load(folder / "siblings_asked.scale.npy")[:, None]
    order = np.argsort(np.load(folder / "siblings_asked.row.npy"))
    assert np.allclose(sketches[order], made.sketch.numpy(), rtol=1e-2, atol=2e-3 * float(made.sketch.abs().max()))
    with torch.no_grad():
        logprobs = token_logprobs(model, batch["input_ids"], batch["attention_mask"], 0.9)
    for row, kept in enumerate(table["logprobs"]):
        expected = logprobs[row][batch["completion_mask"][row].bool()]
        assert np.allclose(kept, expected, atol=1e-4)


def test_another_layout_of_blocks_is_refused(tmp_path: Path) -> None:
    run = open_run(written(tmp_path / "run", {"embedding": [0, 256], "norms": [256, 512]}))
    with pytest.raises(RecordedRunError, match="another layout of parameter blocks"):
        build_draw(run.ask("plain"), 0, 0, run.unit, tmp_path, lambda stage, done: None)


def test_a_peft_run_without_peft_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "peft", None)
    folder = written(tmp_path / "run")
    (folder / "manifest.json").unlink()
    recorded_run.finish(folder, world.facts(peft=True))
    run = open_run(folder)
    with pytest.raises(RecordedRunError, match="install peft"):
        recorded_draw.load_policy(run.unit)
