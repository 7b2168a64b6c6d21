"""The block-wise CountSketch: its hash, its layout, and inner products within theory."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from pytest_behaviortrace.run import sketch as module
from pytest_behaviortrace.run.sketch import BlockSketch, allot_widths, parameter_blocks, splitmix64

MASK = 2**64 - 1


def finalise(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def test_hash_is_the_splitmix64_generator() -> None:
    seed, gamma = 7, 0x9E3779B97F4A7C15
    state = finalise((seed + gamma) & MASK)
    index = torch.tensor([0, 1, 2, 511_583, 2**31 + 5, 2**40])
    expected = [finalise((state + (i + 1) * gamma) & MASK) for i in index.tolist()]
    assert [h & MASK for h in splitmix64(index, seed).tolist()] == expected


def test_reference_stream_of_splitmix64() -> None:
    """The published first outputs of the generator with state 0."""
    outputs = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [finalise((i + 1) * 0x9E3779B97F4A7C15 & MASK) for i in range(3)] == outputs


def test_buckets_and_signs_are_even() -> None:
    one = BlockSketch({"w": (400_000, "all")}, 64)
    bins = one.bins("w", 0)
    counts = torch.bincount(bins, minlength=128).double()
    expected = 400_000 / 128
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert abs(chi_square - 127) < 6 * math.sqrt(2 * 127)


@pytest.mark.parametrize("width", [9, 64, 100, 4096, 65_536])
def test_widths_add_up_and_none_is_starved(width: int) -> None:
    sizes = {"embedding": 67_584, "norms": 864, **{f"layers.{i}.mlp": 82_944 for i in range(4)}, "tiny": 3}
    widths = allot_widths(sizes, width)
    assert sum(widths.values()) == width
    assert min(widths.values()) >= min(module.LEAST_WIDTH, width // (2 * len(sizes)), 1)
    assert widths["layers.0.mlp"] >= widths["norms"] >= widths["tiny"]


def test_wide_sketches_give_every_block_its_least() -> None:
    widths = allot_widths({"a": 1, "b": 10**9}, 4096)
    assert widths["a"] >= module.LEAST_WIDTH


def test_too_narrow_a_sketch_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot hold 3 blocks"):
        allot_widths({"a": 1, "b": 1, "c": 1}, 2)


def qwen(tied: bool) -> Any:
    from transformers import AutoModelForCausalLM, Qwen2Config

    config = Qwen2Config(
        vocab_size=50, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, tie_word_embeddings=tied,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize("tied", [True, False])
def test_blocks_of_a_model(tied: bool) -> None:
    model = qwen(tied)
    made = BlockSketch.for_model(model, 512)
    layers = [f"layers.{i}.{part}" for i in range(2) for part in ("attention", "mlp")]
    assert list(made.blocks) == ["embedding", *layers, "norms"] + [] * tied + ["head"] * (not tied)
    edges = [(s.start, s.stop) for s in made.blocks.values()]
    assert edges[0][0] == 0
    assert edges[-1][1] == 512
    assert all(a[1] == b[0] for a, b in itertools.pairwise(edges))
    assert made.size == sum(p.numel() for p in model.parameters())
    blocks = parameter_blocks(model)
    assert blocks["model.layers.1.self_attn.q_proj.bias"] == "layers.1.attention"
    assert blocks["model.layers.0.input_layernorm.weight"] == "norms"
    assert blocks["model.norm.weight"] == "norms"


def test_a_block_stays_in_its_buckets() -> None:
    model = qwen(True)
    made = BlockSketch.for_model(model, 256)
    for name, parameter in made.parameters.items():
        part = made.blocks[parameter.block]
        out = made.sketch({name: torch.randn(3, parameter.size)})
        assert out.shape == (3, 256)
        assert out[:, part].abs().sum() > 0
        outside = out.clone()
        outside[:, part] = 0
        assert outside.abs().sum() == 0


def brute_force(made: BlockSketch, gradients: dict[str, torch.Tensor]) -> torch.Tensor:
    batch = len(next(iter(gradients.values())))
    out = torch.zeros(batch, made.width, dtype=torch.float64)
    for name, values in gradients.items():
        place = made.parameters[name]
        block = made.blocks[place.block]
        for offset, column in enumerate(values.reshape(batch, -1).double().T):
            hashed = int(splitmix64(torch.tensor(place.start + offset), made.seed)) & MASK
            bucket = block.start + ((hashed & 0xFFFFFFFF) * (block.stop - block.start) >> 32)
            out[:, bucket] += -column if hashed >> 63 else column
    return out


@pytest.mark.parametrize("chunk", [7, 64, 2**22])
def test_against_one_coordinate_at_a_time(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(module, "CHUNK", chunk)
    made = BlockSketch({"a": (30, "x"), "b": (50, "y"), "c": (1, "x")}, 16, seed=3)
    gradients = {"a": torch.randn(2, 5, 6), "b": torch.randn(2, 50), "c": torch.randn(2, 1)}
    assert torch.allclose(made.sketch(gradients).double(), brute_force(made, gradients), atol=1e-5)
    pieces = made.buffer(2)
    for start in range(0, 50, 9):
        made.add(pieces, "b", start, gradients["b"][:, start : start + 9])
    assert torch.allclose(made.finish(pieces), made.sketch({"b": gradients["b"]}), atol=1e-6)


def test_hashes_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 100)
    monkeypatch.setattr(module, "CACHE_BYTES", 3000)
    made = BlockSketch({"a": (1000, "x")}, 16)
    first = made.sketch({"a": torch.ones(1, 1000)})
    assert 0 < made.cached_bytes <= 3000
    assert torch.equal(first, made.sketch({"a": torch.ones(1, 1000)}))


def test_inner_products_are_unbiased_with_the_variance_of_the_theory() -> None:
    torch.manual_seed(0)
    sizes = {"a": (300, "x"), "b": (700, "y")}
    pair = torch.randn(2, 1000)
    pair[1] = 0.6 * pair[0] + 0.8 * pair[1]
    pair[:, 300:] *= 2.0
    parts = {"a": pair[:, :300], "b": pair[:, 300:]}
    truth = float(pair[0] @ pair[1])
    found, bound = [], 0.0
    for seed in range(400):
        made = BlockSketch(sizes, 64, seed)
        s = made.sketch(parts).double()
        found.append(float(s[0] @ s[1]))
    for name, (_, block) in sizes.items():
        x, y = parts[name].double()
        width = made.blocks[block].stop - made.blocks[block].start
        bound += float(x @ x * (y @ y) + (x @ y) ** 2) / width
    values = torch.tensor(found)
    spread = float(values.std())
    assert abs(float(values.mean()) - truth) < 4 * spread / math.sqrt(400)
    assert 0.75 * math.sqrt(bound) < spread < 1.15 * math.sqrt(bound)


def test_sketch_is_linear_and_repeatable() -> None:
    made, again = (BlockSketch({"a": (500, "x")}, 32) for _ in range(2))
    x, y = torch.randn(1, 500), torch.randn(1, 500)
    together = made.sketch({"a": 2 * x - y})
    assert torch.allclose(together, 2 * made.sketch({"a": x}) - made.sketch({"a": y}), atol=1e-5)
    assert torch.equal(together, again.sketch({"a": 2 * x - y}))
    assert not torch.equal(together, BlockSketch({"a": (500, "x")}, 32, seed=1).sketch({"a": 2 * x - y}))


def test_wrong_gradients_are_refused() -> None:
    made = BlockSketch({"a": (6, "x")}, 4)
    with pytest.raises(ValueError, match="a: 5 coordinates, expected 6"):
        made.sketch({"a": torch.zeros(1, 5)})
    with pytest.raises(KeyError):
        made.sketch({"b": torch.zeros(1, 6)})


def test_a_wide_sketch_of_a_large_model_hashes_only_what_it_meets() -> None:
    """1.5 billion coordinates in 65,536 buckets: no table of all of them is ever made."""
    made = BlockSketch({"embed": (233_373_696, "embedding"), "rest": (1_310_000_000, "layers.0.mlp")}, 65_536)
    values = torch.randn(1, 6)
    start = 1_310_000_000 - 6
    buffer = made.buffer(1)
    made.add(buffer, "rest", start, values)
    assert made.cached_bytes <= 8 * module.CHUNK
    block = made.blocks["layers.0.mlp"]
    expected = torch.zeros(65_536)
    for offset in range(6):
        hashed = int(splitmix64(torch.tensor(233_373_696 + start + offset), made.seed)) & MASK
        bucket = block.start + ((hashed & 0xFFFFFFFF) * (block.stop - block.start) >> 32)
        expected[bucket] += -values[0, offset] if hashed >> 63 else values[0, offset]
    assert torch.allclose(made.finish(buffer)[0], expected)
