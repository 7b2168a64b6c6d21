"""What a record says of its trainer: all that is needed to sketch and to sample again as it did."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

from pytest_behaviortrace.run.capture import UnsupportedModel, without_adapters
from pytest_behaviortrace.run.sketch import SKETCH_SEED, BlockSketch, trainable

_SETTINGS = (
    "loss_type", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_completion_length",
    "num_generations", "beta", "num_iterations",
)  # fmt: skip


def described(trainer: Any, model: Any, behaviors: Mapping[str, re.Pattern[str]], width: int) -> dict[str, Any]:
    """Facts of a recorded run, as JSON has them; `model` is the trainer's, unwrapped."""
    sketch, trained = BlockSketch.for_model(model, width), trainable(model)
    is_peft, processes = model is not without_adapters(model), int(trainer.accelerator.num_processes)
    return {
        "kind": "recorded",
        "sketch": {"width": width, "seed": SKETCH_SEED},
        "blocks": {name: [part.start, part.stop] for name, part in sketch.blocks.items()},
        "behaviors": {name: pattern.pattern for name, pattern in behaviors.items()},
        "trainer_class": type(trainer).__name__,
        "peft": is_peft,
        **({"processes": processes} if processes > 1 else {}),
        "adapter": str(model.active_adapter) if is_peft else None,
        "base": base_of(model),
        "trained": None if is_peft or len(trained) == len(list(model.parameters())) else sorted(trained),
        **{name: plain_value(getattr(trainer.args, name)) for name in _SETTINGS},
        "eos_token_ids": _ends(trainer),
        "generation_kwargs": json.loads(json.dumps(trainer.args.generation_kwargs or {}, default=str)),
    }


def base_of(model: Any) -> str | None:
    """The name, or absolute folder, from which an adapter's base model is loaded again; None without an adapter.

    Raises `UnsupportedModel` for a base that came from nowhere (built from a configuration).
    """
    if model is without_adapters(model):
        return None
    name = model.peft_config[model.active_adapter].base_model_name_or_path
    if not name:
        raise UnsupportedModel(
            "the adapter's base model was loaded from no name and no folder, so nobody could load it again to sample "
            "from the recorded run; save it (save_pretrained), load it from that folder, and add the adapter then"
        )
    # transformers asks the same: a folder that is there comes before a model of that name.
    return os.path.abspath(name) if os.path.isdir(name) else str(name)


def plain_value(value: Any) -> Any:
    """A setting as JSON has it (enumerations by their value)."""
    value = getattr(value, "value", value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _ends(trainer: Any) -> list[int]:
    """Token ids that end a completion in TRL."""
    ends = getattr(trainer, "eos_token_ids", None) or trainer.processing_class.eos_token_id
    return [int(end) for end in (ends if isinstance(ends, list | tuple) else [ends])]
