"""A scorecard in Python: what it prints, what it is in a list, and the files it writes itself into."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import exhibited
import pytest
from surface import Repo

from pytest_behaviortrace.reports import csv, files, json, markdown, terminal
from pytest_behaviortrace.scorecard import CHECKLIST, Scorecard


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


def failing(card: Scorecard, many: int) -> Scorecard:
    """The first rows of a check with reasons of their own, on many seeds."""
    check = "test_gradient_magnitude"
    row = next(row for row in card.of("gas") if row.check == check)
    verdicts = ("fail", "pass", "inconclusive")
    rows = [
        replace(
            row, id=f"checks/{check}.py::{check}[gas-seed{seed}]", seed=seed, verdict=verdicts[min(seed, 2)],
            reason=f"because of {seed}", low=0.1 + seed / 1000,
        ) for seed in range(many)
    ]  # fmt: skip
    return replace(card, rows=rows, expected={"gas": frozenset(row.id for row in rows)})


def test_all_rows_that_did_not_pass_are_told_where_more_is_asked_for(card: Scorecard) -> None:
    failed = failing(card, 5)
    assert "because of 2" not in str(failed)
    assert failed.text() == str(failed)
    lines = failed.text(verbose=True).splitlines()
    for seed in (2, 3, 4):
        (line,) = [line for line in lines if f"because of {seed}" in line]
        assert line.startswith(f"      seed{seed}: inconclusive ")
        assert line.endswith(f"(because of {seed})")
    assert sum("because of 0" in line for line in lines) == 1
    assert not any("because of 1" in line for line in lines)  # it passed
    assert not any(line.strip().startswith("rerun: ") for line in lines)


def test_there_is_a_bound_to_what_is_told(card: Scorecard) -> None:
    text = failing(card, 3 + terminal.OTHERS).text(verbose=True)
    assert text.count("because of") == 1 + terminal.OTHERS
    assert "\n      and 1 more row that did not pass; the CSV report has them all\n" in text
    assert "more rows that did not pass" in failing(card, 100).text(verbose=True)
    assert "did not pass" not in failing(card, 2 + terminal.OTHERS).text(verbose=True)


def test_rows_of_a_check_that_are_all_not_applicable_are_told_too(card: Scorecard) -> None:
    rows = [replace(row, verdict="n/a") for row in failing(card, 3).rows]
    text = replace(card, rows=rows, expected={"gas": frozenset(row.id for row in rows)}).text(verbose=True)
    assert all(text.count(f"because of {seed}") == 1 for seed in range(3))


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


def test_a_check_is_found_by_both_spellings_of_its_name(card: Scorecard) -> None:
    found = card.by_check("gas")
    assert list(found) == [name for name in CHECKLIST if name != "test_headroom"]
    for name in found:
        short = name.removeprefix("test_")
        assert found[short] is found[name] is found.get(short) is found.get(name)
        assert short in found
        assert name in found
        assert {row.check for row in found[short]} == {name}
    assert "stability" not in found
    assert found.get("stability") is None
    assert found.get("stability", ()) == ()
    with pytest.raises(KeyError, match="no check 'stability' here; there are test_gradient_magnitude, "):
        found["stability"]
    assert "headroom" in card.by_check(None)


def test_data_spell_checks_with_test_and_what_people_read_without(card: Scorecard) -> None:
    row = next(row for row in card.of("gas") if row.check == "test_seed_stability")
    assert row.id.startswith("checks/test_seed_stability.py::test_seed_stability[gas-")
    assert '"check": "test_seed_stability"' in json.render(card)
    assert ",test_seed_stability," in csv.render(card)
    for text in (str(card), markdown.render(card)):
        assert re.search(r"(?<!test_)\bseed_stability\b", text)


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
