"""Ctrl-C while the reports of a finished session are written: in real processes, as terminals and programs send it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from build_sessions import wait_for
from surface import QUIET, Repo

OLD = "the old one"

HANGING = """
import os, sys, time, types

def hang(*args):
    (HERE / "writing").touch()
    time.sleep(600)

class Os:
    def __getattr__(self, name):
        if name == "chmod" and sys._getframe(1).f_locals.get("text", "").startswith("<html>"):
            return hang
        return getattr(os, name)

page = types.ModuleType("pytest_behaviortrace.reports.html")
page.render = lambda scorecard: "<html>" * 100_000
sys.modules[page.__name__] = page
if os.environ["HANGS_AT"] == "drawing":
    page.render = hang
if os.environ["HANGS_AT"] == "writing":
    from pytest_behaviortrace.reports import files
    files.os = Os()
"""


@pytest.fixture
def repo(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Repo:
    repo = Repo(pytester, monkeypatch)
    conftest = repo.path / "conftest.py"
    conftest.write_text(conftest.read_text(encoding="utf-8") + HANGING, encoding="utf-8")
    (repo.path / "b.html").write_text(OLD, encoding="utf-8")
    (repo.path / "c.csv").write_text(OLD, encoding="utf-8")
    return repo


def hanging(repo: Repo, at: str, *workers: str) -> subprocess.Popen[str]:
    """A session whose rows are through, and which is at its second report of three."""
    reports = [f"--bt-report={name}" for name in ("a.json", "b.html", "c.csv")]
    running = subprocess.Popen(
        [sys.executable, "-m", "pytest", *QUIET, "--bt-estimator=good", *reports, *workers],
        cwd=repo.path, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        env={**os.environ, "HANGS_AT": at},
    )  # fmt: skip
    wait_for((repo.path / "writing").exists, 60)
    return running


def left_alone(repo: Repo) -> None:
    """What was there is there, and nothing beside it."""
    assert [(repo.path / name).read_text(encoding="utf-8") for name in ("b.html", "c.csv")] == [OLD, OLD]
    assert [path.name for path in repo.path.iterdir() if path.name.startswith((".a.", ".b.", ".c."))] == []


@pytest.mark.parametrize("whom", ["group", "session"])
@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["serial", "xdist"])
@pytest.mark.parametrize("at", ["drawing", "writing"])
def test_one_line_says_which_reports_are_missing_and_pytest_ends_as_ever_after_ctrl_c(repo, whom, workers, at):
    running = hanging(repo, at, *workers)
    (os.killpg if whom == "group" else os.kill)(running.pid, signal.SIGINT)
    said, _ = running.communicate(timeout=60)
    assert running.returncode == pytest.ExitCode.INTERRUPTED, said
    lines = [line for line in said.splitlines() if "interrupted" in line]
    paths = ", ".join(str(repo.path / name) for name in ("b.html", "c.csv"))
    assert lines == [f"behaviortrace: interrupted, so these reports were not written: {paths}"]
    assert "Traceback" not in said
    assert "INTERNALERROR" not in said
    assert "KeyboardInterrupt" not in said
    assert "good: PASSED (17 rows: 17 pass)" in said
    assert '"rows": [' in (repo.path / "a.json").read_text(encoding="utf-8")
    left_alone(repo)


def test_a_killed_session_leaves_the_report_that_was_there_and_the_next_one_sweeps_up(repo, monkeypatch):
    running = hanging(repo, "writing")
    os.kill(running.pid, signal.SIGKILL)
    running.communicate(timeout=60)
    assert (repo.path / "b.html").read_text(encoding="utf-8") == OLD
    (left,) = repo.path.glob(".b.html.*")
    monkeypatch.setenv("HANGS_AT", "nothing")
    assert repo.run("--bt-estimator=good", "--bt-report=a.json").ret == 0
    assert left.exists()  # nobody writes that report
    assert repo.run("--bt-estimator=good", "--bt-report=b.html").ret == 0
    assert not left.exists()
    assert (repo.path / "b.html").read_text(encoding="utf-8").startswith("<html>")
