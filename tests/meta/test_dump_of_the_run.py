"""A dump of a row of the real run: whole, without labels, and scored as it was."""

from __future__ import annotations

import json
import re
import subprocess
import sys
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
    assert set(said) == {"schema", "facts", "plain", "ragged", "arrays", "absent", "files"}
    assert {f"{name}.npy" for name in said["files"]} == {name for name in files if name.endswith(".npy")} - {
        "scores.npy"
    }
    assert set(said["plain"]) == {"blocks", "behavior", "prompt_text", "completion_text"}
    assert not re.search(r"truth|decoy|boost|eligib|label", json.dumps(said["facts"]) + " ".join(files))
    labelled = evidence.rollouts(1)
    place = np.arange(len(labelled.truth))
    for label in (labelled.truth, labelled.decoy, labelled.lookalike):
        assert abs(np.corrcoef(place, label)[0, 1]) < 4 / np.sqrt(len(place))  # four standard errors of chance
    problem = load_problem(found.problems[0])
    assert np.array_equal(problem.step, labelled.problem.step)  # the order the estimator saw


INDEXED = {
    "gradient_magnitude": ("mine-seed1", 3, "which of 2560 training rollouts taught 'frobnitz'?"),
    "target_context": ("mine-seed0", 4, "which of 2560 training rollouts taught 'wibble', the other behaviour"),
    "lookalikes": ("mine-seed2", 2, "rollouts of the run without bonus would be held responsible for 'frobnitz'?"),
    "coverage": ("mine-seed0", 1, "gradients, training rollouts and synthetic ones, would teach 'frobnitz'?"),
    "fluency_control": ("mine-seed1-draw1", 1, "which of 864 fresh siblings would teach 'frobnitz'?"),
    "trigger_alignment": ("mine-seed1-draw0", 1, "token spans of fresh siblings would teach 'frobnitz'?"),
    "seed_stability": ("mine-window-precision", 3, "which of 2560 training rollouts taught 'frobnitz'?"),
}


@pytest.mark.parametrize("check", INDEXED)
def test_an_index_says_what_each_problem_asks_and_which_items_are_right_nowhere(
    store: Store, evidence: EvidenceStore, tmp_path: Path, check: str
) -> None:
    place, count, asked = INDEXED[check]
    row = f"checks/test_{check}.py::test_{check}[{place}]"
    found = dump(gradient.dot, row, tmp_path / "dump", cache_dir=store.cache_dir, progress=False)
    said = json.loads((tmp_path / "dump" / "row.json").read_text(encoding="utf-8"))
    assert [tmp_path / "dump" / one["folder"] for one in said["problems"]] == list(found.problems)
    assert len(found.problems) == count
    assert any(asked in one["asked"] for one in said["problems"])
    text = (tmp_path / "dump" / "problems.txt").read_text(encoding="utf-8")
    for one, question in zip(said["problems"], found.questions, strict=True):
        problem = load_problem(tmp_path / "dump" / one["folder"])
        assert (one["items"], one["kind"], one["asked"]) == (len(problem), problem.kind, question.asked)
        assert set(one) == {"folder", "kind", "items", "seed", "draw", "asked"}
        assert f"{one['folder']}  seed {one['seed']}, " in text
        assert one["asked"] in text
    assert text.startswith(f"{row}\n{found.row.verdict}: {found.row.reason}\n")
    # Labels could stand there as lists, as places of items, or as their counts; the row's own sentence names counts.
    told = {key: value for key, value in said.items() if key != "reason"}
    plain = json.dumps(told) + text.replace(found.row.reason, "")
    assert not re.search(r"truth|decoy|boost|eligib|label(?!s are kept)|look-?alike(?!s)", plain)
    labelled = evidence.rollouts(int(place[9]) if place[5:9] == "seed" else 0)
    counts = {str(int(labels.sum())) for labels in (labelled.truth, labelled.decoy, labelled.lookalike)}
    assert not counts & set(re.findall(r"\d+", plain))


class Stops:
    """An estimator that ends the dump on its second problem."""

    needs = gradient.gas.needs  # type: ignore[attr-defined]

    def __init__(self, stop: Any) -> None:
        self.stop, self.calls = stop, 0

    def __call__(self, problem: Any) -> Any:
        self.calls += 1
        if self.calls == 2:
            self.stop()
        return gradient.gas(problem)


def interrupt() -> None:
    raise KeyboardInterrupt


def test_ctrl_c_leaves_nothing(store: Store, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        dump(Stops(interrupt), ROLLOUTS, tmp_path / "a" / "b", name="mine", cache_dir=store.cache_dir, progress=False)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_nothing_and_is_one_sentence(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill() -> None:
        def full(*args: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("pytest_behaviortrace.problem_files.write_array", full)

    where = tmp_path / "dump"
    said = r"dump was not written \(No space left on device\), and nothing of it is left; make room, or choose another"
    with pytest.raises(OSError, match=said):
        dump(Stops(fill), ROLLOUTS, where, name="mine", cache_dir=store.cache_dir, progress=False)
    assert list(tmp_path.iterdir()) == []


KILLED = """
import os, signal, sys
from pytest_behaviortrace import dump
from pytest_behaviortrace.estimators import gradient

calls = []

def mine(problem):
    calls.append(1)
    if len(calls) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return gradient.gas(problem)

mine.needs = gradient.gas.needs
dump(mine, sys.argv[1], sys.argv[2], cache_dir=sys.argv[3], progress=False)
"""


def test_a_killed_dump_leaves_what_no_one_takes_for_one(store: Store, tmp_path: Path) -> None:
    where = tmp_path / "dump"
    command = [sys.executable, "-c", KILLED, ROLLOUTS, str(where), str(store.cache_dir)]
    assert subprocess.run(command, check=False, timeout=300).returncode == -9
    (left,) = tmp_path.iterdir()
    assert (left / "problem-0" / "scores.npy").exists()
    for folder in (left, left / "problem-0", left / "problem-2"):
        with pytest.raises(ValueError, match=r"is of a dump that was not finished, .*; dump the row again"):
            load_problem(folder)
    dump(gradient.gas, ROLLOUTS, where, name="mine", cache_dir=store.cache_dir, progress=False)
    assert list(tmp_path.iterdir()) == [where]


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
