"""A user's repository for tests of the pytest surface: estimators that do as their names say, and checks without runs.

The checks package is pointed at a folder of small checks, and the session's seam `make_grader` at a grader that trains
nothing. Everything between the command line and the exit code is the real thing.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

QUIET = ("-p", "no:hypothesispytest", "-p", "no:benchmark", "-p", "no:anyio")
"""Leaves out plugins that only cost time: Hypothesis's imports all of Hypothesis at the end of every run."""

CONFTEST = """
import os, sys
from pathlib import Path
import pytest
import pytest_behaviortrace.checks
from pytest_behaviortrace.collection import GRADING
from pytest_behaviortrace.scorecard import SeedFacts

HERE = Path({folder!r})
pytest_behaviortrace.checks.__path__[:] = [str(HERE / "installed" / "checks")]

class Case:
    def __init__(self, grader, name, estimator, seed, draw, component):
        self.name, self.estimator, self.seed, self.draw, self.component = name, estimator, seed, draw, component
        self.decision, self.seconds, self.peak_bytes = None, 0.25, 3_000_000

    def conclude(self, decision):
        self.decision = decision
        decision.raise_outcome()

    def exhibit(self, *, pictures=True):
        with open(HERE / "gathered", "a") as gathered:
            gathered.write(f"{{os.getpid()}} {{self.name}}\\n")
        if self.name == "mixed":
            raise ValueError("no picture today")
        return {{"floors": [{{"name": f"floor of {{self.name}} {{self.seed}}", "have": 1.0, "need": 0.5}}]}}

class Grader:
    def case(self, *row):
        return Case(self, *row)

def make_grader(session, seeds, display):
    with open(HERE / "trace", "a") as trace:
        trace.write(f"{{os.getpid()}} {{list(seeds)}}\\n")
    if os.environ.get("TRAINING") == "fails":
        from pytest_behaviortrace.run.cache import NoRoom
        raise NoRoom("no room left for the cache")
    if os.environ.get("TRAINING") == "interrupted":
        raise KeyboardInterrupt
    display.message(f"training {{list(seeds)}}")
    return Grader()

def pytest_sessionstart(session):
    grading = session.config.stash.get(GRADING, None)
    if grading is not None:
        grading.make_grader = make_grader
        grading.describe_seeds = lambda settings, seeds: [SeedFacts(s, 0.75, 0.125, 300, 2560) for s in seeds]

def pytest_behaviortrace_estimators(config):
    names = ("good", "bad", "unsure", "undeclared", "broken", "fatal", "mixed", "short", "odd")
    return {{name: f"doubles:{{name}}" for name in names}}
"""

DOUBLES = """
import os
from pytest_behaviortrace.estimator import EstimatorError, needs
from pytest_behaviortrace.verdict import Decision, NotApplicable, Verdict

NUMBERS = dict(estimate=0.8123456789, low=0.75, high=0.86, chance=0.5, control="norm-only", control_estimate=0.55,
               margin_low=0.19, n=1234)

def double(function):
    return needs()(function)

@double
def good(case):
    return Decision(Verdict.PASS, "every gate holds", **NUMBERS)

@double
def bad(case):
    return Decision(Verdict.FAIL, "contradicted: AUC: 0.310 [0.250, 0.370]", **NUMBERS | dict(estimate=0.31))

@double
def unsure(case):
    return Decision(Verdict.INCONCLUSIVE, "undecided, wider than 0.15", **NUMBERS)

@double
def undeclared(case):
    raise NotApplicable("undeclared needs text; siblings carry none")

@double
def broken(case):
    try:
        return len(None)
    except TypeError as error:
        raise EstimatorError("estimator 'broken' on 2560 rollouts raised TypeError: no len") from error

@double
def fatal(case):
    os._exit(3)

@double
def mixed(case):
    return (bad if case.seed == 1 else good)(case)

@double
def short(case):
    if case.draw is not None:
        raise NotApplicable("short needs text; siblings carry none")
    return good(case)

@double
def odd(case):
    assert case.name == "even"
"""

CHECK = '''"""Claim: {claim}.

A check that trains nothing.
"""
import warnings
{extra}

def {name}({arguments}) -> None:
    warnings.warn("a library's warning")
    bt_case.conclude({call})
'''

PLAIN, DRAWN = "bt_case, bt_estimator, bt_seed", "bt_case, bt_estimator, bt_seed, bt_draw"
CHECKS = {
    "test_headroom": ("bt_case, bt_seed", ""),
    "test_gradient_magnitude": (PLAIN, ""),
    "test_fluency_control": (DRAWN, ""),
    "test_trigger_alignment": (DRAWN, ""),
    "test_seed_stability": ("bt_case, bt_estimator, bt_component", 'COMPONENTS = ("window-precision", "decoy-auc")'),
}

ROWS = 3 + 3 + 6 + 6 + 2
"""Rows of one estimator with three seeds and two draws, headroom's own three included."""


def magnitude(estimator: str, seed: int = 0) -> str:
    """Id of a row of test_gradient_magnitude."""
    return f"checks/test_gradient_magnitude.py::test_gradient_magnitude[{estimator}-seed{seed}]"


class Repo:
    """The repository of a user, and ways to run pytest in it, each in a process of its own."""

    def __init__(self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pytester, self.path = pytester, pytester.path
        monkeypatch.setenv("BEHAVIORTRACE_CACHE", str(self.path / "cache"))
        monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        shipped = self.path / "installed" / "checks"
        shipped.mkdir(parents=True)
        (shipped / "__init__.py").touch()
        for name, (arguments, extra) in CHECKS.items():
            call = "bt_case.estimator(bt_case)"
            if name == "test_headroom":
                extra, call = "from doubles import good", "good(bt_case)"
            text = CHECK.format(claim=f"claim of {name}", name=name, arguments=arguments, extra=extra, call=call)
            (shipped / f"{name}.py").write_text(text, encoding="utf-8")
        pytester.makeconftest(CONFTEST.format(folder=str(self.path)))
        pytester.makepyfile(doubles=DOUBLES, test_mine="def test_mine(): pass")

    def run(self, *args: str) -> pytest.RunResult:
        """`pytest ARGS`."""
        return self.pytester.runpytest_subprocess(*QUIET, *args)

    def grade(self, *args: str) -> pytest.RunResult:
        """The same, with a report written to `report.json`."""
        return self.run(f"--bt-report={self.path / 'report.json'}", *args)

    def report(self) -> dict[str, Any]:
        """The report of the last `grade`."""
        found: dict[str, Any] = json.loads((self.path / "report.json").read_text(encoding="utf-8"))
        return found

    def verdicts(self) -> dict[str, str]:
        """Row id -> verdict of the last `grade`."""
        return {row["id"]: row["verdict"] for row in self.report()["rows"]}

    def trained(self) -> list[str]:
        """One entry per call of the training seam: process and seeds."""
        trace = self.path / "trace"
        return trace.read_text(encoding="utf-8").splitlines() if trace.exists() else []

    def ids(self, *args: str) -> list[str]:
        """Ids that `--collect-only` lists."""
        lines = self.run("--collect-only", "-q", *args).outlines
        return [line for line in lines if "::" in line]


def modules_after(*args: str, cwd: Path) -> set[str]:
    """Modules that a whole pytest run has imported at its end (run in a process of its own)."""
    import subprocess

    program = "import sys, pytest; code = pytest.main(sys.argv[1:]); print('MODULES', *sys.modules); sys.exit(code)"
    done = subprocess.run(
        [sys.executable, "-c", program, *QUIET, *args],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return set(done.stdout.rpartition("MODULES")[2].split())
