"""The real recipe, trained once for the whole suite, and a way to run one row of one check on it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pytest_behaviortrace import checklist
from pytest_behaviortrace.estimator import EstimatorError
from pytest_behaviortrace.evidence import EvidenceStore
from pytest_behaviortrace.grading import Grader
from pytest_behaviortrace.run.orchestrate import ensure
from pytest_behaviortrace.run.progress import display_for
from pytest_behaviortrace.run.recipe import Recipe
from pytest_behaviortrace.run.store import Store
from pytest_behaviortrace.verdict import ClaimFailed, Decision, Inconclusive, NotApplicable, Verdict

SEEDS, DRAWS, PLANT = (0, 1, 2), 2, "frobnitz"
CHECKS = {check.name.removeprefix("test_"): check for check in checklist.declared()}


class Outcome(NamedTuple):
    """How a row ended, and the numbers it recorded on the way."""

    verdict: Verdict
    reason: str
    decision: Decision | None


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the suite's runs live: `BEHAVIORTRACE_TEST_CACHE` to keep them between sessions, else a fresh folder."""
    if kept := os.environ.get("BEHAVIORTRACE_TEST_CACHE"):
        return Path(kept)
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "behaviortrace-cache"


@pytest.fixture(scope="session")
def recipe() -> Recipe:
    """The embedded default."""
    return Recipe.load("tiny")


@pytest.fixture(scope="session")
def store(cache_dir: Path, recipe: Recipe, pytestconfig: pytest.Config) -> Store:
    """Every default unit, trained on first use with its progress shown."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        display = display_for(None if hasattr(pytestconfig, "workerinput") else sys.stderr)
        return ensure(recipe, SEEDS, range(DRAWS), cache_dir, display)


@pytest.fixture(scope="session")
def grader(store: Store, recipe: Recipe) -> Grader:
    """Grades on all seeds and draws, with one memo for the whole suite, as a session does."""
    return Grader(store, recipe, plant=PLANT, seeds=SEEDS, draws=DRAWS)


@pytest.fixture(scope="session")
def evidence(grader: Grader) -> EvidenceStore:
    """The labelled problems of that grader."""
    return grader.evidence


@pytest.fixture(scope="session")
def run_row() -> Callable[..., Outcome]:
    """`run_row(grader, check, name, estimator, seed=, draw=, component=)`: the row as the plugin runs it."""

    def run(grader: Grader, check: str, name: str | None = None, estimator: Any = None, **place: Any) -> Outcome:
        spec = checklist.RowSpec(f"test_{check}", name, **place)
        case = grader.case(name, estimator, place.get("seed"), place.get("draw"), place.get("component"))
        try:
            CHECKS[check].run(spec, case)
        except ClaimFailed as error:
            return Outcome(Verdict.FAIL, str(error), case.decision)
        except Inconclusive as error:
            return Outcome(Verdict.INCONCLUSIVE, str(error.msg), case.decision)
        except NotApplicable as error:
            return Outcome(Verdict.NOT_APPLICABLE, str(error.msg), case.decision)
        except EstimatorError as error:
            return Outcome(Verdict.ERROR, str(error), case.decision)
        assert case.decision is not None, "a check must conclude"
        return Outcome(Verdict.PASS, case.decision.reason, case.decision)

    return run


def places(check: str) -> list[dict[str, Any]]:
    """Where a check has rows: its seeds, draws and components."""
    specs = CHECKS[check].rows(["x"], SEEDS, DRAWS)
    return [{"seed": s.seed, "draw": s.draw, "component": s.component} for s in specs]
