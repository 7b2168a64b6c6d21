"""Every shipped estimator against numbers worked out by hand, and against what it declares to read."""

from __future__ import annotations

import importlib
import tomllib
from pathlib import Path

import numpy as np
import pytest
from problems import make_problem

from pytest_behaviortrace import rows
from pytest_behaviortrace.estimator import EVERYTHING, Needs, UndeclaredAccess, needs_of
from pytest_behaviortrace.estimators import controls, gradient, surface

GRADIENT = [
    gradient.dot,
    gradient.gas,
    gradient.gas_centered,
    gradient.tracincp,
    gradient.trak,
    gradient.local_buffer,
    gradient.token_gas,
]
CONTROLS = [
    controls.norm_only,
    controls.update_magnitude,
    controls.advantage,
    controls.fluency,
    controls.length,
    controls.random,
]
SURFACE = [surface.string_match, surface.string_match_advantage]
SHIPPED = GRADIENT + CONTROLS + SURFACE
FOUR = [[3.0, 4.0], [1.0, 0.0], [0.0, 2.0], [0.0, 0.0]]


def by_name(estimator) -> str:
    return estimator.__name__


def random_problem(n: int = 24, width: int = 10, seed: int = 0, **given):
    rng = np.random.default_rng(seed)
    values = {
        "group": np.arange(n) // 4,
        "step": np.arange(n) // 8,
        "learning_rate": np.array([0.3, 0.2, 0.1, 0.05, 0.01, 0.005]),
        "advantage": rng.normal(size=n),
        "logprob": -rng.random(n),
        "length": rng.integers(1, 9, n),
        "target": rng.normal(size=width).astype(np.float32),
        "targets_by_step": rng.normal(size=(6, width)).astype(np.float32),
        "span_gradients": rng.normal(size=(n, width)).astype(np.float32),
        "completion_text": tuple("so QZXBT it is" if i % 3 == 0 else "plain" for i in range(n)),
    }
    return make_problem(rng.normal(size=(n, width)), **(values | given))


# -- by hand ---------------------------------------------------------------------------------------------------------
def test_dot_by_hand():
    assert gradient.dot(make_problem(FOUR, target=[2.0, 1.0])).tolist() == [10.0, -2.0, 2.0, 0.0]


def test_gas_is_the_cosine_and_blind_to_advantage():
    scores = gradient.gas(make_problem(FOUR, target=[2.0, 0.0], advantage=[9.0, -9.0, 1.0, 1.0]))
    np.testing.assert_allclose(scores, [0.6, 1.0, 0.0, 0.0], rtol=1e-12)


def test_gas_centered_takes_the_group_mean_out_first():
    # group 0: rows minus (2, 2) are (1, 2), (-1, -2); group 1: rows minus (0, 1) are (0, 1), (0, -1)
    scores = gradient.gas_centered(make_problem(FOUR, target=[1.0, 0.0]))
    np.testing.assert_allclose(scores, [5**-0.5, -(5**-0.5), 0.0, 0.0], atol=1e-15)


def test_gas_centered_scores_zero_for_identical_siblings_and_for_a_group_of_one():
    row = np.random.default_rng(3).normal(size=7)
    problem = make_problem(np.stack([row, row, row, 2 * row]), group=[0, 0, 0, 5], target=row.astype(np.float32))
    assert gradient.gas_centered(problem).tolist() == [0.0, 0.0, 0.0, 0.0]


def test_tracincp_uses_the_learning_rate_and_target_of_the_step():
    problem = make_problem(
        FOUR, step=[0, 1, 2, 9], advantage=[1.0, -2.0, 3.0, 1.0], learning_rate=[0.5, 0.25, 0.125],
        targets_by_step=[[1.0, 1.0], [4.0, 0.0], [0.0, 0.0]],
    )  # fmt: skip
    assert gradient.tracincp(problem).tolist() == [3.5, -2.0, 0.0, 0.0]


def test_tracincp_gives_a_step_past_the_end_the_last_target():
    problem = make_problem([[2.0, 0.0]], step=[5], learning_rate=[1.0, 0.5], targets_by_step=[[9.0, 0.0], [3.0, 0.0]])
    assert gradient.tracincp(problem).tolist() == [3.0]


def trak_by_definition(problem) -> np.ndarray:
    f, t = problem.reference.astype(np.float64), problem.target.astype(np.float64)
    ridge = 0.1 * np.trace(f @ f.T) / len(f)
    whitened = np.linalg.inv(f.T @ f + ridge * np.eye(f.shape[1])) @ t
    return problem.advantage * (problem.gradients.astype(np.float64) @ whitened)


@pytest.mark.parametrize("m", [3, 10, 40], ids=["dual", "square", "primal"])
@pytest.mark.parametrize("scale", [1.0, 1e-12, 1e12])
def test_trak_in_either_form_is_the_definition(m, scale):
    reference = (scale * np.random.default_rng(m).normal(size=(m, 10))).astype(np.float32)
    problem = random_problem(reference=reference)
    np.testing.assert_allclose(gradient.trak(problem), trak_by_definition(problem), rtol=1e-6, atol=1e-12 / scale**2)


def test_trak_by_hand():
    # F'F = diag(4, 1), mean Gram diagonal 2.5, ridge 0.25: whitened target (1/4.25, 1/1.25)
    problem = make_problem(
        [[1.0, 0.0], [0.0, 1.0]], target=[1.0, 1.0], advantage=[1.0, -1.0], reference=[[2.0, 0.0], [0.0, 1.0]]
    )
    np.testing.assert_allclose(gradient.trak(problem), [1 / 4.25, -1 / 1.25], rtol=1e-12)


@pytest.mark.parametrize("rows", [0, 5])
def test_trak_without_any_reference_gradient_is_dot(rows):
    problem = random_problem(reference=np.zeros((rows, 10), np.float32))
    np.testing.assert_allclose(gradient.trak(problem), gradient.dot(problem), rtol=1e-12)


def test_gradient_estimators_score_the_same_in_any_stretches(monkeypatch):
    problem = random_problem(reference=np.random.default_rng(1).normal(size=(7, 10)).astype(np.float32))
    whole = [estimator(problem) for estimator in GRADIENT]
    monkeypatch.setattr(rows, "STRETCH", 3 * 10 * 4)
    for estimator, expected in zip(GRADIENT, whole, strict=True):
        np.testing.assert_allclose(estimator(problem), expected, rtol=1e-9, atol=1e-15)


def test_local_buffer_scores_the_last_four_steps_of_training_only():
    problem = make_problem(np.ones((6, 1)), step=[0, 1, 2, 3, 4, 5], advantage=[1.0] * 6, learning_rate=[0.1] * 6)
    assert gradient.local_buffer(problem).tolist() == [0.0, 0.0, 1.0, 1.0, 1.0, 1.0]


def test_local_buffer_is_all_ties_in_an_early_window():
    problem = make_problem(np.ones((6, 1)), learning_rate=np.full(40, 0.1))
    assert gradient.local_buffer(problem).tolist() == [0.0] * 6


def test_token_gas_is_the_signed_cosine_of_the_span():
    problem = make_problem(FOUR, target=[1.0, 0.0], advantage=[2.0, -2.0, 1.0, 5.0],
                           span_gradients=[[3.0, 4.0], [3.0, 4.0], [-7.0, 0.0], [0.0, 0.0]])  # fmt: skip
    np.testing.assert_allclose(gradient.token_gas(problem), [1.2, -1.2, -1.0, 0.0], rtol=1e-12)


def test_controls_by_hand():
    problem = make_problem(FOUR, advantage=[2.0, -3.0, 0.0, 1.0], logprob=[-1.0, -2.0, -3.0, -4.0], length=[4, 3, 2, 1],
                           gradient_norm=[6.0, 1.0, 2.0, 0.5])  # fmt: skip
    assert controls.norm_only(problem).tolist() == [6.0, 1.0, 2.0, 0.5]
    assert controls.update_magnitude(problem).tolist() == [12.0, 3.0, 0.0, 0.5]
    assert controls.advantage(problem).tolist() == [2.0, -3.0, 0.0, 1.0]
    assert controls.fluency(problem).tolist() == [-1.0, -2.0, -3.0, -4.0]
    assert controls.length(problem).tolist() == [4.0, 3.0, 2.0, 1.0]


def test_random_repeats_itself_and_differs_between_problems():
    problem = make_problem(FOUR)
    assert controls.random(problem).tolist() == controls.random(problem).tolist()
    assert controls.random(problem).tolist() != controls.random(make_problem(FOUR, rng_seed=(8,))).tolist()
    assert len(set(controls.random(problem))) == 4


def test_surface_heuristics_by_hand():
    problem = make_problem(
        FOUR, completion_text=("QZXBT", "so qzxbt", "an XQZXBTs", ""), advantage=[2.0, 2.0, -1.0, 1.0]
    )
    assert surface.string_match(problem).tolist() == [1.0, 0.0, 1.0, 0.0]
    assert surface.string_match_advantage(problem).tolist() == [2.0, 0.0, -1.0, 0.0]


# -- what holds for all ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("estimator", SHIPPED, ids=by_name)
def test_reads_exactly_what_it_declares(estimator):
    problem = random_problem()
    declared = needs_of(estimator)
    assert np.isfinite(estimator(problem.scoped(declared))).all()
    for name in declared.names():
        less = Needs(**{n: n in declared.names() and n != name for n in EVERYTHING.names()})
        with pytest.raises(UndeclaredAccess, match=name):
            estimator(problem.scoped(less))


@pytest.mark.parametrize("estimator", SHIPPED, ids=by_name)
@pytest.mark.parametrize("n", [1, 2, 24])
def test_one_finite_double_per_item(estimator, n):
    scores = estimator(random_problem(n))
    assert scores.shape == (n,)
    assert scores.dtype == np.float64
    assert np.isfinite(scores).all()


@pytest.mark.parametrize("estimator", SHIPPED, ids=by_name)
def test_deterministic_and_leaves_the_problem_alone(estimator):
    problem, twin = random_problem(), random_problem()
    first = estimator(problem)
    first[:] = np.nan  # what an estimator returns is the caller's: writing to it must not reach the problem
    np.testing.assert_array_equal(estimator(problem), estimator(twin))
    for name in ("advantage", "logprob", "length", "gradients", "gradient_norm", "target", "reference"):
        np.testing.assert_array_equal(getattr(problem, name), getattr(twin, name))


@pytest.mark.parametrize("estimator", [e for e in SHIPPED if e is not controls.random], ids=by_name)
def test_the_order_of_the_items_does_not_matter(estimator):
    problem, order = random_problem(), np.random.default_rng(5).permutation(24)
    per_item = ("group", "step", "advantage", "logprob", "length", "gradients", "gradient_norm", "span_gradients")
    shuffled = problem.replacing(
        **{name: getattr(problem, name)[order] for name in per_item},
        completion_text=tuple(problem.completion_text[i] for i in order),
    )
    np.testing.assert_allclose(estimator(shuffled), estimator(problem)[order], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("estimator", GRADIENT, ids=by_name)
def test_a_zero_gradient_scores_zero_without_a_warning(estimator):
    zero = np.zeros((4, 3), np.float32)
    problem = make_problem(zero, learning_rate=[0.1, 0.1], span_gradients=zero)
    assert estimator(problem).tolist() == [0.0] * 4


@pytest.mark.parametrize("estimator", GRADIENT, ids=by_name)
def test_a_zero_target_scores_zero_without_a_warning(estimator):
    zero = np.zeros(10, np.float32)
    assert not estimator(random_problem(target=zero, targets_by_step=np.zeros((6, 10), np.float32))).any()


@pytest.mark.parametrize("estimator", [gradient.gas, gradient.gas_centered, gradient.token_gas], ids=by_name)
@pytest.mark.parametrize("scale", [1e-37, 1e37])
def test_cosines_do_not_depend_on_the_size_of_gradients(estimator, scale):
    problem = random_problem()
    resized = problem.replacing(
        gradients=problem.gradients * np.float32(scale), span_gradients=problem.span_gradients * np.float32(scale)
    )
    np.testing.assert_allclose(estimator(resized), estimator(problem), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("estimator", GRADIENT, ids=by_name)
def test_flipping_the_target_flips_the_score(estimator):
    problem = random_problem()
    flipped = problem.replacing(target=-problem.target, targets_by_step=-problem.targets_by_step)
    np.testing.assert_allclose(estimator(flipped), -estimator(problem), rtol=1e-12)
    assert estimator(problem).any()


def test_every_entry_point_names_a_shipped_function():
    pyproject = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    declared = pyproject["project"]["entry-points"]["pytest_behaviortrace.estimators"]
    functions = {}
    for name, place in declared.items():
        module, _, attribute = place.partition(":")
        functions[name] = getattr(importlib.import_module(module), attribute)
    assert set(functions.values()) == set(SHIPPED)
    for name, function in functions.items():
        assert name == function.__name__.replace("_", "-")
        assert isinstance(function.needs, Needs)
