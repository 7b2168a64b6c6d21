"""What rows on a recorded run show: the same pictures without a curve, precision and marks of a truth nobody knows."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import recorded_run
import recorded_world as world
from check_rows import CHECKS, run_row

from pytest_behaviortrace import checklist, viewer
from pytest_behaviortrace.estimators import gradient
from pytest_behaviortrace.exhibit import Exhibit
from pytest_behaviortrace.grading import Grader
from pytest_behaviortrace.run.token_text import FILE

SHIPPED = Path(__file__).parents[1] / "fixtures" / "policy" / "tokenizer.json"


def exhibit(grader: Grader, check: str, **place: Any) -> Exhibit:
    """What the row of `gas` shows, or of no estimator."""
    on = (None, None) if check == "headroom" else ("gas", gradient.gas)
    case = grader.case(*on, place.get("seed"), place.get("draw"), place.get("component"))
    spec = checklist.RowSpec(f"test_{check}", on[0], **place, recorded=True)
    CHECKS[check].run(spec, case)
    found = case.exhibit()
    json.dumps(found, allow_nan=False)
    return found


@pytest.fixture(scope="module")
def grader(tmp_path_factory: pytest.TempPathFactory) -> Grader:
    folder = tmp_path_factory.mktemp("recorded")
    return Grader.on_recorded(world.evidence(world.write_run(folder / "run"), folder / "cache"))


def test_every_check_shows_its_gates_and_floors(grader: Grader) -> None:
    assert {floor["name"] for floor in exhibit(grader, "headroom", seed=0)["floors"]} == {
        "siblings with the behaviour", "siblings without it", "within-group sibling pairs of a draw",
    }  # fmt: skip
    assert "curve" not in exhibit(grader, "headroom", seed=0)
    magnitude = exhibit(grader, "gradient_magnitude", seed=0)
    assert set(magnitude) == {"gates", "floors"}
    assert {gate["control"] for gate in magnitude["gates"]} == {None, "norm-only", "-norm-only"}
    assert set(exhibit(grader, "fluency_control", seed=0, draw=1)) == {"gates", "floors", "fluency"}
    assert set(exhibit(grader, "trigger_alignment", seed=0, draw=1)) == {"gates", "floors", "spans"}
    stable = exhibit(grader, "seed_stability", component="fluency-controlled-auc")
    assert [gate["name"] for gate in stable["gates"] if gate["control"] is None] == [
        "mean over draws, above chance", "draw 0", "draw 1",
    ]  # fmt: skip


def test_the_viewer_shows_the_training_rollouts_without_truth(grader: Grader) -> None:
    shown = exhibit(grader, "coverage", seed=0)
    evidence = grader.evidence
    training = evidence.training(0)  # type: ignore[attr-defined]
    scores = gradient.gas(training.problem)
    best = training.row[np.argsort(-scores)][: viewer.SHOWN]
    rollouts = shown["rollouts"]
    assert [one["rank"] for one in rollouts] == list(range(1, 21))
    assert {(one["truth"], one["decoy"], one["lookalike"]) for one in rollouts} == {(None, None, None)}
    table = evidence.table(0, "rollouts")
    assert [one["tokens"] for one in rollouts] == [[table["completion_text"][row]] for row in best]
    assert [one["prompt"] for one in rollouts] == [table["prompt_text"][row] for row in best]
    assert [one["behavior"] for one in rollouts] == [["QZX" in table["completion_text"][row]] for row in best]
    assert shown["rollouts_note"].endswith("beside the run's policy lies no tokenizer.json")


@pytest.mark.parametrize("behavior", [world.BEHAVIOR, world.UNRECORDED], ids=["recorded", "asked-later"])
def test_with_a_tokenizer_tokens_are_told_apart(tmp_path: Path, behavior: str) -> None:
    """Also where the regular expression was not recorded, so that nobody wrote down its tokens."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(SHIPPED))
    run = world.write_run(tmp_path / "run")
    columns = world.open_run_table(run)
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in columns["completion_text"]]
    pieces = [[tokenizer.decode([i]) for i in one] for one in ids]
    columns["completion_ids"] = ids
    columns["logprobs"] = [[-1.0] * len(one) for one in ids]
    columns["span_code"] = [[k for k, piece in enumerate(one) if piece in (" QZ", "XB", "T")] for one in pieces]
    assert any(columns["span_code"])
    recorded_run.write_table(run, "rollouts", columns)
    shutil.copyfile(SHIPPED, run / FILE)
    (run / "manifest.json").unlink()
    recorded_run.finish(run, world.facts())
    grader = Grader.on_recorded(world.evidence(run, tmp_path / "cache", behavior))
    shown = exhibit(grader, "coverage", seed=0)
    assert shown["rollouts_note"] == "no scores of single tokens: gas has no method token_scores(problem)"
    marked = {
        tuple(token for token, mark in zip(one["tokens"], one["behavior"], strict=True) if mark)
        for one in shown["rollouts"]
    }
    assert marked - {()} == {(" QZ", "XB", "T") if behavior == world.BEHAVIOR else (" QZ", "XB")}


def test_rows_that_are_not_applicable_show_nothing(grader: Grader) -> None:
    case = grader.case("gas", gradient.gas, 0, None, None)
    assert run_row(grader, "reward_control", "gas", gradient.gas, seed=0).decision is None
    assert case.exhibit() == {}


@pytest.mark.parametrize(
    ("length", "first", "part"),
    [(3, 1, (0, 3)), (400, 399, (0, 400)), (1000, None, (0, 400)), (1000, 10, (0, 400)), (1000, 500, (300, 700)),
     (1000, 990, (600, 1000))],
)  # fmt: skip
def test_of_a_long_completion_the_part_around_the_behaviour_is_shown(
    length: int, first: int | None, part: tuple[int, int]
) -> None:
    assert viewer.around([place == first for place in range(length)]) == slice(*part)


def test_long_texts_are_cut_and_scores_of_tokens_with_them(grader: Grader, monkeypatch: pytest.MonkeyPatch) -> None:
    class Shading:
        def __call__(self, problem: Any) -> Any:
            return gradient.gas(problem)

        def token_scores(self, problem: Any) -> Any:
            return [np.arange(500.0)] * len(problem)

    training = grader.evidence.training(0)  # type: ignore[attr-defined]
    long = viewer.Text("ask " * 1000, ["a"] * 500, [place == 499 for place in range(500)])
    monkeypatch.setattr(viewer, "texts_of", lambda *args: viewer.Texts([long] * 20, told_apart=True))
    case = grader.case("shading", Shading(), 0)
    many = dataclasses.replace(training, problem=training.problem.replacing(length=np.full(len(training.row), 500)))
    shown = viewer.top_rollouts(case, many, np.arange(float(len(training.row))))
    first = shown["rollouts"][0]
    assert shown["rollouts_note"] == "of completions longer than 400 tokens a part is shown"
    assert (len(first["tokens"]), first["behavior"].index(True)) == (400, 399)
    assert first["token_scores"] == [float(place) for place in range(100, 500)]
    assert first["prompt"] == "… " + ("ask " * 1000)[-1000:]
