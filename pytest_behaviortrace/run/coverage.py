"""Whether per-sample gradients cover everything: one of them against autograd's own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from pytest_behaviortrace.run.capture import UnsupportedModel
from pytest_behaviortrace.run.loss import token_logprobs
from pytest_behaviortrace.run.sketch import BlockSketch, trainable

ROUNDING = {True: 1e-4, False: 2e-2}
"""Share of a squared norm that rounding may account for: in float32, and in mixed or lower precision."""


def check_coverage(
    model: Any,
    sketch: BlockSketch,
    made: torch.Tensor,
    ids: torch.Tensor,
    mask: torch.Tensor,
    weights: torch.Tensor,
    *,
    temperature: float,
    autocast: Callable[[], AbstractContextManager[Any]],
) -> bool:
    """Whether there was a gradient to look at; if so, that nothing of its squared norm is missing in `made` (K,).

    `ids`, `mask` and `weights` are (1, tokens): the sample whose gradient was sketched. Sketches are compared, so that
    what is missing in one place cannot be made up for in another. Raises `UnsupportedModel` with the share covered.
    """
    parameters = trainable(model)
    frozen = [p for p in parameters.values() if not p.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(True)
    try:
        with torch.enable_grad(), autocast():
            said = token_logprobs(model, ids, mask, temperature)
            loss = torch.where(weights != 0, said * weights, 0.0).sum()
        found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)
    gradients = {name: g[None] for name, g in zip(parameters, found, strict=True) if g is not None}
    truth = sketch.sketch(gradients)[0]
    size, missing = (float(t.double().square().sum()) for t in (truth, truth - made))
    exact = isinstance(autocast(), nullcontext) and all(p.dtype == torch.float32 for p in parameters.values())
    if missing > ROUNDING[exact] * size:
        raise UnsupportedModel(
            f"only {1 - missing / size:.2%} of the squared norm of a gradient of {type(model).__name__} is covered: it "
            "uses parameters in a way that is not known here"
        )
    return size > 0
