"""Policies that gradients are taken of, or that are sampled from, are put on the GPU where there is one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

import torch  # noqa: E402
import two_step  # noqa: E402

from pytest_behaviortrace.run import build, policy, warmup  # noqa: E402


class Model:
    """Notes where it was sent."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def to(self, device: str) -> Model:
        self.sent.append(device)
        return self


@pytest.mark.parametrize(("gpu", "sent"), [(True, ["cuda"]), (False, [])])
def test_a_policy_goes_where_the_gpu_is(gpu: bool, sent: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    model = Model()
    assert policy.placed(model) is model
    assert model.sent == sent


class Placed(Exception):
    """The policy was about to be placed."""


USERS = {
    "draw": lambda recipe, run, unit: build.build_draw(recipe, 0, 0, unit, Path(), lambda *a: None),
    "targets": lambda recipe, run, unit: build._write_targets(recipe, run, Path()),
    "warm-up": lambda recipe, run, unit: warmup.warm_up(recipe, 0, None, lambda *a: None),
}


@pytest.mark.parametrize("user", USERS)
def test_who_places_its_policy(user: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def placed(model: Any) -> Any:
        raise Placed

    threads = torch.get_num_threads()
    for module in (build, warmup):
        monkeypatch.setattr(module, "placed", placed)
    recipe = two_step.recipe()
    unit = SimpleNamespace(policy=lambda name: recipe.policy.location)
    try:
        with pytest.raises(Placed):
            USERS[user](recipe, None, unit)
    finally:
        torch.set_num_threads(threads)
