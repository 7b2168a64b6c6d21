"""What a recipe needs of the machine that trains it, asked before hours are spent on a run that cannot end."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING

from pytest_behaviortrace.run.recorded import RunQuestion

if TYPE_CHECKING:
    from pytest_behaviortrace.run.recipe import Recipe


def unmet(recipe: Recipe | RunQuestion, processes: int = 1) -> str | None:
    """One sentence on what `processes` lack here to train a recipe, or None. Reads no network: workers have none.

    To sample from a recorded run: peft, where an adapter was trained.
    """
    if isinstance(recipe, RunQuestion):
        return peft_lacking() if recipe.trained_adapter else None
    if recipe.grpo.processes != processes:
        return (
            f"recipe {recipe.name!r} is trained by {recipe.grpo.processes} processes at a time (grpo.processes); train "
            f"it with `accelerate launch --multi_gpu --num_processes {recipe.grpo.processes} -m pytest_behaviortrace "
            f"train --recipe R`"
        )
    return hub_policy_lacking(recipe) or (vllm_lacking() if recipe.grpo.use_vllm else None)


def hub_policy_lacking(recipe: Recipe) -> str | None:
    """Why a policy given by its name on the hub cannot be loaded here without a network, or None."""
    if recipe.policy.folder is not None:
        return None
    from huggingface_hub import try_to_load_from_cache

    name = recipe.policy.source
    if isinstance(try_to_load_from_cache(name, "config.json"), str):
        return None
    return (
        f"the policy {name!r} of recipe {recipe.name!r} is not on this machine, and training downloads nothing; "
        f"fetch it once with `hf download {name}`, or write a recipe that extends {recipe.name!r} with the folder of "
        f"a copy as its policy.source"
    )


def peft_lacking() -> str | None:
    """Why the adapter of a recorded run cannot be loaded here, or None."""
    if importlib.util.find_spec("peft") is None:
        return "the recorded run trained a PEFT adapter, and peft is not installed; pip install peft to sample from it"
    return None


def vllm_lacking(gpu: Callable[[], bool] | None = None) -> str | None:
    """Why completions cannot be sampled with vLLM here, or None. `gpu` tells whether there is one (torch's answer)."""
    if importlib.util.find_spec("vllm") is None:
        return (
            "the recipe asks for vLLM (grpo.use_vllm), which is not installed; pip install 'trl[vllm]', or write false"
        )
    if not (gpu or _gpu)():
        return "the recipe asks for vLLM (grpo.use_vllm), which needs a GPU, and torch sees none here; write false"
    return None


def _gpu() -> bool:
    import torch

    return torch.cuda.is_available()
