"""A dump of a row of the real run: whole, without labels, and scored as it was."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_behaviortrace import dump, grade, load_problem
from pytest_behaviortrace.estimator import NotServed, UndeclaredAccess, needs
from pytest_behaviortrace.estimators import gradient
from pytest_behaviortrace.evidence import EvidenceStore
from pytest_behaviortrace.run.store import Store

ROLLOUTS = "checks/test_gradient_magnitude.py::test_gradient_magnitude[mine-seed1]"
SIBLINGS = "checks/test_fluency_control.py::test_fluency_control[mine-seed0-draw1]"


@needs(gradients=True, spans=True, text=True, behavior=True)
def noisy(problem: Any) -> Any:
    """Uses everything a problem has but the model, the seeded random numbers too."""
    hits = np.array([text.count(problem.behavior) for text in problem.completion_text], float)
    own = problem.gradients @ problem.target + problem.span_gradients @ problem.target
    return own + hits + 0.1 * problem.rng.normal(size=len(problem))


@pytest.mark.parametrize(
    ("estimator", "row"), [(noisy, ROLLOUTS), (gradient.token_gas, ROLLOUTS), (gradient.gas, SIBLINGS)]
)
def test_a_dumped_problem_is_scored_as_it_was(store: Store, tmp_path: Path, estimator: Any, row: str) -> None:
    found = dump(estimator, row, tmp_path / "dump", cache_dir=store.cache_dir, progress=False)
    card = grade(estimator, name="mine", checks=[row], cache_dir=store.cache_dir, progress=False)
    assert found.row == card.rows[0]
    assert found.problems
    for room in found.problems:
        problem = load_problem(room)
        assert np.array_equal(estimator(problem), np.load(room / "scores.npy"))
        assert not problem.gradients.flags.writeable


def test_it_shows_no_label(store: Store, evidence: EvidenceStore, tmp_path: Path) -> None:
    """No column but those of a problem, none that is a label in disguise, and no order that tells them."""
    found = dump(noisy, ROLLOUTS, tmp_path / "dump", cache_dir=store.cache_dir, progress=False)
    files = {path.name for path in found.problems[0].iterdir()}
    columns = {
        "loss_scale", "step", "group", "advantage", "reward", "logprob", "length", "learning_rate", "gradients",
        "gradient_norm", "target", "targets_by_step", "reference", "span_gradients", "scores", "prompt_ids",
        "prompt_ids.ends", "completion_ids", "completion_ids.ends", "behavior_mask", "behavior_mask.ends",
    }  # fmt: skip
    assert files == {f"{name}.npy" for name in columns} | {"problem.json", "declared.json"}
    said = json.loads((found.problems[0] / "problem.json").read_text(encoding="utf-8"))
    assert set(said) == {"facts", "plain", "ragged", "arrays", "absent"}
    assert set(said["plain"]) == {"blocks", "behavior", "prompt_text", "completion_text"}
    assert not re.search(r"truth|decoy|boost|eligib|label", json.dumps(said["facts"]) + " ".join(files))
    labelled = evidence.rollouts(1)
    place = np.arange(len(labelled.truth))
    for label in (labelled.truth, labelled.decoy, labelled.lookalike):
        assert abs(np.corrcoef(place, label)[0, 1]) < 4 / np.sqrt(len(place))  # four standard errors of chance
    problem = load_problem(found.problems[0])
    assert np.array_equal(problem.step, labelled.problem.step)  # the order the estimator saw


def test_it_serves_what_was_declared_and_nothing_else(store: Store, tmp_path: Path) -> None:
    dump(gradient.gas, SIBLINGS, tmp_path / "dump", cache_dir=store.cache_dir, progress=False)
    problem = load_problem(tmp_path / "dump")
    for name in ("completion_text", "behavior_mask", "span_gradients", "model"):
        with pytest.raises(UndeclaredAccess):
            getattr(problem, name)
    assert not list(tmp_path.rglob("*text*"))


def test_in_place_of_policies_it_says_that_it_has_none(store: Store, tmp_path: Path) -> None:
    @needs(gradients=True, model=True)
    def mine(problem: Any) -> Any:
        return problem.gradients @ problem.target

    dump(mine, ROLLOUTS, tmp_path / "dump", cache_dir=store.cache_dir, progress=False)
    problem = load_problem(tmp_path / "dump" / "problem-0")
    assert np.array_equal(mine(problem), np.load(tmp_path / "dump" / "problem-0" / "scores.npy"))
    with pytest.raises(NotServed, match="a dump holds no policies"):
        problem.model  # noqa: B018


def test_a_broken_estimator_leaves_its_problem(store: Store, tmp_path: Path) -> None:
    def mine(problem: Any) -> Any:
        raise KeyError("nothing here")

    found = dump(mine, SIBLINGS, tmp_path / "dump", cache_dir=store.cache_dir, progress=False)
    assert found.row.verdict == "error"
    assert "KeyError" in found.row.reason
    (room,) = found.problems
    assert not (room / "scores.npy").exists()
    assert len(load_problem(room)) == 864
