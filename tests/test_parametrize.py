"""`parametrize_with_checks`: rows as tests of a user's own file, under a plain `pytest`."""

from __future__ import annotations

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
    result.stdout.fnmatch_lines(["E *RegistryError: unknown estimator 'goood'; did you mean 'good'*"])
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
        ('["gas"], seeds=0', "seeds=0 is not a number of at least 1"),
        ('["gas"], checks=["fluency"]', "'fluency' is neither a check nor a row"),
    ],
)
def test_bad_arguments_are_collection_errors_in_one_sentence(repo: Repo, arguments: str, message: str) -> None:
    write(repo, arguments)
    result = repo.run()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines([f"E *{message}*"])


def test_a_test_without_the_argument_is_refused() -> None:
    with pytest.raises(TypeError, match=r"test_it has no argument 'row'; write def test_it\(row\): row\(\)"):

        @parametrize_with_checks(["gas"])
        def test_it() -> None: ...


def test_the_plugin_adds_nothing_to_other_tests(repo: Repo) -> None:
    repo.pytester.makepyfile(test_own="def test_a(request): assert '_behaviortrace_row' not in request.fixturenames")
    repo.pytester.runpytest_subprocess(*QUIET).assert_outcomes(passed=1)
