"""`record(trainer, path)`: what is read back, what it leaves alone, what it refuses, and what a crash costs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

import grpo_run  # noqa: E402
import recording_process  # noqa: E402
import torch  # noqa: E402
from recording_process import BEHAVIORS, STEPS, WIDTH  # noqa: E402
from transformers import TrainerCallback  # noqa: E402
from trl import GRPOTrainer  # noqa: E402

from pytest_behaviortrace import record  # noqa: E402
from pytest_behaviortrace.run import recorded_draw  # noqa: E402
from pytest_behaviortrace.run.attach import attach  # noqa: E402
from pytest_behaviortrace.run.formats import read_array  # noqa: E402
from pytest_behaviortrace.run.policy import load_model  # noqa: E402
from pytest_behaviortrace.run.recorded import RecordedRun, open_run  # noqa: E402
from pytest_behaviortrace.run.recorder import Capture, RolloutRecorder  # noqa: E402
from pytest_behaviortrace.run.rows import RecordingError  # noqa: E402

PATTERNS = {name: re.compile(pattern) for name, pattern in BEHAVIORS.items()}


def recorded(base: Path, **settings: Any) -> tuple[Any, RecordedRun]:
    """A trainer after it trained, and its record."""
    trainer = grpo_run.trainer(base / "work", **settings)
    record(trainer, base / "record", behaviors=BEHAVIORS, width=WIDTH)
    trainer.train()
    return trainer, open_run(base / "record")


def weights(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = load_model(str(folder)).state_dict()
    return found


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# -- read back ---------------------------------------------------------------------------------------------------------
def test_the_record_holds_what_a_recorder_in_memory_holds(whole: Any, tmp_path: Path) -> None:
    _, run = whole
    recorder = RolloutRecorder(Capture(WIDTH, PATTERNS))
    trainer = recording_process.trainer(tmp_path / "work", save_strategy="no")
    attach(trainer, recorder)
    trainer.train()
    columns = recorder.columns()
    assert columns.keys() - run.table.keys() == {"loss_scale"}
    assert run.table.keys() - columns.keys() == {"recorded_id"}
    for name in columns.keys() & run.table.keys():
        for a, b in zip(run.table[name], columns[name], strict=True):
            assert np.allclose(a, b, rtol=1e-6) if isinstance(b, float | list) else a == b, name
    assert np.array_equal(run.unit.array("loss_scale"), columns["loss_scale"])
    for kind in ("gradients", "spans_of", "spans_is"):
        kept = recorder.recorded(kind)
        assert len(kept) > 0
        kept.write(tmp_path, kind)  # half precision, as it is stored
        for part in ("", ".scale", ".norm", ".row"):
            assert np.array_equal(run.unit.array(f"{kind}{part}"), read_array(tmp_path / f"{kind}{part}.npy"))
        error = np.linalg.norm(run.unit.sketches(kind).float32() - kept.rows, axis=1)
        assert (error < 1e-3 * np.linalg.norm(kept.rows, axis=1)).all()
    for name in BEHAVIORS:
        means = recorder.mean_span_by_step(name, columns["step"])
        stored = run.unit.array(f"targets_by_step_{name}")
        assert np.linalg.norm(stored - means) < 1e-3 * np.linalg.norm(means)


def test_facts_and_files_are_what_readers_expect(whole: Any) -> None:
    trainer, run = whole
    facts = run.facts
    assert facts["n_rollouts"] == 8 * STEPS == len(run.table["step"])
    assert (facts["steps"], facts["behaviors"], facts["sketch"]) == (STEPS, BEHAVIORS, {"width": WIDTH, "seed": 0})
    assert (facts["min_p"], facts["repetition_penalty"], facts["generation_kwargs"]) == (None, 1.0, {})
    assert facts["eos_token_ids"] == trainer.eos_token_ids
    assert (facts["trainer_class"], facts["peft"], facts["temperature"]) == ("GRPOTrainer", False, 0.9)
    assert np.array_equal(np.unique(run.table["step"]), np.arange(STEPS))
    linear = [1e-3 * (1 - step / STEPS) for step in range(STEPS)]
    assert run.unit.array("learning_rate").tolist() == pytest.approx(linear)
    assert equal(weights(run.unit.policy("end")), dict(trainer.model.state_dict()))
    assert equal(weights(run.unit.policy("start")), dict(grpo_run.policy().state_dict()))
    assert {p.name for p in run.path.iterdir()} == {Path(f).parts[0] for f in run.unit.files} | {"manifest.json"}


def test_recording_changes_no_weight_and_no_random_number(whole: Any, tmp_path: Path) -> None:
    plain = recording_process.trainer(tmp_path / "plain", save_strategy="no")
    plain.train()
    assert equal(dict(plain.model.state_dict()), dict(whole[0].model.state_dict()))


def test_every_step_is_written_before_the_next(tmp_path: Path) -> None:
    """What is in memory is one step's rollouts, however long the run."""
    held: list[tuple[int, int]] = []

    class Watch(TrainerCallback):  # type: ignore[misc]
        def on_pre_optimizer_step(self, *args: Any, **unused: Any) -> None:
            sketches = sum(len(ids) for parts in recording._sink._sets.values() for *_, ids in parts)
            held.append((len(recording._sink._rows), sketches))

        def on_step_begin(self, *args: Any, **unused: Any) -> None:
            assert (recording._sink._rows, recording._sink._sets, recording._recorder._open) == ([], {}, {})

    trainer = grpo_run.trainer(tmp_path / "work", max_steps=4)
    recording = record(trainer, tmp_path / "record", width=WIDTH)
    trainer.add_callback(Watch())
    trainer.train()
    assert held == [(8, 8)] * 4
    assert len(open_run(tmp_path / "record").table["step"]) == 32


# -- kinds of runs -----------------------------------------------------------------------------------------------------
def brevity(completions: list[Any], **unused: Any) -> list[float]:
    return [-float(len(str(c))) for c in completions]


def sometimes(completions: list[Any], **unused: Any) -> list[float | None]:
    return [None if i % 2 else 1.0 for i in range(len(completions))]


def test_every_reward_function_has_its_column(tmp_path: Path) -> None:
    def twin() -> Any:
        def brevity(completions: list[Any], **unused: Any) -> list[float]:
            return [float(i) for i in range(len(completions))]

        return brevity

    _, run = recorded(
        tmp_path, reward=[brevity, sometimes, twin()], reward_weights=[0.5, 2.0, 1.0], num_generations=4
    )  # fmt: skip
    table = run.table
    assert {name for name in table if name.startswith("reward")} == {
        "reward", "reward_brevity", "reward_sometimes", "reward_brevity_2",
    }  # fmt: skip
    parts = [np.asarray(table[f"reward_{name}"]) for name in ("brevity", "sometimes", "brevity_2")]
    assert np.isnan(parts[1]).any()
    assert np.allclose(table["reward"], np.nansum(np.array(parts) * [[0.5], [2.0], [1.0]], axis=0))
    for group in np.unique(table["group"]):
        mine = np.asarray(table["group"]) == group
        reward = np.asarray(table["reward"])[mine]
        expected = (reward - reward.mean()) / (reward.std(ddof=1) + 1e-4)
        assert np.asarray(table["advantage"])[mine] == pytest.approx(expected, abs=1e-3)


def test_plain_prompts_are_recorded_as_they_are(tmp_path: Path) -> None:
    _, run = recorded(tmp_path, prompts=[f"The {s} is" for s in grpo_run.SUBJECTS * 8], reward=brevity)
    assert set(run.table["prompt_text"]) == {f"The {s} is" for s in grpo_run.SUBJECTS}


HALVES = {"per_device_train_batch_size": 4, "steps_per_generation": 2}


@pytest.mark.parametrize(
    ("settings", "met"),
    [
        ({"gradient_checkpointing": True}, [0, 1]),
        ({"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}, [0, 1]),
        ({"num_iterations": 2, "max_steps": 4}, [0, 2]),
        ({"num_iterations": 2, "max_steps": 8, "beta": 0.1, **HALVES}, [0, 1, 4, 5]),
    ],
    ids=lambda value: "-".join(map(str, value)),
)
def test_each_rollout_is_recorded_once(settings: dict[str, Any], met: list[int], tmp_path: Path) -> None:
    """In the step that its loss is first computed in."""
    steps = settings.get("max_steps", 2)
    _, run = recorded(tmp_path, **settings)
    row = run.unit.sketches("gradients").row
    assert row.tolist() == list(range(16))
    assert (run.facts["steps"], len(run.unit.array("learning_rate"))) == (steps, steps)
    assert (run.unit.array("gradients.norm") > 0).all()
    assert sorted(set(run.table["step"].tolist())) == met
    again = [run.unit.array(f"spans_of{part}") for part in ("", ".row")]
    assert len(again[0]) == len(again[1]) == sum(" of" in text for text in run.table["completion_text"])


def test_gradient_checkpointing_changes_nothing(tmp_path: Path) -> None:
    runs = [recorded(tmp_path / str(on), gradient_checkpointing=on)[1] for on in (False, True)]
    assert list(runs[0].table["completion_text"]) == list(runs[1].table["completion_text"])
    first, second = (run.unit.sketches("gradients").float32() for run in runs)
    assert np.linalg.norm(first - second) < 1e-3 * np.linalg.norm(first)


def test_a_policy_that_is_frozen_in_part_is_sketched_and_sampled_in_its_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = grpo_run.policy()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("layers.3" in name)
    _, run = recorded(tmp_path, model=model, max_completion_length=24)
    assert set(run.facts["blocks"]) == {"layers.3.attention", "layers.3.mlp", "norms"}
    monkeypatch.setattr(recorded_draw, "SIBLINGS", 9)
    (tmp_path / "draw").mkdir()
    recorded_draw.build_draw(run.ask(" of"), 0, 0, run.unit, tmp_path / "draw", lambda stage, fraction: None)
    assert len(read_array(tmp_path / "draw" / "siblings_asked.norm.npy")) >= 9


def test_completions_of_draws_end_and_are_made_as_trl_s(tmp_path: Path) -> None:
    """With a second end token, a rule of generation, and a threshold of probability."""
    model, tokenizer = grpo_run.policy(), grpo_run.tokenizer()
    (stop,) = tokenizer(".", add_special_tokens=False).input_ids
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, stop]
    rule = {"bad_words_ids": [tokenizer(word, add_special_tokens=False).input_ids for word in (" side", " core")]}
    _, run = recorded(
        tmp_path, model=model, max_completion_length=24, min_p=0.02, repetition_penalty=1.1, generation_kwargs=rule
    )
    assert run.facts["eos_token_ids"] == [tokenizer.eos_token_id, stop]
    assert (run.facts["min_p"], run.facts["repetition_penalty"]) == (0.02, 1.1)
    prompts = [ids.tolist() for ids in run.table["prompt_ids"]] * 2
    tokenizer, loaded = recorded_draw.load_policy(run.unit)
    for said in recorded_draw.sample(loaded, tokenizer, prompts, run.facts, 1, 32):
        assert stop not in said[:-1]
        assert not any(word in tokenizer.decode(said) for word in (" side", " core"))


def test_subclasses_are_recorded_as_they_are(tmp_path: Path) -> None:
    class Louder(GRPOTrainer):  # type: ignore[misc]
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            output = super()._generate_and_score_completions(inputs)
            output["advantages"] = 3.0 * output["advantages"]
            return output

    plain, loud = (recorded(tmp_path / c.__name__, trainer_class=c, max_steps=1)[1] for c in (GRPOTrainer, Louder))
    assert loud.facts["trainer_class"] == "Louder"
    assert np.allclose(loud.table["advantage"], 3.0 * np.asarray(plain.table["advantage"]))
    assert np.allclose(loud.unit.array("gradients.norm"), plain.unit.array("gradients.norm"), rtol=1e-4)


# -- detach ------------------------------------------------------------------------------------------------------------
def test_detach_leaves_the_trainer_as_it_was(tmp_path: Path) -> None:
    trainer = grpo_run.trainer(tmp_path / "work", max_steps=1)
    before, callbacks = dict(trainer.__dict__), list(trainer.callback_handler.callbacks)
    with record(trainer, tmp_path / "record", width=WIDTH) as recording:
        assert trainer.__dict__.keys() != before.keys()
        recording.detach()
    assert trainer.__dict__ == before
    assert trainer.callback_handler.callbacks == callbacks
    trainer.train()
    assert not list((tmp_path / "record" / "shards").iterdir())


def test_a_finished_record_takes_no_second_training(tmp_path: Path) -> None:
    trainer = grpo_run.trainer(tmp_path / "work", max_steps=1)
    recording = record(trainer, tmp_path / "record", width=WIDTH)
    trainer.train()
    with pytest.raises(RecordingError, match="finished record of this trainer's last training; detach"):
        trainer.train()
    recording.detach()
    trainer.train()
    open_run(tmp_path / "record")
