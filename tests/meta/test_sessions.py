"""Whole sessions of the real plugin on the real runs: what a user's command prints, writes and imports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_behaviortrace.run.store import Store
from pytest_behaviortrace.suite import SUITE

WATCH = """
import sys

def pytest_unconfigure(config):
    loaded = {"torch", "trl", "transformers", "datasets"} & set(sys.modules)
    print("heavy:", sorted(loaded))
"""
FIELDS = [
    "id", "estimator", "check", "seed", "draw", "verdict", "estimate", "low", "high", "chance", "control",
    "control_estimate", "margin_low", "n", "reason", "expected_failure",
]  # fmt: skip


def grade(pytester: pytest.Pytester, store: Store, report: str, *more: str) -> pytest.RunResult:
    """One session in an empty repository, on the suite's own runs."""
    cache = f"--bt-cache-dir={store.cache_dir}"
    flags = ("-p", "no:hypothesispytest", "--bt-estimator=token-gas", "--bt-estimator=norm-only")
    return pytester.runpytest_subprocess(cache, f"--bt-report={report}", *flags, *more)


def test_a_warm_session_needs_no_torch_and_writes_the_documented_report(
    pytester: pytest.Pytester, store: Store
) -> None:
    pytester.makeconftest(WATCH)
    result = grade(pytester, store, "first.json")
    assert result.ret == pytest.ExitCode.TESTS_FAILED  # norm-only fails, as it must
    result.stdout.fnmatch_lines(
        ["behaviortrace *cache hit*", "token-gas: NOT SHOWN*", "norm-only: FAILED*", "heavy: []"]
    )
    report = json.loads(Path("first.json").read_text(encoding="utf-8"))
    assert list(report) == [
        "schema",
        "suite",
        "recipe",
        "plant",
        "draws",
        "versions",
        "seeds",
        "checklist",
        "summary",
        "rows",
    ]
    assert (report["schema"], report["suite"]) == (2, SUITE)
    assert [list(seed) for seed in report["seeds"]] == [["seed", "s_b_planted", "s_b_null", "gt", "n"]] * 3
    assert all(list(row) == FIELDS for row in report["rows"])
    assert len(report["rows"]) == 3 + 2 * 39
    assert "checks/test_fluency_control.py::test_fluency_control[token-gas-seed0-draw1]" in {
        row["id"] for row in report["rows"]
    }
    assert Path("first.json").stat().st_size < 1_000_000


def test_the_same_cache_gives_the_same_bytes(pytester: pytest.Pytester, store: Store) -> None:
    for name, workers in (("serial.json", ()), ("again.json", ()), ("workers.json", ("-n", "2"))):
        grade(pytester, store, name, *workers)
    reports = {Path(name).read_bytes() for name in ("serial.json", "again.json", "workers.json")}
    assert len(reports) == 1
