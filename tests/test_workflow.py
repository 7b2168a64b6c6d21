"""The README's GitHub workflow: its shell steps are run by bash as GitHub runs them.

Left out, because they need GitHub or a network: the actions (`uses:`) and the step that installs. The checks are the
small ones of `surface`, the module that draws is a stand-in, and the estimator is one of the doubles.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from surface import Repo
from test_several_reports import drawing

from pytest_behaviortrace.run.cache import recipe_folder
from pytest_behaviortrace.run.recipe import Recipe

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
(TEXT,) = re.findall(r"^<!-- workflow -->\n```yaml\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
WORKFLOW: dict[Any, Any] = yaml.safe_load(TEXT)
JOB = WORKFLOW["jobs"]["grade"]
STEPS: list[dict[str, Any]] = JOB["steps"]
INSTALL = "Install"


class Runner:
    """The parts of GitHub's runner that the workflow uses."""

    def __init__(self, repo: Repo, estimator: str) -> None:
        self.folder, self.outputs = repo.path, {}
        self.summary = repo.path / "summary.md"
        files = {"GITHUB_OUTPUT": repo.path / "output", "GITHUB_STEP_SUMMARY": self.summary}
        for path in files.values():
            path.write_text("")
        self.env = {**os.environ, **{name: str(path) for name, path in files.items()}}
        self.env |= {name: self.expand(value) for name, value in JOB["env"].items()} | {"ESTIMATOR": estimator}
        # `python` is the one that has the package, and leaves out what only costs time.
        self.env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.env["PYTEST_ADDOPTS"] = "-p no:hypothesispytest -p no:cacheprovider"

    def expand(self, text: str) -> str:
        """The text with `${{ }}` filled in."""
        known = {"github.workspace": str(self.folder), "runner.os": "Linux"}
        known |= {f"steps.runs.outputs.{name}": value for name, value in self.outputs.items()}
        return re.sub(r"\$\{\{ (.+?) \}\}", lambda match: known[match[1]], text)

    def run(self) -> dict[str, int]:
        """Run the shell steps; exit codes by name. After a failure only those with `if: always()` run."""
        codes: dict[str, int] = {}
        for step in STEPS:
            if "run" not in step or step["name"] == INSTALL:
                continue
            if any(codes.values()) and step.get("if") != "always()":
                continue
            command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", self.expand(step["run"])]
            done = subprocess.run(
                command, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=120, check=False
            )
            codes[step["name"]] = done.returncode
            self.said = done.stdout + done.stderr if step["name"] == "Grade" else getattr(self, "said", "")
            lines = (self.folder / "output").read_text().splitlines()
            self.outputs |= dict(line.split("=", 1) for line in lines)
        return codes


@pytest.fixture
def repo(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Repo:
    repo = Repo(pytester, monkeypatch)
    drawing(repo, broken=False)
    return repo


def test_a_first_run_grades_writes_every_report_and_the_summary(repo):
    runner = Runner(repo, "good")
    assert runner.run() == {"Key of the runs": 0, "Grade": 0, "Job summary": 0}
    assert sorted(path.name for path in (repo.path / "reports").iterdir()) == [
        "scorecard.html", "scorecard.json", "scorecard.md",
    ]  # fmt: skip
    assert runner.summary.read_text(encoding="utf-8").startswith("<!-- pytest-behaviortrace -->\n")
    assert "checklist passed" in runner.summary.read_text(encoding="utf-8")


def test_a_failed_claim_fails_the_job_and_is_in_the_summary_all_the_same(repo):
    runner = Runner(repo, "mixed")
    assert runner.run() == {"Key of the runs": 0, "Grade": 1, "Job summary": 0}
    assert "checklist failed" in runner.summary.read_text(encoding="utf-8")


def test_with_a_baseline_only_what_got_worse_fails_the_job(repo):
    runner = Runner(repo, "mixed")
    runner.run()
    (repo.path / "reports" / "scorecard.json").rename(repo.path / "behaviortrace-baseline.json")
    assert runner.run()["Grade"] == 0
    assert "0 regressions" in runner.said
    doubles = repo.path / "doubles.py"
    doubles.write_text(doubles.read_text().replace("if case.seed == 1 else", "if case.seed != 2 else"))
    assert runner.run() == {"Key of the runs": 0, "Grade": 1, "Job summary": 0}
    assert "regression: `checks/test_gradient_magnitude.py" in runner.summary.read_text(encoding="utf-8")


def test_a_job_that_never_graded_has_no_summary_and_does_not_break_on_it(repo):
    runner = Runner(repo, "nobody")
    assert runner.run() == {"Key of the runs": 0, "Grade": 4, "Job summary": 0}
    assert runner.summary.read_text() == ""


def test_the_cache_is_keyed_by_what_determines_the_runs(repo):
    runner = Runner(repo, "good")
    runner.run()
    (step,) = [step for step in STEPS if step.get("uses", "").startswith("actions/cache/restore@")]
    (save,) = [step for step in STEPS if step.get("uses", "").startswith("actions/cache/save@")]
    assert save["with"] == step["with"]
    assert save["if"].startswith("always()")  # a gate that says no has trained all the same
    folder = recipe_folder(Path(), Recipe.load("tiny")).name
    assert runner.expand(step["with"]["key"]) == f"Linux-{folder}-seeds0.1.2-draws2"
    assert (repo.path / step["with"]["path"]) == Path(runner.env["BEHAVIORTRACE_CACHE"])
    order = [step.get("name", step.get("uses", "")) for step in STEPS]
    assert order.index("Key of the runs") < order.index(step["uses"]) < order.index("Grade") < order.index(save["uses"])


def test_the_rest_of_the_workflow_is_as_the_text_says():
    (upload,) = [step for step in STEPS if step.get("uses", "").startswith("actions/upload-artifact@")]
    assert (upload["if"], upload["with"]["path"]) == ("always()", "reports/")
    (python,) = [step for step in STEPS if step.get("uses", "").startswith("actions/setup-python@")]
    assert python["with"] == {"python-version": "3.11", "cache": "pip"}
    install = next(step for step in STEPS if step.get("name") == INSTALL)
    pinned = re.search(r"torch==([\d.]+)", install["run"])
    assert pinned is not None
    assert f'"torch=={pinned[1]}"' in (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    assert JOB["env"]["ESTIMATOR"] in README.replace(TEXT, "")
