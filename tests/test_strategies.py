"""Drawn problems are real ones: consistent, awkward in every way promised, small once shrunk, equal to their source."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.vendor.pretty import pretty
from problems import make_problem

from pytest_behaviortrace.estimator import Needs
from pytest_behaviortrace.problem import AttributionProblem
from pytest_behaviortrace.problem_source import problem_source
from pytest_behaviortrace.strategies import CARRIED, END, attribution_problems, shipped_model
from pytest_behaviortrace.variations import COLUMNS, contents, copied, flipped, relocated, renamed, taken

prop = settings(deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow])
search = settings(prop, max_examples=500, phases=(Phase.generate, Phase.shrink))
ALL_KINDS = tuple(CARRIED)


def rebuilt(problem: AttributionProblem) -> AttributionProblem:
    found: dict[str, AttributionProblem] = {}
    exec(problem_source(problem), found)  # type: ignore[arg-type]
    return found["problem"]


# -- consistency -------------------------------------------------------------------------------------------------------
@prop
@given(attribution_problems())
def test_everything_but_the_model_fits_together(problem):
    n, width = problem.gradients.shape
    assert 1 <= n == len(problem) <= 8
    assert problem.carried == Needs(gradients=True, spans=True, text=True, behavior=True)
    assert problem.gradients.dtype == problem.span_gradients.dtype == problem.target.dtype == np.float32
    assert problem.target.shape == (width,)
    assert problem.targets_by_step.shape == (len(problem.learning_rate), width)
    assert (problem.step < len(problem.learning_rate)).all()
    assert (problem.learning_rate > 0).all()
    np.testing.assert_allclose(problem.gradient_norm, np.linalg.norm(problem.gradients.astype(float), axis=1), 1e-6)
    np.testing.assert_array_equal(problem.reference, problem.gradients * problem.advantage.astype(np.float32)[:, None])
    buckets = [list(range(width))[part] for part in problem.blocks.values()]
    assert [bucket for block in buckets for bucket in block] == list(range(width))
    assert all(buckets)
    for name in ("gradients", "span_gradients", "target", "targets_by_step", "advantage", "logprob", "loss_scale"):
        assert np.isfinite(getattr(problem, name)).all(), name


@prop
@given(attribution_problems())
def test_texts_ids_masks_and_spans_tell_of_the_same_behaviour(problem):
    shown = np.array([mask.any() for mask in problem.behavior_mask])
    for i, (text, ids, mask) in enumerate(
        zip(problem.completion_text, problem.completion_ids, problem.behavior_mask, strict=True)
    ):
        assert len(ids) == len(mask) == problem.length[i] >= 1
        assert "".join(map(chr, ids[:-1])) == text
        assert ids[-1] == END
        assert shown[i] == (problem.behavior in text)
        if shown[i]:
            assert "".join(chr(token) for token in ids[mask]) == problem.behavior
    assert not problem.span_gradients[~shown].any()
    for s, target in enumerate(problem.targets_by_step):
        own = shown & (problem.step == s)
        expected = problem.span_gradients[own].mean(0, dtype=float) if own.any() else np.zeros(len(target))
        np.testing.assert_allclose(target, expected, rtol=1e-6)
    for group in np.unique(problem.group):
        own = np.flatnonzero(problem.group == group)
        assert len({problem.prompt_text[i] for i in own}) == len(set(problem.step[own])) == 1
        assert problem.prompt_text[own[0]] == "".join(map(chr, problem.prompt_ids[own[0]])) != ""


@prop
@given(attribution_problems())
def test_advantages_are_standardised_within_groups(problem):
    for group in np.unique(problem.group):
        own = problem.group == group
        if np.ptp(problem.reward[own]) == 0:
            assert not problem.advantage[own].any()
        else:
            assert abs(problem.advantage[own].sum()) < 1e-9
            assert problem.advantage[own].std(ddof=1) == pytest.approx(1, abs=1e-3)


@prop
@given(attribution_problems(kinds=("siblings", "spans", "canaries")))
def test_items_that_were_never_trained_on(problem):
    assert (problem.advantage == 1).all()
    assert np.isnan(problem.reward).all()
    assert problem.carried == CARRIED[problem.kind]
    if problem.carried.spans:
        np.testing.assert_array_equal(problem.span_gradients, problem.gradients)
    assert problem.reference.shape[1] == problem.gradients.shape[1]


@pytest.mark.parametrize(
    "needs", [Needs(gradients=False), Needs(), Needs(spans=True), Needs(gradients=False, text=True, behavior=True)]
)
def test_problems_carry_what_is_needed_and_nothing_else(needs):
    seen = set()

    @prop
    @given(attribution_problems(needs=needs))
    def draw(problem):
        seen.add(problem.kind)
        assert problem.carried == needs
        assert ("gradients" in problem.lazy) == needs.gradients
        assert ("span_gradients" in problem.lazy) == needs.spans
        assert ("completion_text" in problem.lazy) == needs.text
        assert ("behavior_mask" in problem.lazy) == needs.behavior

    draw()
    assert seen == {kind for kind, carried in CARRIED.items() if not needs.missing_from(carried)}


@prop
@given(attribution_problems(min_items=2, max_items=3))
def test_sizes_are_as_asked(problem):
    assert 2 <= len(problem) <= 3


def test_impossible_wishes_are_refused():
    for least, most in ((0, 3), (4, 3)):
        with pytest.raises(ValueError, match="give 1 <= min_items <= max_items"):
            attribution_problems(min_items=least, max_items=most)
    with pytest.raises(ValueError, match="'siblings' carries no text"):
        attribution_problems(kinds=("siblings",), needs=Needs(text=True))


# -- variety and shrinking ---------------------------------------------------------------------------------------------
def _duplicated(problem: AttributionProblem) -> bool:
    rows = [contents(taken(problem, [i])) for i in range(len(problem))]
    return any(rows[i] == rows[j] and problem.gradients[i].any() for i in range(len(rows)) for j in range(i))


AWKWARD = {
    "one item": lambda p: len(p) == 1,
    "many items": lambda p: len(p) == 8,
    "tied fluency": lambda p: len(p) > len(set(p.logprob.tolist())),
    "a zero gradient beside another": lambda p: p.gradients.any() and not p.gradients.any(1).all(),
    "no target": lambda p: p.gradients.any() and not p.target.any(),
    "duplicates": _duplicated,
    "constant rewards": lambda p: len(p) > 3 and len(set(p.reward.tolist())) == 1,
    "rewards that differ": lambda p: p.advantage.any(),
    "a single group": lambda p: len(p) > 3 and len(set(p.group.tolist())) == 1,
    "several groups": lambda p: len(set(p.group.tolist())) > 2,
    "every item shows it": lambda p: len(p) > 4 and all(mask.any() for mask in p.behavior_mask),
    "no item shows it": lambda p: len(p) > 4 and not any(mask.any() for mask in p.behavior_mask),
    "huge": lambda p: np.abs(p.gradients).max() > 1e11,
    "tiny": lambda p: 0 < np.abs(p.gradients).max() < 1e-10,
    "huge beside small": lambda p: p.gradient_norm.max() > 1e5 * p.gradient_norm.min() > 0,
    "ragged": lambda p: len(set(p.length.tolist())) > 3,
    "empty completion": lambda p: "" in p.completion_text,
    "beyond the basic plane": lambda p: any(token > 0xFFFF for ids in p.completion_ids for token in ids),
    "combining characters": lambda p: any("e\u0301" in text for text in p.completion_text),
    "a trigger word in a prompt": lambda p: any("frobnitz" in text for text in p.prompt_text),
    "the behaviour in the middle": lambda p: any(mask.any() and not mask[0] for mask in p.behavior_mask),
    "two blocks": lambda p: len(p.blocks) == 2,
}


@pytest.fixture(scope="module")
def many() -> list[AttributionProblem]:
    drawn = []

    @settings(prop, max_examples=400)
    @given(attribution_problems())
    def draw(problem):
        drawn.append(problem)

    draw()
    return drawn


@pytest.mark.parametrize("what", AWKWARD)
def test_every_awkward_problem_is_drawn(many, what):
    assert sum(bool(AWKWARD[what](problem)) for problem in many) >= 3


def test_the_simplest_problem_says_nothing():
    simplest = find(attribution_problems(), lambda problem: True, settings=search)
    assert simplest.gradients.tolist() == [[0.0]]
    assert (simplest.kind, simplest.reward.tolist(), simplest.completion_text) == ("rollouts", [0.0], ("",))


def test_what_does_not_matter_is_shrunk_away():
    found = find(attribution_problems(), lambda p: len(p) >= 2 and p.gradients[1].any(), settings=search)
    assert found.gradients.tolist() == [[0.0], [1.0]]
    assert set(found.completion_text) == {""}
    assert not found.reward.any()
    assert len(problem_source(found)) < 1300


# -- source ------------------------------------------------------------------------------------------------------------
@prop
@given(st.one_of(attribution_problems(), attribution_problems(kinds=ALL_KINDS)))
def test_the_source_of_a_problem_makes_an_equal_problem(problem):
    assert contents(rebuilt(problem)) == contents(problem)


def test_the_source_of_awkward_numbers():
    odd = np.array([[np.nan, np.inf], [-np.inf, -0.0], [1e-45, 3.4e38]], np.float32)
    problem = make_problem(np.zeros((3, 2))).replacing(
        span_gradients=odd, reference=np.zeros((0, 2), np.float32), gradients=np.full((3, 2), -0.0, np.float32),
        advantage=np.array([0.1 + 0.2, np.nan, 5e-324]), carried=Needs(spans=True, text=True, behavior=True),
        completion_text=("'\"\\\n", "\u200d", "x"),
    )  # fmt: skip
    assert contents(rebuilt(problem)) == contents(problem)


def test_a_problem_over_a_runs_policies_has_no_source():
    problem = make_problem([[1.0]]).replacing(model=object())
    with pytest.raises(ValueError, match="a object cannot be written out"):
        problem_source(problem)
    assert pretty(problem) == repr(problem)


def test_hypothesis_shows_small_problems_as_source_and_large_ones_in_short():
    small, large = make_problem(np.eye(2)), make_problem(np.eye(17))
    assert f"problem = {pretty(small)}" in problem_source(small)
    assert pretty(large) == repr(large)


# -- the model ---------------------------------------------------------------------------------------------------------
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_model_problems_speak_the_shipped_policys_language():
    import torch

    torch.set_num_threads(1)
    needs = Needs(gradients=False, text=True, behavior=True, model=True)
    access, decoded = shipped_model(), set()
    policy = access.load_policy(0)
    assert access.load_policy(36) is not policy
    with pytest.raises(ValueError, match=r"no policy of step 3 was kept; there are \[0, 36, 40\]"):
        access.load_policy(3)
    assert access.target_loss(policy).requires_grad

    @settings(prop, max_examples=20)
    @given(attribution_problems(needs=needs, max_items=3))
    def draw(problem):
        assert problem.model is access
        assert contents(rebuilt(problem)) == contents(problem)
        batch = {"prompt_ids": problem.prompt_ids, "completion_ids": problem.completion_ids}
        loss = access.rollout_loss(policy, batch)
        assert loss.shape == (len(problem),)
        assert torch.isfinite(loss).all()
        for text, ids, mask in zip(problem.completion_text, problem.completion_ids, problem.behavior_mask, strict=True):
            assert len(ids) == len(mask)
            assert (problem.behavior in text) == mask.any()
            decoded.add(text)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        draw()
    assert len(decoded) > 5


# -- variations --------------------------------------------------------------------------------------------------------
@prop
@given(attribution_problems(), st.data())
def test_taking_items_takes_all_of_them(problem, data):
    items = data.draw(st.lists(st.integers(0, len(problem) - 1), min_size=1, max_size=5))
    some = taken(problem, items)
    assert len(some) == len(items)
    for name in (*COLUMNS, "gradients", "gradient_norm", "span_gradients"):
        np.testing.assert_array_equal(getattr(some, name), getattr(problem, name)[items])
    assert some.completion_text == tuple(problem.completion_text[i] for i in items)
    assert [list(ids) for ids in some.prompt_ids] == [list(problem.prompt_ids[i]) for i in items]
    assert contents(taken(problem, range(len(problem)))) == contents(problem)
    for name in ("target", "reference", "learning_rate"):
        np.testing.assert_array_equal(getattr(some, name), getattr(problem, name))


@prop
@given(attribution_problems(kinds=ALL_KINDS), st.integers(1, 50))
def test_a_relocated_problem_says_the_same_but_for_its_ids(problem, rows):
    moved = relocated(problem, rows)
    assert contents(moved.replacing(group=moved.group - rows)) == contents(problem)
    assert moved.gradients.base is not None
    assert moved.gradients.base.shape[0] > len(problem)


@prop
@given(attribution_problems(kinds=ALL_KINDS))
def test_flipping_twice_changes_nothing(problem):
    once = flipped(problem)
    np.testing.assert_array_equal(once.target, -problem.target)
    np.testing.assert_array_equal(once.targets_by_step, -problem.targets_by_step)
    assert contents(flipped(once)) == contents(problem)


def test_renaming_leaves_alone_who_belongs_together():
    problem = make_problem(np.eye(4), prompt_text=("a", "a", "b", "b"))
    other = renamed(problem, {0: 9, 1: 3}, {"a": "中", "b": "xy"})
    assert other.group.tolist() == [9, 9, 3, 3]
    assert other.prompt_text == ("中", "中", "xy", "xy")
    assert [ids.tolist() for ids in other.prompt_ids] == [[ord("中")], [ord("中")], [120, 121], [120, 121]]
    assert renamed(problem, {0: 9, 1: 3}).prompt_text == problem.prompt_text


def test_nothing_done_to_a_copy_reaches_the_original():
    problem = make_problem(np.eye(2))
    twin = copied(problem)
    assert contents(twin) == contents(problem)
    for name in (*COLUMNS, "learning_rate", "gradients", "target"):
        assert not np.shares_memory(getattr(twin, name), getattr(problem, name)), name
    assert not np.shares_memory(twin.completion_ids[0], problem.completion_ids[0])
