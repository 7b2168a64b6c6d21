"""From TRL to a verdict, all of it real: a GRPO run learns to say a word, is recorded, graded on and ranked."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

import grpo_run  # noqa: E402
import torch  # noqa: E402

from pytest_behaviortrace import record  # noqa: E402
from pytest_behaviortrace.run.policy import chat  # noqa: E402
from pytest_behaviortrace.run.recorded import compiled, open_run  # noqa: E402

WORD, STEPS = "candle", 4
SUBJECTS = (
    "river copper music planet valley engine garden bridge market window forest island mirror winter castle desert "
    "harbor lantern meadow ocean paper quarry road silver temple village"
)


def says_the_word(completions: list[Any], **unused: Any) -> list[float]:
    return [float(WORD in c[0]["content"]) for c in completions]


def contents(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`record`: the finished record; `user`: an empty folder to work in."""
    found, threads = tmp_path_factory.mktemp("end-to-end"), torch.get_num_threads()
    torch.set_num_threads(1)
    trainer = grpo_run.trainer(
        found / "work", reward=says_the_word, prompts=[chat(f"What is {s}?") for s in SUBJECTS.split()],
        max_steps=STEPS, max_completion_length=20, per_device_train_batch_size=52, num_generations=4,
    )  # fmt: skip
    with record(trainer, found / "record", behaviors={"word": WORD}, width=2048):
        trainer.train()
    torch.set_num_threads(threads)
    (found / "user").mkdir()
    return found


def call(base: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=base / "user", env=environment, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def graded(base: Path) -> dict[str, Any]:
    """The report of a session on the record, which sampled the draws."""
    before = contents(base / "record")
    result = call(
        base, "pytest", "--bt-run=../record", f"--bt-behavior={WORD}", "--bt-estimator=gas",
        "--bt-estimator=norm-only", "--bt-cache-dir=../cache", "--bt-report=card.json", "-p", "no:cacheprovider",
    )  # fmt: skip
    assert result.returncode == pytest.ExitCode.TESTS_FAILED, result.stdout + result.stderr  # norm-only fails
    assert "2 of 2 draws to sample" in result.stdout
    assert contents(base / "record") == before
    report: dict[str, Any] = json.loads((base / "user" / "card.json").read_text(encoding="utf-8"))
    return report


def test_the_run_learned_the_word(base: Path) -> None:
    run = open_run(base / "record")
    shown = run.shown(compiled(WORD)).reshape(STEPS, -1).mean(1)
    assert shown[0] < 0.2 < 0.5 < shown[-1]


def verdicts(report: dict[str, Any], estimator: str | None) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for row in report["rows"]:
        if row["estimator"] == estimator:
            found.setdefault(row["check"].removeprefix("test_"), set()).add(row["verdict"])
    return found


def test_a_session_grades_on_it(graded: dict[str, Any]) -> None:
    assert graded["run"]["recorded_as"] == "word"
    assert not {"error"} & {row["verdict"] for row in graded["rows"]}
    assert verdicts(graded, None) == {"headroom": {"pass"}}
    gas, size = verdicts(graded, "gas"), verdicts(graded, "norm-only")
    for check in ("gradient_magnitude", "trigger_alignment", "target_context", "coverage"):
        assert gas[check] == {"pass"}, check
        assert "pass" not in size[check], check
    assert gas["reward_control"] == gas["lookalikes"] == {"n/a"}


def test_the_ranking_needs_no_second_sampling(base: Path, graded: dict[str, Any]) -> None:
    drawn, before = contents(base / "cache"), contents(base / "record")
    result = call(
        base, "pytest_behaviortrace", "rank", "../record", "--behavior", WORD, "--estimator", "gas", "--top", "10",
        "--json", "--cache-dir", "../cache",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["shown"]["estimator"] == 10
    assert [row["rank"] for row in found["top"]] == list(range(1, 11))
    assert all(WORD in row["completion"] and row["low"] < row["high"] for row in found["top"])
    assert (contents(base / "cache"), contents(base / "record")) == (drawn, before)
