"""No file or folder that is made bears a name that Windows refuses, whatever estimators and recipes are called."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from problems import make_problem

from pytest_behaviortrace.dumping import Writer
from pytest_behaviortrace.isolation import write_problem
from pytest_behaviortrace.reports import files
from pytest_behaviortrace.run.cache import recipe_folder
from pytest_behaviortrace.run.lock import worker_place
from pytest_behaviortrace.run.names import RESERVED, is_device, same_file
from pytest_behaviortrace.run.orchestrate import ensure
from pytest_behaviortrace.run.recipe import Recipe
from pytest_behaviortrace.scorecard import Row, Scorecard

HOSTILE = ("nul", "CON.txt", 'a:b*c?"<d>|e', "../../up", "dot.", "space ", "tab\there", "a/b\\c", "\x00", "x" * 300)


def refused(name: str) -> bool:
    """Whether Windows refuses a name."""
    device = name.partition(".")[0].rstrip(" ").lower() in RESERVED
    return device or bool(re.search(r'[<>:"/\\|?*\x00-\x1f]|[. ]$', name)) or len(name) > 120


def names_below(folder: Path) -> set[str]:
    """Of files and folders; those that go away meanwhile do not matter (os.walk passes over them)."""
    return {name for _, folders, files in os.walk(folder) for name in (*folders, *files)}


@pytest.mark.parametrize("name", HOSTILE)
def test_the_test_knows_what_windows_refuses(name: str) -> None:
    assert any(refused(part) for part in (name, *name.split("/")) if part)
    assert not any(map(refused, ("seed0-draw1", ".build-seed0-x_1", "console")))


@pytest.mark.parametrize("name", [name for name in (*HOSTILE, "com1.v2", "aux") if name != "dot."])
def test_a_recipe_cannot_be_called_what_a_folder_cannot(name: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    escaped = name.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t").replace("\x00", "\\u0000")
    path.write_text(f'extends = "tiny"\nname = "{escaped}"\n', encoding="utf-8")
    with pytest.raises(ValueError, match="name is"):
        Recipe.load(str(path))


def test_a_recipe_may_end_in_a_dot_because_its_key_stands_behind_it(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('extends = "tiny"\nname = "dot."\n', encoding="utf-8")
    recipe = Recipe.load(str(tmp_path / "mine.toml"))
    assert not refused(recipe_folder(tmp_path, recipe).name)


def test_a_cache_while_it_is_built_and_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "aux.local: <1>")
    monkeypatch.setenv("FAKE_BUILD", '{"sleep": 0.5}')
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    seen: set[str] = set()
    ended = threading.Event()

    def watch() -> None:
        while not ended.is_set():
            seen.update(names_below(tmp_path))
            time.sleep(0.01)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        ensure(Recipe.load("tiny"), [0], [0], tmp_path, builder="fake_builder")
    finally:
        ended.set()
        watcher.join()
    seen |= names_below(tmp_path)
    assert any(name.startswith(".build-seed0") for name in seen)
    assert {name for name in seen if refused(name)} == set()


def test_a_place_for_a_worker_of_any_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for host in HOSTILE[:-1]:
        monkeypatch.setattr(socket, "gethostname", lambda host=host: host)
        place: Any = worker_place(tmp_path, 1)
        place.release()
    assert {name for name in names_below(tmp_path) if refused(name)} == set()


@pytest.mark.parametrize("name", HOSTILE)
def test_reports_and_dumps_bear_no_name_of_an_estimator(name: str, tmp_path: Path) -> None:
    row = Row(f"checks/test_stress.py::test_stress[{name}]", name, "test_stress", None, None, "pass")
    card = Scorecard("1", "tiny", "ab", name, {}, (), [row], {name: frozenset({row.id})})
    files.write(card, tmp_path / "report.json")
    dump, isolated = tmp_path / "dump", tmp_path / "isolated"
    dump.mkdir()
    isolated.mkdir()
    problem = make_problem(np.zeros((4, 2)), behavior=name, blocks={name: slice(0, 2)})
    Writer(lambda problem: np.zeros(len(problem)), dump)(problem)
    write_problem(problem, isolated)
    assert {found for found in names_below(tmp_path) if refused(found)} == set()


def test_names_that_differ_in_case_alone_are_one_file_somewhere() -> None:
    assert same_file(["a", "b", "a_b"]) is None
    assert same_file(["Trigger", "x", "trigger"]) == ("Trigger", "trigger")
    assert [is_device(name) for name in ("nul", "Com1.tar", "comet", "nul-1")] == [True, True, False, False]
