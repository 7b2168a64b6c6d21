"""A run whose arrays lie in files is graded as one whose arrays are in memory: same problems, same scores."""

import tempfile

import numpy as np
import pytest
from benchmarks.synthetic_store import write_recipe, write_store
from pytest_behaviortrace.checks.test_gradient_magnitude import factors, rescaled

from pytest_behaviortrace import rows
from pytest_behaviortrace.estimator import needs
from pytest_behaviortrace.estimators import gradient
from pytest_behaviortrace.evidence import EvidenceStore
from pytest_behaviortrace.problem import NEED_OF
from pytest_behaviortrace.run.recipe import Recipe
from pytest_behaviortrace.scoring import score

ROLLOUTS, WIDTH = 640, 256


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return Recipe.load(str(write_recipe(tmp_path_factory.mktemp("recipe"), ROLLOUTS, WIDTH)))


@pytest.fixture(scope="module")
def store(tmp_path_factory, recipe):
    return write_store(tmp_path_factory.mktemp("cache"), recipe, draws=2)


@pytest.fixture
def evidence(store, recipe):
    return lambda: EvidenceStore(store, recipe, recipe.plants[0].name, 2)


@pytest.fixture
def in_files(monkeypatch, tmp_path):
    def switch():
        monkeypatch.setattr(rows, "LARGE", 1)
        monkeypatch.setattr(rows, "STRETCH", 10 * WIDTH * 4)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    return switch


MAKERS = {
    "rollouts": lambda source: source.rollouts(0).problem,
    "decoy asked": lambda source: source.rollouts(0, source.decoy.name).problem,
    "null window": lambda source: source.null_window(0).problem,
    "siblings": lambda source: source.siblings(0, 1).problems[0][0],
    "spans": lambda source: source.spans(0, 0).problems[0][0],
    "canaries": lambda source: source.canaries(0, 8, 0.01).problem,
    "unit norm": lambda source: rescaled(source.rollouts(0).problem),
    "shaken": lambda source: rescaled(source.rollouts(0).problem, factors(source.rollouts(0).problem, 0)),
}
ARRAYS = ("gradients", "span_gradients", "gradient_norm", "reference", "target", "targets_by_step")


def served(problem):
    return [
        name for name in ARRAYS if name in problem.lazy and getattr(problem.carried, NEED_OF.get(name, "gradients"))
    ]


@pytest.mark.parametrize("kind", MAKERS)
def test_the_same_arrays(evidence, in_files, kind):
    expected = MAKERS[kind](evidence())
    values = {name: np.array(getattr(expected, name)) for name in served(expected)}
    in_files()
    found = MAKERS[kind](evidence())
    assert values.keys() == set(served(found))
    for name, array in values.items():
        given = getattr(found, name)
        assert (type(given), given.dtype, given.flags.writeable) == (np.ndarray, array.dtype, False)
        np.testing.assert_array_equal(given, array, err_msg=name)
    if kind != "spans":  # few, and made beforehand
        assert rows.sealed(found.gradients)
    assert rows.sealed(found.reference)


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("name", ["gas", "token_gas", "trak", "gas_centered", "tracincp"])
def test_the_same_scores(evidence, in_files, kind, name):
    estimator = getattr(gradient, name)
    expected = MAKERS[kind](evidence())
    if estimator.needs.missing_from(expected.carried):
        pytest.skip("the problem does not carry what it needs")
    scores = score(name, estimator, expected).scores
    assert len(set(scores.tolist())) > 1
    in_files()
    again = score(name, estimator, MAKERS[kind](evidence())).scores
    np.testing.assert_allclose(again, scores, rtol=1e-9, atol=1e-12 * np.abs(scores).max())


def test_a_file_is_written_once_for_all_estimators_and_questions(evidence, in_files, monkeypatch):
    in_files()
    written = []
    plain = rows._filed
    monkeypatch.setattr(rows, "_filed", lambda n, width, fill: written.append(n) or plain(n, width, fill))
    source = evidence()
    for _ in range(2):
        for asked in source.recipe.plants:
            for estimator in (gradient.gas, gradient.dot, gradient.token_gas, gradient.trak):
                score("it", estimator, source.rollouts(0, asked.name).problem)
    assert len(written) == 4  # gradients, the spans of either behaviour, the reference set


def test_small_arrays_are_made_anew_for_every_call(evidence):
    seen = []

    @needs(gradients=True)
    def notes(problem):
        seen.append(problem.gradients)
        return np.zeros(len(problem))

    problem = evidence().rollouts(0).problem
    for _ in range(2):
        score("notes", notes, problem)
    assert not np.shares_memory(*seen)
