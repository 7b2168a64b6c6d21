"""The block-wise CountSketch: its hash, its layout, and inner products within theory."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from pytest_behaviortrace.run import sketch as module
from pytest_behaviortrace.run.hashing import splitmix64
from pytest_behaviortrace.run.sketch import BlockSketch, allot_widths, parameter_blocks

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


def where(made: BlockSketch, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(size,) bucket and (size,) sign of every coordinate of a parameter, one unit vector at a time."""
    size = made.parameters[name].size
    found = made.sketch({name: torch.eye(size)})
    assert (found != 0).sum(1).tolist() == [1] * size
    return found.abs().argmax(1), found.sum(1)


def test_buckets_and_signs_are_even() -> None:
    made = BlockSketch({"w": ((40, 50), "all")}, 64)
    assert made.rings == {"all": 63}
    bucket, sign = where(made, "w")
    # 2,000 coordinates around a ring of 63: 31 laps and a part.
    assert torch.bincount(bucket, minlength=64).tolist().count(0) == 1
    assert set(torch.bincount(bucket)[:63].tolist()) == {31, 32}
    assert abs(float(sign.sum())) < 6 * math.sqrt(2000)
    assert set(sign.tolist()) == {-1.0, 1.0}


@pytest.mark.parametrize(("shape", "width"), [((40, 50), 64), ((7, 300), 128), ((300, 7), 128), ((500,), 64)])
def test_pairs_of_coordinates_meet_as_often_as_under_independent_hashes(shape: tuple[int, ...], width: int) -> None:
    """Over many seeds a pair in different rows and columns shares a bucket with probability 1 / n, evenly."""
    matrix = shape if len(shape) > 1 else (1, *shape)
    rng = torch.Generator().manual_seed(0)
    rows = torch.randint(matrix[0], (400, 2), generator=rng)
    columns = torch.randint(matrix[1], (400, 2), generator=rng)
    apart = columns[:, 0] != columns[:, 1]
    if matrix[0] > 1:
        apart &= rows[:, 0] != rows[:, 1]
    place = (rows * matrix[1] + columns)[apart]
    met, seeds = torch.zeros(len(place)), 600
    for seed in range(seeds):
        made = BlockSketch({"w": (shape, "all")}, width, seed)
        bucket, _ = where_fast(made, "w")
        met += bucket[place[:, 0]] == bucket[place[:, 1]]
    expected = seeds / made.rings["all"]
    assert abs(float(met.mean()) - expected) < 0.15 * expected
    assert float(met.max()) < expected + 6 * math.sqrt(expected)


def where_fast(made: BlockSketch, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """As `where`, from the arrangement: what `test_against_one_coordinate_at_a_time` proves right."""
    p = made.parameters[name]
    rows, columns = p.on(torch.device("cpu"))
    ring, first = made.rings[p.block], made.blocks[p.block].start
    flat = rows.rank[:, None] * p.columns + columns.rank
    return ((flat + p.shift(ring)) % ring + first).flatten(), (rows.sign[:, None] * columns.sign).flatten()


def test_entries_of_a_row_or_of_a_column_do_not_meet() -> None:
    """A ring longer than a row, and rows fewer than the ring is long: whole rows never fall onto each other."""
    made = BlockSketch({"w": ((60, 50), "all")}, 80)
    bucket = where_fast(made, "w")[0].view(60, 50)
    assert all(len(set(row.tolist())) == 50 for row in bucket)
    assert all(len(set(column.tolist())) == 60 for column in bucket.T)


def test_the_ring_is_odd_and_prime_to_every_number_of_columns() -> None:
    made = BlockSketch({"a": ((8, 96), "x"), "b": ((8, 35), "x"), "c": ((64,), "x"), "d": ((3, 3), "y")}, 200)
    ring = made.rings["x"]
    assert ring % 2 == 1
    assert math.gcd(ring, 96) == math.gcd(ring, 35) == 1
    assert all(0 <= made.blocks[b].stop - made.blocks[b].start - n < 16 for b, n in made.rings.items())


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
    """Coordinate by coordinate, in plain Python, from the words of the module."""
    batch = len(next(iter(gradients.values())))
    out = torch.zeros(batch, made.width, dtype=torch.float64)
    for name, values in gradients.items():
        p = made.parameters[name]

        def arranged(count: int, stream: int, p: Any = p) -> tuple[list[int], list[int]]:
            hashed = [int(splitmix64(torch.tensor(p.start + i), made.seed + stream)) & MASK for i in range(count)]
            order = sorted(range(count), key=lambda i: hashed[i] & (MASK >> 1))
            return [order.index(i) for i in range(count)], [-1 if h >> 63 else 1 for h in hashed]

        (rank, sign), (column_rank, column_sign) = arranged(p.rows, 2**32), arranged(p.columns, 2**33)
        block, ring = made.blocks[p.block], made.rings[p.block]
        first = (int(splitmix64(torch.tensor(p.start), made.seed + 2**34)) & (MASK >> 1)) % ring
        for i, j in itertools.product(range(p.rows), range(p.columns)):
            bucket = block.start + (first + rank[i] * p.columns + column_rank[j]) % ring
            out[:, bucket] += sign[i] * column_sign[j] * values.reshape(batch, p.rows, p.columns)[:, i, j].double()
    return out


@pytest.mark.parametrize("width", [3, 16, 40])
def test_against_one_coordinate_at_a_time(width: int) -> None:
    made = BlockSketch(
        {"a": ((5, 6), "x"), "b": ((10, 5), "y"), "c": ((4,), "x"), "d": ((2, 3, 2), "z")}, width, seed=3
    )
    gradients = {name: torch.randn(2, *shape) for name, shape in (("a", (5, 6)), ("b", (10, 5)), ("c", (4,)))}
    gradients["d"] = torch.randn(2, 2, 3, 2)
    assert torch.allclose(made.sketch(gradients).double(), brute_force(made, gradients), atol=1e-5)
    pieces, placed = made.buffer(2), made.placed("b", gradients["b"])
    for start in range(0, 10, 3):
        made.add(pieces, "b", start, placed[:, start : start + 3])
    assert torch.allclose(pieces, made.sketch({"b": gradients["b"]}), atol=1e-6)
    single = made.buffer(2)
    made.add_rows(single, "b", torch.tensor([[0, 3, 9]] * 2), placed[:, [0, 3, 9]])
    alone = torch.zeros_like(placed)
    alone[:, [0, 3, 9]] = placed[:, [0, 3, 9]]
    expected = made.buffer(2)
    made.add(expected, "b", 0, alone)
    assert torch.allclose(single, expected, atol=1e-6)


def of_rank(rank: int, rows: int, columns: int, rng: torch.Generator) -> torch.Tensor:
    return torch.randn(rows, rank, generator=rng) @ torch.randn(rank, columns, generator=rng)


SHAPES = {"a": ((12, 25), "x"), "b": ((70, 10), "y"), "c": ((200, 9), "y"), "d": ((90,), "z"), "e": ((20, 30), "x")}


@pytest.mark.parametrize("rank", [1, 3, 100], ids=lambda r: f"rank{r}")
def test_inner_products_are_unbiased_with_the_stated_variance(rank: int) -> None:
    """400 seeds, from full rank to outer products of one token: mean and spread are those of the formula."""
    rng = torch.Generator().manual_seed(rank)
    parts = {}
    for name, (shape, _) in SHAPES.items():
        matrix = shape if len(shape) > 1 else (1, *shape)
        x, y = (of_rank(min(rank, *matrix), *matrix, rng) for _ in range(2))
        parts[name] = torch.stack([x, 0.6 * x + 0.8 * y]).view(2, *shape)
    widths = BlockSketch(SHAPES, 200).rings
    truth = sum(float((p[0] * p[1]).sum()) for p in parts.values())
    found = []
    for seed in range(400):
        s = BlockSketch(SHAPES, 200, seed).sketch(parts).double()
        found.append(float(s[0] @ s[1]))
    values = torch.tensor(found)
    spread = float(values.std())
    assert abs(float(values.mean()) - truth) < 4 * spread / math.sqrt(400)
    independent, bound = 0.0, 0.0
    for block in ("x", "y", "z"):
        mine = [
            p.double().view(2, *(s if len(s) > 1 else (1, *s)))
            for (s, b), p in zip(SHAPES.values(), parts.values(), strict=True)
            if b == block
        ]
        sizes = [sum(float(p[k].square().sum()) for p in mine) for k in (0, 1)]
        dot = sum(float((p[0] * p[1]).sum()) for p in mine)
        shared = sum(float((p[0] @ p[1].T).square().sum() + (p[0].T @ p[1]).square().sum()) for p in mine)
        independent += (sizes[0] * sizes[1] + dot**2) / widths[block]
        bound += (sizes[0] * sizes[1] + dot**2 + shared) / widths[block]
    assert 0.75 * math.sqrt(independent) < spread < 1.15 * math.sqrt(bound)
    # Hardly above what independent hashes would give: equal rows and columns meet where they wrap only.
    assert spread < 1.3 * math.sqrt(independent)


def test_sketch_is_linear_and_repeatable() -> None:
    made, again = (BlockSketch({"a": ((500,), "x")}, 32) for _ in range(2))
    x, y = torch.randn(1, 500), torch.randn(1, 500)
    together = made.sketch({"a": 2 * x - y})
    assert torch.allclose(together, 2 * made.sketch({"a": x}) - made.sketch({"a": y}), atol=1e-5)
    assert torch.equal(together, again.sketch({"a": 2 * x - y}))
    assert not torch.equal(together, BlockSketch({"a": ((500,), "x")}, 32, seed=1).sketch({"a": 2 * x - y}))


def test_wrong_gradients_are_refused() -> None:
    made = BlockSketch({"a": ((6,), "x")}, 4)
    with pytest.raises(ValueError, match="a: 5 coordinates, expected 6"):
        made.sketch({"a": torch.zeros(1, 5)})
    with pytest.raises(KeyError):
        made.sketch({"b": torch.zeros(1, 6)})


def test_a_wide_sketch_of_a_large_model_needs_no_table_of_its_coordinates() -> None:
    """1.5 billion coordinates in 65,536 buckets: only rows and columns are hashed."""
    shapes = {"embed": ((151_936, 1536), "embedding"), "rest": ((8960, 146_205), "layers.0.mlp")}
    made = BlockSketch(shapes, 65_536)
    buffer, values = made.buffer(1), torch.randn(1, 2, 146_205)
    made.add(buffer, "rest", 8958, values)
    kept = [t for p in made.parameters.values() for pair in p._made.values() for a in pair for t in vars(a).values()]
    assert sum(t.numel() for t in kept) <= 4 * (151_936 + 1536 + 8960 + 146_205)
    ring, first = made.rings["layers.0.mlp"], made.blocks["layers.0.mlp"].start
    place = made.parameters["rest"].shift(ring) + 8958 * 146_205 + torch.arange(2 * 146_205)
    expected = torch.zeros(65_536).index_add_(0, place % ring + first, values.flatten())
    assert torch.allclose(buffer[0], expected, atol=1e-4)
