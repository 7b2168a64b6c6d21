"""`python -m pytest_behaviortrace rank`: the ranking, its intervals and warnings, the table and the JSON."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import recorded_world as world

from pytest_behaviortrace import __main__, rank_command
from pytest_behaviortrace.estimator import EstimatorError, needs
from pytest_behaviortrace.estimators import controls, gradient
from pytest_behaviortrace.evidence.recorded import RecordedEvidence
from pytest_behaviortrace.ranked import RankedRollout, Ranking, Standing
from pytest_behaviortrace.ranking import RESAMPLES, first, rank, resampled_targets
from pytest_behaviortrace.reports import ranking as report
from pytest_behaviortrace.run.recorded import open_run
from pytest_behaviortrace.scorecard import RunFacts
from pytest_behaviortrace.standing import standing
from pytest_behaviortrace.verdict import Decision, Verdict


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in `run`, its draws in `cache`."""
    base = tmp_path_factory.mktemp("rank")
    world.write_draws(base / "cache", open_run(world.write_run(base / "run")).ask(world.BEHAVIOR))
    return base


@pytest.fixture(scope="module")
def evidence(folder: Path) -> RecordedEvidence:
    run = open_run(folder / "run")
    from pytest_behaviortrace.run.recorded import RecordedStore

    return RecordedEvidence(RecordedStore(folder / "cache", run.ask(world.BEHAVIOR)), run, 2)


# -- the ranking -------------------------------------------------------------------------------------------------------
def test_the_first_are_those_with_the_highest_scores(evidence: RecordedEvidence) -> None:
    found = rank(evidence, "gas", gradient.gas, 10, 5)
    training, table = evidence.training(0), evidence.run.table
    scores = np.empty(len(training.row))
    scores[training.row] = gradient.gas(training.problem)
    expected = np.argsort(-scores, kind="stable")[:10]
    assert [row.row_id for row in found.top] == expected.tolist()
    for place, row in enumerate(found.top, 1):
        at = row.row_id
        assert row.rank == place
        assert (row.step, row.group) == (table["step"][at], table["group"][at])
        assert (row.prompt, row.completion) == (table["prompt_text"][at], table["completion_text"][at])
        assert row.advantage == pytest.approx(float(table["advantage"][at]))
        assert row.score == pytest.approx(scores[at])
        assert [row.completion[low:high] for low, high in row.spans] == ["QZXBT"] * len(row.spans)
    assert found.shown["estimator"] == 10  # the gradient of who shows it has the direction


def test_what_the_controls_would_have_said(evidence: RecordedEvidence) -> None:
    size = evidence.training(0).problem.gradient_norm
    found = rank(evidence, "gas", gradient.gas, 10, 0)
    for row in found.top:
        (item,) = np.flatnonzero(evidence.training(0).row == row.row_id)
        assert row.rank_norm_only == 1 + int((size > size[item]).sum())
    itself = rank(evidence, "norm-only", controls.norm_only, 10, 0)
    assert [row.rank_norm_only for row in itself.top] == list(range(1, 11))
    assert itself.shared["norm-only"] == 10
    assert itself.shown["norm-only"] == itself.shown["estimator"]


def test_ties_stand_in_the_order_of_the_run() -> None:
    assert first(np.array([1.0, 2.0, 2.0, 0.0]), np.array([3, 2, 1, 0]), 3).tolist() == [2, 1, 0]


def test_intervals_are_the_spread_over_targets(evidence: RecordedEvidence) -> None:
    found = rank(evidence, "gas", gradient.gas, 5, 30)
    targets = np.array(resampled_targets(evidence, 30))
    rows = evidence.training(0).problem.gradients
    for row in found.top:
        (item,) = np.flatnonzero(evidence.training(0).row == row.row_id)
        g = rows[item].astype(np.float64)
        cosines = targets @ g / np.linalg.norm(g) / np.linalg.norm(targets, axis=1)
        assert (row.low, row.high) == pytest.approx(np.quantile(cosines, [0.025, 0.975]), rel=1e-4)
    assert found.resamples == 30
    assert found.interval.startswith("95% of the scores under 30 targets")


def test_resampled_targets_scatter_around_the_target(evidence: RecordedEvidence) -> None:
    targets = np.array(resampled_targets(evidence, 200))
    target = evidence.in_context_target(0, "asked")
    assert np.allclose(targets.mean(0), target, atol=0.2 * np.abs(target).max())
    assert (targets.std(0) > 0).all()


def test_who_reads_no_target_has_no_interval(evidence: RecordedEvidence) -> None:
    @needs(gradients=True)
    def steps_only(problem: Any) -> Any:
        return problem.step.astype(float)

    for name, estimator, words in (
        ("fluency", controls.fluency, "reads no target"),
        ("steps", steps_only, "steps does not read the target that is resampled"),
        ("tracincp", gradient.tracincp, "tracincp does not read the target that is resampled"),
    ):
        found = rank(evidence, name, estimator, 3, 4)
        assert words in found.interval
        assert found.resamples == 0
        assert {(row.low, row.high) for row in found.top} == {(None, None)}


def test_a_broken_estimator_is_an_error(evidence: RecordedEvidence) -> None:
    with pytest.raises(EstimatorError, match="returned shape"):
        rank(evidence, "broken", lambda problem: np.zeros(3), 3)


# -- the table ---------------------------------------------------------------------------------------------------------
def row(**changes: Any) -> RankedRollout:
    found = RankedRollout(
        1, 7, 3, 12, "<|user|>\nwhat is it<|end|>", "It is QZXBT.\nYes.", ((6, 11),), 1.5, 2.0, 0.25, 0.2, 0.3, 40, 2
    )
    return replace(found, **changes)


def table(*rows: RankedRollout, known: Standing | None = None, warnings: tuple[str, ...] = ()) -> Ranking:
    return Ranking(
        "2026.12", RunFacts("myrun", "ab" * 32, "QZ.*", None, 5, 9, {"trl": "1"}), "gas", rows or (row(),),
        {"estimator": 1, "norm-only": 0, "fluency": 1}, {"norm-only": 0, "fluency": 1}, "95% of the scores", 40,
        known or Standing(None, {}, "pytest --bt-estimator=gas", "seed0 is not in the cache"), warnings,
    )  # fmt: skip


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_plain_text_away_from_a_terminal() -> None:
    stream = io.StringIO()
    report.show(table(row(), row(rank=2, spans=(), completion="No.", low=None, high=None)), stream)
    lines = stream.getvalue().splitlines()
    assert "\x1b" not in stream.getvalue()
    assert lines[0] == "run myrun@abababab, behaviour 'QZ.*': in 5 of 9 rollouts"
    head = next(line for line in lines if "advantage" in line)
    assert head.split() == [
        "#",
        "step",
        "advantage",
        "score",
        "interval",
        "norm-only",
        "#",
        "fluency",
        "#",
        "prompt",
        "completion",
    ]
    first_row = lines[lines.index(head) + 1]
    assert "It is **QZXBT**. Yes." in first_row
    assert "[0.2, 0.3]" in first_row
    assert "what is it" in first_row
    assert "<|" not in first_row
    assert lines[lines.index(head) + 2].split()[4] == "-"
    assert "named by both: 0 of 2 with norm-only, 1 of 2 with fluency" in lines


def test_the_behaviour_is_highlighted_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    stream = Terminal()
    report.show(table(warnings=("gas fails lookalikes",)), stream)
    said = stream.getvalue()
    assert "\x1b[1;7mQZXBT\x1b[0m" in said
    assert "**" not in said
    assert "warning: gas fails lookalikes" in said


def test_a_completion_cannot_steer_the_terminal() -> None:
    for stream in (io.StringIO(), Terminal()):
        report.show(table(row(completion="a\x1b[2J\rQZXBT", spans=(), prompt="\x1b]0;x\x07p")), stream)
        assert "\x1b[2J" not in stream.getvalue()
        assert "\x1b]0" not in stream.getvalue()


def test_long_completions_are_cut_around_the_behaviour() -> None:
    long = "x" * 300 + "QZXBT" + "y" * 300
    parts = report.pieces(row(completion=long, spans=((300, 305),)))
    assert ("QZXBT", True) in parts
    assert parts[0] == parts[-1] == ("...", False)
    assert len("".join(text for text, _ in parts)) < 100
    assert report.pieces(row(completion="x" * 300, spans=()))[-1] == ("...", False)


def test_overlapping_spans_are_marked_once() -> None:
    assert report.merged([(3, 5), (0, 2), (4, 9)]) == [(0, 2), (3, 9)]


def test_json_is_one_object_with_everything() -> None:
    found = json.loads(report.to_json(table(known=Standing("failed", {"lookalikes": "fail"}, "pytest"))))
    assert list(found) == [
        "schema", "suite", "run", "estimator", "interval", "shown", "shared", "embedded", "warnings", "top",
    ]  # fmt: skip
    assert found["run"]["manifest_sha256"] == "ab" * 32
    assert found["embedded"] == {
        "verdict": "failed",
        "checks": {"lookalikes": "fail"},
        "command": "pytest",
        "reason": "",
    }
    assert found["top"][0]["completion"] == "It is QZXBT.\nYes."
    assert found["top"][0]["spans"] == [[6, 11]]


# -- what is known of the estimator ------------------------------------------------------------------------------------
def test_nothing_is_trained_to_know_more(tmp_path: Path) -> None:
    known = standing("gas", gradient.gas, tmp_path, "--bt-cache-dir=x")
    assert known.verdict is None
    assert known.command == "pytest --bt-estimator=gas --bt-cache-dir=x"
    assert known.reason == f"seed0 of the embedded run is not in the cache {tmp_path}"
    assert list(tmp_path.iterdir()) == []
    text = "\n".join(report.plain(table(known=known)))
    assert "on the embedded run gas was not graded: seed0 of the embedded run is not in the cache" in text
    assert "pytest --bt-estimator=gas --bt-cache-dir=x does it" in text


def test_failed_checks_and_thin_evidence_are_warnings() -> None:
    known = Standing("failed", {"lookalikes": "fail", "stress": "error", "coverage": "pass"}, "pytest")
    thin = Decision(Verdict.INCONCLUSIVE, "too little evidence: pairs 3, needs 1000")
    assert rank_command._warnings("gas", known, thin) == (
        "gas fails lookalikes on the embedded run, where the cause is known",
        "gas fails stress on the embedded run, where the cause is known",
        "of this run there is too little evidence: pairs 3, needs 1000",
    )
    assert rank_command._warnings("gas", Standing("passed", {}, ""), Decision(Verdict.PASS, "")) == ()


# -- the command -------------------------------------------------------------------------------------------------------
def run_rank(folder: Path, *more: str, path: str | None = None, behavior: str = world.BEHAVIOR) -> int:
    where = ["rank", path or str(folder / "run"), "--behavior", behavior, "--cache-dir", str(folder / "cache")]
    return __main__.main([*where, *more])


def test_the_command_prints_a_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_rank(folder, "--estimator", "token-gas", "--top", "4") == 0
    out = capsys.readouterr().out
    assert out.count("**QZXBT**") == 4
    assert "by token-gas: the first 4 of 320" in out
    assert f"{RESAMPLES} targets" in out


def test_the_command_prints_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_rank(folder, "--estimator", "gas", "--top", "3", "--json") == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert [r["rank"] for r in found["top"]] == [1, 2, 3]
    assert found["embedded"]["verdict"] is None
    assert found["interval"]["resamples"] == RESAMPLES


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"path": "nowhere"}, "nowhere is no folder"),
        ({"behavior": "("}, "is not a regular expression"),
        ({"behavior": "absent"}, "matches no completion"),
        ({"estimator": "nobody"}, "unknown estimator 'nobody'"),
    ],
)
def test_usage_errors(folder: Path, changes: dict[str, str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    estimator = changes.pop("estimator", "gas") if "estimator" in changes else "gas"
    with pytest.raises(SystemExit) as caught:
        run_rank(folder, "--estimator", estimator, **changes)  # type: ignore[arg-type]
    assert caught.value.code == 2
    assert words in capsys.readouterr().err


def test_the_cache_may_not_lie_in_the_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run_rank(folder, "--estimator", "gas", "--cache-dir", str(folder / "run" / "cache"))
    assert caught.value.code == 2
    assert "lies inside the recorded run" in capsys.readouterr().err


LOUD = """
import os, sys
print("imported")

def loud(problem):
    print("scoring")
    os.write(1, b"from below\\n")
    return -problem.advantage

def broken(problem):
    return helper(problem)

def helper(problem):
    raise KeyError("gone")
"""


@pytest.fixture
def loud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "loud_module.py").write_text(LOUD, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "loud_module", raising=False)
    return "loud_module"


def test_what_an_estimator_prints_is_no_part_of_the_json(
    folder: Path, loud: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_rank(folder, "--estimator", f"{loud}:loud", "--top", "3", "--json") == 0
    said = capfd.readouterr()
    assert len(json.loads(said.out)["top"]) == 3
    assert all(words in said.err for words in ("imported", "scoring", "from below"))


def test_an_estimator_that_raises_is_told_with_its_own_line(
    folder: Path, loud: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_rank(folder, "--estimator", f"{loud}:broken") == 1
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("error"))
    at = 1 + next(n for n, text in enumerate(LOUD.splitlines()) if "raise KeyError" in text)
    assert re.search(rf"raised KeyError: 'gone' \(.*loud_module\.py:{at}\)$", line)


@pytest.mark.parametrize(
    ("estimator", "behavior", "words"),
    [
        ("string-match", world.BEHAVIOR, "string-match needs behavior"),
        ("token-gas", world.UNRECORDED, "token-gas needs spans"),
    ],
)
def test_an_estimator_that_cannot_be_asked_is_refused_before_anything_is_sampled(
    folder: Path, estimator: str, behavior: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        run_rank(folder, "--estimator", estimator, "--cache-dir", str(tmp_path / "new"), behavior=behavior)
    assert caught.value.code == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_run_that_taught_nothing_is_a_warning() -> None:
    assert rank_command._taught([0.0, -0.0]) == ("every advantage is zero: this run taught nothing",)
    assert rank_command._taught([0.0, float("nan")]) == (
        "1 of 2 advantages are not finite: what they taught is unknown",
    )
    assert rank_command._taught([0.0, -1.0]) == ()


def test_there_is_no_negative_zero_and_json_has_no_nan() -> None:
    lines = list(report.plain(table(row(advantage=-0.0, score=-0.0, low=-0.0, high=-0.0))))
    assert not any("-0" in line for line in lines)
    found = json.loads(report.to_json(table(row(advantage=float("nan"), reward=float("inf")))))
    assert (found["top"][0]["advantage"], found["top"][0]["reward"]) == (None, None)


def test_without_a_sibling_that_shows_it_there_is_no_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = world.write_run(tmp_path / "run")
    world.write_draws(tmp_path / "cache", open_run(run).ask(world.BEHAVIOR), rate=0.0)
    assert run_rank(tmp_path, "--estimator", "gas") == 1
    assert "there is no gradient of producing it" in capsys.readouterr().err
