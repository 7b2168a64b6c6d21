"""Bytes that a recipe's run takes on the GPU and on disk, counted from the sizes of its policy."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_behaviortrace.run.architecture import Architecture
from pytest_behaviortrace.run.recipe import Recipe

ARRAY_HEADER = 128
"""Bytes before the numbers of a small `.npy` file."""
ROWS_PER_PASS, TOKENS_PER_PASS = 32, 2**13
"""Most rows, and tokens, of a pass of the recorder's own (`batching`)."""
SAMPLES_SIDE_BY_SIDE, MOST_LOGITS = 24, 2**25
"""Most rows, and logits, that are written down together (`training_pass`)."""
MOST_ELEMENTS = 2**24
"""Numbers of a gradient that are held at a time (`uses`)."""
TOKEN_BYTES = 6
"""Bytes of a token in the compressed tables: its id, its log-probability, its text."""


def training_memory(policy: Architecture, tokens: int, checkpointing: bool) -> dict[str, int]:
    """Part -> bytes on the GPU at the peak of TRL's step on `tokens` tokens, in mixed precision with AdamW."""
    kept = policy.checkpoint_bytes(tokens) if checkpointing else policy.activation_bytes(tokens)
    return {
        "weights": 4 * policy.parameters,
        "AdamW moments": 8 * policy.parameters,
        "gradients": 4 * policy.parameters,
        "bfloat16 copy of the weights": 2 * policy.parameters,
        "activations": kept,
        "gradient of the head, once more": 4 * policy.table,
    }


def recording_memory(policy: Architecture, rows: int, prompt: int, made: int, width: int) -> dict[str, int]:
    """Part -> bytes that recording `rows` rows inside of TRL's step adds to its peak.

    One module at a time: what it was given and the gradient at its output, in their own order and in the sketch's. The
    head is the largest, and takes a few rows side by side.
    """
    together = min(rows, SAMPLES_SIDE_BY_SIDE, max(1, MOST_LOGITS // (made * policy.vocabulary)))
    module = 3 * 4 * min(rows, SAMPLES_SIDE_BY_SIDE) * (prompt + made) * (policy.hidden + policy.intermediate)
    return {
        "recording: logits, probabilities, their gradient": 4 * 4 * together * made * policy.vocabulary,
        "recording: one module's gradients and inputs": module,
        "recording: some rows of a gradient, and sketches": _written(policy) + 3 * 4 * rows * width,
    }


def pass_memory(policy: Architecture, prompt: int, made: int, width: int, *, mixed: bool) -> dict[str, int]:
    """Part -> bytes on the GPU at the peak of a pass of the recorder's own.

    `mixed`: inside of training, where the step's gradients and AdamW's moments lie beside and precision is mixed; else
    on a policy in float32 with nothing beside. What is counted per module: the gradient at its output as it comes and
    in float32, its input in float32 (queries, keys and values, gate and up keep copies of their own).
    """
    rows = min(ROWS_PER_PASS, max(1, TOKENS_PER_PASS // (prompt + made)))
    tokens = rows * (prompt + made)
    out = 2 * policy.hidden + policy.attended + 2 * policy.keyed + 2 * policy.intermediate
    given = 5 * policy.hidden + policy.attended + policy.intermediate
    each = tokens * policy.layers * ((2 * out if mixed else 0) + 4 * out + (4 * given if mixed else 0))
    training = {
        "AdamW moments": 8 * policy.parameters,
        "gradients": 4 * policy.parameters,
        "bfloat16 copy of the weights": 2 * policy.parameters,
    }
    return {
        "weights": 4 * policy.parameters,
        **(training if mixed else {}),
        f"activations of {rows} rows, without checkpoints": policy.activation_bytes(tokens, mixed),
        "gradients at every module, and inputs": each,
        "logits, probabilities, their gradient": 4 * 4 * rows * made * policy.vocabulary,
        "some rows of a gradient, and sketches": _written(policy) + 3 * 4 * rows * width,
    }


def _written(policy: Architecture) -> int:
    """Bytes of a gradient that are held at a time."""
    return 4 * min(MOST_ELEMENTS, policy.table)


def sketch_set_bytes(items: int, width: int) -> int:
    """Bytes of a stored sketch set: half precision rows, and scale, norm and item of each."""
    return items * (2 * width + 12) + 4 * ARRAY_HEADER


def seed_bytes(policy: Architecture, recipe: Recipe, sets: Mapping[str, int], tokens: int) -> int:
    """Bytes of a seed's unit: sketches, targets, three policies in float32, tables.

    `sets`: name -> items of each sketch set; `tokens`: of all rollouts of both runs.
    """
    width, plants = recipe.sketch_width, len(recipe.plants)
    sketches = sum(sketch_set_bytes(items, width) for items in sets.values())
    by_step = plants * (4 * width * recipe.grpo.steps + ARRAY_HEADER)
    targets = 2 * plants * (4 * width + ARRAY_HEADER)
    scales = 2 * (8 * recipe.n_rollouts + ARRAY_HEADER)
    return sketches + by_step + targets + scales + 3 * 4 * policy.parameters + TOKEN_BYTES * tokens
