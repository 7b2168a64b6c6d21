"""A PEFT run is recorded: gradients of the adapter's parameters, and what is trained in its place, exact; what is not
known is refused by name; the recorded adapter is loaded and sampled from."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

peft = pytest.importorskip("peft")

import grpo_run  # noqa: E402
import torch  # noqa: E402
from transformers import TrainerCallback  # noqa: E402
from trl import GRPOTrainer  # noqa: E402

from pytest_behaviortrace import record  # noqa: E402
from pytest_behaviortrace.run import recorded_draw  # noqa: E402
from pytest_behaviortrace.run.attach import attach  # noqa: E402
from pytest_behaviortrace.run.capture import UnsupportedModel  # noqa: E402
from pytest_behaviortrace.run.formats import Sketches, read_array, read_table  # noqa: E402
from pytest_behaviortrace.run.policy import load_model  # noqa: E402
from pytest_behaviortrace.run.recorded import RecordedRunError, open_run  # noqa: E402
from pytest_behaviortrace.run.recorder import Capture, RolloutRecorder  # noqa: E402
from pytest_behaviortrace.run.sketch import BlockSketch, trainable  # noqa: E402

WIDTH, TEMPERATURE = 512, 0.9
LORA = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj", "down_proj"], "init_lora_weights": False}
"""Not as a fresh adapter begins: half of its gradients would be zero."""


def trainer(folder: Path, adapter: dict[str, Any] | None = None, **settings: Any) -> Any:
    config = peft.LoraConfig(task_type="CAUSAL_LM", **(LORA | (adapter or {})))
    made = functools.partial(GRPOTrainer, peft_config=config)
    return grpo_run.trainer(folder, trainer_class=made, temperature=TEMPERATURE, **settings)


class Steps(TrainerCallback):  # type: ignore[misc]
    """What is trained, before every optimizer step, and its gradient."""

    def __init__(self) -> None:
        self.policies: list[dict[str, torch.Tensor]] = []
        self.gradients: list[dict[str, torch.Tensor]] = []

    def on_step_begin(self, *args: Any, model: Any = None, **unused: Any) -> None:
        self.policies.append({name: p.detach().clone() for name, p in trainable(model).items()})

    def on_pre_optimizer_step(self, *args: Any, model: Any = None, **unused: Any) -> None:
        self.gradients.append(grpo_run.gradients(model))


def by_autograd(
    model: Any, sketch: BlockSketch, prompt: Any, completion: Any, tokens: Any = None
) -> tuple[np.ndarray[Any, Any], float]:
    """Sketch and norm of the mean log-probability's gradient, of a whole completion or of some of its tokens."""
    ids = torch.tensor([[*map(int, prompt), *map(int, completion)]])
    logits = model(input_ids=ids).logits[:, len(prompt) - 1 : -1].float() / TEMPERATURE
    said = torch.log_softmax(logits, -1).gather(2, ids[:, len(prompt) :, None])[0, :, 0]
    names, parameters = zip(*trainable(model).items(), strict=True)
    found = torch.autograd.grad((said if tokens is None else said[list(tokens)]).mean(), parameters)
    norm = float(torch.stack([g.double().square().sum() for g in found]).sum().sqrt())
    return sketch.sketch({n: g[None] for n, g in zip(names, found, strict=True)})[0].numpy(), norm


def each_row(model: Any, steps: Steps, columns: dict[str, Any]) -> Iterator[int]:
    """Every rollout, with the model at the policy that its loss met it with."""
    parameters = trainable(model)
    for row, step in enumerate(columns["step"]):
        with torch.no_grad():
            for name, values in steps.policies[step].items():
                parameters[name].copy_(values)
        yield row


SETTINGS = {
    "plain": ({}, {}),
    "checkpointing": ({}, {"gradient_checkpointing": True}),
    "kl": ({}, {"beta": 0.1}),
    "kl, checkpointing": ({}, {"beta": 0.1, "gradient_checkpointing": True}),
    "another scale": ({"use_rslora": True, "lora_bias": True, "target_modules": ["q_proj", "v_proj"]}, {}),
    "a norm": ({"modules_to_save": ["norm"]}, {}),
    "a whole map": ({"modules_to_save": ["k_proj"]}, {"beta": 0.1}),
    "the head": ({"modules_to_save": ["lm_head"]}, {}),
    "the embeddings": ({"modules_to_save": ["embed_tokens"]}, {}),
    "embeddings tied to the head": ({"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}, {}),
}


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
@pytest.mark.parametrize("which", SETTINGS)
def test_gradients_are_those_of_autograd(which: str, tmp_path: Path) -> None:
    adapter, settings = SETTINGS[which]
    recorder, steps = RolloutRecorder(Capture(WIDTH, {"of": " of"})), Steps()
    made = trainer(tmp_path, adapter, max_completion_length=24, **settings)
    attach(made, recorder)
    made.add_callback(steps)
    made.train()
    columns, model = recorder.columns(), made.accelerator.unwrap_model(made.model).eval()
    sketch = BlockSketch.for_model(model, WIDTH)
    assert all("lora" in name or "modules_to_save" in name for name in sketch.parameters)
    sets = {kind: recorder.recorded(kind) for kind in ("gradients", "spans_of")}
    assert sets["gradients"].row.tolist() == list(range(16))
    spans = dict(zip(sets["spans_of"].row.tolist(), range(16), strict=False))
    assert spans
    for row in each_row(model, steps, columns):
        answer = columns["prompt_ids"][row], columns["completion_ids"][row]
        expected, norm = by_autograd(model, sketch, *answer)
        assert np.linalg.norm(sets["gradients"].rows[row] - expected) < 1e-4 * norm
        assert sets["gradients"].norm[row] == pytest.approx(norm, rel=1e-4)
        if row in spans:
            expected, norm = by_autograd(model, sketch, *answer, columns["span_of"][row])
            assert np.linalg.norm(sets["spans_of"].rows[spans[row]] - expected) < 1e-4 * norm
    shares = sets["gradients"].rows.astype(np.float64) * np.array(columns["advantage"])[:, None]
    if settings.get("beta"):
        kl = recorder.recorded("kl_gradients")
        shares[kl.row] += kl.rows
    shares *= np.array(columns["loss_scale"])[:, None]
    for step, gradient in enumerate(steps.gradients):
        of_trl = -sketch.sketch({name: g[None] for name, g in gradient.items()})[0].numpy()
        together = shares[np.array(columns["step"]) == step].sum(0)
        assert np.linalg.norm(together - of_trl) < 1e-4 * np.linalg.norm(of_trl)


def test_the_reference_is_the_policy_without_its_adapter(tmp_path: Path) -> None:
    """An adapter that is not zero is away from it from the first step on."""
    recorder = RolloutRecorder(Capture(WIDTH, {}))
    made = trainer(tmp_path, beta=0.1)
    attach(made, recorder)
    made.train()
    kl = recorder.recorded("kl_gradients")
    assert kl.row.tolist() == list(range(16))
    assert (kl.norm > 0).all()


REFUSED = {
    "lora_magnitude_vector": {"use_dora": True},
    "lora_embedding_A": {"target_modules": ["embed_tokens", "q_proj"], "init_lora_weights": True},
}


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
@pytest.mark.parametrize("named", REFUSED)
def test_what_is_not_known_is_refused_before_training(named: str, tmp_path: Path) -> None:
    made = trainer(tmp_path / "work", REFUSED[named])
    with pytest.raises(UnsupportedModel, match=named):
        record(made, tmp_path / "record", width=WIDTH)
    assert not (tmp_path / "record").exists()


def test_an_adapter_with_dropout_is_recorded_as_it_was_trained(tmp_path: Path) -> None:
    made = trainer(tmp_path / "work", {"lora_dropout": 0.3})
    record(made, tmp_path / "record", width=WIDTH)
    made.train()  # what the rollouts add up to is compared with TRL's gradient
    assert len(open_run(tmp_path / "record").unit.sketches("gradients")) == 16


@pytest.fixture(scope="module", params=[None, ["norm"]], ids=["adapter", "adapter and norm"])
def done(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    base = tmp_path_factory.mktemp("peft")
    made = trainer(base / "work", {"modules_to_save": request.param}, max_completion_length=24, max_steps=3)
    record(made, base / "record", behaviors={"of": " of"}, width=WIDTH)
    made.train()
    return made, open_run(base / "record")


def larger_base(folder: Path) -> Any:
    """The shipped policy with more embeddings than its tokenizer has tokens, as large policies have, from a folder."""
    model = grpo_run.policy()
    model.resize_token_embeddings(800, mean_resizing=False)
    model.save_pretrained(folder)
    return load_model(str(folder))


def test_another_name_and_another_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The base by a relative path, which another process finds from its own folder as well."""
    config = peft.LoraConfig(task_type="CAUSAL_LM", **LORA)
    monkeypatch.chdir(tmp_path)
    model = peft.get_peft_model(larger_base(Path("base")), config, adapter_name="mine")
    made = grpo_run.trainer(tmp_path / "work", model=model, max_steps=1)
    record(made, tmp_path / "record", width=WIDTH)
    made.train()
    run = open_run(tmp_path / "record")
    assert (run.facts["adapter"], run.facts["base"]) == ("mine", str(tmp_path / "base"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    _, loaded = recorded_draw.load_policy(run.unit)
    assert loaded.get_input_embeddings().weight.shape[0] == 800
    own, again = trainable(made.model), trainable(loaded)
    assert own.keys() == again.keys()
    assert all(torch.equal(own[name], again[name]) for name in own)
    (tmp_path / "base").rename(tmp_path / "moved")
    with pytest.raises(RecordedRunError, match=r"adapter of the base model '.*base', which cannot be loaded here"):
        recorded_draw.load_policy(run.unit)


def test_a_base_that_nobody_could_load_again_is_refused(tmp_path: Path) -> None:
    base = grpo_run.policy()
    base.config._name_or_path = base.name_or_path = ""  # as of a model built from a configuration
    model = peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", **LORA))
    with pytest.raises(UnsupportedModel, match="save it"):
        attach(grpo_run.trainer(tmp_path, model=model), RolloutRecorder(Capture(WIDTH, {})))


class Interrupt(TrainerCallback):  # type: ignore[misc]
    """Ctrl-C in the middle of the third step."""

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        if state.global_step == 2:
            raise KeyboardInterrupt


def test_a_run_that_trains_an_adapter_is_resumed(tmp_path: Path) -> None:
    """Nothing is lost or changed: the record is that of a run that was never interrupted."""
    settings: dict[str, Any] = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    for name, resumed in (("whole", False), ("broken", False), ("broken", True)):
        made = trainer(tmp_path / name / "work", **settings)
        record(made, tmp_path / name / "record", width=WIDTH)
        if name == "broken" and not resumed:
            made.add_callback(Interrupt())
            with pytest.raises(KeyboardInterrupt):
                made.train()
        else:
            made.train(resume_from_checkpoint=resumed)
    whole, broken = (open_run(tmp_path / name / "record") for name in ("whole", "broken"))
    assert list(whole.table["completion_text"]) == list(broken.table["completion_text"])
    for array in ("gradients", "gradients.norm", "loss_scale", "learning_rate"):
        assert np.array_equal(whole.unit.array(array), broken.unit.array(array))
    own, again = (trainable(recorded_draw.load_policy(run.unit)[1]) for run in (whole, broken))
    assert all(torch.equal(own[name], again[name]) for name in own)


def test_the_record_holds_adapters(done: Any) -> None:
    _, run = done
    assert run.facts["peft"]
    assert "policies/end/adapter_model.safetensors" in run.unit.files
    assert not any(name.endswith("/model.safetensors") for name in run.unit.files)


def test_the_recorded_adapter_is_loaded_on_its_base(done: Any) -> None:
    made, run = done
    tokenizer, model = recorded_draw.load_policy(run.unit)
    assert tokenizer.padding_side == "left"
    own, loaded = trainable(made.model), trainable(model)
    assert own.keys() == loaded.keys()
    assert all(torch.equal(own[name], loaded[name]) for name in own)
    ids = torch.tensor([run.table["prompt_ids"][0].tolist()])
    with torch.no_grad():
        assert torch.equal(model.eval()(ids).logits, made.model.eval()(ids).logits)


def test_it_is_sampled_from_and_its_gradients_can_be_compared(
    done: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, run = done
    monkeypatch.setattr(recorded_draw, "SIBLINGS", 36)
    found = recorded_draw.build_draw(run.ask(" of"), 0, 0, run.unit, tmp_path, lambda stage, fraction: None)
    assert found.facts["n_siblings"] == 36
    table = read_table(tmp_path / "siblings_asked.parquet")
    parts = (read_array(tmp_path / f"siblings_asked{part}.npy") for part in ("", ".scale", ".norm", ".row"))
    made, (_, model) = Sketches(*parts), recorded_draw.load_policy(run.unit)
    sketch = BlockSketch.for_model(model.eval(), WIDTH)
    assert {n: [s.start, s.stop] for n, s in sketch.blocks.items()} == run.facts["blocks"]
    for row in (0, 17, 35):
        expected, norm = by_autograd(model, sketch, table["prompt_ids"][row], table["completion_ids"][row])
        assert made.norm[row] == pytest.approx(norm, rel=1e-4)
        assert np.linalg.norm(made.float32(np.array([row]))[0] - expected) < 1e-3 * norm  # stored in half precision
