"""A small GRPO run with TRL on the shipped policy, for tests of what is recorded of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback, set_seed
from trl import GRPOConfig, GRPOTrainer

from pytest_behaviortrace.run.attach import attach
from pytest_behaviortrace.run.policy import chat, load_model, load_tokenizer
from pytest_behaviortrace.run.recipe import fixtures_folder
from pytest_behaviortrace.run.recorder import RolloutRecorder

POLICY = str(fixtures_folder() / "policy")
SUBJECTS = ("river", "copper", "music", "planet")


def policy() -> Any:
    return load_model(POLICY)


def tokenizer() -> Any:
    return load_tokenizer(POLICY)


def length_reward(completions: list[Any], **unused: Any) -> list[float]:
    return [float(len(c[0]["content"]) % 7) for c in completions]


def trainer(
    folder: Path,
    recorder: RolloutRecorder | None = None,
    model: Any = None,
    trainer_class: Any = GRPOTrainer,
    **settings: Any,
) -> Any:
    """A trainer, watched by `recorder` if there is one, for 2 steps of 4 prompts x 2 completions."""
    set_seed(1)
    reward, given = settings.pop("reward", length_reward), settings.pop("prompts", None)
    values: dict[str, Any] = {
        "output_dir": str(folder), "per_device_train_batch_size": 8, "num_generations": 2, "max_completion_length": 12,
        "max_steps": 2, "learning_rate": 1e-3, "beta": 0.0, "use_cpu": True, "bf16": False,
        "gradient_checkpointing": False, "report_to": "none", "save_strategy": "no", "logging_strategy": "no",
        "disable_tqdm": True, "seed": 1, "loss_type": "grpo", "dataloader_pin_memory": False, "max_grad_norm": 0.0,
        **settings,
    }  # fmt: skip
    asked = given or [chat(f"What is {s}?") for s in SUBJECTS * 8]
    prompts = Dataset.from_dict({"prompt": asked, "subject": [SUBJECTS[i % 4] for i in range(len(asked))]})
    shared: dict[str, Any] = {
        "model": policy() if model is None else model, "reward_funcs": reward, "args": GRPOConfig(**values),
        "train_dataset": prompts, "processing_class": tokenizer(),
    }  # fmt: skip
    made = trainer_class(**shared)
    if recorder is not None:
        attach(made, recorder)
    made.remove_callback(PrinterCallback)
    return made


def gradients(model: Any) -> dict[str, torch.Tensor]:
    return {name: p.grad.detach().clone() for name, p in model.named_parameters() if p.grad is not None}
