"""The real recipe, trained once for the whole suite."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from check_rows import DRAWS, PLANT, SEEDS

from pytest_behaviortrace.evidence import EvidenceStore
from pytest_behaviortrace.grading import Grader
from pytest_behaviortrace.run.orchestrate import ensure
from pytest_behaviortrace.run.progress import display_for
from pytest_behaviortrace.run.recipe import Recipe
from pytest_behaviortrace.run.store import Store


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Tiny tensors: two threads on two busy cores slow a forward pass tenfold."""
    import torch

    torch.set_num_threads(1)


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
