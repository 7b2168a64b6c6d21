"""Every cheat of `tests/cheats` on the real runs: caught by what its file says, or shown to win where it says so."""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import cheats
import numpy as np
import pytest
from cheats.crafted_ties import VARIANTS
from cheats.exploits_array_identity import FEATURES, Feature
from cheats.hard_codes_the_answers import Memoriser, fingerprint
from cheats.memorises_row_ids import ByPlace
from cheats.remembers_between_calls import SEEN
from check_rows import CHECKS, DRAWS, PLANT, SEEDS, Outcome, places, run_row

from pytest_behaviortrace import statistics
from pytest_behaviortrace.estimators.gradient import gas
from pytest_behaviortrace.evidence import EvidenceStore
from pytest_behaviortrace.grading import Grader
from pytest_behaviortrace.isolation import Isolated, isolate
from pytest_behaviortrace.registry import Registered
from pytest_behaviortrace.run.recipe import Recipe
from pytest_behaviortrace.run.store import Store
from pytest_behaviortrace.scoring import score
from pytest_behaviortrace.verdict import Verdict

MODULES = {m.name: importlib.import_module(f"cheats.{m.name}") for m in pkgutil.iter_modules(cheats.__path__)}
GRADED = [name for name, check in CHECKS.items() if name != "headroom" and check.needs_run]
HERE = Path(__file__).parents[1]


def apart(name: str) -> Isolated:
    """A cheat's estimator in processes of its own."""
    return isolate(Registered(name, "", f"cheats.{name}:estimator"), HERE)


def rows(grader: Grader, check: str, name: str, estimator: Any, seeds: tuple[int, ...] = SEEDS) -> list[Outcome]:
    found = [place for place in places(check) if place["seed"] in (None, *seeds)]
    return [run_row(grader, check, name, estimator, **place) for place in found]


def caught(outcomes: list[Outcome]) -> bool:
    """No row passes, and one fails."""
    verdicts = {outcome.verdict for outcome in outcomes}
    return Verdict.PASS not in verdicts and Verdict.FAIL in verdicts


def wins(grader: Grader, name: str, estimator: Any) -> bool:
    """Every row of the whole checklist passes."""
    outcomes = [outcome for check in GRADED for outcome in rows(grader, check, name, estimator)]
    assert len(outcomes) == 30
    return {outcome.verdict for outcome in outcomes} == {Verdict.PASS}


def learned(evidence: EvidenceStore, seeds: tuple[int, ...]) -> dict[int, Any]:
    """What a cheater who trained these seeds at home would ship."""
    known = [evidence.rollouts(seed) for seed in seeds]
    return {fingerprint(rollouts.problem): (rollouts.truth, rollouts.decoy) for rollouts in known}


@pytest.mark.parametrize("name", MODULES)
def test_every_cheat_says_what_it_does_and_what_stops_it(name: str) -> None:
    module = MODULES[name]
    assert (module.__doc__ or "").strip().endswith(".")
    assert module.WHY.endswith(".")
    assert module.CAUGHT_BY in {*GRADED, "construction", "error", "isolation", "out of scope"}


# -- caught by a check -------------------------------------------------------------------------------------------------
PLAIN = ["detects_the_null_run", "remembers_between_calls", "reward_in_disguise", "exploits_item_order"]


@pytest.mark.parametrize("name", PLAIN)
def test_it_is_caught(grader: Grader, name: str) -> None:
    assert caught(rows(grader, MODULES[name].CAUGHT_BY, name, MODULES[name].estimator))


def test_knowing_the_question_does_not_help(grader: Grader, monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = {}
    for check in (
        "gradient_magnitude",
        "lookalikes",
        "reward_control",
    ):  # each as in a process of its own, where nothing was scored before
        monkeypatch.setenv("PYTEST_CURRENT_TEST", f"checks/test_{check}.py::test_{check}[x] (call)")
        module = MODULES["reads_the_environment"]
        verdicts[check] = {o.verdict for o in rows(grader, check, f"environment for {check}", module.estimator)}
    assert Verdict.FAIL in verdicts["gradient_magnitude"]
    assert verdicts["lookalikes"] == {Verdict.PASS}  # what it gained


def test_the_null_run_is_recognised_and_the_leak_not_seen(grader: Grader) -> None:
    module = MODULES["detects_the_null_run"]
    outcomes = rows(grader, "lookalikes", "detects_the_null_run", module.estimator)
    assert Verdict.ERROR not in {outcome.verdict for outcome in outcomes}


def test_places_are_no_ids(grader: Grader, evidence: EvidenceStore) -> None:
    by_place = ByPlace(evidence.rollouts(0).truth)
    assert rows(grader, "reward_control", "by place", by_place, (0,))[0].verdict is Verdict.PASS  # it knows that one
    assert caught(rows(grader, "reward_control", "by place", by_place, (1, 2)))
    assert Verdict.PASS not in {o.verdict for o in rows(grader, "seed_stability", "by place", by_place)}


def test_what_it_remembers_is_lost_in_isolation(grader: Grader, evidence: EvidenceStore) -> None:
    problem = evidence.rollouts(0).problem
    ones = problem.replacing(gradient_norm=np.ones(len(problem), np.float32))
    module, isolated = MODULES["remembers_between_calls"], apart("remembers_between_calls")
    SEEN.clear()
    both = [score("inside", module.estimator, p).scores for p in (problem, ones)]
    assert np.array_equal(*both)  # in one process the second gate sees the first answer
    both = [score("apart", isolated, p).scores for p in (problem, ones)]
    assert np.ptp(both[1]) == 0


# -- defeated by construction ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", FEATURES)
@pytest.mark.parametrize("check", ["reward_control", "lookalikes"])
def test_storage_says_nothing(grader: Grader, name: str, check: str) -> None:
    outcomes = rows(grader, check, f"stored {name}", Feature(name))
    above = [o.decision.estimate - o.decision.chance for o in outcomes if o.decision is not None]
    assert abs(sum(above)) / len(above) < 0.1  # six standard errors: addresses are drawn anew in every session
    assert [o.verdict for o in outcomes] != [Verdict.PASS] * len(SEEDS)


@pytest.mark.parametrize("name", VARIANTS)
def test_ties_and_extremes_do_not_pass(grader: Grader, name: str) -> None:
    assert caught(rows(grader, MODULES["crafted_ties"].CAUGHT_BY, f"tied {name}", VARIANTS[name]))
    for check in ("fluency_control", "trigger_alignment", "target_context", "coverage"):
        assert Verdict.PASS not in {o.verdict for o in rows(grader, check, f"tied {name}", VARIANTS[name], (0,))}


@pytest.mark.parametrize("check", GRADED)
def test_a_constant_gets_exactly_chance(grader: Grader, check: str) -> None:
    for outcome in rows(grader, check, "tied constant", VARIANTS["constant"]):
        assert outcome.decision is not None
        assert outcome.decision.estimate == pytest.approx(outcome.decision.chance, abs=1e-12)


def test_a_tied_block_is_worth_what_a_random_order_of_it_is(evidence: EvidenceStore) -> None:
    rollouts, rng = evidence.rollouts(0), np.random.default_rng(0)
    truth, block = rollouts.truth[rollouts.window], VARIANTS["one-block"](rollouts.problem)[rollouts.window]
    broken = [statistics.tie_aware_precision(block + 1e-6 * rng.random(len(block)), truth) for _ in range(300)]
    assert statistics.tie_aware_precision(block, truth) == pytest.approx(float(np.mean(broken)), abs=0.01)


def test_other_rows_are_graded_as_if_nothing_had_been_changed(store: Store, recipe: Recipe) -> None:
    def decisions(first: Any) -> list[Any]:
        grader = Grader(store, recipe, plant=PLANT, seeds=SEEDS, draws=DRAWS)
        run_row(grader, "reward_control", "first", first, seed=0)
        checks = [("reward_control", {"seed": 0}), ("fluency_control", {"seed": 0, "draw": 0})]
        return [run_row(grader, check, "gas", gas, **place).decision for check, place in checks]

    assert decisions(MODULES["changes_global_state"].estimator) == decisions(gas)


# -- sessions ----------------------------------------------------------------------------------------------------------
@pytest.fixture
def session(pytester: pytest.Pytester, store: Store, monkeypatch: pytest.MonkeyPatch) -> Any:
    """One row on the real run, in a pytest process of its own."""
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run(cheat: str, *more: str, row: str = "test_gradient_magnitude.py::test_gradient_magnitude[{}-seed0]") -> Any:
        name = f"cheats.{cheat}:estimator" if cheat in MODULES else cheat
        flags = ("-p", "no:hypothesispytest", f"--bt-estimator={name}", f"--bt-cache-dir={store.cache_dir}")
        return pytester.runpytest_subprocess(
            *flags, "--bt-report=card.json", "--junitxml=junit.xml", *more, f"checks/{row.format(name)}", timeout=120
        )

    return run


def verdicts() -> set[str]:
    """Verdicts of the last session's report."""
    return {row["verdict"] for row in json.loads(Path("card.json").read_text(encoding="utf-8"))["rows"]}


@pytest.mark.parametrize("isolated", [(), ("--bt-isolate",)], ids=["inside", "isolated"])
def test_a_sleeper_is_an_error(session: Any, isolated: tuple[str, ...]) -> None:
    result = session("sleeps", "--bt-estimator-timeout=2", *isolated)
    assert (result.ret, verdicts()) == (1, {"error"})
    result.stdout.fnmatch_lines(["E   error: *took longer than 2 s (--bt-estimator-timeout)"])


def test_a_stubborn_sleeper_is_ended_in_isolation(session: Any) -> None:
    result = session("cheats.sleeps:stubborn", "--bt-estimator-timeout=2", "--bt-isolate")
    assert (result.ret, verdicts()) == (1, {"error"})


def test_ending_the_process_looks_like_success_and_leaves_no_report(session: Any) -> None:
    result = session("kills_its_process")
    assert result.ret == 0
    assert not Path("card.json").exists()
    result.stdout.no_fnmatch_line("*behaviortrace scorecard*")


@pytest.mark.parametrize("how", ["--bt-isolate", "-n1"])
def test_ending_the_process_is_an_error_elsewhere(session: Any, how: str) -> None:
    result = session("kills_its_process", how)
    assert (result.ret, verdicts()) == (1, {"error"})


@pytest.mark.parametrize("isolated", [(), ("--bt-isolate",)], ids=["inside", "isolated"])
def test_megabytes_of_output_drown_nothing(session: Any, isolated: tuple[str, ...]) -> None:
    result = session("prints_megabytes", *isolated, "-o", "junit_logging=all")
    assert (result.ret, verdicts()) == (1, {"fail"})
    result.stdout.fnmatch_lines(["*Captured stdout call*", "*all is well", "*behaviortrace scorecard*"])
    assert len(result.stdout.str()) < 30_000
    assert Path("junit.xml").stat().st_size < 50_000
    assert ET.parse("junit.xml").getroot() is not None


def test_output_of_a_row_that_passed_is_not_shown(session: Any) -> None:
    row = "test_lookalikes.py::test_lookalikes[{}-seed0]"
    result = session("cheats.prints_megabytes:passing", row=row)
    assert (result.ret, verdicts()) == (0, {"pass"})
    result.stdout.no_fnmatch_line("*all is well*")
    assert Path("junit.xml").stat().st_size < 5_000


def test_a_replaced_rule_wins_inside_and_loses_in_isolation(session: Any) -> None:
    assert session("monkeypatches_the_plugin").ret == 0
    assert verdicts() == {"pass"}
    assert session("monkeypatches_the_plugin", "--bt-isolate").ret == 1
    assert verdicts() == {"fail"}


def test_isolation_changes_no_verdict_of_an_honest_estimator(session: Any) -> None:
    reports = []
    for isolated in ((), ("--bt-isolate",)):
        session("trak", *isolated, row="test_reward_control.py::test_reward_control[{}-seed0]")
        reports.append(Path("card.json").read_text(encoding="utf-8"))
    assert reports[0] == reports[1]


# -- cheats that win ---------------------------------------------------------------------------------------------------
def test_labels_in_the_cache_win_inside_and_not_in_isolation(
    grader: Grader, store: Store, evidence: EvidenceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BEHAVIORTRACE_CACHE", str(store.cache_dir))
    assert wins(grader, "cache", MODULES["reads_the_cache"].estimator)
    isolated, problem = apart("reads_the_cache"), evidence.rollouts(0).problem
    assert np.array_equal(score("x", isolated, problem).scores, gas(problem))
    assert caught(rows(grader, "lookalikes", "isolated cache", isolated, (0,)))


def test_labels_up_the_stack_win_inside_and_not_in_isolation(grader: Grader) -> None:
    for check in ("gradient_magnitude", "reward_control", "lookalikes", "target_context"):
        (outcome,) = rows(grader, check, "stack", MODULES["looks_up_the_stack"].estimator, (0,))
        assert outcome.verdict is Verdict.PASS, outcome.reason
    assert caught(rows(grader, "lookalikes", "isolated stack", apart("looks_up_the_stack"), (0,)))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_isolation_is_a_fence_and_no_sandbox(session: Any) -> None:
    result = session("opens_the_cache_anyway", "--bt-isolate", row="test_lookalikes.py::test_lookalikes[{}-seed0]")
    assert result.ret == 0
    assert verdicts() == {"pass"}


def test_answers_learned_by_heart_win_on_the_seeds_that_were_learned(grader: Grader, evidence: EvidenceStore) -> None:
    assert wins(grader, "memoriser", Memoriser(learned(evidence, SEEDS)))
    surprised = Memoriser(learned(evidence, (0, 1)))
    assert caught(rows(grader, "lookalikes", "surprised", surprised, (2,)))


def test_a_run_recomputed_without_its_salt_says_nothing(
    grader: Grader, evidence: EvidenceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    estimator = MODULES["recomputes_the_run"].estimator
    assert caught(rows(grader, "reward_control", "recomputed", estimator))
    salt = evidence.store.seed(0).salt("rollouts.parquet")  # what it would take
    monkeypatch.setattr("cheats.recomputes_the_run.ORDER_STREAM", (3, salt))
    assert rows(grader, "reward_control", "recomputed with the salt", estimator, (0,))[0].verdict is Verdict.PASS
