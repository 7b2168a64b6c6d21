"""Name -> estimator: three sources, one importer, and a clear sentence for everything that can be wrong with them."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest
from surface import QUIET, Repo

from pytest_behaviortrace import needs
from pytest_behaviortrace.registry import Registry, RegistryError

SHIPPED = {
    "dot", "gas", "gas-centered", "tracincp", "trak", "local-buffer", "token-gas", "norm-only", "update-magnitude",
    "advantage", "fluency", "length", "random", "string-match", "string-match-advantage",
}  # fmt: skip


def score(problem):
    return problem.gradients @ problem.target


class Scorer:
    """An estimator with state."""

    def __init__(self, rank=8):
        self.rank = rank

    def __call__(self, problem):
        return problem.advantage


class NotCallable:
    pass


def make():
    return score


def make_broken():
    raise OSError("no weights")


def make_scores():
    return [1.0]


@needs(text=True)
def lenient(problem=None):
    return [len(text) for text in problem.completion_text]


# -- what is registered ------------------------------------------------------------------------------------------------
def test_every_shipped_estimator_is_an_entry_point_that_loads():
    registry = Registry()
    assert {e.name for e in registry.entries() if "pytest-behaviortrace" in e.origin} == SHIPPED
    for name in SHIPPED:
        assert callable(registry.load(name))


def test_listing_imports_no_estimator():
    program = (
        "import sys; from pytest_behaviortrace.registry import Registry; names = [e.name for e in Registry().entries()]"
        "; Registry().find('gas'); assert 'gas' in names; print('numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_hooked_estimators_are_found_beside_entry_points():
    registry = Registry([{"mine": score}, {"other": Scorer()}])
    assert registry.load("mine") is score
    assert {"gas", "mine", "other"} <= {e.name for e in registry.entries()}


@pytest.mark.parametrize("result", [[score], {1: score}, {"": score}, score])
def test_a_hook_that_returns_nonsense(result):
    with pytest.raises(RegistryError, match="must return a dict of name -> estimator"):
        Registry([result])


def test_a_name_registered_twice_names_both():
    with pytest.raises(RegistryError, match=r"'gas' is registered by pytest-behaviortrace .* and hook .*; rename one"):
        Registry([{"gas": score}]).find("gas")


def test_the_same_thing_registered_twice_is_one():
    assert Registry([{"mine": score}, {"mine": score}]).load("mine") is score


def test_an_unknown_name_lists_what_exists_and_the_nearest():
    with pytest.raises(RegistryError, match=r"'token-gaz'; did you mean 'token-gas'\? Registered: advantage, dot"):
        Registry().find("token-gaz")


@pytest.mark.parametrize("name", [":", "a:", ":b", "a b:c", "-x:y"])
def test_what_is_no_module_path_is_an_unknown_name(name):
    with pytest.raises(RegistryError, match="unknown estimator"):
        Registry().find(name)


# -- what it becomes ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("target", "expected"),
    [(score, score), (make, score), (lenient, lenient), ("test_registry:score", score), ("test_registry:make", score)],
    ids=["function", "factory", "function-with-needs", "path", "path-to-factory"],
)
def test_functions_and_factories(target, expected, monkeypatch):
    monkeypatch.setitem(sys.modules, "test_registry", sys.modules[__name__])
    assert Registry([{"mine": target}]).load("mine") is expected


def test_a_class_is_instantiated_and_an_instance_is_not_called():
    assert isinstance(Registry([{"mine": Scorer}]).load("mine"), Scorer)
    instance = Scorer()
    assert Registry([{"mine": instance}]).load("mine") is instance


def test_builtins_without_a_signature_are_estimators():
    assert Registry([{"mine": max}]).load("mine") is max


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (make_broken, r"estimator 'mine' \(hook .*\): calling its factory raised OSError: no weights \(test_registry"),
        (make_scores, r"its factory returned list, which cannot be called with a problem"),
        (NotCallable, r"its class returned NotCallable, which cannot be called"),
        ({"not": "callable"}, r"is a dict, which cannot be called with a problem"),
        ("no_such_package.scores:f", r"cannot be imported: ModuleNotFoundError: No module named 'no_such_package'"),
        ("pytest_behaviortrace.estimators.gradient:nope", r"cannot be imported: .*gradient has no 'nope'"),
    ],
    ids=["factory-raises", "factory-of-scores", "class", "dict", "no-module", "no-attribute"],
)
def test_what_cannot_be_used(target, message):
    with pytest.raises(RegistryError, match=message):
        Registry([{"mine": target}]).load("mine")


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        (
            "import absent_dependency",
            r"ModuleNotFoundError: No module named 'absent_dependency' \(brittle\.py, line 1\)",
        ),
        ("x = 1\ny = 1 / 0", r"ZeroDivisionError: division by zero \(brittle\.py, line 2\)"),
        ("def f(:", "SyntaxError"),
        ("import sys; sys.exit('bye')", "SystemExit: bye"),
        ("import pytest; pytest.skip('no GPU', allow_module_level=True)", "Skipped: no GPU"),
    ],
    ids=["dependency", "exception", "syntax", "exit", "skip"],
)
def test_a_module_that_does_not_import_names_the_cause(tmp_path, monkeypatch, source, cause):
    (tmp_path / "brittle.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "brittle", raising=False)
    with pytest.raises(RegistryError, match=rf"estimator 'brittle:f' \(brittle:f\) cannot be imported: {cause}"):
        Registry().load("brittle:f")


def test_a_module_beside_where_pytest_was_started(tmp_path, monkeypatch):
    (tmp_path / "nearby.py").write_text("def f(problem): return problem.advantage")
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert Registry(folder=tmp_path).load("nearby:f").__name__ == "f"
    sys.modules.pop("nearby")


# -- an installed package ----------------------------------------------------------------------------------------------
@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A distribution with an entry point, as pip would leave it."""
    site = tmp_path / "site"
    info = site / "thirdparty-3.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: thirdparty\nVersion: 3.1\n")
    (info / "entry_points.txt").write_text(
        "[pytest_behaviortrace.estimators]\nthird = thirdparty:score\nbrittle = thirdparty_brittle:score\n"
    )
    (site / "thirdparty.py").write_text("def score(problem): return problem.advantage\n")
    (site / "thirdparty_brittle.py").write_text("import absent_dependency\n")
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", str(site))
    importlib.invalidate_caches()
    return site


def test_an_entry_point_of_another_package(installed):
    registry = Registry()
    assert "thirdparty 3.1" in [e.origin for e in registry.entries()]
    assert registry.load("third").__module__ == "thirdparty"
    assert "thirdparty_brittle" not in sys.modules
    with pytest.raises(RegistryError, match=r"'brittle' \(thirdparty 3\.1, thirdparty_brittle:score\) cannot be impor"):
        registry.load("brittle")


@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["serial", "xdist"])
def test_a_broken_package_is_a_usage_error_and_stops_no_one_else(installed, pytester, monkeypatch, workers):
    repo = Repo(pytester, monkeypatch)
    result = repo.run("--bt-estimator=brittle", *workers)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: estimator 'brittle' (thirdparty 3.1, *No module named 'absent_dependency'*"])
    assert repo.trained() == []
    assert repo.run("--bt-estimator=good", "-k", "headroom", *workers).ret == 0


def test_a_conftest_hook_that_returns_nonsense_is_a_usage_error(pytester):
    pytester.makeconftest("def pytest_behaviortrace_estimators(config): return [1]")
    for flags in (("--bt-estimator=gas",), ("--bt-list",)):
        result = pytester.runpytest_subprocess(*QUIET, *flags)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(["ERROR: the hook pytest_behaviortrace_estimators must return a dict*"])


def test_a_conftest_hook_that_raises_is_a_usage_error(pytester):
    pytester.makeconftest("def pytest_behaviortrace_estimators(config): import absent_dependency")
    for flags in (("--bt-estimator=gas",), ("--bt-list",)):
        result = pytester.runpytest_subprocess(*QUIET, *flags)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(["ERROR: the hook pytest_behaviortrace_estimators raised ModuleNotFoundError*"])


def test_needs_of_the_wrong_kind_are_a_usage_error(pytester):
    pytester.makepyfile(mine="class Mine:\n    needs = 'gradients'\n    def __call__(self, problem): return []")
    result = pytester.runpytest_subprocess(*QUIET, "--bt-estimator=mine:Mine")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: estimator 'mine:Mine': its attribute 'needs' must be a Needs, not str*"])
