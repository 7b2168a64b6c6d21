"""Five verdicts, pytest's three outcomes, and exit codes that a CI can rely on."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest
from surface import ROWS, Repo, magnitude

from pytest_behaviortrace.estimator import EstimatorError
from pytest_behaviortrace.outcome import sentence, verdict_of
from pytest_behaviortrace.verdict import ClaimFailed, Inconclusive, NotApplicable, Verdict


@pytest.fixture
def repo(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Repo:
    return Repo(pytester, monkeypatch)


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (ClaimFailed("x"), Verdict.FAIL),
        (Inconclusive("x"), Verdict.INCONCLUSIVE),
        (NotApplicable("x"), Verdict.NOT_APPLICABLE),
        (EstimatorError("x"), Verdict.ERROR),
        (AssertionError("x"), Verdict.ERROR),
        (pytest.skip.Exception("x"), Verdict.ERROR),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_only_the_projects_own_outcomes_are_verdicts(error, verdict):
    assert verdict_of(error) is verdict


def test_a_sentence_names_foreign_exceptions_only():
    assert sentence(EstimatorError("estimator 'x' broke\nmore")) == "estimator 'x' broke"
    assert sentence(KeyError("x")) == "KeyError: 'x'"
    assert sentence(ValueError()) == "ValueError: "


@pytest.mark.parametrize(
    ("estimator", "verdict", "code", "summary"),
    [
        ("good", "pass", 0, "*3 passed*"),
        ("bad", "fail", 1, "*3 failed*"),
        ("unsure", "inconclusive", 5, "*3 inconclusive*"),
        ("undeclared", "n/a", 5, "*3 n/a*"),
        ("broken", "error", 1, "*3 errors*"),
        ("odd", "error", 1, "*3 errors*"),
        ("mixed", "fail", 1, "*1 failed, 2 passed*"),
    ],
)
def test_verdicts_words_and_exit_codes(repo, estimator, verdict, code, summary):
    result = repo.grade(f"--bt-estimator={estimator}", "-k", "magnitude")
    assert repo.verdicts()[magnitude(estimator, 1)] == verdict
    assert result.ret == code
    result.stdout.fnmatch_lines([summary])


def test_words_in_the_verbose_list(repo):
    names = ("good", "bad", "unsure", "undeclared", "broken")
    result = repo.run(*(f"--bt-estimator={n}" for n in names), "-v", "-k", "magnitude and seed0")
    words = ("PASSED", "FAILED", "INCONCLUSIVE", "N/A", "ERROR")
    for name, word in zip(names, words, strict=True):
        result.stdout.fnmatch_lines([f"*magnitude[[]{name}-seed0[]] {word}*"])


def test_a_verbose_session_tells_of_every_row_that_did_not_pass(repo):
    plain, verbose = (
        repo.run("--bt-estimator=bad", "-k", "magnitude", *flags).stdout.str().partition("behaviortrace scorecard")[2]
        for flags in ((), ("-v",))
    )
    told = [line for line in verbose.splitlines() if re.match(r"      seed\d: fail ", line)]
    assert len(told) == 2
    assert "seed1: fail" not in plain


def test_reasons_of_rows_that_decide_nothing(repo):
    result = repo.run("--bt-estimator=unsure", "--bt-estimator=undeclared", "-rsx", "-k", "magnitude and seed0", "-ra")
    text = result.stdout.str()
    assert "Inconclusive:" not in text
    assert "undeclared needs text; siblings carry none" in text


def test_headroom_alone_is_no_verdict_about_an_estimator(repo):
    assert repo.run("--bt-estimator=unsure", "-k", "magnitude or headroom").ret == 5
    assert repo.run("--bt-estimator=unsure", "-k", "headroom").ret == 0


def test_inconclusive_fails_the_session_where_that_is_asked(repo):
    result = repo.grade("--bt-estimator=unsure", "--bt-fail-on=inconclusive", "-v", "-k", "magnitude")
    assert result.ret == 1
    assert set(repo.verdicts().values()) == {"inconclusive"}
    result.stdout.fnmatch_lines(
        ["*seed0[]] INCONCLUSIVE*", "E   inconclusive: unsure, seed 0: undecided*", "*3 failed*"]
    )


def test_an_error_names_estimator_and_seed_and_shows_its_own_code_once(repo):
    result = repo.run("--bt-estimator=broken", "-k", "magnitude")
    text = result.stdout.str()
    assert "error: broken, seed 2: estimator 'broken' on 2560 rollouts raised TypeError: no len" in text
    assert "return len(None)" in text
    assert "collection.py" not in text
    assert "checklist.py" not in text


def test_a_check_that_breaks_shows_where(repo):
    text = repo.run("--bt-estimator=odd", "-k", "magnitude and seed0").stdout.str()
    assert "error: odd, seed 0: AssertionError" in text
    assert 'assert case.name == "even"' in text


def test_pytests_own_traceback_on_request(repo):
    text = repo.run("--bt-estimator=broken", "--tb=long", "-k", "magnitude and seed0").stdout.str()
    assert "collection.py" in text


def test_failed_training_is_one_error_per_row_after_one_attempt(repo, monkeypatch):
    monkeypatch.setenv("TRAINING", "fails")
    result = repo.grade("--bt-estimator=good")
    assert result.ret == 1
    assert set(repo.verdicts().values()) == {"error"}
    assert len(repo.verdicts()) == ROWS
    assert {row["reason"] for row in repo.report()["rows"]} == {"no room left for the cache"}
    assert len(repo.trained()) == 1


def test_interrupted_training_ends_the_session_cleanly(repo, monkeypatch):
    (repo.path / "report.json").write_text("the last one")
    monkeypatch.setenv("TRAINING", "interrupted")
    result = repo.grade("--bt-estimator=good")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert "INTERNALERROR" not in result.stdout.str() + result.stderr.str()
    assert (repo.path / "report.json").read_text() == "the last one"


def test_training_is_shown_past_capture_on_a_line_of_its_own(repo):
    result = repo.run("--bt-estimator=good")
    assert "behaviortrace: training [0, 1, 2]" in result.stderr.lines
    result.stdout.no_fnmatch_line("*training [[]0*")


def test_numbers_are_in_junit(repo):
    repo.run("--bt-estimator=good", "--bt-estimator=unsure", "-k", "magnitude and seed0", "--junitxml=junit.xml")
    cases = {case.get("name"): case for case in ET.parse(repo.path / "junit.xml").iter("testcase")}
    case = cases["test_gradient_magnitude[good-seed0]"]
    found = {p.get("name"): p.get("value") for p in case.iter("property")}
    assert found["bt_verdict"] == "pass"
    assert float(found["bt_estimate"]) == 0.8123456789
    assert (found["bt_control"], found["bt_n"], found["bt_reason"]) == ("norm-only", "1234", "every gate holds")
    assert {"bt_low", "bt_high", "bt_chance", "bt_control_estimate", "bt_margin_low"} <= set(found)
    assert (found["bt_seconds"], found["bt_peak_bytes"]) == ("0.25", "3000000")
    skipped = cases["test_gradient_magnitude[unsure-seed0]"].find("skipped")
    assert skipped is not None
    assert "inconclusive: undecided, wider than 0.15" in skipped.get("message", "")


def test_a_report_that_cannot_be_written_at_the_end_fails_the_session(repo):
    doubles = repo.path / "doubles.py"
    text = doubles.read_text(encoding="utf-8").replace(
        "def good(case):", "def good(case):\n    os.makedirs('report.json', exist_ok=True)"
    )
    doubles.write_text(text)
    result = repo.grade("--bt-estimator=good", "-k", "magnitude")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["behaviortrace: the report *report.json was not written: *"])
    assert not list(repo.path.glob(".report*"))
