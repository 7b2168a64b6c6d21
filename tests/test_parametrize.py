"""`parametrize_with_checks`: rows as tests of a user's own file, under a plain `pytest`."""

from __future__ import annotations

import re

import pytest
from surface import QUIET, ROWS, Repo, modules_after

from pytest_behaviortrace import parametrize_with_checks

TESTS = """
from pytest_behaviortrace import parametrize_with_checks

@parametrize_with_checks({estimators}, {options})
def test_attribution(row):
    row()
"""

SEAM = """
from pytest_behaviortrace import session as _session
_session.make_grader = make_grader
"""


@pytest.fixture
def repo(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Repo:
    repo = Repo(pytester, monkeypatch)
    conftest = repo.path / "conftest.py"
    conftest.write_text(conftest.read_text(encoding="utf-8") + SEAM, encoding="utf-8")
    (repo.path / "test_mine.py").unlink()
    return repo


def write(repo: Repo, estimators: str, options: str = "") -> None:
    repo.pytester.makepyfile(test_own=TESTS.format(estimators=estimators, options=options))


def test_every_row_is_a_test_with_the_outcome_of_its_verdict(repo: Repo) -> None:
    write(repo, '["good", "bad", "unsure", "undeclared", "broken"]')
    result = repo.run("-rs")
    on_trial = ROWS - 3
    result.assert_outcomes(passed=3 + on_trial, failed=2 * on_trial, skipped=2 * on_trial)
    text = result.stdout.str()
    result.stdout.fnmatch_lines(
        [
            "*ClaimFailed: contradicted: AUC: 0.310 [[]0.250, 0.370[]]",
            "*EstimatorError: estimator 'broken' on 2560 rollouts raised TypeError: no len",
            "SKIPPED *test_own.py:5: inconclusive: undecided, wider than 0.15",
            "SKIPPED *test_own.py:5: n/a: undeclared needs text; siblings carry none",
        ]
    )
    assert "case.conclude" not in text  # frames of this package are no help
    assert len(repo.trained()) == 1


def test_ids_say_check_estimator_seed_and_draw(repo: Repo) -> None:
    write(repo, '["good", "doubles:bad"]', "seeds=1, draws=1")
    assert repo.ids() == [
        f"test_own.py::test_attribution[{row}]"
        for row in (
            "fluency_control-good-seed0-draw0",
            "fluency_control-doubles:bad-seed0-draw0",
            "gradient_magnitude-good-seed0",
            "gradient_magnitude-doubles:bad-seed0",
            "headroom-seed0",
            "seed_stability-good-window-precision",
            "seed_stability-good-decoy-auc",
            "seed_stability-doubles:bad-window-precision",
            "seed_stability-doubles:bad-decoy-auc",
            "trigger_alignment-good-seed0-draw0",
            "trigger_alignment-doubles:bad-seed0-draw0",
        )
    ]
    result = repo.run("test_own.py::test_attribution[gradient_magnitude-good-seed0]")
    result.assert_outcomes(passed=1)


def test_a_test_that_never_calls_its_row_fails(repo: Repo) -> None:
    """One that failed or was skipped before has said why."""
    repo.pytester.makepyfile(
        test_own="""
        import pytest
        from pytest_behaviortrace import parametrize_with_checks

        good = parametrize_with_checks(["good"], checks=["gradient_magnitude"], seeds=1)

        @pytest.fixture
        def graded(row): row()

        @good
        def test_silent(row): pass

        @good
        def test_twin(row): row()

        @good
        def test_by_fixture(row, graded): pass

        @good
        def test_skipped(row): pytest.skip("not today")

        @good
        def test_failed(row): assert 1 == 2

        def test_other(): pass
        """
    )
    result = repo.run("-rfs", "-p", "no:randomly")
    result.assert_outcomes(passed=3, failed=2, skipped=1)
    text = result.stdout.str()
    assert "test_silent never called row(), so nothing was graded" in text
    assert text.count("never called") == text.count("test_silent never called")
    result.stdout.fnmatch_lines(["FAILED test_own.py::test_failed*assert 1 == 2", "SKIPPED *not today"])


def test_objects_and_checks_can_be_given(repo: Repo) -> None:
    repo.pytester.makepyfile(
        test_own="""
        import doubles
        from pytest_behaviortrace import parametrize_with_checks

        class TestMine:
            @parametrize_with_checks({"mine": doubles.mixed}, checks=["gradient_magnitude"])
            def test_attribution(self, row, tmp_path):
                row()
        """
    )
    repo.run().assert_outcomes(passed=2, failed=1)


def test_workers_run_each_row_once(repo: Repo) -> None:
    write(repo, '["good", "bad"]')
    result = repo.run("-n", "2")
    result.assert_outcomes(passed=ROWS, failed=ROWS - 3)


def test_an_unknown_estimator_fails_its_rows_in_one_sentence(repo: Repo) -> None:
    write(repo, '["goood"]', 'checks=["headroom"]')
    result = repo.run()
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(["unknown estimator 'goood'; did you mean 'good'*"])
    assert not re.search(r"Traceback|another exception|\.py:\d+: ", result.stdout.str())
    assert repo.trained() == []


def test_collection_imports_nothing_heavy(repo: Repo) -> None:
    (repo.path / "conftest.py").unlink()  # the tests' own, which imports collection
    repo.pytester.makepyfile(test_own=TESTS.format(estimators='["gas"]', options=""))
    loaded = modules_after("-q", "--collect-only", "test_own.py", cwd=repo.path)
    assert not {"numpy", "torch", "trl", "transformers", "datasets", "pyarrow", "rich"} & loaded
    assert "pytest_behaviortrace.parametrize" in loaded


def test_warnings_of_a_library_decide_no_row(repo: Repo) -> None:
    repo.pytester.makeini("[pytest]\nfilterwarnings = error")
    write(repo, '["good"]')
    repo.run().assert_outcomes(passed=ROWS, warnings=None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("[]", "there is no estimator to grade"),
        ("7", "7 is no estimator: give a callable"),
        ("[7]", "estimator 'int' is a int, which cannot be called"),
        ('["gas"], seeds=0', "seeds=0 is not a number of at least 1"),
        ('["gas"], timeout=1e300', "timeout=1e+300 is more than 1,000,000 seconds"),
        ('["gas"], checks=["fluency"]', "checks: 'fluency' is neither a check nor a row"),
        ('["gas"], plant="nope"', "recipe 'tiny' has no plant 'nope'; its plants: frobnitz, wibble"),
        ('["gas"], recipe="huge"', "unknown recipe 'huge'; recipes: "),
        ('["gas"], recipe=7', "recipe=7 is no path"),
        ('["gas"], cache_dir=7', "cache_dir=7 is no path"),
        ('["gas"], cache_dir="test_own.py/below"', "cache_dir='test_own.py/below': test_own.py is no folder; give one"),
        ('["gas"], run="x"', "run needs to know what to look for: give behavior=REGEX"),
        ('["gas"], expected_failures=7', "expected_failures=7 is neither a path nor a dict"),
        (
            '["gas"], expected_failures={"gsa": {}}',
            "expected_failures: [[]gsa] is neither graded in this run nor registered; correct the name",
        ),
        (
            '["gas"], expected_failures={"gas": {"headroom": "why"}}',
            "expected_failures: [[]gas] names 'headroom', which puts no estimator on trial",
        ),
        ('["gas"], expected_failures="no.toml"', "expected_failures: no.toml cannot be read "),
    ],
)
def test_bad_arguments_are_collection_errors_in_one_sentence(repo: Repo, arguments: str, message: str) -> None:
    write(repo, arguments)
    result = repo.run()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines([f"test_own.py:3: parametrize_with_checks: {message}*"])
    assert_short(result)


def assert_short(result: pytest.RunResult) -> None:
    """Between the title of the error and the summary stands one line."""
    lines = result.outlines
    first = next(i for i, line in enumerate(lines) if "ERROR collecting" in line)
    last = next(i for i, line in enumerate(lines) if "short test summary" in line)
    assert last - first == 2, "\n".join(lines)


SUPPORTED = "; decorate a plain function or a method of a plain class: def test_it(row): row()"
WRONG = {
    "class": ("class Test_it: ...", f"Test_it is a class{SUPPORTED}"),
    "async": ("async def test_it(row): ...", "test_it is async, and a row is called and returns nothing *"),
    "async-generator": ("async def test_it(row): yield", "test_it is async, *"),
    "generator": ("def test_it(row): yield", "test_it is a generator, *"),
    "no-argument": ("def test_it(): ...", "test_it has no argument 'row'; write def test_it(row): row()"),
    "default": (
        "def test_it(row=None): ...",
        "test_it takes 'row' in a way in which pytest gives nothing to it (row=*",
    ),
    "starred": ("def test_it([*]row): ...", "test_it takes 'row' in a way in which pytest *"),
    "positional": ("def test_it(row, /): ...", "test_it takes 'row' in a way in which pytest *"),
    "method": ("@classmethod\ndef test_it(cls, row): ...", "test_it is a classmethod and no test function; *"),
}


@pytest.mark.parametrize(("test", "message"), WRONG.values(), ids=WRONG)
def test_what_cannot_get_rows_is_refused_in_one_sentence(repo: Repo, test: str, message: str) -> None:
    head = "from pytest_behaviortrace import parametrize_with_checks\n\n@parametrize_with_checks(['gas'])\n"
    (repo.path / "test_own.py").write_text(head + test.replace("[*]", "*"), encoding="utf-8")
    result = repo.run()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines([f"test_own.py:3: parametrize_with_checks: {message}"])
    assert_short(result)


def test_the_decorator_without_its_estimators_is_refused(repo: Repo) -> None:
    text = (
        "from pytest_behaviortrace import parametrize_with_checks\n\n@parametrize_with_checks\ndef test_it(row): row()"
    )
    (repo.path / "test_own.py").write_text(text, encoding="utf-8")
    result = repo.run()
    result.stdout.fnmatch_lines(
        ["test_own.py:3: *: it was given the test test_it in place of estimators; write @parametrize_with_checks([[]*"]
    )
    assert_short(result)


def test_a_static_method_and_a_keyword_get_their_rows(repo: Repo) -> None:
    repo.pytester.makepyfile(
        test_own="""
        from pytest_behaviortrace import parametrize_with_checks

        class TestMine:
            @parametrize_with_checks(["good"], checks=["gradient_magnitude"])
            @staticmethod
            def test_static(tmp_path, *, row):
                row()
        """
    )
    repo.run().assert_outcomes(passed=3)


def test_a_method_of_a_test_case_is_refused_in_one_sentence(repo: Repo) -> None:
    repo.pytester.makepyfile(
        test_own="""
        import unittest
        from pytest_behaviortrace import parametrize_with_checks

        class TestMine(unittest.TestCase):
            @parametrize_with_checks(["good"])
            def test_it(self, row):
                row()
        """
    )
    result = repo.run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        [
            "TestMine.test_it is decorated with parametrize_with_checks, and pytest gives no arguments to methods of "
            f"unittest.TestCase{SUPPORTED}"
        ]
    )
    assert "Traceback" not in result.stdout.str()
    assert repo.trained() == []


def test_outside_of_pytest_it_raises_what_grade_raises() -> None:
    for error in (ValueError, TypeError):
        with pytest.raises(error, match=r"^test_parametrize\.py:\d+: parametrize_with_checks: seeds=0 is not a number"):
            parametrize_with_checks(["gas"], seeds=0)


@pytest.mark.parametrize("training", ["fails"])
def test_training_that_fails_is_one_sentence_a_row(repo: Repo, training: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINING", training)
    write(repo, '["good"]', 'checks=["headroom"]')
    result = repo.run()
    result.assert_outcomes(failed=3)
    assert result.outlines.count("no room left for the cache") == 3
    assert "Traceback" not in result.stdout.str()
    assert len(repo.trained()) == 1


def test_the_plugin_adds_nothing_to_other_tests(repo: Repo) -> None:
    repo.pytester.makepyfile(test_own="def test_a(request): assert '_behaviortrace_row' not in request.fixturenames")
    repo.pytester.runpytest_subprocess(*QUIET).assert_outcomes(passed=1)
