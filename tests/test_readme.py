"""The README against the code: its snippets run, and the figures in it belong to the recipe and suite that ship."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from problems import make_problem

from pytest_behaviortrace import checklist, expected
from pytest_behaviortrace.run.recipe import Recipe
from pytest_behaviortrace.scoring import score
from pytest_behaviortrace.suite import SUITE

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def test_the_estimator_of_the_readme_scores_a_problem() -> None:
    (source,) = [block for block in blocks("python") if "def mymethod" in block]
    found: dict[str, object] = {}
    exec(compile(source, "README.md", "exec"), found)
    problem = make_problem(np.arange(12.0).reshape(6, 2))
    assert score("mymethod", found["mymethod"], problem).scores.shape == (6,)  # type: ignore[arg-type]


def test_the_conftest_of_the_readme_registers_it(pytester: pytest.Pytester) -> None:
    (source,) = [block for block in blocks("python") if "def pytest_behaviortrace_estimators" in block]
    (method,) = [block for block in blocks("python") if "def mymethod" in block]
    pytester.makeconftest(source)
    package = pytester.mkpydir("mypackage")
    package.joinpath("attribution.py").write_text(method, encoding="utf-8")
    for name in ("mymethod", "mypackage.attribution:mymethod"):
        result = pytester.runpytest_subprocess(f"--bt-estimator={name}", "--collect-only", "-q")
        result.stdout.fnmatch_lines([f"checks/test_lookalikes.py::test_lookalikes[[]{name}-seed0]"])


def test_the_stress_test_of_the_readme_runs(pytester: pytest.Pytester) -> None:
    (source,) = [block for block in blocks("python") if "attribution_problems" in block]
    (method,) = [block for block in blocks("python") if "def mymethod" in block]
    pytester.mkpydir("mypackage").joinpath("attribution.py").write_text(method, encoding="utf-8")
    pytester.makepyfile(source)
    pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider").assert_outcomes(passed=1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_the_recording_of_the_readme_makes_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import grpo_run

    (source,) = [block for block in blocks("python") if "with record(" in block]
    monkeypatch.chdir(tmp_path)
    exec(compile(source, "README.md", "exec"), {"trainer": grpo_run.trainer(tmp_path / "out")})
    assert (tmp_path / "myrun" / "manifest.json").is_file()


def test_the_wrapped_library_of_the_readme_is_the_one_that_is_graded() -> None:
    (source,) = [block for block in blocks("python") if "SparseRandomProjection" in block]
    tried = (Path(__file__).parent / "wrapped_library.py").read_text(encoding="utf-8")
    assert source.strip() == tried.split('"""', 2)[2].strip()


def test_the_expected_failures_of_the_readme_are_read() -> None:
    (source,) = [block for block in blocks("text") if "lookalikes" in block]
    checks = {check.name: True for check in checklist.declared()}
    entries = expected.parse(source, "expected.toml", checks, ["gas"])
    assert {(e.check, e.strict) for e in entries} == {("test_lookalikes", True), ("test_gradient_magnitude", False)}


def test_the_entry_point_of_the_readme_is_toml() -> None:
    (source,) = blocks("toml")
    points = tomllib.loads(source)["project"]["entry-points"]["pytest_behaviortrace.estimators"]
    assert points == {"mymethod": "mypackage.attribution:mymethod"}


def test_figures_are_those_of_the_shipped_recipe_and_suite() -> None:
    quoted = set(re.findall(r"tiny@([0-9a-f]+)", README))
    assert quoted == {Recipe.load("tiny").hash[:8]}
    assert f"(now {SUITE})" in README


def test_every_check_stands_in_the_table() -> None:
    for check in checklist.declared():
        assert f"| {check.name.removeprefix('test_')} |" in README
