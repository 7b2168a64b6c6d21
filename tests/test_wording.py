"""Which names may be printed as they are, who refuses the others, and lists that stay short."""

from __future__ import annotations

import importlib.metadata

import pytest
from surface import Repo

from pytest_behaviortrace import grade
from pytest_behaviortrace.asked import named
from pytest_behaviortrace.expected import ExpectedFailuresError
from pytest_behaviortrace.expected import parse as parse_expected
from pytest_behaviortrace.registry import Registered, Registry, RegistryError, cause
from pytest_behaviortrace.wording import LONGEST, RULE, escaped, few, printable, unfit

EVIL = {
    "escape": ("red\x1b[31m", "U+001B in place 4"),
    "line": ("two\nlines", "U+000A in place 4"),
    "return": ("over\rwritten", "U+000D in place 5"),
    "null": ("\x00", "U+0000 in place 1"),
    "c1": ("a\x9b31m", "U+009B in place 2"),
    "bidi": ("gas\u202etoh", "U+202E (RIGHT-TO-LEFT OVERRIDE) in place 4"),
    "isolate": ("\u2067x", "U+2067 (RIGHT-TO-LEFT ISOLATE) in place 1"),
    "invisible": ("g\u200bas", "U+200B (ZERO WIDTH SPACE) in place 2"),
    "mark": ("\ufeffgas", "U+FEFF (ZERO WIDTH NO-BREAK SPACE) in place 1"),
    "separator": ("a\u2028b", "U+2028 (LINE SEPARATOR) in place 2"),
    "surrogate": ("a\udce9", "U+DCE9 in place 2"),
    "private": ("\ue000", "U+E000 in place 1"),
    "long": ("x" * (LONGEST + 1), "is 201 characters long"),
    "endless": ("x" * 1_000_000, "is 1,000,000 characters long"),
}
FINE = ("mine", "my-gas", "my`odd|name", "pkg.module:name", "größe", "名前", "a b", "<b>", "x" * LONGEST, "é̂")
NAMES = pytest.mark.parametrize(("name", "why"), EVIL.values(), ids=EVIL)


def score(problem):
    return problem.advantage


def one_sentence(error, why):
    text = str(error)
    assert why in text
    assert RULE in text
    assert text.isascii()
    assert text.isprintable()
    assert len(text) < 400


@pytest.mark.parametrize("name", FINE)
def test_ordinary_names_are_fine(name):
    assert unfit(name) is None
    assert Registry([{name: score}]).load(name) is score


@NAMES
def test_a_name_that_must_not_be_printed_is_refused_wherever_it_comes_from(name, why, monkeypatch):
    with pytest.raises(RegistryError) as caught:
        Registry([{name: score}])
    one_sentence(caught.value, why)
    assert "(hook pytest_behaviortrace_estimators)" in str(caught.value)
    with pytest.raises(RegistryError) as caught:
        Registry().find(name)
    one_sentence(caught.value, why)
    point = importlib.metadata.EntryPoint(name, "somewhere:score", "pytest_behaviortrace.estimators")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point])
    with pytest.raises(RegistryError) as caught:
        Registry()
    one_sentence(caught.value, why)


@NAMES
def test_names_given_in_python_are_refused_too(name, why):
    for ask in (lambda: named({name: score}), lambda: grade(score, name=name), lambda: Registered(name, "", score)):
        with pytest.raises(ValueError, match="estimator name") as caught:
            ask()
        one_sentence(caught.value, why)


def test_an_empty_name_is_none():
    with pytest.raises(RegistryError, match="estimator name '' is empty"):
        Registry().find("")


def test_a_key_of_the_file_of_expected_failures_is_shown_as_it_may_be_written():
    with pytest.raises(ExpectedFailuresError) as caught:
        parse_expected('["\\u001b[2J\\u202e"]\nlookalikes = "known"\n', "expected.toml", {}, ())
    assert '["\\u001b[2J\\u202e"] is neither graded' in str(caught.value)
    assert str(caught.value).isprintable()


def test_what_an_error_says_moves_no_cursor():
    assert cause(ValueError("a\x1b[2Jb\u202e\nsecond line")) == "ValueError: a [2Jb "


def test_names_in_quotes_are_cut():
    assert escaped("a\x1b'") == '"a\\x1b\'"'
    assert escaped("x" * 300) == f"'{'x' * 56}...'"
    assert printable("a\tb\u202ec") == "a b c"


def test_lists_are_short():
    assert few([]) == ""
    assert few(["a", "b", "c", "d", "e"]) == "a, b, c, d, e"
    assert few([f"e{number}" for number in range(1_002)], 2) == "e0, e1 and 1,000 more"


# -- in whole sessions -------------------------------------------------------------------------------------------------
@pytest.fixture
def repo(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Repo:
    return Repo(pytester, monkeypatch)


def registering(repo: Repo, names: str) -> None:
    """Let the hook register other names."""
    conftest = repo.path / "conftest.py"
    text = conftest.read_text(encoding="utf-8")
    old = 'return {name: f"doubles:{name}" for name in names}'
    assert old in text
    conftest.write_text(text.replace(old, f"return {{name: 'doubles:good' for name in {names}}}"), encoding="utf-8")


def refused(repo: Repo, *args: str) -> str:
    """The one line of a usage error."""
    result = repo.run(*args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in result.errlines if line.startswith("ERROR: ")]
    assert "\x1b" not in result.stdout.str() + result.stderr.str()
    assert repo.trained() == []
    return line


def test_a_session_with_such_a_name_ends_before_it_begins(repo):
    asked = refused(repo, "--bt-estimator=evil\x1b[31m")
    assert "ERROR: estimator name 'evil\\x1b[31m' has U+001B in place 5; a name is printable text" in asked
    registering(repo, r"['good', 'bad\x1b[2J']")
    for flags in (["--bt-estimator=good"], ["--bt-list"]):
        line = refused(repo, *flags)
        assert "estimator name 'bad\\x1b[2J' (hook pytest_behaviortrace_estimators) has U+001B in place 4" in line


def test_the_header_names_a_few_of_many(repo):
    registering(repo, "[f'e{number:03}' for number in range(1_000)]")
    names = " ".join(f"e{number:03}" for number in range(1_000))
    repo.pytester.makeini(f"[pytest]\nbt_estimators = {names}\n")
    result = repo.run("--collect-only", "checks/test_headroom.py")
    assert result.ret == 0
    (line,) = [line for line in result.outlines if "tiny@" in line]
    assert ": e000, e001, e002, e003, e004 and 995 more; tiny@" in line
    asked = refused(repo, "--bt-estimator=nobody")
    assert " and " in asked
    assert len(asked) < 600
