"""`grade`: the rows of `pytest --bt-estimator` without pytest, and one sentence for every argument that is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from surface import ROWS, Repo

import pytest_behaviortrace

# All of these before pytester notes which modules are there: it puts sys.modules back after a test.
from pytest_behaviortrace import api, checks, grade, isolation, scoring, session, settings
from pytest_behaviortrace.asked import Asked, named
from pytest_behaviortrace.scorecard import SeedFacts

NAMES = ("good", "bad", "unsure", "undeclared", "broken", "mixed", "short")

SCRIPT = """
import sys
import conftest
from pytest_behaviortrace import grade, session
from pytest_behaviortrace.reports import json
from pytest_behaviortrace.scorecard import SeedFacts

def main():
    session.make_grader = conftest.make_grader
    session.describe_seeds = lambda settings, seeds: [SeedFacts(s, 0.75, 0.125, 300, 2560) for s in seeds]
    card = grade({name: f"doubles:{name}" for name in sys.argv[2:]})
    with open(sys.argv[1], "w", encoding="utf-8", newline="") as file:
        file.write(json.render(card))

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def repo(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Repo:
    return Repo(pytester, monkeypatch)


def run_script(repo: Repo, *names: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`grade` in a process without a pytest session."""
    (repo.path / "script.py").write_text(SCRIPT, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "script.py", "api.json", *names], cwd=repo.path, capture_output=True, text=True, timeout=120,
        env={**os.environ, **environment}, check=False,
    )  # fmt: skip


def test_it_writes_the_bytes_that_pytest_writes(repo: Repo) -> None:
    repo.grade(*(f"--bt-estimator={name}" for name in NAMES))
    done = run_script(repo, *NAMES)
    assert done.returncode == 0, done.stderr
    ours, theirs = ((repo.path / name).read_bytes() for name in ("api.json", "report.json"))
    assert ours == theirs
    verdicts = {row["verdict"] for row in json.loads(ours)["rows"]}
    assert verdicts == {"pass", "fail", "inconclusive", "n/a", "error"}
    assert len(json.loads(ours)["rows"]) == 3 + len(NAMES) * (ROWS - 3)


def test_it_trains_once_and_says_so(repo: Repo) -> None:
    done = run_script(repo, "good", "bad")
    assert len(repo.trained()) == 1
    assert "behaviortrace: training [0, 1, 2]" in done.stderr
    assert done.stdout == ""


def test_training_that_fails_is_raised(repo: Repo) -> None:
    done = run_script(repo, "good", TRAINING="fails")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "pytest_behaviortrace.run.cache.NoRoom: no room left for the cache"


@pytest.fixture
def here(repo: Repo, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repo]:
    """The repository's fake checks and grader in this process."""
    folders: Any = checks.__path__  # the list that the package's spec has too
    shipped = list(folders)
    folders[:] = [str(repo.path / "installed" / "checks")]
    forget_checks()
    monkeypatch.syspath_prepend(str(repo.path))
    monkeypatch.setattr(session, "make_grader", lambda *_: FakeGrader())
    monkeypatch.setattr(session, "describe_seeds", lambda _, seeds: [SeedFacts(s, 0.75, 0.1, 3, 9) for s in seeds])
    yield repo
    folders[:] = shipped
    forget_checks()
    sys.modules.pop("doubles", None)


def forget_checks() -> None:
    """Check modules of one folder must not pass for those of another."""
    for name in [name for name in sys.modules if name.startswith("pytest_behaviortrace.checks.")]:
        del sys.modules[name]
        vars(checks).pop(name.rpartition(".")[2], None)


class FakeCase:
    def __init__(self, name: str, estimator: Any, seed: int | None, draw: int | None) -> None:
        self.name, self.estimator, self.seed, self.draw = name, estimator, seed, draw
        self.decision: Any = None
        self.seconds, self.peak_bytes = 0.25, 3_000_000

    def conclude(self, decision: Any) -> None:
        self.decision = decision
        decision.raise_outcome()


class FakeGrader:
    def case(self, name: str, estimator: Any, seed: int | None, draw: int | None, component: str | None) -> FakeCase:
        return FakeCase(name, estimator, seed, draw)


def test_an_estimator_that_breaks_gives_error_rows(here: Repo) -> None:
    card = grade("doubles:broken", name="mine", progress=False)
    assert card.estimators == ("mine",)
    assert {row.verdict for row in card.of("mine")} == {"error"}
    assert card.checklist_verdict("mine") == "failed"
    assert card.costs["mine"].seconds == pytest.approx(0.25 * 17)


def test_callables_are_called_what_they_are_called(here: Repo) -> None:
    import doubles  # type: ignore[import-not-found]

    assert grade(doubles.good, checks=["gradient_magnitude"], progress=False).estimators == ("good",)
    assert grade([doubles.good, "doubles:bad"], checks=["test_headroom"], progress=False).estimators == (
        "good", "doubles:bad",
    )  # fmt: skip
    card = grade({"a": doubles.good, "b": "doubles:bad"}, checks=["gradient_magnitude"], progress=False)
    assert {row.estimator: row.verdict for row in card.rows} == {"a": "pass", "b": "fail"}
    assert card.checklist_verdict("a") == "partial"


def test_a_row_can_be_asked_for_by_its_id(here: Repo) -> None:
    row = "checks/test_fluency_control.py::test_fluency_control[doubles:good-seed1-draw1]"
    assert [found.id for found in grade("doubles:good", checks=[row], progress=False).rows] == [row]


def test_seeds_and_draws_say_how_many(here: Repo) -> None:
    card = grade("doubles:good", seeds=1, draws=1, progress=False)
    assert {row.seed for row in card.rows} == {0, None}
    assert [facts.seed for facts in card.seeds] == [0]


def test_expected_failures_stay_failures_and_are_named(here: Repo) -> None:
    entries = {"bad": {"gradient_magnitude": "known weakness"}, "good": {"test_gradient_magnitude": {"reason": "why"}}}
    names = {"good": "doubles:good", "bad": "doubles:bad"}
    checks = ["gradient_magnitude"]
    card = grade(names, checks=checks, expected_failures=entries, progress=False)
    assert {(row.estimator, row.verdict, row.expected_failure) for row in card.rows} == {
        ("bad", "fail", "known weakness"), ("good", "pass", None),
    }  # fmt: skip
    assert card.refuted == {
        ("good", "test_gradient_magnitude"): "expected failure did not happen: good passes gradient_magnitude; remove "
        "the entry 'test_gradient_magnitude' of [good] in expected_failures"
    }
    for text in (str(card), " ".join(ET.fromstring(card._repr_html_()).itertext())):
        words = " ".join(text.split())
        assert "3 fail (3 expected)" in words
        assert "expected: known weakness" in words
        assert "expected failure did not happen: good passes gradient_magnitude" in words
    file = here.path / "expected.toml"
    file.write_text('[bad]\ngradient_magnitude = "from a file"\n[other]\ngradient_magnitude = "of others"\n', "utf-8")
    card = grade(names, checks=checks, expected_failures=file, progress=False)
    assert {row.expected_failure for row in card.of("bad")} == {"from a file"}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"estimator": 7}, TypeError, "is no estimator: give a callable"),
        ({"estimator": []}, ValueError, "no estimator to grade"),
        ({"estimator": {"": len}}, ValueError, "is no name of an estimator"),
        ({"estimator": {"a": 1}}, TypeError, "estimator 'a' is a int, which cannot be called"),
        ({"estimator": ["gas", "gas"]}, ValueError, "two estimators are called 'gas'"),
        ({"estimator": ["gas", "dot"], "name": "x"}, ValueError, "names a single estimator"),
        ({"estimator": "gass"}, ValueError, "unknown estimator 'gass'; did you mean 'gas'"),
        ({"estimator": "nowhere.to.be:found"}, ValueError, "cannot be imported"),
        ({"seeds": 0}, ValueError, "seeds=0 is not a number of at least 1"),
        ({"seeds": "3"}, TypeError, "seeds='3' is not a whole number"),
        ({"draws": True}, TypeError, "draws=True is not a whole number"),
        ({"timeout": -1}, ValueError, "timeout=-1 is not a number of seconds above 0"),
        ({"timeout": 0}, ValueError, "timeout=0 is not a number of seconds above 0"),
        ({"timeout": float("nan")}, ValueError, "timeout=nan is not a number of seconds above 0"),
        ({"timeout": float("inf")}, ValueError, "timeout=inf is not a number of seconds above 0"),
        ({"timeout": 1e300}, ValueError, r"timeout=1e\+300 is more than 1,000,000 seconds; give fewer"),
        ({"timeout": 10**400}, ValueError, "timeout is more than 1,000,000 seconds; give fewer"),
        ({"timeout": True}, TypeError, "timeout=True is not a number of seconds; give one"),
        ({"timeout": "60"}, TypeError, "timeout='60' is not a number of seconds; give one"),
        ({"isolate": "yes"}, TypeError, "isolate='yes' is neither True nor False; give one of them"),
        ({"isolate": 1}, TypeError, "isolate=1 is neither True nor False"),
        ({"cache_dir": "a\0b"}, ValueError, r"cache_dir='a\\x00b' has a NUL character, which no path can have"),
        ({"recipe": "a\0b"}, ValueError, r"recipe='a\\x00b' has a NUL character"),
        ({"expected_failures": "a\0b.toml"}, ValueError, r"expected_failures='a\\x00b.toml' has a NUL character"),
        ({"run": "a\0b", "behavior": "x"}, ValueError, r"run='a\\x00b' has a NUL character"),
        ({"checks": "fluency_control"}, TypeError, "is one text; give a list"),
        ({"checks": ["fluency"]}, ValueError, "neither a check nor a row of one .*fluency_control"),
        ({"recipe": "huge"}, ValueError, "huge"),
        ({"cache_dir": __file__}, ValueError, "test_grade.py is no folder; give one"),
        ({"expected_failures": {"gas": {"lookalike": "x"}}}, ValueError, "names the unknown check 'lookalike'"),
        ({"expected_failures": {"gas": {"lookalikes": 3}}}, ValueError, "the reason 3 is no text"),
        ({"expected_failures": {"dot": {"lookalikes": "x"}}}, ValueError, r"\[dot\] is neither graded"),
        ({"expected_failures": {3: {}}}, ValueError, "3 is no name of an estimator"),
        ({"expected_failures": {"gas": {3: "x"}}}, ValueError, "3 is no name of a check"),
        ({"expected_failures": {"gas": "x"}}, ValueError, "'gas' is no table"),
        ({"expected_failures": ["gas"]}, TypeError, "is neither a path nor a dict"),
        ({"expected_failures": "nowhere.toml"}, ValueError, "expected_failures: nowhere.toml cannot be read"),
        (
            {"run": "somewhere", "behavior": "x", "expected_failures": {}}, ValueError,
            "expected_failures is about planted runs",
        ),
        ({"plant": "nope"}, ValueError, "nope"),
        ({"behavior": "x"}, ValueError, "name that with run=PATH"),
        ({"run": "somewhere"}, ValueError, "give behavior=REGEX"),
        ({"run": "somewhere", "behavior": "x", "plant": "y"}, ValueError, "plant is about planted runs"),
        ({"run": "somewhere", "behavior": "x", "seeds": 2}, ValueError, "seeds is about planted runs"),
        ({"run": "somewhere", "behavior": "x"}, ValueError, "somewhere"),
    ],
)  # fmt: skip
def test_a_bad_argument_is_one_sentence(
    arguments: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message) as caught:
        grade(**{"estimator": "gas", "cache_dir": tmp_path, **arguments})
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_an_estimator_with_improper_needs_is_refused_before_training(tmp_path: Path) -> None:
    def mine(problem: Any) -> Any:
        return problem.gradients @ problem.target

    mine.needs = "gradients"  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="estimator 'mine': its attribute 'needs' must be a Needs, not str"):
        grade(mine, cache_dir=tmp_path)


def test_a_lambda_has_a_name_all_the_same() -> None:
    assert list(named(lambda problem: problem)) == ["estimator"]
    assert list(named(len, "mine")) == ["mine"]


def test_an_isolated_object_must_be_importable(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="another process cannot import"):
        Asked(named(lambda problem: problem), isolate=True, cache_dir=tmp_path).opened()


def test_the_public_names_are_there() -> None:
    assert {"grade", "parametrize_with_checks", "Scorecard", "load_problem", "dump"} <= set(
        pytest_behaviortrace.__all__
    )
    assert grade is api.grade
    assert all((isolation, scoring, settings))


@pytest.mark.filterwarnings("ignore:a library's warning")
def test_exhibits_are_kept_where_they_are_wanted(here: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = {"gates": [{"name": "AUC"}]}
    monkeypatch.setattr(FakeCase, "exhibit", lambda self, *, pictures: shown, raising=False)
    wanted = grade("doubles:good", checks=["gradient_magnitude"], exhibits=True, progress=False)
    assert wanted.exhibits == {row.id: shown for row in wanted.rows}
    assert grade("doubles:good", checks=["gradient_magnitude"], progress=False).exhibits == {}


def test_a_warning_is_shown_once_and_is_no_error(here: Repo) -> None:
    """The checks of the fake repository warn in every row, and this suite makes errors of warnings."""
    with pytest.warns(UserWarning, match="a library's warning") as caught:
        card = grade("doubles:good", checks=["gradient_magnitude", "fluency_control"], progress=False)
    assert {row.verdict for row in card.rows} == {"pass"}
    assert len(card.rows) == 9
    assert len(caught) == 2  # one for each file
