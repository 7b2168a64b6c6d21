"""Sessions that are held to a baseline, and what may fail them: in real processes, serial and on workers."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest
from surface import Repo, magnitude

WORKERS = pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["serial", "xdist"])
ONE_OF_EACH = pytest.mark.parametrize(
    ("on", "workers"), [("fail", ("-n2",)), ("regression", ())], ids=["fail-xdist", "regression-serial"]
)
ON_WORKERS = pytest.mark.parametrize("workers", [("-n2",)], ids=["xdist"])
SERIAL = pytest.mark.parametrize("workers", [()], ids=["serial"])
GOOD = "--bt-estimator=good"
STABILITY = "checks/test_seed_stability.py::test_seed_stability"


@pytest.fixture
def repo(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Repo:
    repo = Repo(pytester, monkeypatch)
    repo.pytester.makefile(".toml", expected='[good]\ngradient_magnitude = "known"\n')
    return repo


def baseline(repo: Repo, *args: str, **change: object) -> None:
    """A report of `good` as `old.json`."""
    repo.run(GOOD, f"--bt-report={repo.path / 'old.json'}", *args)
    if change:
        edit(repo, lambda report: report.update(change))


def edit(repo: Repo, change) -> None:
    path = repo.path / "old.json"
    report = json.loads(path.read_text(encoding="utf-8"))
    change(report)
    path.write_text(json.dumps(report), encoding="utf-8")


def becomes(repo: Repo, body: str) -> None:
    """From now on `good` does this on gradient_magnitude of seed 1."""
    doubles = repo.path / "doubles.py"
    text = doubles.read_text(encoding="utf-8")
    head = "def good(case):\n    "
    if "case.component" not in body:
        head += "if case.component is None and case.draw is None and case.seed == 1 and case.name:\n        "
    text = text.replace("def good(case):\n", f"{head}{body}\n")
    doubles.write_text(text + f"\ndef lower(case):\n    {LOWER}\n", encoding="utf-8")


def held(repo: Repo, *args: str) -> pytest.RunResult:
    return repo.run(GOOD, "--bt-baseline=old.json", *args)


BAD = "return bad(case)"
UNSURE = "return unsure(case)"
LOWER = "return Decision(Verdict.PASS, 'lower', 0.7, 0.6, 0.74, 0.5)"
HIGHER = "return Decision(Verdict.PASS, 'higher', 0.9, 0.88, 0.95, 0.5)"


# -- what got worse fails ----------------------------------------------------------------------------------------------
@ON_WORKERS
def test_the_same_again_is_no_regression(repo, workers):
    baseline(repo)
    result = held(repo, *workers)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["against old.json: 0 regressions, 0 improvements in 20 rows"])


MANY = """if case.component is None and case.draw is None and case.name:
        return (unsure, undeclared, lower)[case.seed](case)
    if case.component is not None:
        return (bad if case.component == "decoy-auc" else broken)(case)"""
WORSE = {
    magnitude("good", 0): ("inconclusive", "passed before, inconclusive now: 0.812 [[]0.750, 0.860] before, *"),
    magnitude("good", 1): ("n/a", "passed before, n/a now"),
    magnitude("good", 2): ("pass", "its interval fell clear of the old one (still pass): 0.812 * before, 0.700 *"),
    f"{STABILITY}[good-decoy-auc]": ("fail", "passed before, fail now: 0.812 *"),
    f"{STABILITY}[good-window-precision]": ("error", "passed before, error now"),
}


@ONE_OF_EACH
def test_a_row_that_got_worse_fails_whatever_its_verdict(repo, workers, on):
    baseline(repo)
    becomes(repo, MANY)
    result = held(repo, f"--bt-fail-on={on}", "--bt-report=new.json", "--junitxml=junit.xml", "-v", *workers)
    assert result.ret == 1
    result.assert_outcomes(failed=5, passed=15)
    assert sum("REGRESSION" in line and "%]" in line for line in result.outlines) == 5
    result.stdout.fnmatch_lines(["against old.json: 5 regressions, 0 improvements in 20 rows"])
    for id, (_, words) in WORSE.items():
        result.stdout.fnmatch_lines([f"  regression: {id.replace('[', '[[]')}: {words}"])
    rows = {row["id"]: row["verdict"] for row in json.loads((repo.path / "new.json").read_text())["rows"]}
    assert {id: rows[id] for id in WORSE} == {id: verdict for id, (verdict, _) in WORSE.items()}
    assert {verdict for id, verdict in rows.items() if id not in WORSE} == {"pass"}
    cases = [case for case in ET.parse(repo.path / "junit.xml").iter("testcase") if case.find("failure") is not None]
    told = [{entry.get("name"): entry.get("value") for entry in case.iter("property")} for case in cases]
    assert sorted(found["bt_verdict"] for found in told) == sorted(verdict for verdict, _ in WORSE.values())
    assert all(found["bt_regression"].startswith(("passed before", "its interval fell")) for found in told)


def test_a_regression_stops_with_x_and_is_run_again_with_lf(repo):
    baseline(repo)
    becomes(repo, UNSURE)
    result = held(repo, "-x", "-p", "no:randomly")
    assert result.ret == 1
    result.assert_outcomes(failed=1, passed=result.parseoutcomes()["passed"])
    assert result.parseoutcomes()["passed"] < 19
    result.stdout.fnmatch_lines(["  not run: * of the baseline: *"])
    again = held(repo, "--lf")
    again.assert_outcomes(failed=1)
    assert again.ret == 1


@SERIAL
def test_an_improvement_is_listed_and_fails_nothing(repo, workers):
    becomes(repo, BAD)
    baseline(repo)
    becomes(repo, HIGHER)
    result = held(repo, "--bt-report=new.md", *workers)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["  improvement: *good-seed1]: failed before, passes now: *"])
    assert "- improvement: `checks/" in (repo.path / "new.md").read_text()


def test_an_expected_failure_is_listed_as_a_regression_and_fails_nothing(repo):
    baseline(repo)
    becomes(repo, BAD)
    repo.pytester.makeini("[pytest]\nbt_expected_failures = expected.toml\n")
    result = held(repo)
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["against old.json: 0 regressions (1 more expected), *", "  regression: *fail now*(expected: known)"]
    )


@WORKERS
def test_a_selection_is_no_regression_and_a_dead_worker_is(repo, workers):
    baseline(repo)
    for selection in (("-k", "fluency"), ("checks/test_fluency_control.py",), ("--deselect", magnitude("good", 0))):
        result = held(repo, *selection, *workers)
        assert result.ret == 0
        result.stdout.fnmatch_lines(["  not run: * rows* of the baseline: *"] if "--deselect" not in selection else [])
    if workers:
        becomes(repo, "return fatal(case)")
        result = held(repo, *workers)
        assert result.ret == 1
        result.stdout.fnmatch_lines(["  regression: *good-seed1]: passed before, error now"])


# -- --bt-fail-on=regression -------------------------------------------------------------------------------------------
@ON_WORKERS
def test_a_known_failure_is_shown_as_it_is_and_fails_nothing(repo, workers):
    becomes(repo, BAD)
    baseline(repo)
    assert held(repo, *workers).ret == 1
    result = held(repo, "--bt-fail-on=regression", "--bt-report=new.json", "--junitxml=junit.xml", "-v", *workers)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*19 passed*1 fail (no regression)*"])
    result.stdout.fnmatch_lines(["good: FAILED (17 rows: 16 pass, 1 fail)*", "  gradient_magnitude  fail *1 of 3*"])
    rows = {row["id"]: row["verdict"] for row in json.loads((repo.path / "new.json").read_text())["rows"]}
    assert rows[magnitude("good", 1)] == "fail"
    case = next(
        case for case in ET.parse(repo.path / "junit.xml").iter("testcase")
        if case.get("name") == "test_gradient_magnitude[good-seed1]"
    )  # fmt: skip
    skipped = case.find("skipped")
    assert skipped is not None
    assert skipped.get("message", "").startswith("fail: contradicted")
    assert {p.get("name"): p.get("value") for p in case.iter("property")}["bt_verdict"] == "fail"
    assert held(repo, "--bt-fail-on=regression", "-x", *workers).ret == 0
    old, new = (json.loads((repo.path / name).read_text(encoding="utf-8")) for name in ("old.json", "new.json"))
    assert new.pop("baseline")["compared"] == 20
    assert old == new


def test_errors_fail_even_so(repo):
    becomes(repo, "return broken(case)")
    baseline(repo)
    assert held(repo, "--bt-fail-on=regression").ret == 1


def test_what_decides_nothing_still_exits_with_5(repo):
    repo.run("--bt-estimator=unsure", f"--bt-report={repo.path / 'old.json'}")
    result = repo.run("--bt-estimator=unsure", "--bt-baseline=old.json", "--bt-fail-on=regression")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED


def test_an_estimator_that_the_baseline_lacks_is_named(repo):
    baseline(repo)
    result = held(repo, "--bt-estimator=bad", "--bt-fail-on=regression")
    assert result.ret == 1  # what it fails, the baseline never excused
    result.stdout.fnmatch_lines(["  not in the baseline: bad; nothing of it can get worse until *"])


def test_a_baseline_that_lacks_rows_excuses_none_of_their_failures(repo):
    """Such as one from a selection, or from an interrupted session."""
    becomes(repo, BAD)
    baseline(repo)
    assert held(repo, "--bt-fail-on=regression").ret == 0
    edit(repo, lambda report: report.update(rows=[r for r in report["rows"] if "magnitude" not in r["id"]]))
    result = held(repo, "--bt-fail-on=regression", "--bt-report=new.json")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["  new: 3 rows not in the baseline, so no failure of them is known there: *"])
    told = json.loads((repo.path / "new.json").read_text(encoding="utf-8"))["baseline"]
    assert told["new_rows"] == [magnitude("good", seed) for seed in range(3)]


# -- before anything is trained ----------------------------------------------------------------------------------------
def refused(repo: Repo, *args: str) -> str:
    before = len(repo.trained())
    result = repo.run(GOOD, *args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in result.errlines if line.startswith("ERROR: ")]
    assert "Traceback" not in result.stderr.str()
    assert len(repo.trained()) == before
    return line


@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["serial", "xdist"])
def test_another_suite_is_refused_before_training_with_the_command_that_helps(repo, workers):
    baseline(repo, suite="2020.1")
    line = refused(repo, "--bt-baseline=old.json", "--bt-fail-on=regression", "--bt-cache-dir=my cache", *workers)
    assert "--bt-baseline: old.json cannot be compared with this session: suite 2020.1 there, 20" in line
    assert "make the baseline again: pytest --bt-estimator=good '--bt-cache-dir=my cache' --bt-fail-on=fail " in line
    command = line.partition("again: pytest ")[2]
    import shlex

    assert repo.run(*shlex.split(command)).ret == 0
    assert held(repo).ret == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"plant": "tulip"}, "plant tulip there, "),
        ({"draws": 5}, "draws 5 there, 2 here"),
        ({"recipe": {"name": "tiny", "hash": "ab" * 32}}, "graded on recipe tiny@abababab there, recipe tiny@"),
        ({"schema": 1}, "old.json has the layout 1 and this version reads 2; make it again"),
        ({"rows": []}, "old.json has no row of good; make the baseline again: pytest --bt-estimator=good"),
    ],
    ids=["plant", "draws", "recipe", "schema", "estimator"],
)
def test_other_conditions_are_refused(repo, change, words):
    baseline(repo, **change)
    assert words in refused(repo, "--bt-baseline=old.json")


@ONE_OF_EACH
def test_of_other_seeds_what_is_about_the_same_seed_is_held(repo, workers, on):
    baseline(repo, "--bt-seeds=2")
    more = ("--bt-seeds=3", f"--bt-fail-on={on}", "--bt-report=new.json", *workers)
    assert held(repo, *more).ret == 0
    becomes(repo, MANY.replace('"decoy-auc"', '"window-precision"').replace("else broken", "else bad"))
    result = held(repo, *more)
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "against old.json: 2 regressions, 0 improvements in 12 rows",
            "  set aside: 2 rows of the baseline cannot be compared (seeds 0-1 there, 0-2 here): *",
        ]
    )
    told = json.loads((repo.path / "new.json").read_text(encoding="utf-8"))["baseline"]
    assert [entry["id"] for entry in told["regressions"]] == [magnitude("good", 0), magnitude("good", 1)]
    assert set(told["set_aside"]) == {
        f"{STABILITY}[good-decoy-auc]", f"{STABILITY}[good-window-precision]",
    }  # fmt: skip
    # The two rows over seeds fail for themselves: the baseline, of other seeds, excuses nothing of them.
    result.assert_outcomes(failed=4, passed=16)


def test_one_row_again_against_a_whole_baseline_is_short(repo):
    baseline(repo)
    result = held(repo, magnitude("good", 1), "--bt-seeds=2")
    assert result.ret == 0
    (line,) = [line for line in result.outlines if line.startswith("  not run: ")]
    assert line.startswith("  not run: 11 rows of the baseline: ")
    assert line.endswith(" and 8 more")
    assert line.count("::") == 0
    assert len(line) < 200


def test_a_whole_session_on_fewer_seeds_than_its_baseline_is_refused_and_a_row_of_it_is_not(repo):
    baseline(repo)
    line = refused(repo, "--bt-baseline=old.json", "--bt-seeds=2")
    assert "cannot be compared with this session: seeds 0-2 there, 0-1 here; make the baseline again: " in line
    assert held(repo, "checks/test_gradient_magnitude.py", "--bt-seeds=2").ret == 0


def test_rows_of_other_seeds_alone_are_refused_and_versions_too(repo):
    baseline(repo)
    line = refused(repo, "--bt-baseline=old.json", "--bt-seeds=2", "checks/test_seed_stability.py")
    assert "cannot be compared with this session: seeds 0-2 there, 0-1 here; make the baseline again: " in line
    edit(repo, lambda report: report["versions"].update({"torch": "1.0", "pytest-behaviortrace": "1.0"}))
    line = refused(repo, "--bt-baseline=old.json")
    assert "session: torch 1.0 there, " in line
    assert "; install torch==1.0, or make the baseline again: pytest " in line


def test_a_baseline_that_is_none(repo):
    assert "absent.json does not exist" in refused(repo, "--bt-baseline=absent.json")
    (repo.path / "old.json").write_text("{")
    assert "old.json is not JSON" in refused(repo, "--bt-baseline=old.json")
    assert "is the baseline; a session that replaced it" in refused(
        repo, "--bt-baseline=old.json", "--bt-report=./old.json"
    )
    assert "needs something to compare with" in refused(repo, "--bt-fail-on=regression")


def test_the_ini_file_names_a_baseline_and_the_command_line_takes_it_back(repo):
    baseline(repo, suite="2020.1")
    repo.pytester.makeini("[pytest]\nbt_baseline = old.json\n")
    line = refused(repo)
    assert "bt_baseline in " in line
    assert " --bt-baseline= --bt-report=" in line
    assert repo.run(GOOD, "--bt-baseline=").ret == 0
