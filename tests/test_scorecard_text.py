"""A scorecard in Python: what it prints, what it is in a list, and the files it writes itself into."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import exhibited
import pytest
from surface import Repo

from pytest_behaviortrace.reports import csv, files, json, markdown, terminal
from pytest_behaviortrace.scorecard import Scorecard


@pytest.fixture(scope="module")
def card() -> Scorecard:
    return exhibited.bare(exhibited.scorecard(("gas", "dot")))


def test_print_gives_the_report_of_the_terminal_without_its_commands(card: Scorecard) -> None:
    lines = [line.text for line in terminal.render(card)]
    commands = [line for line in lines if line.strip().startswith("rerun: pytest")]
    assert commands
    assert str(card).splitlines() == [line for line in lines if line not in commands]
    for name in card.estimators:
        assert f"{name}: {card.checklist_verdict(name).upper()} (" in str(card)


def test_it_prints_without_a_session_and_without_numpy(card: Scorecard) -> None:
    program = (
        "import sys; from pytest_behaviortrace import Scorecard; "
        "print(Scorecard('1', 'tiny', 'ab', 'frobnitz', {}, (), (), {'mine': frozenset()})); "
        "assert not {'numpy', 'torch', 'pytest', 'rich'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "suite 1, recipe tiny@ab, plant frobnitz\n"


def test_its_repr_is_short(card: Scorecard) -> None:
    verdicts = ", ".join(f"{name}: {card.checklist_verdict(name)}" for name in ("gas", "dot"))
    assert repr(card) == f"<Scorecard of {len(card.rows)} rows; {verdicts}>"
    assert repr(Scorecard("1", "tiny", "ab", "x", {}, (), (), {})) == "<Scorecard of 0 rows; no estimator>"


def test_it_is_a_collection_of_its_rows(card: Scorecard) -> None:
    assert list(card) == list(card.rows)
    assert len(card) == len(card.rows)
    assert card.rows[0] in card


@pytest.mark.parametrize(("suffix", "module"), [(".json", json), (".md", markdown), (".CSV", csv)])
def test_the_suffix_picks_the_format(card: Scorecard, suffix: str, module: object, tmp_path: Path) -> None:
    path = card.save(str(tmp_path / "new" / f"card{suffix}"))
    assert path == tmp_path / "new" / f"card{suffix}"
    assert path.read_bytes() == module.render(card).encode()  # type: ignore[attr-defined]
    assert [found.name for found in path.parent.iterdir()] == [path.name]


def test_html_is_saved_too(card: Scorecard, tmp_path: Path) -> None:
    assert card.save(tmp_path / "card.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_its_refusals_are_those_of_the_option(card: Scorecard, repo: Repo) -> None:
    (repo.path / "folder.md").mkdir()
    for name in ("card.txt", "card", "folder.md"):
        with pytest.raises(ValueError, match=f"^'{name}' ") as caught:
            card.save(name)
        result = repo.run("--bt-estimator=good", f"--bt-report={name}")
        assert f"ERROR: --bt-report: {caught.value}" in result.errlines
    with pytest.raises(ValueError, match=r"^path='a\\x00b.json' has a NUL character, which no path can have"):
        card.save("a\0b.json")
    with pytest.raises(TypeError):
        card.save(7)  # type: ignore[arg-type]


@pytest.fixture
def repo(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Repo:
    return Repo(pytester, monkeypatch)


def test_a_full_disk_keeps_what_was_there(card: Scorecard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "card.json"
    path.write_text("old", encoding="utf-8")

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "replace", full)
    with pytest.raises(OSError, match=r"card.json' was not written \(No space left on device\); choose another path"):
        card.save(path)
    assert os.listdir(tmp_path) == ["card.json"]
    assert path.read_text(encoding="utf-8") == "old"
