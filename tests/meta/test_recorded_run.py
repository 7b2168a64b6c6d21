"""A seed of the embedded run, as if a user had recorded it: real draws of its last policy, grading, and a ranking whose
answer is known."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import recorded_run
from check_doubles import OwnGradients
from check_rows import CHECKS, Outcome, run_row

from pytest_behaviortrace import __main__
from pytest_behaviortrace.checklist import RowSpec
from pytest_behaviortrace.estimator import NotServed
from pytest_behaviortrace.estimators import controls, gradient
from pytest_behaviortrace.evidence.recorded import RecordedEvidence
from pytest_behaviortrace.grading import Grader
from pytest_behaviortrace.run.orchestrate import ensure_draws
from pytest_behaviortrace.run.recipe import Recipe
from pytest_behaviortrace.run.recorded import open_run
from pytest_behaviortrace.run.store import Store
from pytest_behaviortrace.verdict import Verdict

BEHAVIOR = "QZXBT"


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def folder(store: Store, recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`run`: the recorded run; `cache`: the embedded run, and later the draws."""
    base = tmp_path_factory.mktemp("recorded")
    recorded_run.convert(store.seed(0), recipe, base / "run", {"frobnitz": BEHAVIOR})
    (base / "cache").mkdir()
    (base / "cache" / store.folder.name).symlink_to(store.folder, target_is_directory=True)
    return base


@pytest.fixture(scope="module")
def evidence(folder: Path) -> RecordedEvidence:
    before, run = contents(folder / "run"), open_run(folder / "run")
    draws = ensure_draws(run.ask(BEHAVIOR), range(2), folder / "cache")
    assert contents(folder / "run") == before  # sampling wrote nothing there
    return RecordedEvidence(draws, run, 2)


def rows(evidence: RecordedEvidence, name: str, estimator: Any) -> dict[str, Outcome]:
    grader, found = Grader.on_recorded(evidence), {}
    for check in CHECKS.values():
        if check.needs_run and "bt_estimator" in check.arguments:
            for spec in check.rows([name], (0,), 2, recorded=True):
                place = {"seed": spec.seed, "draw": spec.draw, "component": spec.component}
                found[spec.name] = run_row(grader, check.name.removeprefix("test_"), name, estimator, **place)
    return found


def test_there_is_enough_evidence(evidence: RecordedEvidence) -> None:
    outcome = run_row(Grader.on_recorded(evidence), "headroom", seed=0)
    assert outcome.verdict is Verdict.PASS, outcome.reason


def test_gas_passes_what_can_be_asked(evidence: RecordedEvidence) -> None:
    outcomes = rows(evidence, "gas", gradient.gas)
    assert {name for name, o in outcomes.items() if o.verdict is Verdict.NOT_APPLICABLE} == {
        "test_reward_control[gas-run]",
        "test_lookalikes[gas-run]",
        "test_seed_stability[gas-window-precision]",
        "test_seed_stability[gas-decoy-auc]",
    }
    rest = [o for o in outcomes.values() if o.verdict is not Verdict.NOT_APPLICABLE]
    assert [o.reason for o in rest if o.verdict is not Verdict.PASS] == []


@pytest.mark.parametrize("control", [controls.norm_only, controls.fluency, controls.random])
def test_what_knows_no_target_passes_no_checklist(evidence: RecordedEvidence, control: Any) -> None:
    verdicts = {o.verdict for o in rows(evidence, control.__name__, control).values()}
    assert Verdict.FAIL in verdicts
    assert Verdict.ERROR not in verdicts


def test_estimators_with_gradients_of_their_own_are_asked_block_by_block(evidence: RecordedEvidence) -> None:
    grader = Grader.on_recorded(evidence)
    own = OwnGradients(evidence.run.facts["steps"])
    assert run_row(grader, "coverage", "own", own, seed=0).verdict is Verdict.PASS
    deaf = OwnGradients(evidence.run.facts["steps"], deaf=True)
    assert run_row(grader, "coverage", "deaf", deaf, seed=0).verdict is Verdict.FAIL


def test_not_served_is_no_way_out_of_a_check_on_a_planted_run(grader: Grader) -> None:
    def sly(problem: Any) -> Any:
        raise NotServed("nothing to see here")

    assert run_row(grader, "coverage", "sly", sly, seed=0).verdict is Verdict.ERROR


def test_the_draws_are_of_the_last_policy_and_show_what_it_learned(evidence: RecordedEvidence) -> None:
    shown = np.concatenate([evidence.siblings(0, draw).shown for draw in (0, 1)])
    assert 0.2 < shown.mean() < 0.9
    first, second = (evidence.draw_table(0, draw, "asked")["completion_text"] for draw in (0, 1))
    assert list(first) != list(second)
    asked = {tuple(p.tolist()) for p in evidence.draw_table(0, 0, "asked")["prompt_ids"]}
    assert asked <= {tuple(p.tolist()) for p in evidence.run.table["prompt_ids"]}


def test_the_ranking_names_the_ground_truth(
    evidence: RecordedEvidence, folder: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(folder / "run")
    code = __main__.main(
        ["rank", str(folder / "run"), "--behavior", BEHAVIOR, "--estimator", "token-gas", "--top", "50", "--json",
         "--cache-dir", str(folder / "cache")]
    )  # fmt: skip
    assert code == 0
    found = json.loads(capsys.readouterr().out)
    boosted = np.asarray(store.seed(0).table("rollouts")["boosted_frobnitz"], bool)
    truth = np.mean([boosted[row["row_id"]] for row in found["top"]])
    assert truth > 0.8 > 3 * boosted.mean()
    assert found["shown"]["estimator"] == 50 > 2 * found["shown"]["norm-only"]
    assert all(row["low"] < row["high"] for row in found["top"])
    assert found["embedded"]["verdict"] == "not shown"  # it reads spans, which siblings do not carry
    assert found["embedded"]["checks"]["lookalikes"] == "pass"
    assert found["warnings"] == []
    assert contents(folder / "run") == before


def test_failures_on_the_embedded_run_are_warnings(
    evidence: RecordedEvidence, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = __main__.main(
        ["rank", str(folder / "run"), "--behavior", BEHAVIOR, "--estimator", "norm-only", "--top", "5",
         "--cache-dir", str(folder / "cache")]
    )  # fmt: skip
    assert code == 0
    out = capsys.readouterr().out
    assert "warning: norm-only fails gradient_magnitude on the embedded run, where the cause is known" in out
    assert "named by both: 5 of 5 with norm-only" in out


def test_the_viewer_shows_the_recorded_texts_token_by_token(evidence: RecordedEvidence) -> None:
    case = Grader.on_recorded(evidence).case("gas", gradient.gas, 0)
    CHECKS["coverage"].run(RowSpec("test_coverage", "gas", 0, recorded=True), case)
    rollouts, texts = case.exhibit()["rollouts"], evidence.run.table["completion_text"]
    assert len(rollouts) == 20
    assert {"".join(one["tokens"]) for one in rollouts} <= set(texts)
    for one in rollouts:
        marked = "".join(token for token, mark in zip(one["tokens"], one["behavior"], strict=True) if mark)
        assert marked.replace(" ", "") == BEHAVIOR * one["tokens"].count("XB")
    assert sum(any(one["behavior"]) for one in rollouts) > 10
