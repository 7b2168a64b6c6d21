"""What the recorder takes for granted of TRL. A failure here names what a TRL release changed."""

from __future__ import annotations

import importlib.metadata
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

import grpo_run  # noqa: E402
import torch  # noqa: E402
from packaging.requirements import Requirement  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402
from trl.trainer import utils  # noqa: E402

from pytest_behaviortrace.run.loss import TRL_EPSILON  # noqa: E402


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A trainer of TRL's own class that notes what passes between generation and loss."""

    class Noting(GRPOTrainer):  # type: ignore[misc, valid-type]
        outputs: list[Any] = []  # noqa: RUF012
        losses: list[Any] = []  # noqa: RUF012
        logps: list[Any] = []  # noqa: RUF012

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            output = super()._generate_and_score_completions(inputs)
            self.outputs.append((len(inputs), self.state.global_step, dict(output)))
            output["extra"] = torch.arange(len(inputs)) + 100
            return output

        def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
            result = super()._get_per_token_logps_and_entropies(*args, **kwargs)
            self.logps.append(result)
            return result

        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            before = len(self.logps)
            loss = super()._compute_loss(model, inputs)
            self.losses.append(
                (self.state.global_step, dict(inputs), loss.detach(), self.logps[before:], model.training)
            )
            return loss

    made = grpo_run.trainer(tmp_path_factory.mktemp("run"), trainer_class=Noting)
    made.train()
    return made


def test_the_installed_release_is_in_the_supported_range() -> None:
    needed = [Requirement(text) for text in importlib.metadata.requires("pytest-behaviortrace") or []]
    (trl,) = [r for r in needed if r.name == "trl"]
    version = importlib.metadata.version("trl")
    assert trl.specifier.contains(version), f"TRL {version} is outside of the supported range {trl.specifier}"


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        ("_generate_and_score_completions", ["self", "inputs"]),
        ("_compute_loss", ["self", "model", "inputs"]),
        ("_prepare_inputs", ["self", "generation_batch"]),
        ("_get_per_token_logps_and_entropies", ["self", "model", "input_ids", "attention_mask", "logits_to_keep"]),
    ],
)
def test_overridden_methods_exist(method: str, parameters: list[str]) -> None:
    found = getattr(GRPOTrainer, method, None)
    assert found is not None, f"TRL dropped GRPOTrainer.{method}, which the recorder overrides"
    names = list(inspect.signature(found).parameters)
    assert names[: len(parameters)] == parameters, f"TRL changed GRPOTrainer.{method}: it takes {names} now"


def test_generation_gives_the_keys_that_are_recorded(plain: Any) -> None:
    needed = {"prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages", "num_items_in_batch"}
    for count, _, output in plain.outputs:
        missing = needed - output.keys()
        assert not missing, f"TRL's generation batch lacks {missing}; it has {sorted(output)}"
        assert count == plain.args.generation_batch_size == 8, "TRL generates another number of rollouts per batch"
        assert output["advantages"].shape == (count,), "TRL's advantages are no longer one per rollout"
        assert "old_per_token_logps" not in output, "TRL holds aligned generation batches to be off-policy"
        assert output["num_items_in_batch"] == output["completion_mask"].sum(), (
            "TRL counts completion tokens differently"
        )
        padded = [row.tolist() for row in output["prompt_mask"]]
        assert all(row == sorted(row) for row in padded), "TRL no longer pads prompts on the left"


def test_generation_happens_once_per_optimizer_step(plain: Any) -> None:
    assert [step for _, step, _ in plain.outputs] == [0, 1], "TRL's generation batches no longer match optimizer steps"
    assert [step for step, *_ in plain.losses] == [0, 1], "global_step changes between generation and loss"


def test_groups_stand_together(plain: Any) -> None:
    prompts = [[row.tolist() for row in output["prompt_ids"]] for _, _, output in plain.outputs]
    together = all(p[i] == p[i + 1] for p in prompts for i in range(0, 8, 2))
    assert together, "TRL no longer generates the completions of a prompt side by side"


def test_extra_tensors_are_shuffled_along(plain: Any) -> None:
    shuffled = False
    for (_, _, output), (_, inputs, *_) in zip(plain.outputs, plain.losses, strict=True):
        assert "extra" in inputs, "TRL drops unknown tensors on the way from generation to loss"
        order = inputs["extra"] - 100
        shuffled |= order.tolist() != list(range(8))
        same = torch.equal(inputs["completion_ids"], output["completion_ids"][order])
        assert same, "TRL shuffles unknown tensors in another order than completions"
        assert torch.equal(inputs["advantages"], output["advantages"][order])
    assert shuffled, "TRL no longer shuffles between generation and loss (harmless; update this test)"


def test_shuffle_and_split_keep_unknown_keys() -> None:
    batch = {"completion_ids": torch.arange(12).view(6, 2), "row_id": torch.arange(6), "scalar": torch.tensor(3)}
    torch.manual_seed(0)
    shuffled = utils.shuffle_sequence_dict(batch)
    assert torch.equal(shuffled["completion_ids"][:, 0] // 2, shuffled["row_id"]), "shuffle_sequence_dict changed"
    parts = utils.split_tensor_dict(shuffled, 3)
    assert torch.equal(torch.cat([p["row_id"] for p in parts]), shuffled["row_id"]), "split_tensor_dict changed"


def test_the_loss_asks_once_for_log_probabilities(plain: Any) -> None:
    for _, inputs, _, asked, training in plain.losses:
        assert len(asked) == 1, f"TRL's loss computes log-probabilities {len(asked)} times"
        assert asked[0][0].shape == inputs["completion_ids"].shape, "TRL's log-probabilities have another shape"
        assert training, "TRL's loss is computed in evaluation mode"


def test_the_forward_is_fused_and_scaled_by_temperature() -> None:
    """Hooks on the head never fire in TRL's pass, and its logits are divided by the temperature."""
    model = grpo_run.policy()
    assert hasattr(utils, "add_fused_lm_head"), "TRL dropped add_fused_lm_head"
    utils.add_fused_lm_head(model, temperature=0.5)
    fired = []
    model.lm_head.register_forward_hook(lambda *unused: fired.append(1))
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    out = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids, fused_lm_head=True)
    assert not fired, "TRL's fused forward calls the head as a module now: a single forward pass could serve both"
    logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    expected = torch.log_softmax(logits[:, :-1] / 0.5, -1).gather(2, ids[:, 1:, None])[..., 0]
    assert torch.allclose(out.log_probs, expected, atol=1e-4), "TRL's fused log-probabilities are defined differently"


@pytest.mark.parametrize(
    ("loss_type", "expected"),
    [
        ("grpo", lambda m, n: 1.0),
        ("sapo", lambda m, n: 2.0),
        ("bnpo", lambda m, n: 1.0),
        ("dr_grpo", lambda m, n: m.sum() / (len(m) * 12)),
        ("dapo", lambda m, n: m.sum() / n),
        ("cispo", None),
        ("luspo", lambda m, n: m.sum(1).mean()),
    ],
)
def test_loss_normalisation(loss_type: str, expected: Any, tmp_path: Path) -> None:
    """The value of the loss with all advantages 1: what each normaliser divides by (ratio 1, so -value = weights)."""
    trainer = grpo_run.trainer(tmp_path, loss_type=loss_type)
    trainer.current_gradient_accumulation_steps = 1
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
    inputs = {
        "prompt_ids": torch.tensor([[5, 6], [7, 8]]), "prompt_mask": torch.ones(2, 2, dtype=torch.long),
        "completion_ids": torch.tensor([[9, 10, 11, 0], [12, 13, 0, 0]]), "completion_mask": mask,
        "advantages": torch.ones(2), "num_items_in_batch": torch.tensor(20),
    }  # fmt: skip
    trainer.model.train()
    value = -float(trainer._compute_loss(trainer.model, inputs).detach())
    if expected is None:
        epsilon = float(trainer.epsilon_high)
        said = trainer._get_per_token_logps_and_entropies(
            trainer.model, torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1),
            torch.cat([inputs["prompt_mask"], mask], 1), 4,
        )[0]  # fmt: skip
        wanted = float(epsilon * (said.detach() * mask).sum() / 20)
    else:
        wanted = float(expected(mask.float(), 20))
    assert value == pytest.approx(wanted, rel=1e-4), f"TRL normalises loss_type={loss_type!r} differently now"


def test_settings_that_are_read_exist_with_the_known_defaults() -> None:
    defaults = {
        "epsilon": TRL_EPSILON, "epsilon_high": None, "importance_sampling_level": "token", "num_iterations": 1,
        "top_entropy_quantile": 1.0, "entropy_coef": 0.0, "use_adaptive_entropy": False, "use_vllm": False,
        "off_policy_mask_threshold": None, "mask_truncated_completions": False, "delta": None,
        "multi_objective_aggregation": "sum_then_normalize",
    }  # fmt: skip
    fields = {name: getattr(GRPOConfig, name, "missing") for name in defaults}
    fields |= {n: f.default for n, f in GRPOConfig.__dataclass_fields__.items() if n in defaults}
    changed = {n: (fields[n], wanted) for n, wanted in defaults.items() if fields[n] != wanted}
    assert not changed, f"TRL changed settings that the recorder reads (now, known): {changed}"


def test_every_loss_type_is_known() -> None:
    """A new loss type of TRL has to be put into `run.loss` or refused there."""
    source = inspect.getsource(GRPOTrainer._compute_loss)
    named = set(re.findall(r'"([a-z_]+)"', " ".join(re.findall(r"loss_type (?:==|in) (\[[^\]]*\]|\"\w+\")", source))))
    known = {"grpo", "sapo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "vespo"}
    assert named == known, f"TRL's loss types changed: new {named - known}, gone {known - named}"


def test_rewards_become_advantages_inside_groups(plain: Any) -> None:
    for _, _, output in plain.outputs:
        grouped = output["advantages"].view(-1, 2)
        assert torch.allclose(grouped.sum(1), torch.zeros(4), atol=1e-5), "TRL centres advantages differently"
