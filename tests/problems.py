"""Small attribution problems written out by hand, for tests of estimators."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_behaviortrace.estimator import EVERYTHING
from pytest_behaviortrace.problem import AttributionProblem

SEED = 7


def make_problem(gradients: Any, **given: Any) -> AttributionProblem:
    """A problem over the rows of `gradients` (n, K); anything else may be given, the rest gets plain values.

    Two items a group, one group a step, advantage +1 and -1 in turn; target: the first coordinate.
    """
    rows = np.array(gradients, np.float32)
    n, width = rows.shape
    columns: dict[str, Any] = {
        "kind": "rollouts",
        "loss_type": "grpo",
        "loss_scale": np.full(n, 1.0 / max(n, 1)),
        "step": np.arange(n) // 2,
        "group": np.arange(n) // 2,
        "advantage": np.where(np.arange(n) % 2 == 0, 1.0, -1.0),
        "reward": np.where(np.arange(n) % 2 == 0, 1.0, 0.0),
        "logprob": -np.arange(1.0, n + 1),
        "length": np.full(n, 2),
        "learning_rate": np.full(max(n, 1), 0.5),
        "rng_seed": (SEED,),
        "carried": EVERYTHING,
        "allowed": EVERYTHING,
    }
    steps = len(given.get("learning_rate", columns["learning_rate"]))
    advantage = np.array(given.get("advantage", columns["advantage"]), np.float32)
    target = np.array(given.get("target", np.eye(1, width)[0]), np.float32)
    served: dict[str, Any] = {
        "gradients": rows,
        "gradient_norm": np.linalg.norm(rows, axis=1).astype(np.float32),
        "target": target,
        "targets_by_step": np.tile(target, (steps, 1)),
        "reference": rows * advantage[:, None],
        "blocks": {"all": slice(0, width)},
        "span_gradients": np.zeros_like(rows),
        "prompt_ids": tuple(np.arange(3) for _ in range(n)),
        "completion_ids": tuple(np.arange(2) for _ in range(n)),
        "prompt_text": ("prompt",) * n,
        "completion_text": ("completion",) * n,
        "behavior": "QZXBT",
        "behavior_mask": tuple(np.zeros(2, bool) for _ in range(n)),
    }
    for name, value in given.items():
        if name in columns:
            columns[name] = np.array(value) if isinstance(value, list) else value
        else:
            served[name] = np.array(value, np.float32) if isinstance(value, list) else value
    return AttributionProblem(**columns, lazy=served)
