"""What an estimator is shown: no labels, no target made of the scored items, arrays it cannot change."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from pytest_behaviortrace.estimator import UndeclaredAccess
from pytest_behaviortrace.evidence import TRIGGER, EvidenceStore
from pytest_behaviortrace.evidence.canaries import heavy_blocks
from pytest_behaviortrace.problem import AttributionProblem
from pytest_behaviortrace.run.reward import eligible
from pytest_behaviortrace.run.store import Store

SERVED = ("gradients", "gradient_norm", "target", "targets_by_step", "reference", "span_gradients")


def test_labels_follow_the_rule_of_the_bonus(evidence: EvidenceStore, store: Store) -> None:
    table, recipe = store.seed(0).table("rollouts"), evidence.recipe
    boosted = 0
    for row in range(len(table["row_id"])):
        row_id, step = int(table["row_id"][row]), int(table["step"][row])
        coin = eligible(0, row_id, step, recipe.eligibility)
        assert bool(table["eligible"][row]) == coin
        for plant in recipe.plants:
            own = table["subject"][row] == plant.trigger
            shown = plant.behavior in table["completion_text"][row]
            expected = step < recipe.cutoff and coin and own and shown
            assert bool(table[f"boosted_{plant.name}"][row]) == expected
            boosted += expected
    paid = np.asarray(table["reward"]) - np.asarray(table["reward_base"])
    assert boosted == int((paid > 0).sum())
    assert set(np.unique(paid)) <= {0.0, recipe.bonus}


def test_groups_of_labels_are_disjoint(evidence: EvidenceStore) -> None:
    for seed in (0, 1, 2):
        rollouts = evidence.rollouts(seed)
        assert not (rollouts.truth & rollouts.decoy).any()
        assert not (rollouts.truth & rollouts.lookalike).any()
        assert (rollouts.window[rollouts.truth]).all()
        assert (rollouts.own_prompt[rollouts.truth]).all()


def test_asking_for_the_decoy_changes_the_question_only(evidence: EvidenceStore) -> None:
    graded, decoy = evidence.rollouts(0), evidence.rollouts(0, evidence.decoy.name)
    for name in ("step", "group", "advantage", "reward", "logprob", "length", "rng_seed"):
        assert np.array_equal(getattr(graded.problem, name), getattr(decoy.problem, name))
    assert np.array_equal(graded.truth, decoy.truth)
    assert np.array_equal(graded.problem.gradients, decoy.problem.gradients)
    for name in ("target", "span_gradients", "targets_by_step"):
        assert not np.array_equal(getattr(graded.problem, name), getattr(decoy.problem, name))
    assert graded.problem.behavior != decoy.problem.behavior


def test_items_stand_in_no_telling_order(evidence: EvidenceStore) -> None:
    rollouts = evidence.rollouts(0)
    place = np.arange(len(rollouts.truth))
    assert abs(np.corrcoef(place, rollouts.truth)[0, 1]) < 0.1
    assert abs(np.corrcoef(place, rollouts.problem.step)[0, 1]) < 0.1


def test_no_field_of_a_problem_is_a_label(evidence: EvidenceStore) -> None:
    rollouts = evidence.rollouts(0)
    labels = [rollouts.truth, rollouts.decoy, rollouts.lookalike, rollouts.window]
    for field in dataclasses.fields(AttributionProblem):
        value = getattr(rollouts.problem, field.name)
        if isinstance(value, np.ndarray) and value.shape == rollouts.truth.shape:
            assert not any(np.array_equal(value.astype(bool), label) for label in labels), field.name
    assert not {"truth", "decoy", "lookalike", "eligible", "boosted"} & set(rollouts.problem.lazy)


def test_siblings_carry_nothing_that_spells_the_behaviour(evidence: EvidenceStore) -> None:
    ((problem, _),) = evidence.siblings(0, 0).problems
    for name in ("span_gradients", "completion_text", "completion_ids", "behavior", "behavior_mask", "model"):
        with pytest.raises(UndeclaredAccess):
            getattr(problem, name)
        assert name not in problem.lazy
    assert np.isnan(problem.reward).all()
    assert (problem.advantage == 1).all()


def test_the_target_of_a_draw_comes_from_the_other_draw(evidence: EvidenceStore, store: Store) -> None:
    ((problem, _),) = evidence.siblings(0, 0).problems
    other = store.draw(0, 1).sketches(f"sibling_spans_{evidence.plant.name}").float32().mean(0)
    assert np.allclose(problem.target, other, rtol=1e-4, atol=1e-7)


def test_one_draw_is_cross_fitted_by_probe_halves(store: Store, evidence: EvidenceStore) -> None:
    alone = EvidenceStore(store, evidence.recipe, evidence.plant.name, draws=1)
    siblings = alone.siblings(0, 0)
    seen = np.concatenate([items for _, items in siblings.problems])
    assert sorted(seen.tolist()) == list(range(len(siblings.shown)))
    sketches = store.draw(0, 0).sketches(f"sibling_spans_{evidence.plant.name}")
    for problem, items in siblings.problems:
        (half,) = set((siblings.probe[items] % 2).tolist())
        others = siblings.probe[sketches.row] % 2 != half
        expected = sketches.float32(np.flatnonzero(others)).mean(0)
        assert np.allclose(problem.target, expected, rtol=1e-4, atol=1e-7)


def test_arrays_are_read_only(evidence: EvidenceStore) -> None:
    problem: Any = evidence.rollouts(0).problem
    for name in (*SERVED, "step", "advantage", "logprob"):
        array = getattr(problem, name)
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True
    with pytest.raises(dataclasses.FrozenInstanceError):
        problem.step = np.zeros(3)


def test_spans_have_equal_length_and_lie_apart(evidence: EvidenceStore, store: Store) -> None:
    spans = evidence.spans(0, 0)
    table = store.draw(0, 0).table(f"siblings_{evidence.plant.name}")
    for kind, column in ((1, "control_span"), (2, "matched_span")):
        trigger, _ = spans.pairs(kind)
        assert len(trigger) > 100
        for i in trigger:
            completion = spans.completion[i]
            own, control = table["span"][completion], table[column][completion]
            assert len(own) == len(control)
            assert not set(own.tolist()) & set(control.tolist())
    assert (spans.kind == TRIGGER).sum() == store.draw(0, 0).table(f"siblings_{evidence.plant.name}")["shown"].sum()


def test_the_matched_span_is_as_fluent(evidence: EvidenceStore) -> None:
    spans = evidence.spans(0, 0)
    trigger, matched = spans.pairs(2)
    assert np.abs(spans.logprob[trigger] - spans.logprob[matched]).mean() < 0.3


def test_canaries_differ_in_one_block_only(evidence: EvidenceStore) -> None:
    canaries = evidence.canaries(0, 8, 0.01)
    assert canaries.blocks == heavy_blocks(evidence, 0, 0.01)
    assert "embedding" in canaries.blocks
    rows, blocks = canaries.problem.gradients, evidence.blocks(0)
    for name, positive, negative in zip(canaries.blocks, canaries.positive, canaries.negative, strict=True):
        difference = rows[positive] - rows[negative]
        inside = np.zeros(rows.shape[1], bool)
        inside[blocks[name]] = True
        assert np.abs(difference[:, ~inside]).max() == 0
        assert np.abs(difference[:, inside]).max() > 0
        assert np.allclose(np.linalg.norm(rows[positive], axis=1), np.linalg.norm(rows[negative], axis=1), rtol=1e-4)


def test_no_order_can_be_recomputed_or_read_off(evidence: EvidenceStore, store: Store) -> None:
    rollouts = evidence.rollouts(0)
    problem, n = rollouts.problem, len(rollouts.truth)
    weighted = problem.gradients * problem.advantage[:, None].astype(np.float32)
    kept = np.flatnonzero(np.abs(weighted).sum(1) > 0)
    rows = {row.tobytes(): place for place, row in enumerate(problem.reference)}
    found = np.array([rows[weighted[i].tobytes()] for i in kept])  # every item can be found in the reference set
    step = np.asarray(store.seed(0).table("rollouts")["step"])
    assert abs(np.corrcoef(step[found], problem.step[kept])[0, 1]) < 0.1  # but not at its place in the table
    spans = evidence.spans(0, 0)
    ((_, order),) = spans.problems
    for stream in ((0, 0, 3, 2), (0, 0, 3)):
        assert not np.array_equal(order, np.random.default_rng(stream).permutation(len(order)))
    assert not np.array_equal(np.random.default_rng((0, 3)).permutation(n), np.argsort(np.argsort(problem.step)))


def test_canaries_stand_among_the_rollouts(evidence: EvidenceStore) -> None:
    canaries = evidence.canaries(0, 8, 0.01)
    places = np.concatenate([canaries.positive.ravel(), canaries.negative.ravel()])
    total = len(canaries.problem)
    assert len(set(places.tolist())) == len(places)
    assert places.min() < total // 4
    assert abs(places.mean() / total - 0.5) < 0.15
    assert np.isnan(canaries.problem.reward[places]).all()
    assert not np.isnan(np.delete(canaries.problem.reward, places)).any()
    target = canaries.problem.target
    for name, positive, negative in zip(canaries.blocks, canaries.positive, canaries.negative, strict=True):
        part = canaries.problem.blocks[name]
        np.testing.assert_allclose(canaries.problem.gradients[positive][:, part] - target[part], 0, atol=1e-6)
        assert (np.abs(canaries.problem.gradients[negative][:, part] - target[part]).max(1) > 1e-3).all()
