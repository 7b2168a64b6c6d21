"""Our own methods, and what anybody can do with torch alone, for the engine's benchmark.

Each builder does what need not be repeated (it is not timed, but counted in memory) and returns the run to be timed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from engine_setting import PROMPT, Method, Scores, Setting, loss, loss_with_all_logits, one_by_one
from torch.nn import functional as F

from pytest_behaviortrace.run.gradients import PerSampleGradients
from pytest_behaviortrace.run.sketch import BlockSketch

VMAP_CHUNK = 8
"""Rollouts whose full gradients vmap holds at a time."""


def floor(setting: Setting) -> Method:
    """One batched forward and backward pass, logits at the completions only: what training on them costs anyway."""
    return _plain(setting, loss)


def floor_with_all_logits(setting: Setting) -> Method:
    """The same, as a trainer that makes logits of every token pays for it."""
    return _plain(setting, loss_with_all_logits)


def _plain(setting: Setting, objective: Callable[[Any, torch.Tensor], torch.Tensor]) -> Method:
    def run() -> None:
        setting.model.zero_grad(set_to_none=True)
        torch.autograd.backward(objective(setting.model, setting.ids))
        setting.model.zero_grad(set_to_none=True)

    return run


def _engine(setting: Setting) -> tuple[PerSampleGradients, BlockSketch]:
    sketch = BlockSketch.for_model(setting.model, setting.width)
    return PerSampleGradients(setting.model, sketch, temperature=1.0), sketch


def our_sketch(setting: Setting) -> Method:
    """Sketches and exact norms of all rollouts, and their inner products with the target's sketch."""
    engine, sketch = _engine(setting)
    target = sketch.sketch({name: value[None] for name, value in setting.mean_target.items()})[0]

    def run() -> Scores:
        made = engine(setting.ids, setting.mask, [setting.weights])[0]
        return Scores(made.sketch @ target, made.norm.double().square())

    return run


def our_dots(setting: Setting) -> Method:
    """Exact inner products with each of the targets, and exact norms."""
    engine: Any = _engine(setting)[0]

    def run() -> Scores:
        dots, norms = engine.dots(setting.ids, setting.mask, setting.weights, setting.targets)
        return Scores(dots.mean(1), norms.double().square())

    return run


def loop(setting: Setting) -> Method:
    """One backward pass per rollout, then inner products with each target and the norm."""

    def run() -> Scores:
        dots, squares = [], []
        for gradient in one_by_one(setting.model, setting.ids):
            of_one = [sum((g * t[name]).sum() for name, g in gradient.items()) for t in setting.targets]
            dots.append(torch.stack([torch.as_tensor(d) for d in of_one]).mean())
            squares.append(torch.as_tensor(sum(g.square().sum() for g in gradient.values())))
        return Scores(torch.stack(dots), torch.stack(squares))

    return run


def vmapped(setting: Setting) -> Method:
    """torch.func: per-sample gradients by vmap, a few rollouts at a time."""
    model = setting.frozen_copy()
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    kept = setting.ids.shape[1] - PROMPT

    def objective(given: dict[str, torch.Tensor], ids: torch.Tensor) -> torch.Tensor:
        called = {"input_ids": ids[None, :-1], "use_cache": False, "logits_to_keep": kept}
        logits = torch.func.functional_call(model, given, (), called).logits[0]
        return -F.cross_entropy(logits, ids[PROMPT:], reduction="sum") / kept

    per_sample = torch.func.vmap(torch.func.grad(objective), in_dims=(None, 0))
    targets = {name: torch.stack([t[name] for t in setting.targets]).flatten(1) for name in parameters}

    def run() -> Scores:
        dots, squares = [], []
        for some in torch.split(setting.ids, VMAP_CHUNK):
            made = {name: g.flatten(1) for name, g in per_sample(parameters, some).items()}
            dots.append(sum(g @ targets[name].T for name, g in made.items()).mean(1))
            squares.append(sum(g.square().sum(1) for g in made.values()))
        return Scores(torch.cat(dots), torch.cat(squares))

    return run


OURS: dict[str, Callable[[Setting], Method]] = {"sketch and norms": our_sketch}
if hasattr(PerSampleGradients, "dots"):
    OURS["exact dots with 4 targets, and norms"] = our_dots
FLOORS: dict[str, Callable[[Setting], Method]] = {"floor": floor, "floor, logits everywhere": floor_with_all_logits}
TORCH: dict[str, Callable[[Setting], Method]] = {"autograd loop": loop, "torch.func vmap": vmapped}
