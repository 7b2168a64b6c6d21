"""Scorecard: the checklist verdict, the terminal section and the JSON report."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from pytest_behaviortrace import checklist, statistics
from pytest_behaviortrace.reports import json as json_report
from pytest_behaviortrace.reports import terminal
from pytest_behaviortrace.scorecard import CORE, Cost, Row, RunFacts, Scorecard, SeedFacts, row_of, worst
from pytest_behaviortrace.summary import summary

SPECS = [spec for check in checklist.declared() for spec in check.rows(["mine"], range(3), 2)]
NUMBERS = {
    "estimate": 0.81, "low": 0.75, "high": 0.86, "chance": 0.5, "control": "norm-only", "control_estimate": 0.55,
    "margin_low": 0.19, "n": 1234,
}  # fmt: skip


def card(verdict_of=lambda spec: "pass", keep=lambda spec: True) -> Scorecard:
    """A scorecard of the whole checklist."""
    rows = [
        Row(s.id, s.estimator, s.check, s.seed, s.draw, verdict_of(s), **NUMBERS, reason="every gate holds")
        for s in SPECS
        if keep(s)
    ]
    expected = {"mine": frozenset(s.id for s in SPECS if s.estimator)}
    return Scorecard(
        "2026.12", "tiny", "ab" * 32, "plant", {"trl": "1.16.0", "torch": "2.13.0"},
        [SeedFacts(1, 0.8, 0.1, 300, 2560), SeedFacts(0, 0.7, 0.2, 310, 2560)],
        rows[::-1], expected, {"mine": Cost(1.5, 42_000_000)}, draws=2,
    )  # fmt: skip


def on(check, verdict, seed=0, otherwise="pass"):
    """Verdicts that differ on one check (of one seed, where it has seeds)."""
    return lambda spec: verdict if spec.check == check and spec.seed in (seed, None) else otherwise


# -- the checklist verdict ---------------------------------------------------------------------------------------------
def test_passed_only_if_every_applicable_row_passed():
    assert card().checklist_verdict("mine") == "passed"
    assert card(on("test_coverage", "n/a")).checklist_verdict("mine") == "passed"
    assert card(on("test_coverage", "inconclusive")).checklist_verdict("mine") == "inconclusive"


@pytest.mark.parametrize("verdict", ["fail", "error"])
@pytest.mark.parametrize("otherwise", ["pass", "inconclusive", "n/a"])
def test_one_failed_row_fails_the_checklist_whatever_the_others_say(verdict, otherwise):
    found = card(on("test_lookalikes", verdict, otherwise=otherwise))
    assert found.checklist_verdict("mine") == "failed"


@pytest.mark.parametrize("core", CORE)
def test_declaring_less_never_wins(core):
    assert card(lambda spec: "n/a" if spec.check == core else "pass").checklist_verdict("mine") == "not shown"


def test_a_core_check_that_applies_to_some_seeds_is_shown():
    assert card(on("test_fluency_control", "n/a", seed=1)).checklist_verdict("mine") == "passed"


def test_a_selection_is_partial_unless_it_failed():
    one_seed = card(keep=lambda spec: spec.seed == 0)
    assert one_seed.checklist_verdict("mine") == "partial"
    assert one_seed.missing("mine") == 2 * (5 + 2 * 2) + 3 + 9
    failed = card(on("test_coverage", "fail"), keep=lambda spec: spec.seed == 0)
    assert failed.checklist_verdict("mine") == "failed"


def test_headroom_is_no_verdict_about_an_estimator():
    found = card(lambda spec: "inconclusive" if spec.estimator is None else "pass")
    assert found.checklist_verdict("mine") == "passed"
    assert found.decided
    assert not card(lambda spec: "pass" if spec.estimator is None else "inconclusive").decided
    assert card(keep=lambda spec: spec.estimator is None).decided


def test_the_row_shown_for_a_check_is_the_worst_then_the_closest():
    rows = [Row(f"r{i}", "mine", "c", i, None, "pass", low=0.6 + i / 10, chance=0.5, margin_low=0.2) for i in range(3)]
    assert worst(rows).id == "r0"
    assert worst([*rows, replace(rows[2], id="m", margin_low=0.01)]).id == "m"
    assert worst([*rows, replace(rows[2], id="u", verdict="inconclusive")]).id == "u"
    assert worst([*rows, replace(rows[0], id="e", verdict="error"), replace(rows[0], id="f", verdict="fail")]).id == "e"


def test_on_a_recorded_run_passed_means_on_this_run():
    about = RunFacts("myrun", "ab" * 32, "QZ.*", "code", 5, 9, {"trl": "1.16.0"})
    found = replace(card(), run=about, seeds=())
    assert found.checklist_verdict("mine") == "passed on this run"
    assert replace(card(on("test_coverage", "fail")), run=about).checklist_verdict("mine") == "failed"
    text = "\n".join(line.text for line in terminal.render(found))
    assert "mine: PASSED ON THIS RUN" in text
    assert "recorded run myrun@abababab, behaviour 'QZ.*'" in text
    assert "no verdict here says that an estimator finds causes" in " ".join(text.split())
    assert "recipe" not in text
    report = json.loads(json_report.render(found))
    assert list(report) == [
        "schema",
        "suite",
        "recipe",
        "run",
        "plant",
        "draws",
        "versions",
        "seeds",
        "checklist",
        "summary",
        "rows",
    ]
    assert (report["recipe"], report["plant"], report["seeds"]) == (None, None, [])
    assert report["run"]["manifest_sha256"] == "ab" * 32


# -- rows --------------------------------------------------------------------------------------------------------------
def test_numbers_are_rounded_and_finite():
    row = Row("i", None, "c", 0, None, "pass", estimate=1 / 3, low=math.nan, high=math.inf, margin_low=-1e-9)
    assert (row.estimate, row.low, row.high) == (0.333333, None, None)
    assert str(row.margin_low) == "0.0"


def test_a_row_from_the_properties_of_a_report():
    spec = next(s for s in SPECS if s.check == "test_fluency_control" and s.seed == 1 and s.draw == 1)
    properties = {"bt_verdict": "fail", "bt_estimate": 0.25, "bt_n": 7, "bt_reason": "why", "bt_seconds": 1.0, "x": 1}
    assert row_of(spec, properties) == Row(
        "checks/test_fluency_control.py::test_fluency_control[mine-seed1-draw1]", "mine", "test_fluency_control",
        1, 1, "fail", estimate=0.25, n=7, reason="why",
    )  # fmt: skip


# -- JSON --------------------------------------------------------------------------------------------------------------
def test_json_has_the_documented_fields_in_order():
    report = json.loads(json_report.render(card()))
    assert list(report) == [
        "schema",
        "suite",
        "recipe",
        "plant",
        "draws",
        "versions",
        "seeds",
        "checklist",
        "summary",
        "rows",
    ]
    assert (report["schema"], report["plant"], report["draws"]) == (2, "plant", 2)
    assert report["checklist"] == {"mine": "passed"}
    assert report["summary"] == {"mine": "checklist passed; 39 of 39 rows passed; suite 2026.12, recipe tiny@abababab"}
    assert report["recipe"] == {"name": "tiny", "hash": "ab" * 32}
    assert list(report["versions"]) == ["torch", "trl"]
    assert report["seeds"][0] == {"seed": 0, "s_b_planted": 0.7, "s_b_null": 0.2, "gt": 310, "n": 2560}
    fields = (
        "id estimator check seed draw verdict estimate low high chance control control_estimate margin_low n reason "
        "expected_failure"
    )
    assert all(list(row) == fields.split() for row in report["rows"])
    assert [row["id"] for row in report["rows"]] == sorted(spec.id for spec in SPECS)
    headroom = next(row for row in report["rows"] if row["check"] == "test_headroom")
    assert (headroom["estimator"], headroom["draw"]) == (None, None)


def test_json_does_not_depend_on_the_order_in_which_rows_arrived_nor_on_cost():
    found = card()
    other = replace(found, rows=found.rows[::-1], seeds=found.seeds[::-1], costs={}, versions=dict(found.versions))
    assert json_report.render(found) == json_report.render(other)


def test_json_without_rows_is_json():
    assert json.loads(json_report.render(card(keep=lambda spec: False)))["rows"] == []


def test_json_of_ten_estimators_stays_small():
    assert len(json_report.render(card()).encode()) * 10 < 1_000_000


# -- terminal ----------------------------------------------------------------------------------------------------------
def lines(scorecard: Scorecard, **options) -> list[str]:
    return [line.text for line in terminal.render(scorecard, **options)]


def test_the_section_in_full():
    failing = card(on("test_reward_control", "fail", seed=2))
    assert lines(failing)[:8] == [
        "suite 2026.12, recipe tiny@abababab, plant plant",
        "seed 1: behaviour score 0.800 planted, 0.100 null; 300 of 2560 rollouts are ground truth",
        "seed 0: behaviour score 0.700 planted, 0.200 null; 310 of 2560 rollouts are ground truth",
        "",
        "the run itself (no estimator on trial)",
        "  headroom            pass          3 of 3  seed0            0.810 [0.750, 0.860] chance 0.5, norm-only 0.550",
        "      every gate holds",
        "",
    ]
    assert lines(failing)[8] == "mine: FAILED (39 rows: 38 pass, 1 fail); its own time 1.50 s, memory +42 MB"
    at = lines(failing).index(
        "  reward_control      fail          1 of 3  seed2            0.810 [0.750, 0.860] chance 0.5, norm-only 0.550"
    )
    assert lines(failing)[at + 1 : at + 3] == [
        "      every gate holds",
        "      rerun: pytest --bt-estimator=mine 'checks/test_reward_control.py::test_reward_control[mine-seed2]'",
    ]


def test_checks_stand_in_their_order_of_reading():
    names = [line.split()[0] for line in lines(card()) if line.startswith("  ") and line[2] != " "]
    assert names == [
        "headroom", "gradient_magnitude", "fluency_control", "reward_control", "trigger_alignment", "target_context",
        "coverage", "lookalikes", "seed_stability", "stress",
    ]  # fmt: skip


def test_commands_repeat_what_was_typed_and_quote_it():
    found = lines(card(on("test_headroom", "inconclusive")), options=["--bt-recipe=my recipe.toml"])
    assert (
        "      rerun: pytest --bt-estimator=mine '--bt-recipe=my recipe.toml' "
        "'checks/test_headroom.py::test_headroom[seed0]'"
    ) in found


def test_passed_rows_have_a_command_only_when_asked():
    assert not [line for line in lines(card()) if "rerun:" in line]
    assert len([line for line in lines(card(), verbose=True) if "rerun:" in line]) == 10


@pytest.mark.parametrize("width", [80, 120, 300])
def test_lines_fit_but_for_commands(width):
    found = card(on("test_lookalikes", "fail"))
    long = {"reason": "a reason of many words " * 20, "control": "-update-magnitude", "control_estimate": -0.123}
    wordy = replace(found, rows=[replace(row, **long) for row in found.rows])
    for line in lines(wordy, width=width):
        assert "rerun:" in line or line.startswith("mine: checklist ") or len(line) <= 120


def several(count: int) -> Scorecard:
    """Estimators with one row each; every third one failed."""
    rows = []
    for number in range(count):
        name = f"e{number:04}"
        id = f"checks/test_lookalikes.py::test_lookalikes[{name}-seed0]"
        rows.append(Row(id, name, "test_lookalikes", 0, None, "pass" if number % 3 else "fail", **NUMBERS))
    return replace(card(), rows=rows, expected={row.estimator: frozenset([row.id, "other"]) for row in rows}, costs={})


def test_the_last_lines_are_those_for_badges():
    one = card(on("test_coverage", "fail"))
    assert lines(one)[-2:] == ["", f"mine: {summary(one, 'mine')}"]
    few = several(terminal.BADGES)
    assert lines(few)[-terminal.BADGES :] == [f"{name}: {summary(few, name)}" for name in few.estimators]


def test_of_many_estimators_one_line_counts_how_they_ended():
    found = lines(several(1_000))
    assert found[-1] == ("1000 estimators, by checklist: 666 partial, 334 failed; suite 2026.12, recipe tiny@abababab")
    assert not [line for line in found if ": checklist" in line]


def test_reasons_move_no_cursor_and_open_no_colour():
    found = card()
    rows = [replace(row, reason="a\x1b[31mb\u202ec\nd") for row in found.rows]
    text = lines(replace(found, rows=rows))
    assert "      a [31mb c d" in text
    assert all(line.isprintable() for line in text)


@pytest.mark.parametrize(
    "ask",
    [
        Scorecard.of, Scorecard.by_check, Scorecard.missing, Scorecard.checklist_verdict, summary,
    ],
    ids=["of", "by_check", "missing", "checklist_verdict", "summary"],
)  # fmt: skip
def test_an_estimator_that_nobody_graded_is_a_sentence(ask):
    with pytest.raises(LookupError) as caught:
        ask(card(), "nope")
    assert str(caught.value) == "the scorecard has no estimator 'nope'; it has mine"
    with pytest.raises(LookupError, match="it has e0000, e0001, e0002, e0003, e0004 and 995 more"):
        ask(several(1_000), "nope")
    with pytest.raises(LookupError, match="it has none"):
        ask(replace(card(), rows=(), expected={}), "nope")


def test_what_luck_can_do_counts_applicable_rows():
    text = " ".join(lines(card(on("test_coverage", "n/a"))))
    assert "at most 0.73 of 29 rows" in text


def test_luck_decided_nothing_where_nothing_was_decided():
    made = card()
    for verdict in ("error", "inconclusive", "n/a"):
        rows = [row if row.estimator is None else replace(row, verdict=verdict) for row in made.rows]
        assert "What luck can do" not in "\n".join(lines(replace(made, rows=rows)))
    stress = [row if row.check == "test_stress" else replace(row, verdict="error") for row in made.rows]
    assert "What luck can do" not in "\n".join(lines(replace(made, rows=stress)))  # luck passes no property
    first = next(row.id for row in made.rows if row.check == "test_lookalikes")
    mixed = [row if row.id == first else replace(row, verdict="error") for row in made.rows]
    assert "at most 0.025 of 1 row on average" in " ".join(lines(replace(made, rows=mixed)))


def test_colour_adds_nothing_that_the_text_does_not_say():
    for line in terminal.render(card(on("test_coverage", "fail"))):
        if line.colour == "red":
            assert "fail" in line.text.lower()


def test_a_partial_scorecard_says_how_many_rows_ran():
    assert "mine: PARTIAL (9 of 39 rows: 9 pass)" in " ".join(lines(card(keep=lambda spec: spec.seed == 0)))


def test_the_spread_of_every_component_is_shown_and_not_only_the_worst_ones():
    made = card()
    spread = statistics.variance_components([[0.7, 0.6], [0.8, 0.9]], [[0.01, 0.01], [0.01, 0.01]]).describe()
    alone = statistics.variance_components([[0.7], [0.9]], [[0.01], [0.01]]).describe()
    rows = [
        replace(r, reason=f"fine (seed 0 +0.1; {alone if 'decoy' in r.id else spread})")
        if "stability" in r.check
        else r
        for r in made.rows
    ]
    text = [line.text.strip() for line in terminal.render(replace(made, rows=rows))]
    assert sum(line.startswith("fine (seed 0 +0.1)") for line in text) == 1
    joined = " ".join(text)
    for component in ("window-precision", "fluency-controlled-auc"):
        assert f"{component}: {spread}" in joined
    assert f"decoy-auc: {alone}" in joined
    assert "draw unknown" in alone
