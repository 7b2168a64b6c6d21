"""Several reports of one session: each is checked before training, and one that fails keeps no other from its place."""

from __future__ import annotations

import pytest
from surface import Repo

HTML = """
import sys, types
page = types.ModuleType("pytest_behaviortrace.reports.html")
def render(scorecard):
    if {broken}:
        raise RuntimeError("no fonts")
    return "<!doctype html><title>" + scorecard.suite + "</title>"
page.render = render
sys.modules[page.__name__] = page
"""


@pytest.fixture
def repo(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Repo:
    return Repo(pytester, monkeypatch)


def drawing(repo: Repo, *, broken: bool) -> None:
    """A stand-in for the module that draws, which takes seconds."""
    conftest = repo.path / "conftest.py"
    conftest.write_text(conftest.read_text(encoding="utf-8") + HTML.format(broken=broken), encoding="utf-8")


def reports(*names: str) -> list[str]:
    return [f"--bt-report={name}" for name in names]


@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["serial", "xdist"])
def test_every_format_of_one_session(repo, workers):
    drawing(repo, broken=False)
    result = repo.run("--bt-estimator=good", *reports("out/a.json", "out/a.md", "out/a.csv", "a.html"), *workers)
    assert result.ret == 0
    assert sorted(path.name for path in (repo.path / "out").iterdir()) == ["a.csv", "a.json", "a.md"]
    assert "good`: checklist passed; 17 of 17 rows passed; `suite" in (repo.path / "out" / "a.md").read_text()
    assert (repo.path / "a.html").read_text().startswith("<!doctype html>")


def test_one_that_cannot_be_written_is_named_and_the_others_are_written(repo):
    drawing(repo, broken=True)
    doubles = repo.path / "doubles.py"
    text = doubles.read_text(encoding="utf-8")
    doubles.write_text(text.replace("def good(case):", "def good(case):\n    os.makedirs('a.md', exist_ok=True)"))
    (repo.path / "a.html").write_text("the old one")
    result = repo.run("--bt-estimator=good", *reports("a.html", "a.md", "a.json", "a.csv"))
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "behaviortrace: the report *a.html was not written: RuntimeError: no fonts",
            "behaviortrace: the report *a.md was not written: *",
        ]
    )
    assert (repo.path / "a.html").read_text() == "the old one"
    assert (repo.path / "a.json").is_file()
    assert (repo.path / "a.csv").is_file()
    assert not list(repo.path.glob(".a.*"))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("a.json", "a.pdf"), "'a.pdf' does not say in which format; end it in .json or .html or .md or .csv"),
        (("a.json", "./a.json"), "'./a.json' is asked for twice; leave one out"),
        (("a.json", "folder.md"), "'folder.md' is a folder; give the path of a file"),
        (("test_mine.py/a.csv",), "'test_mine.py/a.csv' cannot be written (*test_mine.py: *); choose another path"),
    ],
)
def test_a_report_that_cannot_be_is_one_sentence_before_training(repo, names, message):
    (repo.path / "folder.md").mkdir()
    result = repo.run("--bt-estimator=good", *reports(*names))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: --bt-report: {message}"])
    assert repo.trained() == []
    assert not (repo.path / "a.json").exists()
