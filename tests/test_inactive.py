"""A project that merely has the plugin installed must not notice it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from surface import QUIET, modules_after

import pytest_behaviortrace

PACKAGE = Path(pytest_behaviortrace.__file__).parent
BUDGET = 0.005
"""Seconds of processor time: the wall clock also measures who else is at work."""

TIMED = """
import sys, time
import pytest, pluggy
from _pytest.config import get_config
config = get_config()
start = time.process_time()
import pytest_behaviortrace.plugin as plugin
config.pluginmanager.register(plugin, "behaviortrace")
plugin_cost = time.process_time() - start
config.parse(["-p", "no:cacheprovider", "."])
start = time.process_time()
plugin.pytest_cmdline_main(config)
plugin.pytest_configure(config)
print(plugin_cost + time.process_time() - start)
"""


def test_it_imports_nothing_but_itself(pytester):
    pytester.makepyfile("def test_a(): pass")
    loaded = modules_after("-q", cwd=pytester.path)
    ours = {name for name in loaded if name.startswith("pytest_behaviortrace")}
    assert ours == {"pytest_behaviortrace" + part for part in ("", ".plugin", ".options", ".hookspecs")}
    heavy = {"numpy", "torch", "trl", "transformers", "datasets", "pyarrow", "hypothesis", "rich", "filelock"} & loaded
    assert heavy == set()


def test_it_costs_less_than_its_budget(pytester, monkeypatch):
    """Import, registration, options and configuration; the best of several, since other work only adds."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    costs = [
        float(subprocess.run([sys.executable, "-c", TIMED], capture_output=True, text=True, check=True).stdout)
        for _ in range(5)
    ]
    assert min(costs) < BUDGET


def test_it_leaves_no_files_and_raises_no_warnings(pytester, monkeypatch):
    pytester.makeini("[pytest]\nfilterwarnings = error\naddopts = --strict-markers --strict-config -p no:cacheprovider")
    pytester.makepyfile("def test_a(): pass")
    monkeypatch.setenv("BEHAVIORTRACE_CACHE", str(pytester.path / "cache"))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    before = {path.name for path in pytester.path.iterdir()}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *QUIET, "-W", "error"], cwd=pytester.path, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert {path.name for path in pytester.path.iterdir()} == before
    assert "1 passed" in done.stdout
    assert "warnings summary" not in done.stdout
    assert done.stdout.count("behaviortrace") == 1  # in pytest's own list of plugins
    assert done.stderr == ""


def test_it_answers_to_no_fixture_and_no_argument_of_the_project(pytester):
    pytester.makepyfile(
        "import pytest\n@pytest.fixture\ndef bt_seed(): return 7\ndef test_a(bt_seed): assert bt_seed == 7"
    )
    pytester.runpytest_inprocess(*QUIET).assert_outcomes(passed=1)


def test_a_project_may_have_checks_of_its_own(pytester):
    pytester.mkdir("checks").joinpath("test_headroom.py").write_text("def test_a(): pass")
    pytester.runpytest_subprocess(*QUIET).assert_outcomes(passed=1)
    pytester.runpytest_subprocess(*QUIET, "checks").assert_outcomes(passed=1)
    pytester.runpytest_subprocess(*QUIET, "checks/test_headroom.py::test_a").assert_outcomes(passed=1)


def test_the_marker_is_known(pytester):
    pytester.runpytest_inprocess(*QUIET, "--markers").stdout.fnmatch_lines(["@pytest.mark.behaviortrace: *"])


def test_public_names_are_served_on_first_use():
    program = (
        "import sys, pytest_behaviortrace as b; assert 'numpy' not in sys.modules; "
        "assert all(hasattr(b, n) for n in b.__all__); assert set(b.__all__) <= set(dir(b)); "
        "from pytest_behaviortrace import Needs, statistics; assert statistics.auc"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        pytest_behaviortrace.nope  # noqa: B018


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_only_the_surface_touches_pytest(path):
    surface = {
        "plugin", "options", "settings", "collection", "activation", "hookspecs", "verdict", "gatekeeper",
        "parametrize", "decorated", "expected_rows",
    }  # fmt: skip
    imports = [
        line.split()[1]
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.startswith(("import ", "from "))
    ]
    assert path.stem in surface or "pytest" not in imports
