"""Expected failures among the rows of `parametrize_with_checks`: as in a session with --bt-estimator."""

from __future__ import annotations

import pytest
from surface import Repo
from test_parametrize import repo, write

assert repo  # the fixture

WORKERS = pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["serial", "xdist"])
ON_WORKERS = pytest.mark.parametrize("workers", [("-n2",)], ids=["xdist"])
SERIAL = pytest.mark.parametrize("workers", [()], ids=["serial"])
MAGNITUDE = 'checks=["gradient_magnitude"]'


def told(result: pytest.RunResult) -> str:
    return " ".join(result.stdout.str().split())


@WORKERS
def test_a_row_that_fails_as_expected_is_xfailed(repo: Repo, workers: tuple[str, ...]) -> None:
    write(
        repo,
        '["bad", "mixed"]',
        f'{MAGNITUDE}, expected_failures={{"bad": {{"gradient_magnitude": "known weakness"}}}}',
    )
    result = repo.run("-rx", *workers)
    assert result.ret == 1
    result.assert_outcomes(xfailed=3, passed=2, failed=1)
    result.stdout.fnmatch_lines(
        ["XFAIL test_own.py::test_attribution[[]gradient_magnitude-bad-seed1] - *known weakness"]
    )
    assert "did not happen" not in result.stdout.str()


@ON_WORKERS
def test_the_file_of_the_ini_is_the_default(repo: Repo, workers: tuple[str, ...]) -> None:
    """An estimator of which this decorator knows nothing may be another's."""
    repo.pytester.makeini("[pytest]\nbt_expected_failures = sub/expected.toml")
    (repo.path / "sub").mkdir()
    (repo.path / "sub" / "expected.toml").write_text('[bad]\ngradient_magnitude = "why"\n[other]\nlookalikes = "x"')
    write(repo, '["bad"]')
    shipped = repo.path / "installed" / "checks"
    text = (shipped / "test_gradient_magnitude.py").read_text(encoding="utf-8")
    (shipped / "test_lookalikes.py").write_text(text.replace("gradient_magnitude", "lookalikes"), encoding="utf-8")
    repo.run("-k", "magnitude", *workers).assert_outcomes(xfailed=3)
    write(repo, '["bad"]', "expected_failures={}")
    repo.run("-k", "magnitude", *workers).assert_outcomes(failed=3)
    write(repo, '["bad"]', 'expected_failures="sub/expected.toml"')
    repo.run("-k", "magnitude", "-o", "bt_expected_failures=", *workers).assert_outcomes(xfailed=3)


@WORKERS
def test_a_failure_that_does_not_happen_fails_the_session(repo: Repo, workers: tuple[str, ...]) -> None:
    both = '{"good": {"gradient_magnitude": "why"}, "mixed": {"test_gradient_magnitude": "unlucky"}}'
    write(repo, '["good", "mixed"]', f"{MAGNITUDE}, expected_failures={both}")
    result = repo.run(*workers)
    assert result.ret == 1
    result.assert_outcomes(passed=5, xfailed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "expected failure did not happen: good passes gradient_magnitude; remove the entry 'gradient_magnitude' of "
            "[[]good] in expected_failures",
            "FAILED test_own.py::test_attribution[[]gradient_magnitude-good-expected-to-fail]*",
        ]
    )
    assert "mixed-expected-to-fail" not in result.stdout.str()
    assert list(repo.path.glob(".pytest_cache/v/cache/lastfailed")) == []  # no test has that id


@SERIAL
def test_it_is_only_said_where_the_entry_is_not_strict(repo: Repo, workers: tuple[str, ...]) -> None:
    entry = '{"good": {"gradient_magnitude": {"reason": "noisy", "strict": False}}}'
    write(repo, '["good"]', f"{MAGNITUDE}, expected_failures={entry}")
    result = repo.run(*workers)
    assert result.ret == 0
    result.assert_outcomes(passed=3)
    assert "behaviortrace: expected failure did not happen: good passes gradient_magnitude; the entry" in told(result)


@ON_WORKERS
def test_nothing_is_concluded_from_a_selection(repo: Repo, workers: tuple[str, ...]) -> None:
    row = "checks/test_gradient_magnitude.py::test_gradient_magnitude[good-seed0]"
    for options, args, passed in ((MAGNITUDE, ("-k", "seed0 or seed1"), 2), (f'checks=["{row}"]', (), 1)):
        write(repo, '["good"]', f'{options}, expected_failures={{"good": {{"gradient_magnitude": "why"}}}}')
        result = repo.run(*args, *workers)
        assert result.ret == 0
        result.assert_outcomes(passed=passed)
        assert "did not happen" not in result.stdout.str()


def test_an_error_and_an_undecided_row_are_never_expected(repo: Repo) -> None:
    entries = {name: {"gradient_magnitude": "why"} for name in ("broken", "unsure", "undeclared")}
    write(repo, str(list(entries)), f"{MAGNITUDE}, expected_failures={entries}")
    result = repo.run()
    assert result.ret == 1
    result.assert_outcomes(failed=3, skipped=6)
    assert "did not happen" not in result.stdout.str()


def test_runxfail_expects_nothing(repo: Repo) -> None:
    entries = {name: {"gradient_magnitude": "why"} for name in ("good", "bad")}
    write(repo, str(list(entries)), f"{MAGNITUDE}, expected_failures={entries}")
    repo.run("--runxfail").assert_outcomes(failed=3, passed=3)


def test_a_file_that_cannot_be_used_fails_the_rows_in_one_sentence(repo: Repo) -> None:
    repo.pytester.makeini("[pytest]\nbt_expected_failures = absent.toml")
    write(repo, '["bad"]', MAGNITUDE)
    result = repo.run()
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(["bt_expected_failures: absent.toml cannot be read *"])
    assert "Traceback" not in result.stdout.str()


def test_two_tests_with_the_same_rows_are_two_claims(repo: Repo) -> None:
    repo.pytester.makepyfile(
        test_own="""
        from pytest_behaviortrace import parametrize_with_checks

        rows = parametrize_with_checks(
            ["good"], checks=["gradient_magnitude"], expected_failures={"good": {"gradient_magnitude": "why"}}
        )

        @rows
        def test_one(row):
            row()

        class TestMine:
            @rows
            def test_two(self, row):
                row()
        """
    )
    result = repo.run()
    result.assert_outcomes(passed=6, failed=2)
    result.stdout.fnmatch_lines(
        [
            "FAILED test_own.py::test_one[[]gradient_magnitude-good-expected-to-fail]*",
            "FAILED test_own.py::TestMine::test_two[[]gradient_magnitude-good-expected-to-fail]*",
        ]
    )


@WORKERS
def test_nothing_is_concluded_of_a_row_that_was_never_called(repo: Repo, workers: tuple[str, ...]) -> None:
    repo.pytester.makepyfile(
        test_own=f"""
        from pytest_behaviortrace import parametrize_with_checks

        why = {{"good": {{"gradient_magnitude": "why"}}}}

        @parametrize_with_checks(["good"], {MAGNITUDE}, expected_failures=why)
        def test_it(row):
            if row.spec.seed:
                row()
        """
    )
    result = repo.run(*workers)
    result.assert_outcomes(passed=2, failed=1)
    assert "test_it never called row(), so nothing was graded" in result.stdout.str()
    assert "did not happen" not in result.stdout.str()
