"""A recorded GRPO run: TRL trains the same weights, and what is recorded adds up to TRL's own gradient."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

import grpo_run  # noqa: E402
import torch  # noqa: E402
from transformers import TrainerCallback  # noqa: E402
from trl import GRPOTrainer  # noqa: E402

from pytest_behaviortrace.run.gradients import PerSampleGradients  # noqa: E402
from pytest_behaviortrace.run.integrity import IntegrityError  # noqa: E402
from pytest_behaviortrace.run.loss import LOSS_TYPES, Objective, UnsupportedLoss, collate, rollout_loss  # noqa: E402
from pytest_behaviortrace.run.recorder import Capture, RolloutRecorder  # noqa: E402
from pytest_behaviortrace.run.rows import RecordingError  # noqa: E402
from pytest_behaviortrace.run.sketch import BlockSketch  # noqa: E402

WIDTH = 512
COMMON = {"of": " of", "is": " is"}
"""Words of ordinary answers in the place of behaviours, so that a few rollouts suffice to see them."""


class Gradients(TrainerCallback):  # type: ignore[misc]
    """The gradients and the policy that each optimizer step starts from."""

    def __init__(self) -> None:
        self.found: list[dict[str, torch.Tensor]] = []
        self.policies: list[dict[str, torch.Tensor]] = []

    def on_step_begin(self, *args: Any, model: Any = None, **kwargs: Any) -> None:
        self.policies.append({name: tensor.clone() for name, tensor in model.state_dict().items()})

    def on_pre_optimizer_step(self, *args: Any, model: Any = None, **kwargs: Any) -> None:
        self.found.append(grpo_run.gradients(model))


def run(folder: Path, capture: Capture | None, **settings: Any) -> Any:
    recorder, seen = RolloutRecorder(capture), Gradients()
    trainer = grpo_run.trainer(folder, recorder, **settings)
    trainer.add_callback(seen)
    trainer.train()
    return trainer, recorder, seen


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return run(tmp_path_factory.mktemp("run"), Capture(WIDTH, COMMON), temperature=0.9, max_completion_length=24)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_recorded_gradients_add_up_to_the_one_trl_leaves(loss_type: str, tmp_path: Path) -> None:
    trainer, recorder, seen = run(tmp_path, Capture(WIDTH, {}), loss_type=loss_type, temperature=0.8)
    _check_sum(trainer, recorder, seen)


def test_they_add_up_over_micro_batches_too(tmp_path: Path) -> None:
    for loss_type in ("grpo", "dapo", "bnpo"):
        trainer, recorder, seen = run(
            tmp_path, Capture(WIDTH, {}), loss_type=loss_type, per_device_train_batch_size=4,
            gradient_accumulation_steps=2, steps_per_generation=2,
        )  # fmt: skip
        _check_sum(trainer, recorder, seen)


def _check_sum(trainer: Any, recorder: RolloutRecorder, seen: Gradients) -> None:
    columns, made = recorder.columns(), recorder.recorded("gradients")
    assert made.row.tolist() == columns["row_id"] == list(range(16))
    sketch = BlockSketch.for_model(trainer.model, WIDTH)
    factor = np.array(columns["advantage"]) * np.array(columns["loss_scale"])
    assert np.abs(factor).max() > 0
    for step, gradient in enumerate(seen.found):
        rows = slice(8 * step, 8 * step + 8)
        of_trl = -sketch.sketch({name: g[None] for name, g in gradient.items()})[0].numpy()
        together = (made.rows[rows].astype(np.float64) * factor[rows, None]).sum(0)
        assert np.linalg.norm(of_trl) > 0
        assert np.linalg.norm(together - of_trl) / np.linalg.norm(of_trl) < 1e-4


def test_the_full_gradients_of_a_batch_add_up_exactly(recorded: Any) -> None:
    """The same without a sketch in between, at the policy that the second step started from."""
    trainer, recorder, seen = recorded
    columns, model = recorder.columns(), grpo_run.policy()
    model.load_state_dict(seen.policies[1])
    batch = collate(columns["prompt_ids"][8:], columns["completion_ids"][8:], trainer.processing_class.pad_token_id)
    engine = PerSampleGradients(model, BlockSketch.for_model(model, WIDTH), temperature=0.9)
    weights = Objective.of(trainer.args).token_weights(batch["completion_mask"])
    exact = engine.exact(batch["input_ids"], batch["attention_mask"], weights)
    factor = torch.tensor(columns["advantage"][8:]) / 8
    for name, of_trl in seen.found[1].items():
        together = -(exact[name] * factor.view(-1, *[1] * of_trl.dim())).sum(0)
        assert float((together - of_trl).norm() / of_trl.norm()) < 1e-3, name


@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_recording_changes_nothing_to_the_last_bit(clip: float, tmp_path: Path) -> None:
    plain = grpo_run.trainer(tmp_path, max_grad_norm=clip)
    plain.train()
    after = torch.get_rng_state()
    trainer, _, _ = run(tmp_path, Capture(WIDTH, COMMON), max_grad_norm=clip)
    assert torch.equal(torch.get_rng_state(), after)
    other = trainer.model.state_dict()
    start = grpo_run.policy().state_dict()
    assert all(torch.equal(tensor, other[name]) for name, tensor in plain.model.state_dict().items())
    assert any(not torch.equal(tensor, start[name]) for name, tensor in other.items())
    assert not any(m._forward_hooks for m in trainer.model.modules())


def test_row_ids_follow_trl_s_shuffle(tmp_path: Path) -> None:
    """The ids that reach the loss are shuffled, each with its own completion."""
    seen: list[tuple[list[int], list[list[int]]]] = []

    class Watching(RolloutRecorder):
        def entering(self, trainer: Any, model: Any, inputs: dict[str, Any]) -> None:
            rows = [
                c[m.bool()].tolist() for c, m in zip(inputs["completion_ids"], inputs["completion_mask"], strict=True)
            ]
            seen.append((inputs["row_id"].tolist(), rows))
            super().entering(trainer, model, inputs)

    recorder = Watching(None)
    grpo_run.trainer(tmp_path, recorder).train()
    columns = recorder.columns()
    assert any(ids != sorted(ids) for ids, _ in seen)
    for ids, rows in seen:
        assert [columns["completion_ids"][i] for i in ids] == rows
    assert recorder.steps == [0, 1]


def test_columns_are_what_trl_had(recorded: Any) -> None:
    trainer, recorder, _ = recorded
    columns = recorder.columns()
    assert all(len(values) == 16 for values in columns.values())
    logged = trainer._logs
    assert columns["completion_text"][8:] == [c[0]["content"] for c in logged["completion"]][-8:]
    assert columns["advantage"][8:] == pytest.approx(list(logged["advantages"])[-8:])
    assert columns["prompt_text"][0].count("What is") == 1
    ids = columns["prompt_ids"]
    assert all(ids[i] == ids[i + 1] for i in range(0, 16, 2))
    for advantages in np.reshape(columns["advantage"], (-1, 2)):
        assert advantages.sum() == pytest.approx(0, abs=1e-5)


def test_log_probabilities_are_those_of_the_sampling_policy(recorded: Any) -> None:
    trainer, recorder, seen = recorded
    columns = recorder.columns()
    model = grpo_run.policy()
    for step in (0, 1):
        model.load_state_dict(seen.policies[step])
        rows = range(8 * step, 8 * step + 8)
        batch = collate(
            [columns["prompt_ids"][i] for i in rows], [columns["completion_ids"][i] for i in rows],
            trainer.processing_class.pad_token_id,
        )  # fmt: skip
        with torch.no_grad():
            means = rollout_loss(model, batch, "grpo", 0.9)
        assert means.tolist() == pytest.approx([np.mean(columns["logprobs"][i]) for i in rows], abs=1e-4)
        assert all(len(columns["logprobs"][i]) == len(columns["completion_ids"][i]) for i in rows)


def test_repeated_completions_keep_their_rows_apart(tmp_path: Path) -> None:
    """A policy that says one thing only: equal gradients, different advantages, no row lost."""
    model = grpo_run.policy()
    said: list[int] = []

    def reward(completions: list[Any], **unused: Any) -> list[float]:
        said.append(len({c[0]["content"] for c in completions}))
        return [float(i) for i in range(len(completions))]

    _, recorder, _ = run(tmp_path, Capture(WIDTH, {}), model=model, reward=reward, top_k=1, max_steps=1)
    columns, made = recorder.columns(), recorder.recorded("gradients")
    assert said[0] <= 4
    assert columns["row_id"] == list(range(8))
    first, second = made.rows[0::2], made.rows[1::2]
    assert np.allclose(first, second, rtol=1e-3, atol=1e-3 * np.abs(first).max())
    assert all(a < 0 < b for a, b in np.reshape(columns["advantage"], (-1, 2)))


def test_spans_are_recorded_where_they_are_said(recorded: Any) -> None:
    _, recorder, seen = recorded
    columns, model = recorder.columns(), grpo_run.policy()
    for plant, word in COMMON.items():
        shown = [i for i, text in enumerate(columns["completion_text"]) if word in text]
        spans = recorder.recorded(f"spans_{plant}")
        assert shown
        assert spans.row.tolist() == shown == [i for i, s in enumerate(columns[f"span_{plant}"]) if s]
        means = recorder.mean_span_by_step(plant, [i // 8 for i in range(16)])
        assert means.shape == (2, WIDTH)
        for step in (0, 1):
            of_step = spans.rows[(spans.row >= 8 * step) & (spans.row < 8 * step + 8)]
            assert np.allclose(means[step], of_step.mean(0) if len(of_step) else 0.0, atol=1e-5)
        row = shown[-1]
        model.load_state_dict(seen.policies[row // 8])
        batch = collate([columns["prompt_ids"][row]], [columns["completion_ids"][row]], 0)
        weights = torch.zeros(batch["input_ids"].shape)
        span = columns[f"span_{plant}"][row]
        weights[0, torch.tensor(span) + len(columns["prompt_ids"][row])] = 1 / len(span)
        engine = PerSampleGradients(model, BlockSketch.for_model(model, WIDTH), temperature=0.9)
        alone = engine(batch["input_ids"], batch["attention_mask"], [weights])[0]
        assert np.linalg.norm(spans.rows[-1] - alone.sketch[0].numpy()) < 1e-3 * float(alone.norm[0])
        assert float(spans.norm[-1]) == pytest.approx(float(alone.norm[0]), rel=1e-4)


def test_only_what_is_selected_is_sketched(tmp_path: Path) -> None:
    capture = Capture(WIDTH, COMMON, select=lambda ids: np.asarray(ids) % 2 == 0, only_shown=True)
    _, recorder, _ = run(tmp_path, capture)
    columns, made = recorder.columns(), recorder.recorded("gradients")
    wanted = [i for i in range(16) if i % 2 == 0 and (columns["span_of"][i] or columns["span_is"][i])]
    assert made.row.tolist() == wanted
    assert len(columns["logprobs"][1]) == len(columns["completion_ids"][1])


def test_nothing_is_sketched_without_a_capture(tmp_path: Path) -> None:
    _, recorder, _ = run(tmp_path, None)
    assert len(recorder.recorded("gradients")) == 0
    assert recorder.columns()["loss_scale"] == [1 / 8] * 16


def test_a_recorder_records_one_run(tmp_path: Path) -> None:
    _, recorder, _ = run(tmp_path, None, max_steps=1)
    with pytest.raises(RecordingError, match="records one run"):
        grpo_run.trainer(tmp_path, recorder).train()


OFF_POLICY = (
    {"beta": 0.5},
    {"beta": 0.5, "loss_type": "dapo"},
    {"num_iterations": 2, "max_steps": 4},
    {"num_iterations": 2, "max_steps": 4, "beta": 0.3, "use_bias_correction_kl": True},
    {"per_device_train_batch_size": 4, "steps_per_generation": 2, "max_steps": 4, "learning_rate": 0.05},
    {"per_device_train_batch_size": 4, "steps_per_generation": 2, "max_steps": 4, "loss_type": "dapo", "beta": 0.1},
    {"importance_sampling_level": "sequence", "loss_type": "luspo", "num_iterations": 2, "max_steps": 4},
    {"mask_truncated_completions": True, "loss_type": "dr_grpo", "max_completion_length": 48},
    {"scale_rewards": "none", "loss_type": "cispo", "epsilon_high": 5.0, "beta": 0.2},
)
"""Settings under which tokens have weights of their own: KL, later passes, clipping, masks."""


@pytest.mark.parametrize("settings", OFF_POLICY, ids=lambda s: "-".join(f"{k}={v}" for k, v in s.items()))
def test_shares_of_every_kind_of_run_add_up(settings: dict[str, Any], tmp_path: Path) -> None:
    """Advantage times gradient, and the KL term's share, of every rollout a step first meets: TRL's own gradient."""
    trainer, recorder, seen = run(tmp_path, Capture(WIDTH, {}), **settings)
    columns, made = recorder.columns(), recorder.recorded("gradients")
    sketch = BlockSketch.for_model(trainer.model, WIDTH)
    shares = made.rows.astype(np.float64) * np.array(columns["advantage"])[made.row, None]
    if "beta" in settings:
        kl = recorder.recorded("kl_gradients")
        assert len(kl) > 0
        shares[np.searchsorted(made.row, kl.row)] += kl.rows
    shares *= np.array(columns["loss_scale"])[made.row, None]
    steps, met = np.array(columns["step"])[made.row], 0
    for step in np.unique(steps):
        if settings.get("num_iterations") == 2 and recorder.steps.count(step) and step % 2:
            continue
        of_trl = -sketch.sketch({name: g[None] for name, g in seen.found[step].items()})[0].numpy()
        together = shares[steps == step].sum(0)
        assert np.linalg.norm(of_trl) > 0
        assert np.linalg.norm(together - of_trl) / np.linalg.norm(of_trl) < 2e-4
        met += 1
    assert met == (4 if "steps_per_generation" in settings else 2)


def test_clipping_takes_tokens_out(tmp_path: Path) -> None:
    """A second slice of a batch, after a large update: some ratios are clipped, and the record knows."""
    settings: dict[str, Any] = {"per_device_train_batch_size": 4, "steps_per_generation": 2, "learning_rate": 0.05}
    settings |= {"logging_strategy": "steps", "logging_steps": 1, "max_steps": 2}
    trainer, recorder, _ = run(tmp_path, Capture(WIDTH, {}), **settings)
    clipped = [entry["clip_ratio/region_mean"] for entry in trainer.state.log_history if "loss" in entry]
    assert clipped[0] == 0.0 < clipped[1]
    assert [recorder.columns()["step"].count(step) for step in (0, 1)] == [4, 4]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"entropy_coef": 0.1}, "entropy_coef"),
        ({"top_entropy_quantile": 0.5}, "top_entropy_quantile"),
        ({"delta": 0.5}, "delta"),
        ({"beta": 0.1, "use_bias_correction_kl": True, "importance_sampling_level": "sequence"}, "use_bias_correction"),
    ],
)
def test_what_cannot_be_recorded_is_refused_before_training(settings: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedLoss, match=said):
        grpo_run.trainer(tmp_path, RolloutRecorder(None), **settings)


def test_a_loss_with_a_term_of_its_own_is_refused_at_its_first_batch(tmp_path: Path) -> None:
    class Decaying(GRPOTrainer):  # type: ignore[misc]
        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            return super()._compute_loss(model, inputs) + sum(p.square().sum() for p in model.parameters())

    trainer = grpo_run.trainer(tmp_path, RolloutRecorder(Capture(WIDTH, {})), trainer_class=Decaying)
    with pytest.raises(IntegrityError, match=r"add up to .*% of the trainer's own gradient"):
        trainer.train()
