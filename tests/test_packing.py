"""Tokens that matter side by side: the last MLP of a policy run on them alone changes nothing that is measured."""

import pytest
import torch

pytest.importorskip("trl")

from torch import nn
from transformers import Qwen2Config, Qwen2ForCausalLM

from pytest_behaviortrace.run.gradients import PerSampleGradients
from pytest_behaviortrace.run.packing import last_mlp, only_at, packed, places
from pytest_behaviortrace.run.sketch import BlockSketch

ROWS, TOKENS = 3, 9


def policy() -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "vocab_size": 40}
    return Qwen2ForCausalLM(Qwen2Config(num_attention_heads=2, num_key_value_heads=1, **sizes)).float()


def asked() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    ids, mask = torch.randint(1, 40, (ROWS, TOKENS)), torch.ones(ROWS, TOKENS, dtype=torch.long)
    mask[0, :2] = 0
    weights = torch.zeros(ROWS, TOKENS)
    weights[0, [5, 7]], weights[1, 3], weights[2, [2, 4, 8]] = torch.tensor([1.0, -2.0]), 0.5, 1.0
    return ids, mask, weights


class Mixing(nn.Module):
    """Looks at the token before, as no MLP of a decoder does."""

    def __init__(self, own: nn.Module) -> None:
        super().__init__()
        self.up_proj, self.down_proj = own.up_proj, own.down_proj

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = nn.functional.pad(x, (0, 0, 1, 0))[:, :-1]
        return self.down_proj(self.up_proj(x + before))


def test_places_are_distinct_and_hold_everything_wanted():
    wanted = torch.tensor([[0, 1, 0, 1], [0, 0, 0, 0], [0, 0, 0, 1]], dtype=torch.bool)
    found = places(wanted)
    assert found.shape == (3, 2)
    assert found[0].tolist() == [1, 3]
    assert found[2, 0] == 3
    assert all(len(set(row)) == 2 for row in found.tolist())
    assert places(torch.zeros(2, 5, dtype=torch.bool)).shape == (2, 1)


def test_packed_takes_the_places():
    values, place = torch.arange(24.0).view(2, 4, 3), torch.tensor([[3, 0], [1, 2]])
    assert torch.equal(packed(values, place), torch.stack([values[0, [3, 0]], values[1, [1, 2]]]))


def test_a_module_sees_some_tokens_and_gives_zero_at_the_others():
    module, x, place = nn.Linear(3, 3), torch.randn(2, 4, 3), torch.tensor([[3, 0], [1, 2]])
    whole = module(x)
    with only_at(module, place):
        found = module(x)
    expected = torch.zeros_like(whole)
    for row, some in enumerate(place.tolist()):
        expected[row, some] = whole[row, some]
    assert torch.allclose(found, expected)
    assert torch.equal(module(x), whole)  # the hooks are gone


def test_the_last_mlp_is_found_where_it_is_made_of_linear_maps():
    model = policy()
    assert last_mlp(model.model) is model.model.layers[-1].mlp
    model.model.layers[-1].mlp.experts = nn.ModuleList([nn.Linear(2, 2)])
    assert last_mlp(model.model) is None
    assert last_mlp(nn.Linear(2, 2)) is None


def test_leaving_tokens_out_of_the_last_mlp_changes_no_gradient():
    model = policy()
    sketch = BlockSketch.for_model(model, 512)
    engines = [PerSampleGradients(model, sketch) for _ in range(2)]
    engines[1]._last_mlp = None
    (short,), (whole,) = (engine(*asked()[:2], [asked()[2]]) for engine in seeded(engines))
    assert engines[0]._last_mlp is not None
    assert torch.allclose(short.sketch, whole.sketch, rtol=1e-5, atol=1e-7)
    assert torch.allclose(short.norm, whole.norm, rtol=1e-5)


def seeded(engines):
    for engine in engines:
        torch.manual_seed(1)
        yield engine


def test_an_mlp_that_looks_at_other_tokens_is_run_on_all_of_them():
    model = policy()
    model.model.layers[-1].mlp = Mixing(model.model.layers[-1].mlp)
    engine, (ids, _, weights) = PerSampleGradients(model, BlockSketch.for_model(model, 512)), asked()
    # Such a module would see padding, and the first sample is looked at where it has a weight.
    mask, weights = torch.ones_like(ids), weights.flip(0)
    assert engine._last_mlp is not None
    made = engine.exact(ids, mask, weights)
    assert engine._last_mlp is None
    for row in range(ROWS):
        model.zero_grad()
        logits = model(input_ids=ids[row : row + 1], use_cache=False).logits[0]
        said = torch.log_softmax(logits[:-1], -1).gather(1, ids[row, 1:, None])[:, 0]
        (said * weights[row, 1:]).sum().backward()
        for name, parameter in model.named_parameters():
            assert torch.allclose(made[name][row], parameter.grad, rtol=1e-3, atol=1e-6), name
