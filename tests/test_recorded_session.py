"""Whole sessions on a recorded run: what the command line refuses, what is printed, written and left alone."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import recorded_world as world
from surface import QUIET

from pytest_behaviortrace.run.recorded import open_run


@pytest.fixture
def recorded(pytester: pytest.Pytester) -> Path:
    """A run in the user's folder `myrun`, and its draws in the folder `cache`."""
    run = world.write_run(pytester.path / "myrun")
    world.write_draws(pytester.path / "cache", open_run(run).ask(world.BEHAVIOR))
    return run


def grade(pytester: pytest.Pytester, *more: str, behavior: str = world.BEHAVIOR) -> pytest.RunResult:
    flags = ("--bt-run=myrun", f"--bt-behavior={behavior}", "--bt-cache-dir=cache", "-p", "no:cacheprovider", *QUIET)
    return pytester.runpytest_subprocess("--bt-estimator=gas", *flags, *more)


def files(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_session_on_a_recorded_run(pytester: pytest.Pytester, recorded: Path) -> None:
    before = files(recorded)
    result = grade(pytester, "--bt-report=card.json", "--bt-estimator=norm-only")
    assert result.ret == pytest.ExitCode.TESTS_FAILED  # norm-only fails, as it must
    sha = open_run(recorded).sha256
    result.stdout.fnmatch_lines(
        [
            f"behaviortrace *: gas, norm-only; run myrun@{sha[:8]}, behaviour 'QZ*cache hit*",
            f"suite *, recorded run myrun@{sha[:8]}, behaviour 'QZ*",
            "* of 320 rollouts show the behaviour; which of them taught it is not known",
            "gas: PASSED ON THIS RUN (21 rows: *n/a)*",
            "*reward_control*n/a*run*",
            "*this needs ground truth, which a recorded run does not have*",
            "norm-only: FAILED*",
            "On a recorded run nobody knows which rollouts taught the behaviour.*",
        ]
    )
    report = json.loads((pytester.path / "card.json").read_text(encoding="utf-8"))
    assert list(report) == [
        "schema",
        "suite",
        "recipe",
        "run",
        "plant",
        "draws",
        "versions",
        "seeds",
        "checklist",
        "summary",
        "rows",
    ]
    assert (report["schema"], report["recipe"], report["plant"], report["seeds"]) == (2, None, None, [])
    run = report["run"]
    assert (run["path"], run["manifest_sha256"], run["behavior"]) == ("myrun", sha, world.BEHAVIOR)
    assert (run["recorded_as"], run["n"]) == ("code", 320)
    ids = {row["id"] for row in report["rows"]}
    assert "checks/test_fluency_control.py::test_fluency_control[gas-run-draw1]" in ids
    assert {row["seed"] for row in report["rows"]} == {None}
    assert files(recorded) == before


def test_the_command_that_reruns_a_row_repeats_the_question(pytester: pytest.Pytester, recorded: Path) -> None:
    result = grade(pytester, "--bt-estimator=norm-only")
    result.stdout.fnmatch_lines(
        [f"*rerun: pytest --bt-estimator=norm-only --bt-run=myrun '--bt-behavior={_escaped(world.BEHAVIOR)}'*"]
    )
    row = "checks/test_coverage.py::test_coverage[gas-run]"
    assert grade(pytester, row).parseoutcomes() == {"passed": 1}


def _escaped(text: str) -> str:
    return text.replace("[", "[[]")


def test_the_ini_file_can_name_the_run(pytester: pytest.Pytester, recorded: Path) -> None:
    pytester.makeini(f"[pytest]\nbt_run = myrun\nbt_behavior = {world.BEHAVIOR}\nbt_cache_dir = cache\n")
    row = "checks/test_headroom.py::test_headroom[run]"
    result = pytester.runpytest_subprocess("--bt-estimator=gas", row, "-p", "no:cacheprovider", *QUIET)
    result.stdout.fnmatch_lines(["*headroom *pass*"])
    assert result.ret == 0


def test_expected_failures_are_about_planted_runs(pytester: pytest.Pytester, recorded: Path) -> None:
    pytester.makeini("[pytest]\nbt_expected_failures = known.toml\n")
    (pytester.path / "known.toml").write_text('[gas]\ntest_lookalikes = "it knows no credit"\n')
    assert grade(pytester, "checks/test_lookalikes.py").ret == pytest.ExitCode.NO_TESTS_COLLECTED  # nothing decided


REFUSED = {
    ("--bt-run=myrun",): "--bt-run needs to know what to look for: give --bt-behavior=REGEX",
    ("--bt-behavior=QZ",): "--bt-behavior is about a recorded run; name it with --bt-run=PATH",
    ("--bt-run=myrun", "--bt-behavior=QZ", "--bt-seeds=1"): "--bt-seeds is about planted runs and --bt-run names*",
    ("--bt-run=myrun", "--bt-behavior=QZ", "--bt-recipe=tiny"): "--bt-recipe is about planted runs and --bt-run names*",
    ("--bt-run=myrun", "--bt-behavior=QZ", "--bt-plant=wibble"): "--bt-plant is about planted runs and --bt-run names*",
    ("--bt-run=nowhere", "--bt-behavior=QZ"): "--bt-run: *nowhere is no folder; give the folder that record*",
    ("--bt-run=cache", "--bt-behavior=QZ"): "--bt-run: *holds no manifest.json: the run is still being recorded*",
    ("--bt-run=myrun", "--bt-behavior=("): "--bt-behavior: '(' is not a regular expression*",
    ("--bt-run=myrun", "--bt-behavior=a*"): "--bt-behavior: 'a?' matches the empty string*",
    ("--bt-run=myrun", "--bt-behavior=absent"): "--bt-behavior: 'absent' matches no completion of the 320 rollouts*",
    ("--bt-run=myrun", "--bt-behavior=Item"): "--bt-behavior: 'Item' matches every one of the 320 rollouts*",
    (
        "--bt-run=myrun",
        "--bt-behavior=QZ",
        "--bt-cache-dir=myrun/c",
    ): "--bt-cache-dir or *: the cache folder *myrun/c lies*",
}


@pytest.mark.parametrize("flags", REFUSED, ids=" ".join)
def test_usage_errors(pytester: pytest.Pytester, recorded: Path, flags: tuple[str, ...]) -> None:
    result = pytester.runpytest_inprocess("--bt-estimator=gas", *flags, *QUIET)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {REFUSED[flags].replace('[', '[[]')}"])
    assert not (pytester.path / "myrun" / "c").exists()


def test_what_the_ini_file_says_of_planted_runs_is_no_conflict(pytester: pytest.Pytester, recorded: Path) -> None:
    pytester.makeini("[pytest]\nbt_seeds = 5\nbt_recipe = tiny\n")
    assert grade(pytester, "checks/test_headroom.py").ret == 0
    pytester.makeini(f"[pytest]\nbt_seeds = 5\nbt_run = myrun\nbt_behavior = {world.BEHAVIOR}\n")
    result = pytester.runpytest_inprocess("--bt-estimator=gas", *QUIET)
    result.stderr.fnmatch_lines(["ERROR: bt_seeds in *tox.ini is about planted runs and bt_run in *tox.ini names*"])


def test_a_damaged_run_is_named_before_anything_runs(pytester: pytest.Pytester, recorded: Path) -> None:
    (recorded / "loss_scale.npy").write_bytes(b"x")
    result = grade(pytester)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --bt-run: the recorded run *myrun is damaged: loss_scale.npy has 1 bytes*"])


def test_missing_draws_are_counted(pytester: pytest.Pytester, recorded: Path) -> None:
    result = grade(pytester, "--collect-only", "-q", "--bt-draws=3")
    assert result.ret == 0
    assert "checks/test_trigger_alignment.py::test_trigger_alignment[gas-run-draw2]" in result.outlines
    result = grade(pytester, "--collect-only", "--bt-draws=3")
    result.stdout.fnmatch_lines(["behaviortrace *1 of 3 draws to sample*"])


def test_nothing_heavy_is_loaded_on_a_hit(pytester: pytest.Pytester, recorded: Path) -> None:
    pytester.makeconftest(
        "import sys\n"
        "def pytest_unconfigure(config):\n"
        "    print('heavy:', sorted({'torch', 'trl', 'transformers', 'datasets'} & set(sys.modules)))\n"
    )
    grade(pytester, "-k", "not stress").stdout.fnmatch_lines(["heavy: []"])


def test_workers_write_the_same_report(pytester: pytest.Pytester, recorded: Path) -> None:
    for name, more in (("serial.json", ()), ("workers.json", ("-n", "2"))):
        grade(pytester, f"--bt-report={name}", "-k", "not stress", *more)
    assert (pytester.path / "serial.json").read_bytes() == (pytester.path / "workers.json").read_bytes()


def test_isolated_estimators_are_told_what_was_not_recorded(pytester: pytest.Pytester, recorded: Path) -> None:
    world.write_draws(pytester.path / "cache", open_run(recorded).ask(world.UNRECORDED))
    row = "checks/test_coverage.py"
    result = grade(pytester, "--bt-isolate", "--bt-estimator=tracincp", row, behavior=world.UNRECORDED)
    result.stdout.fnmatch_lines(["gas: PARTIAL (1 of 21 rows: 1 pass)*", "tracincp: PARTIAL (1 of 21 rows: 1 n/a)*"])
    assert "tracincp reads what this run does not have" in " ".join(result.outlines)
