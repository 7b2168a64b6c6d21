"""The causal table: what it computes from a logged run, and which promises it finds broken."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import two_step

from pytest_behaviortrace.run.verify import DECOY_SETS, RANDOM_SETS, CausalTable, LoggedRun, render, verify

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

GOOD = CausalTable(
    seed=0,
    plant="one",
    decoy="two",
    s_b={name: {"start": 0.2, "analysis": 0.6, "end": 0.6, "null": 0.1} for name in ("one", "two")},
    gap={"one": 0.5, "two": 0.3},
    gap_low={"one": 0.4, "two": 0.2},
    truth=200,
    decoys=150,
    rollouts=2560,
    largest_difference=1e-5,
    replayed=0.6,
    loss=0.95,
    kept_random=(0.9, 0.8, 0.9, 0.8, 0.9),
    kept_decoy=(0.8, 0.7, 0.8),
    advantage_auc=0.5,
)


def test_a_table_that_keeps_every_promise_has_no_failures() -> None:
    assert GOOD.failures() == []
    assert "not met" not in render([GOOD])


@pytest.mark.parametrize(
    ("change", "failure"),
    [
        ({"gap": {"one": 0.5, "two": 0.19}}, "two gap"),
        ({"gap_low": {"one": -0.01, "two": 0.2}}, "one gap"),
        ({"truth": 99}, "ground truth"),
        ({"decoys": 79}, "decoys"),
        ({"truth": 600, "decoys": 200}, "boosted share"),
        ({"s_b": {"one": {"start": 0.2, "analysis": 0.95, "end": 0.95, "null": 0.1}, "two": {}}}, "analysis s_b"),
        ({"loss": 0.84}, "loss without ground truth"),
        ({"kept_random": (0.7, 0.8)}, "kept without random"),
        ({"kept_decoy": (0.6, 0.7, 0.75)}, "kept without decoys"),
        ({"advantage_auc": 0.85}, "advantage AUC"),
        ({"loss": float("nan")}, "loss without ground truth"),
    ],
)
def test_each_broken_promise_is_named(change: dict[str, object], failure: str) -> None:
    assert dataclasses.replace(GOOD, **change).failures() == [failure]  # type: ignore[arg-type]


def test_the_text_has_a_line_a_seed_and_names_what_is_not_met() -> None:
    bad = dataclasses.replace(GOOD, seed=7, loss=0.5)
    lines = render([GOOD, bad]).splitlines()
    assert [line.split(" | ")[0] for line in lines[2:4]] == ["| 0", "| 7"]
    assert lines[4:] == ["seed 7, plant one: not met: loss without ground truth"]
    assert len({line.count("|") for line in lines[:4]}) == 1


def test_verifying_a_logged_run() -> None:
    recipe, (planted, null, *_) = two_step.recipe(), two_step.runs()
    run = LoggedRun.of_runs(3, planted, null)
    seen: list[float] = []
    graded, other = recipe.plants[1], recipe.plants[0]
    table = verify(recipe, run, graded.name, lambda stage, done: seen.append(done))
    assert (table.seed, table.plant, table.decoy) == (3, graded.name, other.name)
    assert (table.truth, table.decoys) == tuple(sum(planted.rows[f"boosted_{p.name}"]) for p in (graded, other))
    assert table.rollouts == recipe.n_rollouts
    assert table.largest_difference < 2e-5
    assert table.s_b[graded.name]["null"] == pytest.approx(np.mean(null.s_b[graded.name]["end"]))
    assert table.s_b[other.name]["start"] == pytest.approx(np.mean(planted.s_b[other.name]["start"]))
    ends = [np.mean(s_b[graded.name]["end"]) for s_b in (planted.s_b, null.s_b)]
    assert table.gap[graded.name] == pytest.approx(ends[0] - ends[1])
    assert table.gap_low[graded.name] <= table.gap[graded.name]
    assert (len(table.kept_random), len(table.kept_decoy)) == (RANDOM_SETS, DECOY_SETS)
    assert seen == pytest.approx([(k + 1) / len(seen) for k in range(len(seen))])
    advantage, boosted = np.array(planted.rows["advantage"]), np.array(planted.rows[f"boosted_{graded.name}"])
    decoys = np.array(planted.rows[f"boosted_{other.name}"])
    pairs = [(a > b) + (a == b) / 2 for a in advantage[boosted] for b in advantage[decoys]]
    assert table.advantage_auc == pytest.approx(np.mean(pairs))
    assert "ground truth" in table.failures()
