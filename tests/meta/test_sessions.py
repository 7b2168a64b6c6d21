"""Whole sessions of the real plugin on the real runs: what a user's command prints, writes and imports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_behaviortrace import grade, stress  # stress before pytester notes which modules are there
from pytest_behaviortrace.reports.json import render
from pytest_behaviortrace.run.store import Store
from pytest_behaviortrace.suite import SUITE

assert stress  # Hypothesis cannot be imported twice, and pytester puts sys.modules back after a test

SEEN = """
import json, sys
from pathlib import Path
from pytest_behaviortrace.collection import GRADING

def pytest_unconfigure(config):
    loaded = sorted({"torch", "trl", "transformers", "datasets", "matplotlib"} & set(sys.modules))
    name = config.workerinput["workerid"] if hasattr(config, "workerinput") else "main"
    Path(f"{name}-loaded.json").write_text(json.dumps(loaded))
    if name == "main":
        seen = json.dumps(dict(config.stash[GRADING].scorecard().exhibits), ensure_ascii=False, allow_nan=False)
        Path("exhibits.json").write_text(seen, encoding="utf-8")
"""
LARGEST = 300_000
"""Bytes of all exhibits of one estimator with three seeds and two draws, as JSON."""
ESTIMATOR = "gas"
FIELDS = [
    "id", "estimator", "check", "seed", "draw", "verdict", "estimate", "low", "high", "chance", "control",
    "control_estimate", "margin_low", "n", "reason", "expected_failure",
]  # fmt: skip


def session(pytester: pytest.Pytester, store: Store, report: str, *more: str) -> pytest.RunResult:
    """One session in an empty repository, on the suite's own runs."""
    cache = f"--bt-cache-dir={store.cache_dir}"
    flags = ("-p", "no:hypothesispytest", "--bt-draws=1", f"--bt-estimator={ESTIMATOR}")
    return pytester.runpytest_subprocess(cache, f"--bt-report={report}", *flags, *more)


def loaded(process: str) -> list[str]:
    """Heavy libraries that a process of the last session had loaded when it ended."""
    return json.loads(Path(f"{process}-loaded.json").read_text(encoding="utf-8"))


def test_the_same_cache_gives_the_same_bytes_whatever_is_shown_beside_them(
    pytester: pytest.Pytester, store: Store
) -> None:
    pytester.makeconftest(SEEN)
    result = session(pytester, store, "serial.json")
    assert result.ret == pytest.ExitCode.TESTS_FAILED  # gas fails gradient_magnitude
    result.stdout.fnmatch_lines(["behaviortrace *cache hit*", "gas: FAILED*"])
    assert loaded("main") == []
    assert Path("exhibits.json").read_text(encoding="utf-8") == "{}"
    is_documented(json.loads(Path("serial.json").read_text(encoding="utf-8")))
    assert Path("serial.json").stat().st_size < 1_000_000

    session(pytester, store, "workers.json", "-n", "2", "--bt-report=workers.html", "--junitxml=workers.xml")
    assert Path("serial.json").read_bytes() == Path("workers.json").read_bytes()
    card = grade(ESTIMATOR, draws=1, cache_dir=store.cache_dir, progress=False)
    assert render(card).encode() == Path("serial.json").read_bytes()
    assert "gas</strong>" in card._repr_html_()
    assert loaded("gw0") == loaded("gw1") == []
    exhibits = json.loads(Path("exhibits.json").read_text(encoding="utf-8"))
    rows = json.loads(Path("workers.json").read_text(encoding="utf-8"))["rows"]
    assert exhibits.keys() == {row["id"] for row in rows if row["check"] != "test_stress"}
    assert all("gates" in exhibit for exhibit in exhibits.values())
    assert len(json.dumps(exhibits, ensure_ascii=False)) < LARGEST
    page = Path("workers.html").read_text(encoding="utf-8")
    assert "QZXBT" in page
    assert page.count("<svg") > 20
    assert "QZXBT" not in Path("workers.xml").read_text(encoding="utf-8")


def is_documented(report: dict[str, Any]) -> None:
    """The JSON report has the layout that the README and its schema promise."""
    assert list(report) == [
        "schema", "suite", "recipe", "plant", "draws", "versions", "seeds", "checklist", "summary", "rows",
    ]  # fmt: skip
    assert (report["schema"], report["suite"]) == (2, SUITE)
    assert [list(seed) for seed in report["seeds"]] == [["seed", "s_b_planted", "s_b_null", "gt", "n"]] * 3
    assert all(list(row) == FIELDS for row in report["rows"])
    assert len(report["rows"]) == 3 + 33
    assert "checks/test_fluency_control.py::test_fluency_control[gas-seed0-draw0]" in {r["id"] for r in report["rows"]}
