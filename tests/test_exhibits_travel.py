"""From the row to the scorecard, in one process and through workers; nothing of it reaches JSON, JUnit or a verdict."""

from __future__ import annotations

import json
from typing import Any

import pytest
from surface import ROWS, Repo, magnitude

SEEN = """
import dataclasses, json
from pathlib import Path
import pytest
from pytest_behaviortrace.collection import GRADING

@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session):
    grading = session.config.stash[GRADING]
    grading.settings = dataclasses.replace(grading.settings, exhibits=True)

def pytest_unconfigure(config):
    if not hasattr(config, "workerinput"):
        card = config.stash[GRADING].scorecard()
        Path("seen.json").write_text(json.dumps([card.draws, dict(card.exhibits)]))
"""


@pytest.fixture
def repo(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Repo:
    found = Repo(pytester, monkeypatch)
    pytester.makepyfile(seen=SEEN)
    return found


def seen(repo: Repo) -> dict[str, Any]:
    draws, exhibits = json.loads((repo.path / "seen.json").read_text(encoding="utf-8"))
    assert draws == 2
    return dict(exhibits)


@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["serial", "xdist"])
def test_every_row_brings_its_exhibit(repo: Repo, workers: tuple[str, ...]) -> None:
    names = ("good", "bad", "unsure")
    repo.grade("-p", "seen", *(f"--bt-estimator={name}" for name in names), *workers)
    exhibits = seen(repo)
    assert exhibits.keys() == repo.verdicts().keys()
    assert len(exhibits) == 3 + 3 * (ROWS - 3)
    assert exhibits[magnitude("bad", 1)] == {"floors": [{"name": "floor of bad 1", "have": 1.0, "need": 0.5}]}
    gathered = (repo.path / "gathered").read_text(encoding="utf-8").splitlines()
    assert len(gathered) == len(exhibits)
    assert len({line.split()[0] for line in gathered}) == (2 if workers else 1)


def test_json_and_junit_are_the_same_with_and_without(repo: Repo) -> None:
    names = [f"--bt-estimator={name}" for name in ("good", "bad", "mixed", "undeclared", "broken")]
    reports = []
    for flags in ([], ["-p", "seen"]):
        repo.grade(*names, "--junitxml=junit.xml", *flags)
        reports.append((repo.path / "report.json").read_bytes())
        xml = (repo.path / "junit.xml").read_text(encoding="utf-8")
        assert "bt_verdict" in xml
        assert "floor of" not in xml
        assert "exhibit" not in xml
    assert reports[0] == reports[1]


def test_nothing_is_gathered_unless_it_is_wanted(repo: Repo) -> None:
    repo.grade("--bt-estimator=good")
    assert not (repo.path / "gathered").exists()


def test_what_cannot_be_gathered_is_told_and_leaves_the_row_alone(repo: Repo) -> None:
    result = repo.grade("-p", "seen", "--bt-estimator=mixed", "-k", "magnitude")
    result.stdout.fnmatch_lines(["*mixed-seed0* shows nothing in the report: ValueError: no picture today*"])
    assert [repo.verdicts()[magnitude("mixed", seed)] for seed in range(3)] == ["pass", "fail", "pass"]
    assert seen(repo) == {}
