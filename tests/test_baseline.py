"""Reading a report back, however broken it is; what counts as worse and better; and when reports cannot be compared."""

from __future__ import annotations

import json
from dataclasses import replace

import golden_cards
import pytest

from pytest_behaviortrace import baseline, snapshot
from pytest_behaviortrace.__main__ import main
from pytest_behaviortrace.reports import files
from pytest_behaviortrace.reports import json as json_report
from pytest_behaviortrace.scorecard import Row

CARD = golden_cards.planted("gas", "dot")
TEXT = json_report.render(CARD)
OLD = snapshot.parse(TEXT, "old.json")
SEEDS = OLD.conditions.seeds


# -- reading -----------------------------------------------------------------------------------------------------------
def edited(change):
    report = json.loads(TEXT)
    change(report)
    return json.dumps(report)


def at_row(**values):
    def change(report):
        row = report["rows"][4]
        row.update({name: value(row[name]) if callable(value) else value for name, value in values.items()})

    return edited(change)


HOSTILE = {
    "empty": ("", "is not JSON"),
    "cut": (TEXT[: len(TEXT) // 2], "is not JSON"),
    "nan": (TEXT.replace("0.61", "NaN"), "NaN is no number in JSON"),
    "infinity": (TEXT.replace("0.61", "-Infinity"), "-Infinity is no number"),
    "beyond floats": (TEXT.replace("0.61", "1e999"), "is inf, no finite number"),
    "huge whole number": (TEXT.replace("0.61", "1" + "0" * 400), "is a huge number, no finite number"),
    "whole number nobody can read": (TEXT.replace("0.61", "1" * 10_000), "is not JSON"),
    "nested": ("[" * 200_000, "is nested too deeply|is not JSON"),
    "list": ("[]", "is JSON, but no report"),
    "number": ("3", "is JSON, but no report"),
    "another json": ('{"name": 1}', "is JSON, but no report"),
    "schema 1": (edited(lambda r: r.update(schema=1)), "has the layout 1 and this version reads 2"),
    "schema true": (edited(lambda r: r.update(schema=True)), "has the layout True"),
    "name twice": ('{"schema": 2, "schema": 2, "rows": []}', "a name stands twice"),
    "no suite": (edited(lambda r: r.pop("suite")), "is damaged: suite is missing"),
    "no recipe": (edited(lambda r: r.update(recipe=None)), "is damaged: recipe and run"),
    "no versions": (edited(lambda r: r["versions"].pop("trl")), "is damaged: trl is missing"),
    "draws": (edited(lambda r: r.update(draws=-1)), "draws is -1, no whole number"),
    "seeds": (edited(lambda r: r.update(seeds=[1])), "seed is no object"),
    "rows": (edited(lambda r: r.update(rows={})), "rows is no list"),
    "row": (edited(lambda r: r.update(rows=[1])), r"rows\[0\] is no object"),
    "field": (edited(lambda r: r["rows"][0].pop("n")), r"rows\[0\].n is missing"),
    "twice": (edited(lambda r: r["rows"].append(r["rows"][0])), "id is there twice"),
    "verdict": (at_row(verdict="fine"), "is 'fine', not one of"),
    "bool": (at_row(estimate=True), "estimate is True, no finite number"),
    "text for a number": (at_row(low="0.5"), "low is '0.5', no finite number"),
    "upside down": (at_row(low=0.9, high=0.1), "low is above its high"),
    "escape": (at_row(id="\x1b[2J"), "no plain text"),
    "surrogate": (at_row(estimator="\udce9"), "no plain text"),
    "turned writing": (at_row(control="\u202enorm"), "no plain text"),
    "endless": (at_row(id="x" * 5_000), "is longer than 4096 characters"),
    "seed of no run": (at_row(seed=99), r"rows\[4\].seed is 99, which is none of the report's seeds"),
    "seed listed twice": (edited(lambda r: r["seeds"].append(r["seeds"][0])), r"seeds\[2\].seed is 0, which is there"),
    "seed not listed": (edited(lambda r: r["seeds"].pop()), "seed is 1, which is none of the report's seeds"),
    "id of another folder": (at_row(id="checks//test_headroom.py::test_headroom[seed0]"), "disagrees with its check"),
    "id of another check": (at_row(check="test_headroom"), r"rows\[4\].id is .* disagrees with its check"),
    "id of another estimator": (at_row(estimator="other"), r"rows\[4\].id is .* disagrees with its check, estimator"),
    "id of no estimator": (at_row(estimator=None), r"rows\[4\].id is .* disagrees with its check, estimator"),
    "id of another seed": (at_row(seed=lambda seed: 1 - seed), r"rows\[4\].id is .* disagrees with its check"),
    "id of a seed": (at_row(seed=None), r"rows\[4\].id is .* disagrees with its check, estimator, seed or draw"),
    "id of no draw": (at_row(draw=7), r"rows\[4\].id is .* disagrees with its check, estimator, seed or draw"),
    "escape in a verdict": (edited(lambda r: r["checklist"].update(gas="\x1b[2J")), "no plain text"),
    "checklist": (edited(lambda r: r.update(checklist=["gas"])), "checklist is no object"),
}


@pytest.mark.parametrize(("text", "message"), HOSTILE.values(), ids=HOSTILE)
def test_a_report_that_cannot_be_used_is_one_sentence(text, message, tmp_path):
    path = tmp_path / "old.json"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    with pytest.raises(snapshot.SnapshotError, match=message) as caught:
        snapshot.read(path, "old.json")
    assert str(caught.value).startswith("old.json ")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


def test_files_that_are_no_report(tmp_path):
    def told(path):
        with pytest.raises(snapshot.SnapshotError) as caught:
            snapshot.read(path, "old.json")
        return str(caught.value)

    assert told(tmp_path / "absent.json").startswith("old.json does not exist; give the path of a JSON report, or make")
    assert told(tmp_path).startswith("old.json is no file")
    (tmp_path / "latin.json").write_bytes(b'"\xe9"')
    assert "is not UTF-8 text" in told(tmp_path / "latin.json")
    with (tmp_path / "large.json").open("wb") as stream:
        stream.truncate(100_000_000)  # of no bytes on the disk
    assert "is larger than 64 MB" in told(tmp_path / "large.json")


def test_rows_that_decided_nothing_may_be_of_a_seed_without_a_run():
    """Its training failed: the rows say so, and there are no facts of it."""
    rows = [replace(r, verdict="error", estimate=None, low=None, high=None) if r.seed == 1 else r for r in CARD.rows]
    text = json_report.render(replace(CARD, rows=rows, seeds=[facts for facts in CARD.seeds if facts.seed == 0]))
    found = snapshot.parse(text, "old.json")
    assert found.conditions.seeds == (0,)
    assert {r.verdict for r in found.rows.values() if r.seed == 1} == {"error"}


def test_rows_of_a_recorded_run_and_of_no_run_are_read():
    card = golden_cards.recorded()
    stress = replace(card.rows[0], id=golden_cards.identity("test_stress", "gas-finite"), check="test_stress")
    found = snapshot.parse(json_report.render(replace(card, rows=[*card.rows, stress])), "run.json")
    assert len(found.rows) == len(card.rows) + 1


def test_reasons_may_hold_anything(tmp_path):
    row = replace(CARD.rows[0], reason="\x1b[31m\udce9\n", expected_failure="\x07")
    files.write(replace(CARD, rows=[row]), tmp_path / "old.json")
    assert snapshot.read(tmp_path / "old.json", "old.json").rows[row.id] == row


# -- worse and better --------------------------------------------------------------------------------------------------
def row(verdict="pass", low=0.6, high=0.8):
    middle = None if low is None else (low + high) / 2
    return Row("checks/x.py::x[gas]", "gas", "x", 0, None, verdict, middle, low, high)


@pytest.mark.parametrize("verdict", ["fail", "error", "inconclusive", "n/a"])
def test_a_pass_that_is_none_any_more_got_worse_and_the_reverse_better(verdict):
    assert f"passed before, {verdict} now" in baseline.regression(row(), row(verdict))
    assert baseline.improvement(row(), row(verdict)) is None
    assert "passes now" in baseline.improvement(row(verdict), row())
    assert baseline.regression(row(verdict), row()) is None


@pytest.mark.parametrize("verdict", ["pass", "fail", "inconclusive"])
def test_an_interval_that_lies_clear_of_the_old_one_counts_whatever_the_verdict(verdict):
    lower, higher = row(verdict, 0.3, 0.59), row(verdict, 0.81, 0.9)
    assert "fell clear of the old one" in baseline.regression(row(verdict), lower)
    assert "rose clear of the old one" in baseline.improvement(row(verdict), higher)
    for close in (row(verdict, 0.3, 0.6), row(verdict, 0.8, 0.9), row(verdict)):
        assert baseline.regression(row(verdict), close) is None
        assert baseline.improvement(row(verdict), close) is None


def test_numbers_of_an_edited_file_stay_short():
    sentence = baseline.regression(row("pass", -1e308, 1e308), row("fail", -1e308, 0.5))
    assert len(sentence) < 200
    assert "[-1e+308, 1e+308] before" in sentence
    assert baseline.regression(row("pass", 0.6, 0.8), row("fail")).endswith(
        ": 0.700 [0.600, 0.800] before, 0.700 [0.600, 0.800] now"
    )


def test_both_at_once_is_worse():
    assert baseline.regression(row("fail"), row("pass", 0.1, 0.2)) is not None
    assert baseline.improvement(row("fail"), row("pass", 0.1, 0.2)) is None
    assert baseline.regression(row("pass"), row("fail", 0.9, 1.0)) is not None


def test_rows_without_numbers_are_compared_by_verdict_alone():
    assert baseline.regression(row("error", None, None), row("fail")) is None
    assert baseline.regression(row("pass", None, None), row("pass", 0.1, 0.2)) is None
    assert baseline.regression(row("fail"), row("error", None, None)) is None


def test_a_report_equals_itself():
    found = baseline.compare(OLD, CARD.rows, OLD.estimators, "old.json", SEEDS, whole=True)
    assert (found.regressions, found.improvements, found.not_run, found.unknown) == ((), (), (), ())
    assert found.compared == len(CARD.rows)
    assert baseline.differences(OLD.conditions, OLD.conditions) == []


def test_rows_that_did_not_run_are_regressions_only_where_all_were_asked_for():
    some = [r for r in CARD.rows if r.check != "test_lookalikes"]
    found = baseline.compare(OLD, some, ["gas"], "old.json", SEEDS)
    assert found.regressions == ()
    assert len(found.not_run) == 2
    found = baseline.compare(OLD, some, ["gas"], "old.json", SEEDS, whole=True)
    assert [change.sentence for change in found.regressions] == ["passed before, did not run now"]
    assert len(found.not_run) == 1  # it had failed


def test_other_estimators_rows_are_nobodys_and_new_ones_are_named():
    found = baseline.compare(OLD, [], ["new"], "old.json", SEEDS, whole=True)
    assert {change.estimator for change in found.regressions} == {None}
    assert found.unknown == ("new",)


def test_an_expected_failure_is_listed_and_fails_nothing():
    rows = [replace(r, verdict="fail", expected_failure="known \x1b") if r.verdict == "pass" else r for r in CARD.rows]
    found = baseline.compare(OLD, rows, ["gas"], "old.json", SEEDS)
    assert len(found.regressions) == 7
    assert found.failing == ()
    assert found.regressions[0].describe().endswith("(expected: known  )")


CONDITIONS = {
    "suite": ({"suite": "2027.1"}, "suite 2026.12 there, 2027.1 here"),
    "recipe": ({"recipe_hash": "cd" * 32}, "graded on recipe tiny@abababab there, recipe tiny@cdcdcdcd here"),
    "plant": ({"plant": "tulip"}, "plant rose there, tulip here"),
    "draws": ({"draws": 3}, "draws 2 there, 3 here"),
    "torch": ({"versions": golden_cards.VERSIONS | {"torch": "3.0"}}, "torch 2.13.0 there, 3.0 here"),
    "numpy": ({"versions": golden_cards.VERSIONS | {"numpy": "3.0"}}, "numpy 2.4.6 there, 3.0 here"),
}


@pytest.mark.parametrize(("change", "words"), CONDITIONS.values(), ids=CONDITIONS)
def test_what_makes_reports_incomparable(change, words):
    (found,) = baseline.differences(OLD.conditions, replace(OLD.conditions, **change))
    assert found.describe() == words
    remedy = baseline.remedy([found], "pytest ...")
    assert remedy.endswith("make the baseline again: pytest ...")
    assert ("install torch==2.13.0, or" in remedy) == ("torch" in words)


def test_what_does_not():
    mine = replace(OLD.conditions, versions=golden_cards.VERSIONS | {"pytest-behaviortrace": "9"})
    assert baseline.differences(OLD.conditions, mine) == []
    assert baseline.differences(OLD.conditions, replace(OLD.conditions, seeds=(0,))) == []


@pytest.mark.parametrize(
    ("seeds", "apart", "words"),
    [
        ((0, 1), set(), ""),
        ((0,), {"seed1", "auc"}, "seeds 0-1 there, 0 here"),
        ((0, 1, 2), {"auc"}, "seeds 0-1 there, 0-2 here"),
        ((1, 5), {"seed0", "auc"}, "seeds 0-1 there, 1,5 here"),
    ],
    ids=["same", "fewer", "more", "others"],
)
def test_of_other_seeds_what_is_about_the_same_seed_is_compared(seeds, apart, words):
    rows = [r for r in CARD.rows if r.seed in (None, *seeds)]
    found = baseline.compare(OLD, rows, ["gas", "dot"], "old.json", seeds, whole=True)
    assert (found.regressions, found.not_run, found.seeds) == ((), (), words)
    assert found.compared == len(OLD.rows) - len(found.set_aside)
    for id in OLD.rows:
        assert (id in found.set_aside) == any(f"-{part}" in id or f"[{part}" in id for part in apart), id


def test_a_row_that_is_set_aside_neither_got_worse_nor_better():
    rows = [replace(r, verdict="fail") for r in CARD.rows if r.seed in (None, 0)]
    found = baseline.compare(OLD, rows, ["gas"], "old.json", (0,))
    assert {change.id.partition("-seed")[2] for change in found.regressions if change.estimator} == {"0]"}
    assert not {change.id for change in found.regressions} & set(found.set_aside)


def test_a_recorded_run_is_compared_with_the_same_run_and_behaviour():
    run = snapshot.parse(json_report.render(golden_cards.recorded()), "run.json").conditions
    assert baseline.differences(run, run) == []
    (other,) = baseline.differences(run, replace(run, behavior="x"))
    assert other.describe() == "behaviour 'QZ[A-Z]+|x' there, 'x' here"
    (other,) = baseline.differences(run, replace(run, run_sha256="ef" * 32))
    assert other.describe() == "graded on recorded run my run@cdcdcdcd there, recorded run my run@efefefef here"
    moved = replace(run, run="elsewhere/my run")
    assert baseline.differences(run, moved) == []
    assert "graded on" in baseline.differences(OLD.conditions, run)[0].describe()


# -- the command -------------------------------------------------------------------------------------------------------
@pytest.fixture
def compare(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    files.write(CARD, tmp_path / "old.json")

    def compare(card, *more):
        files.write(card, tmp_path / "new.json")
        try:
            code = main(["compare", "old.json", "new.json", *more])
        except SystemExit as stop:
            code = stop.code
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return compare


def worse():
    rows = [replace(r, verdict="n/a") if r.verdict == "pass" and r.seed == 1 else r for r in CARD.rows]
    return replace(CARD, rows=rows)


def test_compare_says_what_changed_and_exits_with_1_for_a_regression(compare):
    code, out, _ = compare(worse())
    assert code == 1
    assert out.startswith("against old.json: 5 regressions, 0 improvements in 22 rows\n")
    assert "  regression: checks/test_headroom.py::test_headroom[seed1]: passed before, n/a now" in out
    assert compare(CARD)[:2] == (0, "against old.json: 0 regressions, 0 improvements in 22 rows\n")


def test_compare_as_json(compare):
    code, out, _ = compare(worse(), "--json")
    found = json.loads(out)
    assert (code, found["compared"], len(found["regressions"])) == (1, 22, 5)
    assert set(found) == {
        "baseline",
        "compared",
        "regressions",
        "improvements",
        "not_run",
        "not_in_baseline",
        "set_aside",
        "new_rows",
        "seeds",
    }


def test_compare_notices_an_estimator_that_is_gone(compare):
    gone = replace(CARD, rows=[r for r in CARD.rows if r.estimator != "dot"], expected={"gas": CARD.expected["gas"]})
    code, out, _ = compare(gone)
    assert code == 0
    assert "not run: 10 rows of the baseline" in out
    code, out, _ = compare(gone, "--whole")
    assert code == 1
    assert "test_lookalikes[dot-seed0]: passed before, did not run now" in out


@pytest.mark.parametrize("change", [{"suite": "2027.1"}, {"draws": 3}, {"plant": "tulip"}])
def test_compare_exits_with_2_where_nothing_can_be_compared(compare, change):
    code, out, err = compare(replace(CARD, **change))
    assert (code, out) == (2, "")
    assert err.startswith("error: old.json and new.json cannot be compared: ")
    assert err.count("\n") == 1


def test_compare_takes_what_is_about_the_same_seeds(compare):
    fewer = replace(CARD, rows=[r for r in CARD.rows if r.seed in (None, 0)], seeds=[CARD.seeds[1]])
    code, out, _ = compare(fewer)
    assert code == 0
    assert out.startswith("against old.json: 0 regressions, 0 improvements in 13 rows\n")
    assert "  set aside: 9 rows of the baseline cannot be compared (seeds 0-1 there, 0 here): " in out
    assert out.rstrip().endswith(" and 6 more")
    code, out, err = compare(fewer, "--whole")
    assert (code, out) == (2, "")
    assert "cannot be compared as a whole: new.json lacks seed 1; make one of them again" in err
    other = replace(CARD, seeds=[replace(CARD.seeds[0], seed=7)], rows=[r for r in CARD.rows if "stability" in r.id])
    code, out, err = compare(other)
    assert (code, out) == (2, "")
    assert "have only rows over other seeds in common: seeds 0-1 there, 7 here; make one" in err


def test_a_report_that_was_itself_held_to_a_baseline_is_read_like_any_other(compare):
    """The golden card has a comparison; a card without one has no such key, and both are compared."""
    assert "baseline" in json.loads(TEXT)
    alone = json_report.render(replace(CARD, comparison=None))
    assert "baseline" not in json.loads(alone)
    assert snapshot.parse(alone, "old.json") == OLD
    assert compare(replace(CARD, comparison=None))[0] == 0


def test_json_and_csv_say_what_became_of_the_baseline(tmp_path):
    import csv
    import io

    from pytest_behaviortrace.reports import csv as csv_report

    found = json.loads(TEXT)["baseline"]
    assert found.pop("path") == CARD.comparison.shown
    told = baseline.to_dict(CARD.comparison)
    assert told.pop("baseline") == CARD.comparison.shown
    assert found == json.loads(json.dumps(told))
    lines = {line["id"]: line["baseline"] for line in csv.DictReader(io.StringIO(csv_report.render(CARD)))}
    worse, better = found["regressions"][0], found["improvements"][0]
    assert {id: text for id, text in lines.items() if text} == {
        worse["id"]: f"regression: {worse['what']}", better["id"]: f"improvement: {better['what']}",
    }  # fmt: skip
    alone = csv_report.render(replace(CARD, comparison=None))
    assert {line["baseline"] for line in csv.DictReader(io.StringIO(alone))} == {""}


def test_compare_without_a_row_in_common_exits_with_2(compare):
    assert compare(golden_cards.planted("other"))[0] == 2


def test_compare_with_a_broken_report_exits_with_2(compare, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["compare", str(tmp_path / "old.json"), str(tmp_path / "absent.json")])
    assert stop.value.code == 2
    assert "absent.json does not exist" in capsys.readouterr().err
