"""Failures that were expected: what the file may say, what becomes of rows, and what if the failure does not happen."""

from __future__ import annotations

import pytest

from pytest_behaviortrace.expected import ExpectedFailure, ExpectedFailures, ExpectedFailuresError, load, parse

CHECKS = {"test_headroom": False, "test_lookalikes": True, "test_reward_control": True}
ESTIMATORS = ("gas", "mine.scores:make")


def entries(text: str) -> list[ExpectedFailure]:
    return parse(text, "expected.toml", CHECKS, ESTIMATORS)


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
