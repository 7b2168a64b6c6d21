"""`cache missing`: what a session would have to train, damage included, and the command that trains it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from build_sessions import HERE, make

from pytest_behaviortrace.__main__ import main
from pytest_behaviortrace.run.completeness import Completeness, command, examine
from pytest_behaviortrace.run.recipe import Recipe
from pytest_behaviortrace.run.store import Store


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A cache folder (a name with a space) with seeds 0-2, two draws each."""
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.setenv("FAKE_BUILD", json.dumps({}))
    make(Recipe.load("tiny"), tmp_path / "a cache", [0, 1, 2], [0, 1])
    return tmp_path / "a cache"


def asked(folder: Path, *arguments: str) -> int:
    return main(["cache", "missing", "--cache-dir", str(folder), *arguments])


def test_what_is_missing_or_damaged_is_named_with_the_command_that_completes_it(folder, capsys):
    assert asked(folder) == 0
    store = Store(folder, Recipe.load("tiny"))
    assert capsys.readouterr().out == f"9 of 9 units complete, 0 missing, 0 damaged in {store.folder}\n"
    (store.folder / "seed1-draw0").rename(folder / "elsewhere")
    array = store.folder / "seed2" / "part0.npy"
    content = array.read_bytes()
    array.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    before = sorted(path.name for path in folder.rglob("*"))
    assert asked(folder, "--seeds", "0-2,4", "--draws", "2") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"7 of 12 units complete, 4 missing, 1 damaged in {store.folder}"
    assert [line.split() for line in lines[1:6]] == [
        ["seed2", "damaged:", "part0.npy", "was", "altered:", "its", "sha256", "does", "not", "match"],
        ["seed4", "missing"],
        ["seed1-draw0", "missing"],
        ["seed4-draw0", "missing"],
        ["seed4-draw1", "missing"],
    ]
    assert lines[6] == "complete it with"
    assert sorted(path.name for path in folder.rglob("*")) == before  # looked at, not touched
    words = shlex.split(lines[7])
    assert words[:4] == ["python", "-m", "pytest_behaviortrace", "train"]
    given = dict(zip(words[4::2], words[5::2], strict=True))
    assert given == {"--recipe": "tiny", "--seeds": "1-2,4", "--draws": "2", "--cache-dir": str(folder)}

    make(Recipe.load("tiny"), folder, [1, 2, 4], [0, 1])
    assert asked(folder, "--seeds", "0-2,4") == 0


def test_draws_of_another_build_of_their_seed_are_damaged(folder, monkeypatch):
    store = Store(folder, Recipe.load("tiny"))
    (store.folder / "seed0").rename(folder / "elsewhere")
    monkeypatch.setenv("FAKE_BUILD", json.dumps({"flavor": "other machine"}))
    make(Recipe.load("tiny"), folder, [0], [])
    found = examine(store, [0, 1], 1)
    assert found.problems == {"seed0-draw0": "manifest.json names another build of seed0"}
    assert not found.complete
    assert found.unusable_seeds == (0,)


def test_an_empty_folder_lacks_everything_and_is_not_made(tmp_path, capsys):
    assert asked(tmp_path / "none", "--seeds", "0", "--draws", "0") == 1
    out = capsys.readouterr().out
    assert out.splitlines()[0].endswith("none does not exist")
    assert out.splitlines()[1].startswith("0 of 1 units complete, 1 missing, 0 damaged in ")
    assert not (tmp_path / "none").exists()


def test_without_a_folder_the_command_names_none():
    found = Completeness(Path("/c"), (0, 1, 3), 1, {"seed0": "", "seed1-draw0": "x", "seed3": ""})
    assert command(found, "my recipe.toml", None).endswith("--recipe 'my recipe.toml' --seeds 0-1,3 --draws 1")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["missing", "--stale"], "clears"),
        (["missing", "--seeds", "x"], "not a list of seeds"),
        (["missing", "--recipe", "nonesuch"], "recipes: "),
        (["check", "--seeds", "0"], "what `cache missing` and `cache key` are about"),
        (["clear", "--all", "--draws", "1"], "what `cache missing` and `cache key` are about"),
    ],
)
def test_usage_errors_exit_2_and_say_why(arguments, complaint, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["cache", *arguments])
    assert caught.value.code == 2
    assert complaint in capsys.readouterr().err
