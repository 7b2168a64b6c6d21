"""What is written can be read again, mapped and verified; what was damaged is named and never read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pytest_behaviortrace.run import manifest as manifests
from pytest_behaviortrace.run.store import (
    MANIFEST,
    DamagedUnit,
    MissingUnit,
    Store,
    Unit,
    write_array,
    write_sketches,
    write_table,
)

RECIPE = SimpleNamespace(name="toy", hash="ab" * 32)


def numbers(folder: Path) -> None:
    write_array(folder, "numbers", np.arange(6.0).reshape(2, 3))


def publish(
    store: Store, unit: str = "seed0", *, fill: Callable[[Path], None] = numbers, weights: str = "w", **described
) -> Path:
    """Write and seal a unit by hand."""
    folder = store.folder / unit
    policy = folder / "policies" / "analysis"
    policy.mkdir(parents=True)
    (policy / "model.safetensors").write_text(weights)
    fill(folder)
    description = {"unit": unit, "recipe": {}, "key": store.key, "suite": "x", "versions": {}}
    manifests.seal(folder, {**description, "facts": {"s_b": 0.5}, "timings": {"sft": 1.0}, **described})
    return folder


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path, RECIPE)


def written(store: Store, fill: Callable[[Path], None]) -> Unit:
    publish(store, fill=fill)
    return store.seed(0)


# -- formats -----------------------------------------------------------------------------------------------------------


def test_sketches_come_back_within_half_precision_of_each_row(store):
    rng = np.random.default_rng(0)
    rows = (rng.normal(size=(40, 64)) * 10.0 ** rng.uniform(-12, 8, size=(40, 1))).astype(np.float32)
    rows[7] = 0.0
    norm = (np.linalg.norm(rows, axis=1) * 1.01).astype(np.float32)
    items = rng.permutation(100)[:40]
    sketches = written(store, lambda folder: write_sketches(folder, "g", rows, norm, items)).sketches("g")

    assert (len(sketches), sketches.width) == (40, 64)
    assert isinstance(sketches.half, np.memmap)
    assert sketches.float32().dtype == np.float32
    assert np.all(np.abs(sketches.float32() - rows) <= np.abs(rows).max(axis=1, keepdims=True) * 2.0**-11)
    np.testing.assert_array_equal(sketches.norm, norm)
    np.testing.assert_array_equal(sketches.float32([3, 1]), sketches.float32()[[3, 1]])
    np.testing.assert_array_equal(sketches.float32(items > 50), sketches.float32()[items > 50])
    assert sketches.float32([]).shape == (0, 64)
    dense = sketches.dense(100)
    np.testing.assert_array_equal(dense[items], sketches.float32())
    assert not dense[np.setdiff1d(np.arange(100), items)].any()
    np.testing.assert_array_equal(np.flatnonzero(sketches.has(100)), np.sort(items))
    np.testing.assert_array_equal(sketches.dense_norm(100)[items], norm)


def test_a_sketch_set_may_be_empty(store):
    empty = np.zeros((0, 8), np.float32)
    sketches = written(store, lambda folder: write_sketches(folder, "none", empty, [])).sketches("none")
    assert sketches.float32().shape == (0, 8)
    assert sketches.dense(3).shape == (3, 8)


@pytest.mark.parametrize(
    ("rows", "norm", "row", "complaint"),
    [
        (np.zeros(4), [1.0], None, "shape"),
        (np.zeros((2, 4)), [1.0], None, "norm"),
        (np.full((1, 4), np.nan), [1.0], None, "finite"),
        (np.zeros((1, 4)), [np.inf], None, "finite"),
        (np.zeros((2, 4)), [1.0, 1.0], [3, 3], "distinct"),
        (np.zeros((1, 4)), [1.0], [-1], "negative"),
    ],
)
def test_wrong_sketches_are_refused(tmp_path, rows, norm, row, complaint):
    with pytest.raises(ValueError, match=complaint):
        write_sketches(tmp_path, "g", rows, norm, row)


def test_tables_keep_values_and_types(store):
    columns = {
        "row_id": np.arange(3),
        "reward": [1.0, float("nan"), 1e-17],
        "eligible": [True, False, True],
        "completion_text": ["a", "", "ü"],
        "completion_ids": [[1, 2, 3], [], [7]],
        "logprobs": [[-0.5, -1.0, -2.0], [], [-0.25]],
        "span_none": [[], [], []],
    }
    table = written(store, lambda folder: write_table(folder, "rollouts", columns)).table("rollouts")
    assert list(table) == list(columns)
    np.testing.assert_array_equal(table["reward"], columns["reward"])
    assert table["reward"].dtype == np.float64
    assert table["eligible"].dtype == np.bool_
    assert table["completion_text"] == ["a", "", "ü"]
    assert [ids.tolist() for ids in table["completion_ids"]] == columns["completion_ids"]
    assert [ids.dtype for ids in table["completion_ids"]] == [np.int32] * 3
    assert [values.tolist() for values in table["logprobs"]] == columns["logprobs"]
    assert {values.dtype for values in table["logprobs"]} == {np.dtype(np.float32)}
    assert [span.tolist() for span in table["span_none"]] == [[], [], []]
    with pytest.raises(ValueError, match="read-only"):
        table["reward"][0] = 2.0


def test_columns_of_unequal_length_are_refused(tmp_path):
    with pytest.raises(ValueError, match="length"):
        write_table(tmp_path, "t", {"a": [1, 2], "b": [1]})


def test_arrays_are_mapped_read_only_and_never_pickled(store, tmp_path):
    array = written(store, numbers).array("numbers")
    assert isinstance(array, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        array[0, 0] = 1.0
    with pytest.raises(ValueError, match="pickle"):
        write_array(tmp_path, "objects", np.array([{}], dtype=object))


def test_only_files_of_the_manifest_are_read(store):
    folder = publish(store)
    (folder / "stray.npy").write_bytes(b"anything")
    unit = store.seed(0)
    with pytest.raises(KeyError, match="stray"):
        unit.array("stray")
    with pytest.raises(KeyError, match="end"):
        unit.policy("end")
    assert unit.policy("analysis") == folder / "policies" / "analysis"


# -- verification ------------------------------------------------------------------------------------------------------


def flip_a_byte(folder: Path) -> None:
    content = bytearray((folder / "numbers.npy").read_bytes())
    content[-1] ^= 1
    (folder / "numbers.npy").write_bytes(content)


def edit_a_fact(folder: Path) -> None:
    text = (folder / MANIFEST).read_text()
    (folder / MANIFEST).write_text(text.replace('"s_b": 0.5', '"s_b": 0.9'))


def point_outside(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    entry = {"sha256": "0" * 64, "bytes": 0}
    body = {k: v for k, v in manifest.items() if k != "sha256"} | {"files": {"../../outside.npy": entry}}
    (folder / MANIFEST).write_text(json.dumps({**body, "sha256": manifests._own_hash(body)}))


DAMAGES = {
    "altered": (flip_a_byte, "numbers.npy", "sha256"),
    "truncated": (lambda f: os.truncate(f / "numbers.npy", 100), "numbers.npy", "100 bytes instead of"),
    "deleted": (lambda f: (f / "numbers.npy").unlink(), "numbers.npy", "missing"),
    "manifest deleted": (lambda f: (f / MANIFEST).unlink(), MANIFEST, "missing"),
    "manifest truncated": (lambda f: os.truncate(f / MANIFEST, 40), MANIFEST, "JSON"),
    "manifest of another shape": (lambda f: (f / MANIFEST).write_text("[]"), MANIFEST, "fields"),
    "manifest altered": (edit_a_fact, MANIFEST, "altered"),
    "manifest not text": (lambda f: (f / MANIFEST).write_bytes(b"\xff\xfe"), MANIFEST, "read"),
    "manifest pointing outside": (point_outside, MANIFEST, "outside"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_named(store, damage):
    inflict, file, problem = DAMAGES[damage]
    folder = publish(store)
    store.seed(0)  # verified once already: later damage is still seen
    inflict(folder)
    for _ in range(2):
        with pytest.raises(DamagedUnit, match=problem) as caught:
            store.seed(0)
        assert (caught.value.unit, caught.value.file) == ("seed0", file)
        assert "seed0" in str(caught.value)
        assert file in str(caught.value)
    assert store.missing([0], []) == ["seed0"]


def test_a_unit_of_another_name_or_key_is_not_taken(store):
    os.rename(publish(store, "seed1"), store.folder / "seed0")
    with pytest.raises(DamagedUnit, match="belongs to seed1"):
        store.seed(0)
    publish(store, "seed2", key="0" * 64)
    with pytest.raises(DamagedUnit, match="another recipe"):
        store.seed(2)


def test_absent_units_are_missing_and_listed_seeds_first(store):
    publish(store, "seed1")
    with pytest.raises(MissingUnit, match="seed0"):
        store.seed(0)
    assert store.missing([1, 0], [1, 0]) == ["seed0", "seed0-draw0", "seed0-draw1", "seed1-draw0", "seed1-draw1"]


def test_a_draw_must_come_from_the_seed_unit_in_the_store(store):
    fingerprint = store_fingerprint(store, "first build")
    publish(store, "seed0-draw0", seed_unit=fingerprint)
    assert store.draw(0, 0).analysis_policy == fingerprint
    assert store.missing([0], [0]) == []
    os.rename(store.folder / "seed0", store.folder / ".build-old")
    store_fingerprint(store, "second build")
    with pytest.raises(DamagedUnit, match="another build of seed0"):
        store.draw(0, 0)
    assert store.missing([0], [0]) == ["seed0-draw0"]


def store_fingerprint(store: Store, weights: str) -> str:
    publish(store, "seed0", weights=weights)
    return store.seed(0).analysis_policy


def test_files_are_hashed_once_per_process(store, monkeypatch):
    publish(store)
    hashed: list[Path] = []
    original = manifests.sha256_of
    monkeypatch.setattr(manifests, "sha256_of", lambda path: (hashed.append(path), original(path))[1])
    for _ in range(3):
        store.seed(0)
    assert len(hashed) == 2


def test_facts_must_be_json(store):
    with pytest.raises(TypeError, match="JSON"):
        publish(store, facts={"rate": np.float32(0.5)})
    with pytest.raises(ValueError, match="JSON"):
        publish(store, "seed1", facts={"rate": float("nan")})
    assert store.missing([1], []) == ["seed1"]


def test_reading_imports_nothing_heavy(tmp_path):
    code = (
        "import sys; from pytest_behaviortrace.run import cache, orchestrate, recipe, store, worker\n"
        "heavy = {'torch', 'transformers', 'trl', 'datasets', 'pyarrow', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
