"""Which tests run, under which ids, in a repository that is as unfriendly as real ones are."""

from __future__ import annotations

import pytest
from surface import ROWS, Repo, magnitude, modules_after

from pytest_behaviortrace import checklist
from pytest_behaviortrace.scope import Where, shipped_id
from pytest_behaviortrace.scorecard import CHECKLIST, CORE

HEAVY = {"numpy", "torch", "transformers", "trl", "datasets", "hypothesis", "scipy", "pyarrow"}

HOSTILE_INI = """
[pytest]
python_files = spec_*.py
python_functions = should_*
python_classes = Should
filterwarnings = error
usefixtures = leak
xfail_strict = true
timeout = 0.001
reruns = 2
addopts = --strict-markers --strict-config --import-mode=importlib
"""
HOSTILE_CONFTEST = """

@pytest.fixture(autouse=True, params=["x", "y"])
def leak():
    raise RuntimeError("a fixture of the project reached a check")

def pytest_generate_tests(metafunc):
    if "bt_seed" in metafunc.fixturenames:
        metafunc.parametrize("bt_seed", [99])

def bt_seed():
    return 99
"""


@pytest.fixture
def repo(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Repo:
    return Repo(pytester, monkeypatch)


# -- the shipped checks ------------------------------------------------------------------------------------------------
def test_the_shipped_checks_are_the_checklist():
    assert {check.name for check in checklist.declared()} == set(CHECKLIST)
    assert set(CORE) < set(CHECKLIST)


def test_ids_state_estimator_seed_draw_and_component():
    ids = {row.id for check in checklist.declared() for row in check.rows(["token-gas"], range(3), 2)}
    assert "checks/test_headroom.py::test_headroom[seed2]" in ids
    assert "checks/test_coverage.py::test_coverage[token-gas-seed0]" in ids
    assert "checks/test_fluency_control.py::test_fluency_control[token-gas-seed0-draw1]" in ids
    assert "checks/test_seed_stability.py::test_seed_stability[token-gas-decoy-auc]" in ids
    assert "checks/test_stress.py::test_stress[token-gas-permutation]" in ids
    assert len(ids) == 3 + 5 * 3 + 2 * 6 + 3 + 9


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("def test_other(bt_case): pass", "exactly one test function, named test_x"),
        ("def test_x(bt_case, bt_color): pass", "unknown argument bt_color"),
        ("def test_x(bt_case, bt_component): pass", "no tuple COMPONENTS"),
        ("RUN = False\ndef test_x(bt_case, bt_draw): pass", "asks for bt_draw but says that it needs no run"),
    ],
)
def test_a_check_that_declares_nonsense_is_refused(tmp_path, source, problem):
    (tmp_path / "test_x.py").write_text(source)
    with pytest.raises(ValueError, match=problem):
        checklist.parse(tmp_path / "test_x.py")


# -- which tests run ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["serial", "xdist"])
@pytest.mark.parametrize(
    ("paths", "own"), [((), 0), ((".",), 1), (("test_mine.py",), 1)], ids=["no-path", "dot", "file"]
)
def test_a_typed_estimator_runs_the_users_tests_only_with_a_path(repo, workers, paths, own):
    repo.run("--bt-estimator=good", *paths, *workers).assert_outcomes(passed=ROWS + own)


@pytest.mark.parametrize("source", ["ini", "addopts", "variable"])
def test_a_configured_estimator_never_hides_the_users_tests(repo, source, monkeypatch):
    if source == "ini":
        repo.pytester.makeini("[pytest]\nbt_estimators = good")
    elif source == "addopts":
        repo.pytester.makeini("[pytest]\naddopts = --bt-estimator=good")
    else:
        monkeypatch.setenv("PYTEST_ADDOPTS", "--bt-estimator=good")
    repo.run().assert_outcomes(passed=ROWS + 1)


def test_testpaths_is_not_run_beside_a_typed_estimator(repo):
    repo.pytester.makeini("[pytest]\ntestpaths = .")
    result = repo.run("--bt-estimator=good")
    result.assert_outcomes(passed=ROWS)
    result.stdout.fnmatch_lines(["behaviortrace*checks only*"])
    result.stdout.no_fnmatch_line("testpaths:*")


def test_the_users_broken_module_does_not_stop_grading(repo):
    repo.pytester.makepyfile(test_broken="import no_such_module")
    repo.run("--bt-estimator=good").assert_outcomes(passed=ROWS)


def test_two_estimators_share_the_headroom_rows(repo):
    repo.run("--bt-estimator=good", "--bt-estimator=short", "--bt-estimator=good", "-q").assert_outcomes(
        passed=ROWS + 5, skipped=0
    )


# -- ids ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["serial", "xdist"])
def test_a_pasted_id_runs_that_row(repo, workers):
    repo.grade("--bt-estimator=good", magnitude("good", 1), *workers).assert_outcomes(passed=1)
    assert repo.verdicts() == {magnitude("good", 1): "pass"}


@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["serial", "xdist"])
def test_a_pasted_id_beside_a_path_of_the_user(repo, workers):
    repo.run("--bt-estimator=good", magnitude("good", 1), "test_mine.py", *workers).assert_outcomes(passed=2)


@pytest.mark.parametrize(
    ("arg", "rows"),
    [
        ("checks", ROWS),
        ("./checks/test_headroom.py", 3),
        ("checks/test_fluency_control.py::test_fluency_control", 6),
        ("installed/checks/test_headroom.py", 3),
        ("installed/checks", ROWS),
    ],
)
def test_groups_of_rows_by_id_or_real_path(repo, arg, rows):
    assert len(repo.ids("--bt-estimator=good", arg)) == rows


def test_checks_by_module_name(repo):
    assert len(repo.ids("--bt-estimator=good", "--pyargs", "pytest_behaviortrace.checks.test_headroom")) == 3


@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["serial", "xdist"])
def test_an_id_with_a_typing_error_is_a_usage_error(repo, workers):
    result = repo.run("--bt-estimator=good", "checks/test_headroom.py::test_headroom[seed7]", *workers)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: checks/test_headroom.py::test_headroom[[]seed7[]] is no row*"])


def test_ids_are_the_same_from_a_subfolder(repo, monkeypatch):
    repo.pytester.makeini("[pytest]")
    whole = repo.ids("--bt-estimator=good")
    monkeypatch.chdir(repo.pytester.mkdir("below"))
    assert repo.ids("--bt-estimator=good") == whole
    assert repo.ids("--bt-estimator=good", "../" + magnitude("good")) == [magnitude("good")]
    assert repo.ids("--bt-estimator=good", magnitude("good")) == [magnitude("good")]


def test_a_real_folder_of_the_user_wins_over_an_id(tmp_path):
    shipped = tmp_path / "site" / "checks"
    where = Where(tmp_path, tmp_path, shipped)
    assert shipped_id("checks/test_mine.py", where) == "checks/test_mine.py"
    (tmp_path / "checks").mkdir()
    (tmp_path / "checks" / "test_mine.py").touch()
    assert shipped_id("checks/test_mine.py", where) is None
    assert shipped_id("checks/test_headroom.py::x", where) == "checks/test_headroom.py::x"
    assert shipped_id("tests", where) is None


# -- pytest's own options ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("args", "outcomes"),
    [
        (("-k", "fluency and seed1"), {"passed": 2, "deselected": ROWS - 2}),
        (("-m", "behaviortrace", "."), {"passed": ROWS, "deselected": 1}),
        (("-m", "not behaviortrace", "."), {"passed": 1, "deselected": ROWS}),
        (("--deselect", "checks/test_fluency_control.py"), {"passed": ROWS - 6, "deselected": 6}),
        (("-p", "no:cacheprovider"), {"passed": ROWS}),
        (("-p", "no:capture"), {"passed": ROWS}),
        (("-p", "no:xdist"), {"passed": ROWS}),
        (("-s",), {"passed": ROWS}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_pytests_options_work_on_the_checks(repo, args, outcomes):
    found = repo.run("--bt-estimator=good", *args).parseoutcomes()
    assert {name: found.get(name, 0) for name in outcomes} == outcomes
    assert "failed" not in found
    assert "errors" not in found


def test_without_a_terminal_reporter_the_report_is_written(repo):
    assert repo.grade("--bt-estimator=good", "-p", "no:terminal").ret == 0
    assert len(repo.verdicts()) == ROWS


def test_last_failed_keeps_failing_checks_beside_failing_tests(repo):
    repo.pytester.makepyfile(test_mine="def test_mine(): assert 0\ndef test_fine(): pass")
    repo.run("--bt-estimator=mixed", ".")
    repo.grade("--bt-estimator=mixed", ".", "--lf").assert_outcomes(failed=6, deselected=ROWS - 5)
    assert set(repo.verdicts().values()) == {"fail"}
    assert len(repo.verdicts()) == 5


def test_last_failed_with_checks_only(repo):
    repo.run("--bt-estimator=mixed")
    repo.run("--bt-estimator=mixed", "--lf").assert_outcomes(failed=5, deselected=ROWS - 5)


def test_only_the_seeds_of_selected_rows_are_trained(repo):
    repo.run("--bt-estimator=good", "-k", "seed1 or seed2")
    repo.run("--bt-estimator=good", "-k", "stability")
    repo.run("--bt-estimator=good", "--collect-only")
    assert [line.partition(" ")[2] for line in repo.trained()] == ["[1, 2]", "[0, 1, 2]"]


def test_collecting_imports_nothing_heavy(pytester, monkeypatch):
    monkeypatch.setenv("BEHAVIORTRACE_CACHE", str(pytester.path / "cache"))
    loaded = modules_after("--bt-estimator=token-gas", "--collect-only", "-q", cwd=pytester.path)
    assert "pytest_behaviortrace.collection" in loaded
    assert not HEAVY & loaded


# -- unfriendly projects -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["serial", "xdist"])
def test_nothing_a_project_configures_for_its_tests_reaches_the_checks(repo, workers):
    repo.pytester.makeini(HOSTILE_INI)
    conftest = repo.path / "conftest.py"
    conftest.write_text(conftest.read_text(encoding="utf-8") + HOSTILE_CONFTEST, encoding="utf-8")
    repo.grade("--bt-estimator=mixed", *workers).assert_outcomes(passed=ROWS - 5, failed=5)
    assert len(repo.verdicts()) == ROWS
    assert repo.verdicts()[magnitude("mixed", 0)] == "pass"
    assert not [id for id in repo.verdicts() if "99" in id]


def test_forced_reruns_draw_no_second_verdict(repo):
    found = repo.run("--bt-estimator=bad", "--force-reruns=3", "-k", "magnitude").parseoutcomes()
    assert found["failed"] == 3
    assert "rerun" not in found


def test_a_timeout_of_the_project_does_not_stop_training(repo):
    doubles = repo.path / "doubles.py"
    text = doubles.read_text(encoding="utf-8")
    doubles.write_text(text.replace("def good(case):", "def good(case):\n    import time; time.sleep(0.6)"))
    repo.run("--bt-estimator=good", "--timeout=0.2", "-k", "magnitude").assert_outcomes(passed=3, deselected=ROWS - 3)


def test_with_plugin_autoload_disabled(repo, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    result = repo.pytester.runpytest_subprocess("-p", "pytest_behaviortrace.plugin", "--bt-estimator=good")
    result.assert_outcomes(passed=ROWS)
