"""Real worker processes: the same report as a serial run, and a dead worker is an error, not a verdict."""

from __future__ import annotations

import pytest
from surface import ROWS, Repo, magnitude

ESTIMATORS = tuple(f"--bt-estimator={n}" for n in ("good", "mixed", "unsure", "undeclared", "broken"))


@pytest.fixture
def repo(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Repo:
    return Repo(pytester, monkeypatch)


def test_the_report_is_byte_identical_serial_and_on_workers(repo):
    reports = []
    for workers in ((), ("-n2",), ("-n2", "--dist=loadfile"), ("-n4", "--dist=worksteal")):
        assert repo.grade(*ESTIMATORS, *workers).ret == 1
        reports.append((repo.path / "report.json").read_bytes())
    assert len(repo.verdicts()) == 3 + 5 * (ROWS - 3)
    assert len(set(reports)) == 1


def test_the_scorecard_is_that_of_a_serial_run(repo):
    def section(*args):
        lines = repo.run(*ESTIMATORS, *args).outlines
        start = next(i for i, line in enumerate(lines) if "behaviortrace scorecard" in line)
        end = next(i for i, line in enumerate(lines) if "What luck" in line)
        return lines[start:end]

    assert section("-n2") == section()


def test_words_and_exit_code_survive_the_workers(repo):
    result = repo.run(*ESTIMATORS, "-n2", "-k", "magnitude")
    result.stdout.fnmatch_lines(["*1 failed, 5 passed*3 errors, 3 inconclusive, 3 n/a*"])
    assert repo.run("--bt-estimator=unsure", "-n2", "-k", "magnitude").ret == 5


def test_an_error_is_worded_the_same_by_a_worker(repo):
    text = repo.run("--bt-estimator=broken", "-n2", "-k", "magnitude and seed1").stdout.str()
    assert "E   error: broken, seed 1: estimator 'broken' on 2560 rollouts raised TypeError: no len" in text
    assert "return len(None)" in text


def test_a_dead_worker_is_an_error_row_and_the_rest_is_graded(repo):
    result = repo.grade("--bt-estimator=good", "--bt-estimator=fatal", "-n2", "-k", "magnitude")
    assert result.ret == 1
    verdicts = repo.verdicts()
    assert {verdicts[magnitude("fatal", seed)] for seed in range(3)} == {"error"}
    assert {verdicts[magnitude("good", seed)] for seed in range(3)} == {"pass"}
    reasons = {row["reason"] for row in repo.report()["rows"] if row["estimator"] == "fatal"}
    assert reasons == {"the process that ran this row died; run it alone, with -p no:xdist, to see why"}
    result.stdout.fnmatch_lines(["*3 passed*3 errors*"])


def test_selection_on_workers(repo):
    assert repo.run("--bt-estimator=good", "-n4", "-k", "fluency", "--deselect", "checks/test_headroom.py").ret == 0
    assert {line.partition(" ")[2] for line in repo.trained()} == {"[0, 1, 2]"}
    repo.run("--bt-estimator=mixed", "-n2")
    repo.grade("--bt-estimator=mixed", "-n2", "--lf")
    assert set(repo.verdicts().values()) == {"fail"}
