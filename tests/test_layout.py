"""The arrows of the layout, read from the source: who may import whom, and what must stay cheap."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "pytest_behaviortrace"
HEAVY = {"torch", "transformers", "trl", "datasets", "accelerate", "safetensors"}
TOUCH_PYTEST = {
    "plugin", "collection", "options", "settings", "activation", "console", "hookspecs", "verdict", "scope", "session",
    "gatekeeper", "parametrize", "decorated", "expected_rows",
}  # fmt: skip


def modules() -> Iterator[tuple[str, ast.Module]]:
    for folder, prefix in ((PACKAGE, ""), (ROOT / "checks", "checks.")):
        for path in sorted(folder.rglob("*.py")):
            name = prefix + ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
            yield name, ast.parse(path.read_text(encoding="utf-8"))


def imports(tree: ast.AST) -> set[str]:
    """Every module imported anywhere but for type checking."""
    found: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
        elif not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            found |= imports(node)
    return found


MODULES = dict(modules())


@pytest.mark.parametrize("name", MODULES)
def test_only_run_imports_the_heavy_libraries(name: str) -> None:
    if not name.startswith("run."):
        assert not {module.split(".")[0] for module in imports(MODULES[name])} & HEAVY


LIGHT = (
    "recipe",
    "recipe_file",
    "recipe_parser",
    "store",
    "cache",
    "cache_command",
    "orchestrate",
    "manifest",
    "formats",
    "progress",
    "lock",
    "leftovers",
    "completeness",
    "architecture",
    "footprint",
    "budget",
    "budget_report",
    "budget_command",
    "recorded",
    "shard_files",
    "spans",
    "handover",
    "launch",
    "launch_command",
    "distributed",
)


@pytest.mark.parametrize("name", LIGHT)
def test_the_store_is_read_without_torch(name: str) -> None:
    assert not {module.split(".")[0] for module in imports(MODULES[f"run.{name}"])} & HEAVY


@pytest.mark.parametrize("name", MODULES)
def test_only_the_surface_touches_pytest(name: str) -> None:
    if name not in TOUCH_PYTEST:
        assert not {module.split(".")[0] for module in imports(MODULES[name])} & {"pytest", "_pytest"}


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("checks.test_")])
def test_checks_point_down(name: str) -> None:
    allowed = {"grading", "verdict", "statistics", "problem", "gates", "estimator", "evidence", "headroom", "checks"}
    allowed |= {"trial", "stress", "properties", "rows", "exhibit", "showing", "viewer"}
    ours = {m.split(".")[1] for m in imports(MODULES[name]) if m.startswith("pytest_behaviortrace.")}
    assert ours <= allowed


@pytest.mark.parametrize("name", MODULES)
def test_hypothesis_is_loaded_by_the_stress_tests_only(name: str) -> None:
    ours = {m.removeprefix("pytest_behaviortrace.") for m in imports(MODULES[name])}
    if name not in ("strategies", "stress"):
        assert "hypothesis" not in {m.split(".")[0] for m in ours}
        assert "strategies" not in ours
        assert "stress" not in ours or name == "checks.test_stress"


@pytest.mark.parametrize("name", ["variations", "properties", "problem_source", "strategies", "stress", "trial"])
def test_the_stress_tests_know_no_run(name: str) -> None:
    ours = {m.removeprefix("pytest_behaviortrace.") for m in imports(MODULES[name])}
    assert not ours & {"grading", "evidence", "session", "run.store", "run.orchestrate"}


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("statistics")])
def test_statistics_knows_no_run(name: str) -> None:
    ours = {m for m in imports(MODULES[name]) if m.startswith("pytest_behaviortrace.")}
    assert all(m.startswith(("pytest_behaviortrace.statistics", "pytest_behaviortrace.verdict")) for m in ours)


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("reports.")])
def test_reports_point_at_the_scorecard(name: str) -> None:
    ours = {m for m in imports(MODULES[name]) if m.startswith("pytest_behaviortrace.")}
    below = {
        f"pytest_behaviortrace.{name}"
        for name in ("scorecard", "exhibit", "ranked", "verdict", "summary", "baseline", "wording")
    }
    assert {m for m in ours if not m.startswith("pytest_behaviortrace.reports")} <= below


@pytest.mark.parametrize(
    ("name", "below"),
    [
        ("wording", set()),
        ("bounds", set()),
        ("output", set()),
        ("attributes", {"wording"}),
        ("interrupts", set()),
        ("making", {"attributes", "wording"}),
        ("spelling", {"wording"}),
        ("snapshot", {"scorecard"}),
        ("summary", {"scorecard"}),
        ("baseline", {"scorecard", "snapshot", "wording"}),
        ("compare_command", {"snapshot", "baseline", "reports"}),
    ],
)
def test_comparing_reports_needs_neither_runs_nor_numbers(name: str, below: set[str]) -> None:
    found = imports(MODULES[name])
    ours = {
        m.removeprefix("pytest_behaviortrace.").split(".")[0] for m in found if m.startswith("pytest_behaviortrace.")
    }
    assert ours <= below
    assert not {m.split(".")[0] for m in found} & {"numpy", "scipy", "pytest"}


@pytest.mark.parametrize("name", MODULES)
def test_pictures_are_drawn_for_the_html_report_only(name: str) -> None:
    """matplotlib and jinja2 are slow to import: no other report, and no session without one, loads them."""
    found = imports(MODULES[name])
    if name != "reports.drawing" and not name.startswith(PICTURES):
        assert not {module.split(".")[0] for module in found} & {"matplotlib", "jinja2", "markupsafe"}
    assert not {module for module in found if module.startswith("matplotlib.pyplot")}
    if name not in PICTURES:
        assert not found & {f"pytest_behaviortrace.{module}" for module in PICTURES}


PICTURES = tuple(f"reports.{name}" for name in ("html", "figures", "intervals", "drawing", "matrix", "viewer"))


def test_the_scorecard_knows_how_it_is_shown_in_python_and_only_on_demand() -> None:
    shown = {f"pytest_behaviortrace.reports.{name}" for name in ("notebook", "terminal", "saving")}
    ours = {m for m in imports(MODULES["scorecard"]) if m.startswith("pytest_behaviortrace.")}
    assert ours <= {f"pytest_behaviortrace.{name}" for name in ("exhibit", "spelling", "wording")} | shown
    at_the_top = {n.module for n in MODULES["scorecard"].body if isinstance(n, ast.ImportFrom)}
    assert not at_the_top & shown


@pytest.mark.parametrize(
    "name", ["whole_folder", "problem_check", "problem_files", "loading", "questions", "time_limit"]
)
def test_files_of_problems_know_neither_runs_nor_rows(name: str) -> None:
    """The child of an isolated estimator reads problems: what it imports must know no label."""
    ours = {m.removeprefix("pytest_behaviortrace.") for m in imports(MODULES[name])}
    own = {m for m in ours if m in MODULES or m == "run.formats"}
    files = {"problem_check", "problem_files", "whole_folder", "run.formats"}
    assert own <= files | {"estimator", "problem", "rows", "wording"}


RANKING = ("ranked", "ranking", "rank_command", "standing", "reports.ranking")


@pytest.mark.parametrize("name", [name for name in MODULES if name not in (*RANKING, "__main__")])
def test_grading_knows_nothing_of_rankings(name: str) -> None:
    assert not imports(MODULES[name]) & {f"pytest_behaviortrace.{module}" for module in RANKING}


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("run.")])
def test_runs_know_nothing_of_grading(name: str) -> None:
    above = ("grading", "evidence", "headroom", "session", "scorecard", "settings", "trial", "gates")
    ours = {m.removeprefix("pytest_behaviortrace.").split(".")[0] for m in imports(MODULES[name])}
    assert not ours & set(above)


@pytest.mark.parametrize("name", [name for name in MODULES if not name.startswith(("calibration", "__main__"))])
def test_grading_knows_nothing_of_its_calibration(name: str) -> None:
    assert not {m for m in imports(MODULES[name]) if m.startswith("pytest_behaviortrace.calibration")}


@pytest.mark.parametrize("name", [name for name in MODULES if name not in ("strategies", "stress", "problem_source")])
def test_hypothesis_is_for_stress_tests_only(name: str) -> None:
    assert not {m.split(".")[0] for m in imports(MODULES[name])} & {"hypothesis"}


def test_no_pickle_and_no_remote_code() -> None:
    for name, tree in MODULES.items():
        assert not {m.split(".")[0] for m in imports(tree)} & {"pickle", "dill", "cloudpickle", "joblib"}, name
        for node in ast.walk(tree):
            assert not (isinstance(node, ast.keyword) and node.arg == "trust_remote_code"), name


@pytest.mark.parametrize("name", MODULES)
def test_files_hold_one_idea(name: str) -> None:
    path = (ROOT if name.startswith("checks.") else PACKAGE) / Path(*name.split("."))
    file = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"
    assert len(file.read_text(encoding="utf-8").splitlines()) <= 300
