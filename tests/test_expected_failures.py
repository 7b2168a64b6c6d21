"""Failures that were expected: what the file may say, what becomes of rows, and what if the failure does not happen."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from surface import ROWS, Repo, magnitude

from pytest_behaviortrace.expected import ExpectedFailure, ExpectedFailures, ExpectedFailuresError, load, parse

CHECKS = {"test_headroom": False, "test_lookalikes": True, "test_reward_control": True}
ESTIMATORS = ("gas", "mine.scores:make")
WORKERS = pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["serial", "xdist"])
ON_WORKERS = pytest.mark.parametrize("workers", [("-n2",)], ids=["xdist"])
SERIAL = pytest.mark.parametrize("workers", [()], ids=["serial"])
GOOD_PASSES = (
    "expected failure did not happen: good passes gradient_magnitude; "
    "remove the line 'gradient_magnitude' of [good] in expected.toml"
)


def entries(text: str) -> list[ExpectedFailure]:
    return parse(text, "expected.toml", CHECKS, ESTIMATORS)


@pytest.fixture
def repo(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Repo:
    return Repo(pytester, monkeypatch)


def expect(repo: Repo, text: str) -> None:
    """Let the repository expect failures."""
    repo.pytester.makeini("[pytest]\nbt_expected_failures = expected.toml")
    (repo.path / "expected.toml").write_text(text, encoding="utf-8")


def reasons(repo: Repo) -> dict[str, str | None]:
    """Row id -> expected_failure of the last `grade`."""
    return {row["id"]: row["expected_failure"] for row in repo.report()["rows"]}


def scorecard(result: pytest.RunResult) -> str:
    """The scorecard of a run, its lines unwrapped."""
    return " ".join(result.stdout.str().partition("behaviortrace scorecard")[2].split())


# -- the file ----------------------------------------------------------------------------------------------------------
def test_an_entry_is_a_reason_or_a_table_under_either_name_of_the_check():
    found = entries(
        '[gas]\nlookalikes = "no\\n credit"\n["mine.scores:make"]\n'
        'test_lookalikes = { reason = "why" }\nreward_control = { reason = "noisy", strict = false }'
    )
    assert found == [
        ExpectedFailure(
            "gas", "test_lookalikes", "no credit", True, "the line 'lookalikes' of [gas] in expected.toml"
        ),
        ExpectedFailure(
            "mine.scores:make", "test_lookalikes", "why", True,
            "the line 'test_lookalikes' of [\"mine.scores:make\"] in expected.toml",
        ),
        ExpectedFailure(
            "mine.scores:make", "test_reward_control", "noisy", False,
            "the line 'reward_control' of [\"mine.scores:make\"] in expected.toml",
        ),
    ]  # fmt: skip


def test_the_last_line_of_a_table_can_be_removed():
    assert entries("[gas]\n") == []
    assert entries("") == []


BAD = {
    "no-toml": ("[gas]\nlookalikes", "expected.toml is not TOML: *(at line 2, *); mend that line"),
    "no-toml-at-the-end": ("[gas]\nx = ", "expected.toml is not TOML: *(at line 2, the end); mend that line"),
    "unquoted-factory": ("[a:b]\n", "expected.toml is not TOML: *(at line 1, *); mend that line"),
    "no-table": ('lookalikes = "why"', "expected.toml: 'lookalikes' is no table; entries stand below their estimator*"),
    "estimator": (
        '[gsa]\nlookalikes = "why"',
        "expected.toml: [[]gsa] is neither graded in this run nor registered; *",
    ),
    "check": (
        '[gas]\nlookalike = "why"',
        "*: [[]gas] names the unknown check 'lookalike'; checks: lookalikes, reward*",
    ),
    "headroom": ('[gas]\nheadroom = "why"', "*: [[]gas] names 'headroom', which puts no estimator on trial; remove *"),
    "twice": ('[gas]\nlookalikes = "a"\ntest_lookalikes = "b"', "*: [[]gas] names test_lookalikes twice, *"),
    "empty": ('[gas]\nlookalikes = " "', "*: [[]gas] lookalikes: the reason is empty; say why the failure is expected"),
    "empty-in-a-table": ('[gas]\nlookalikes = { reason = "" }', "*: [[]gas] lookalikes: the reason is empty; *"),
    "missing": ("[gas]\nlookalikes = { strict = false }", "*: [[]gas] lookalikes has no reason; say why *"),
    "type": ("[gas]\nlookalikes = true", "*: [[]gas] lookalikes: the reason True is no text; say in quotes *"),
    "reason-type": ("[gas]\nlookalikes = { reason = 1 }", "*: [[]gas] lookalikes: the reason 1 is no text; *"),
    "strict-type": (
        '[gas]\nlookalikes = { reason = "why", strict = "no" }',
        "*: [[]gas] lookalikes: strict = 'no' is not known; choose true or false",
    ),
    "key": (
        '[gas]\nlookalikes = { reason = "why", seeds = 1 }',
        "*: [[]gas] lookalikes has the unknown key 'seeds'; keys: reason, strict",
    ),
}


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD)
def test_a_file_that_cannot_be_used_is_one_sentence(text, message):
    with pytest.raises(ExpectedFailuresError) as caught:
        entries(text)
    pytest.LineMatcher([str(caught.value)]).fnmatch_lines([message])
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path):
    (tmp_path / "latin.toml").write_bytes(b'[gas]\nlookalikes = "\xe9"')
    for name, problem in (
        ("absent.toml", "absent.toml cannot be read (*absent.toml: No such file or directory); give *"),
        (".", ". cannot be read (*: Is a directory); give *"),
        ("latin.toml", "latin.toml is not UTF-8 text; save it as UTF-8"),
    ):
        with pytest.raises(ExpectedFailuresError) as caught:
            load(tmp_path / name, name, CHECKS, ESTIMATORS)
        pytest.LineMatcher([str(caught.value)]).fnmatch_lines([problem])


# -- when an entry was wrong -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("rows", "what"),
    [
        (["pass", "pass"], "gas passes lookalikes"),
        (["pass", "n/a"], "gas passes lookalikes"),
        (["pass", "inconclusive"], "no row of lookalikes fails for gas (1 pass, 1 inconclusive)"),
        (["pass", "fail"], None),
        (["pass", None], None),
        (["pass", "error"], None),
        (["inconclusive", "n/a"], None),
        (["n/a", "n/a"], None),
        ([], None),
    ],
    ids=lambda value: "-".join(map(str, value)) or "none" if isinstance(value, list) else "",
)
def test_an_entry_was_wrong_once_every_row_ran_and_some_passed_and_none_failed(rows, what):
    found = ExpectedFailures(entries('[gas]\nlookalikes = "why"')).refuted({("gas", "test_lookalikes"): rows})
    remedy = "; remove the line 'lookalikes' of [gas] in expected.toml"
    assert [one.message for one in found] == (
        [f"expected failure did not happen: {what}{remedy}"] if what is not None else []
    )


def test_what_fails_a_row_is_what_can_be_expected():
    rows = {("gas", "test_lookalikes"): ["pass", "inconclusive"]}
    for failing, reason, wrong in ((("fail",), None, 1), (("fail", "inconclusive"), "why", 0)):
        expected = ExpectedFailures(entries('[gas]\nlookalikes = "why"'), failing)
        assert expected.reason("gas", "test_lookalikes", "inconclusive") == reason
        assert expected.reason("gas", "test_lookalikes", "fail") == "why"
        assert expected.reason("gas", "test_lookalikes", "error") is None
        assert expected.reason("gas", "test_reward_control", "fail") is None
        assert len(expected.refuted(rows)) == wrong


# -- rows --------------------------------------------------------------------------------------------------------------
@WORKERS
def test_a_failed_row_is_xfailed_and_still_a_fail(repo, workers):
    expect(repo, '[bad]\ngradient_magnitude = "known weakness"')
    result = repo.grade("--bt-estimator=bad", "-k", "magnitude or headroom", "-rx", "--junitxml=junit.xml", *workers)
    assert result.ret == 0
    result.assert_outcomes(passed=3, xfailed=3)
    result.stdout.fnmatch_lines([f"XFAIL {magnitude('bad', 1)} - known weakness".replace("[", "[[]")])
    assert repo.verdicts()[magnitude("bad", 1)] == "fail"
    assert reasons(repo)[magnitude("bad", 1)] == "known weakness"
    assert reasons(repo)["checks/test_headroom.py::test_headroom[seed1]"] is None
    assert list(repo.report()["rows"][0])[-1] == "expected_failure"
    assert "bad: FAILED (3 of 17 rows: 3 fail (3 expected))" in scorecard(result)
    assert "contradicted: AUC: 0.310 [0.250, 0.370] expected: known weakness rerun: pytest" in scorecard(result)
    suite = next(ET.parse(repo.path / "junit.xml").iter("testsuite"))
    assert (suite.get("failures"), suite.get("errors"), suite.get("skipped")) == ("0", "0", "3")
    (case,) = [case for case in suite.iter("testcase") if case.get("name") == "test_gradient_magnitude[bad-seed1]"]
    found = {p.get("name"): p.get("value") for p in case.iter("property")}
    assert (found["bt_verdict"], found["bt_expected_failure"]) == ("fail", "known weakness")
    skipped = case.find("skipped")
    assert skipped is not None
    assert (skipped.get("type"), skipped.get("message")) == ("pytest.xfail", "known weakness")


def test_a_failure_elsewhere_still_fails_and_the_checklist_verdict_stays(repo):
    expect(repo, '[bad]\ntest_gradient_magnitude = "known weakness"')
    result = repo.grade("--bt-estimator=bad", "--bt-estimator=mixed", "-k", "magnitude or stability")
    assert result.ret == 1
    result.assert_outcomes(passed=4, xfailed=3, failed=3)
    assert "bad: FAILED (5 of 17 rows: 5 fail (3 expected))" in scorecard(result)
    assert reasons(repo)[magnitude("mixed", 1)] is None


def test_expecting_every_failure_makes_no_estimator_pass(repo):
    checks = ("gradient_magnitude", "fluency_control", "trigger_alignment", "seed_stability")
    expect(repo, "[bad]\n" + "\n".join(f'{check} = "known weakness"' for check in checks))
    result = repo.grade("--bt-estimator=bad")
    assert result.ret == 0
    assert "bad: FAILED (17 rows: 17 fail (17 expected))" in scorecard(result)


def test_an_entry_covers_the_failed_rows_and_leaves_the_passed_ones(repo):
    expect(repo, '[mixed]\ngradient_magnitude = "unlucky on seed 1"')
    result = repo.grade("--bt-estimator=mixed", "-k", "magnitude")
    assert result.ret == 0
    result.assert_outcomes(passed=2, xfailed=1)
    assert [reasons(repo)[magnitude("mixed", seed)] for seed in range(3)] == [None, "unlucky on seed 1", None]
    assert "did not happen" not in result.stdout.str()


def test_an_error_and_n_a_are_never_expected(repo):
    expect(repo, '[broken]\ngradient_magnitude = "why"\n[undeclared]\ngradient_magnitude = "why"')
    result = repo.grade("--bt-estimator=broken", "--bt-estimator=undeclared", "-k", "magnitude")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*3 errors, 3 n/a*"])
    assert set(reasons(repo).values()) == {None}
    assert "did not happen" not in result.stdout.str()


def test_a_dead_worker_is_never_expected(repo):
    expect(repo, '[fatal]\ngradient_magnitude = "why"')
    result = repo.grade("--bt-estimator=fatal", "-n1", magnitude("fatal"))
    assert result.ret == 1
    assert repo.verdicts() == {magnitude("fatal"): "error"}
    assert reasons(repo) == {magnitude("fatal"): None}


def test_an_inconclusive_row_is_expected_only_where_it_would_fail(repo):
    expect(repo, '[unsure]\ngradient_magnitude = "too noisy"')
    result = repo.grade("--bt-estimator=unsure", "-k", "magnitude")
    assert result.ret == 5
    result.stdout.fnmatch_lines(["*3 inconclusive*"])
    assert set(reasons(repo).values()) == {None}
    result = repo.grade("--bt-estimator=unsure", "-k", "magnitude", "--bt-fail-on=inconclusive")
    assert result.ret == 5  # nothing was decided, and that is as it was
    result.assert_outcomes(xfailed=3)
    assert set(repo.verdicts().values()) == {"inconclusive"}
    assert set(reasons(repo).values()) == {"too noisy"}
    assert "3 inconclusive (3 expected)" in scorecard(result)


def test_only_the_failed_claim_itself_is_expected(repo):
    """Another plugin that fails the same row, here one around the call, is not excused."""
    repo.pytester.makepyfile(
        other="""
import pytest
@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    try:
        yield
    finally:
        raise RuntimeError("a thread was left behind")
"""
    )
    expect(repo, '[bad]\ngradient_magnitude = "known weakness"')
    result = repo.run("--bt-estimator=bad", "-p", "other", magnitude("bad"))
    assert result.ret == 1
    result.assert_outcomes(failed=1)


def test_a_failure_is_shown_with_its_own_sentence_on_request(repo):
    expect(repo, '[bad]\ngradient_magnitude = "known weakness"')
    result = repo.run("--bt-estimator=bad", "-k", "magnitude and seed0", "--xfail-tb")
    result.stdout.fnmatch_lines(["*XFAILURES*", "E   fail: bad, seed 0: contradicted: AUC: 0.310*"])


def test_runxfail_expects_nothing(repo):
    expect(repo, '[bad]\ngradient_magnitude = "why"\n[good]\ngradient_magnitude = "why"')
    result = repo.grade("--bt-estimator=bad", "--bt-estimator=good", "-k", "magnitude", "--runxfail")
    assert result.ret == 1
    result.assert_outcomes(failed=3, passed=3)
    assert set(reasons(repo).values()) == {None}


# -- an expected failure that does not happen --------------------------------------------------------------------------
@WORKERS
def test_a_failure_that_does_not_happen_fails_the_session(repo, workers):
    expect(repo, '[good]\ngradient_magnitude = "why"\n[bad]\ngradient_magnitude = "why"')
    result = repo.grade(
        "--bt-estimator=good", "--bt-estimator=bad", "-k", "magnitude", "-v", "--junitxml=junit.xml", *workers
    )
    assert result.ret == 1
    result.assert_outcomes(passed=3, xfailed=3, failed=1)
    name = "test_gradient_magnitude[good-expected-to-fail]"
    result.stdout.fnmatch_lines(
        [
            "*= FAILURES =*",
            f"*{name} _*".replace("[", "[[]"),
            GOOD_PASSES.replace("[", "[[]"),
            f"FAILED checks/test_gradient_magnitude.py::{name}*".replace("[", "[[]"),
        ]
    )
    assert f"{GOOD_PASSES} " in scorecard(result)
    assert "[116%]" not in result.stdout.str()
    suite = next(ET.parse(repo.path / "junit.xml").iter("testsuite"))
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("7", "1", "0")
    (case,) = [case for case in suite.iter("testcase") if case.find("failure") is not None]
    assert (case.get("classname"), case.get("name")) == ("checks.test_gradient_magnitude", name)
    failure = case.find("failure")
    assert failure is not None
    assert failure.get("message") == GOOD_PASSES
    assert set(repo.verdicts()) == {magnitude(e, s) for e in ("good", "bad") for s in range(3)}


@SERIAL
def test_it_is_only_said_where_the_entry_is_not_strict(repo, workers):
    expect(repo, '[good]\ngradient_magnitude = { reason = "noisy", strict = false }')
    result = repo.run("--bt-estimator=good", "-k", "magnitude", *workers)
    assert result.ret == 0
    result.assert_outcomes(passed=3)
    assert (
        "expected failure did not happen: good passes gradient_magnitude; the line 'gradient_magnitude' of [good] in "
        "expected.toml is not strict, so this fails nothing"
    ) in scorecard(result)


def test_a_strict_entry_is_wrong_beside_undecided_rows_too(repo):
    doubles = repo.path / "doubles.py"
    doubles.write_text(doubles.read_text(encoding="utf-8").replace("(bad if", "(unsure if"), encoding="utf-8")
    expect(repo, '[mixed]\ngradient_magnitude = "why"')
    result = repo.run("--bt-estimator=mixed", "-k", "magnitude")
    assert result.ret == 1
    assert "no row of gradient_magnitude fails for mixed (2 pass, 1 inconclusive); remove the line" in scorecard(result)


def test_nothing_is_concluded_from_a_selection(repo):
    expect(repo, '[mixed]\ngradient_magnitude = "why"\n[good]\ngradient_magnitude = "why"')
    args = ("--bt-estimator=mixed", "--bt-estimator=good")
    for selection in (("-k", "magnitude and (seed0 or seed2)"), (magnitude("good"), magnitude("mixed", 2))):
        result = repo.run(*args, *selection)
        assert result.ret == 0
        assert "did not happen" not in result.stdout.str()


def test_nothing_is_concluded_from_the_last_failed_rows(repo):
    """The row that failed last time is expected to fail now, and passes; the others are not run."""
    repo.run("--bt-estimator=mixed", "-k", "magnitude")
    doubles = repo.path / "doubles.py"
    doubles.write_text(doubles.read_text(encoding="utf-8").replace("(bad if", "(good if"), encoding="utf-8")
    expect(repo, '[mixed]\ngradient_magnitude = "why"')
    result = repo.run("--bt-estimator=mixed", "-k", "magnitude", "--lf")
    assert result.ret == 0
    result.assert_outcomes(passed=1, deselected=ROWS - 1)
    assert "did not happen" not in result.stdout.str()


def test_a_session_that_was_broken_off_stays_that(repo):
    """Every row of the entry has run, so the scorecard says so; the exit code is that of the interruption."""
    doubles = repo.path / "doubles.py"
    interrupt = "def good(case):\n    if case.component: raise KeyboardInterrupt"
    doubles.write_text(doubles.read_text(encoding="utf-8").replace("def good(case):", interrupt), encoding="utf-8")
    expect(repo, '[good]\ngradient_magnitude = "why"')
    result = repo.run("--bt-estimator=good", "-k", "magnitude or stability")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert GOOD_PASSES in scorecard(result)
    assert "expected-to-fail" not in result.stdout.str()


def test_last_failed_does_not_look_for_a_row_that_never_was(repo):
    expect(repo, '[good]\ngradient_magnitude = "why"\n')
    assert repo.run("--bt-estimator=good", "--bt-estimator=bad", "-k", "magnitude").ret == 1
    failed = json.loads(next(repo.path.glob(".pytest_cache/v/cache/lastfailed")).read_text(encoding="utf-8"))
    assert set(failed) == {magnitude("bad", seed) for seed in range(3)}


# -- from the command line and the ini file ----------------------------------------------------------------------------
@SERIAL
def test_a_file_that_cannot_be_used_exits_4_before_training(repo, workers):
    expect(repo, '[good]\nheadroom = "why"')
    result = repo.run("--bt-estimator=good", *workers)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: bt_expected_failures: expected.toml: [[]good] names 'headroom', which puts no estimator on trial; *"]
    )
    assert "Traceback" not in result.stderr.str()
    (repo.path / "expected.toml").unlink()
    result = repo.run("--bt-estimator=good", *workers)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: bt_expected_failures: expected.toml cannot be read *"])
    assert repo.trained() == []


def test_estimators_that_are_registered_but_not_graded_may_have_entries(repo):
    expect(repo, '[bad]\ngradient_magnitude = "why"')
    repo.run("--bt-estimator=good", "-k", "magnitude").assert_outcomes(passed=3)
    expect(repo, '["doubles:bad"]\ngradient_magnitude = "why"')
    repo.run("--bt-estimator=good", "-k", "magnitude").assert_outcomes(passed=3)  # a path may be for other runs
    repo.run("--bt-estimator=doubles:bad", "-k", "magnitude").assert_outcomes(xfailed=3)


@ON_WORKERS
def test_the_path_is_relative_to_the_ini_file_and_can_be_overridden(repo, workers, monkeypatch):
    expect(repo, '[bad]\ngradient_magnitude = "why"')
    monkeypatch.chdir(repo.pytester.mkdir("below"))
    args = ("--bt-estimator=bad", "-k", "magnitude and seed0", *workers)
    repo.run(*args).assert_outcomes(xfailed=1)
    Path("other.toml").write_text('[bad]\ngradient_magnitude = "another reason"', encoding="utf-8")
    result = repo.run(*args, "-o", "bt_expected_failures=below/other.toml", "-rx")
    result.stdout.fnmatch_lines(["XFAIL * - another reason"])
    repo.run(*args, "-o", "bt_expected_failures=").assert_outcomes(failed=1)


def test_where_nothing_is_graded_the_file_is_not_even_read(repo):
    repo.pytester.makeini("[pytest]\nbt_expected_failures = absent.toml\naddopts = --strict-config")
    repo.run().assert_outcomes(passed=1)


def test_the_report_is_the_same_on_workers(repo):
    expect(repo, '[mixed]\ngradient_magnitude = "why"\nfluency_control = "why"')
    reports = []
    for workers in ((), ("-n2",)):
        repo.grade("--bt-estimator=mixed", *workers)
        reports.append((repo.path / "report.json").read_bytes())
    assert reports[0] == reports[1]
