"""What a broken estimator gets: an error that names it, never a verdict."""

import contextlib
import ctypes
import random
import time

import numpy as np
import pytest
from problems import make_problem

from pytest_behaviortrace.estimator import EVERYTHING, EstimatorError, InputsChanged, Needs, TooSlow, needs
from pytest_behaviortrace.scoring import score


def a_problem():
    return make_problem(np.arange(12.0).reshape(6, 2))


def flat(problem):
    return np.zeros(len(problem))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda p: np.zeros(len(p) + 1), r"returned shape \(\d+,\), expected"),
        (lambda p: np.zeros((len(p), 1)), "one score per item"),
        (lambda p: np.full(len(p), np.nan), "NaN or infinite"),
        (lambda p: np.full(len(p), np.inf), "NaN or infinite"),
        (lambda p: None, "not .* real numbers"),
        (lambda p: ["a"] * len(p), "not .* real numbers"),
        (lambda p: np.zeros(len(p)) + 1j, "not .* real numbers"),
        (lambda p: ["1"] * len(p), "not .* real numbers"),
        (lambda p: np.ma.masked_array(np.zeros(len(p)), True), "not .* real numbers"),
        (lambda p: 1 / 0, "raised ZeroDivisionError: division by zero"),
        (lambda p: exit(3), "raised SystemExit"),
        (lambda p: pytest.skip("please"), "raised Skipped"),
        (lambda p: p.span_gradients.sum(1), r"does not declare.*Needs\(spans=True\)"),
        (lambda p: np.add(p.gradients, 1, out=p.gradients)[:, 0], "raised ValueError"),
        (lambda p: np.copyto(p.advantage, 0.0), "raised ValueError"),
    ],
)
def test_errors_name_the_estimator(function, message) -> None:
    with pytest.raises(EstimatorError, match=message) as caught:
        score("mine", function, a_problem())
    assert "estimator 'mine'" in str(caught.value)


def test_read_only_arrays_cannot_be_reopened() -> None:
    def reopen(problem):
        problem.advantage.flags.writeable = True
        return flat(problem)

    with pytest.raises(EstimatorError, match="raised ValueError"):
        score("mine", reopen, a_problem())


def test_a_slow_estimator_is_stopped() -> None:
    def slow(problem):
        with contextlib.suppress(Exception):
            time.sleep(30)
        return flat(problem)

    start = time.monotonic()
    with pytest.raises(EstimatorError, match=r"took longer than 0\.2 s"):
        score("slow", slow, a_problem(), timeout=0.2)
    assert time.monotonic() - start < 10


def test_swallowing_the_deadline_does_not_help() -> None:
    def swallow(problem):
        with contextlib.suppress(BaseException):
            time.sleep(30)
        return flat(problem)

    with pytest.raises(EstimatorError, match=r"longer than 0\.2 s"):
        score("swallow", swallow, a_problem(), timeout=0.2)


def test_swallowing_an_undeclared_read_does_not_help() -> None:
    def swallow(problem):
        with contextlib.suppress(Exception):
            problem.span_gradients.sum()
        return flat(problem)

    with pytest.raises(EstimatorError, match=r"does not declare: problem\.span_gradients"):
        score("swallow", swallow, a_problem())


@pytest.mark.parametrize("name", ["span_gradients", "completion_text", "behavior_mask"])
def test_what_is_not_declared_is_not_there(name) -> None:
    def rummage(problem):
        assert name not in problem.lazy
        return getattr(problem.scoped(EVERYTHING), name)

    with pytest.raises(EstimatorError, match="raised KeyError"):
        score("rummage", rummage, a_problem())


def test_a_fast_one_is_not() -> None:
    scored = score("flat", flat, a_problem(), timeout=30.0)
    assert scored.scores.tolist() == [0.0] * len(a_problem())
    assert scored.seconds >= 0
    time.sleep(0.05)  # no alarm left behind


def test_scores_of_other_dtypes_are_taken() -> None:
    for made in (np.arange, lambda n: list(range(n)), lambda n: np.arange(n, dtype=np.float16)):
        assert score("mine", lambda p, made=made: made(len(p)), a_problem()).scores.dtype == np.float64


def test_the_same_random_stream_on_every_call() -> None:
    draws = [score("r", needs()(lambda p: p.rng.random(len(p))), a_problem()).scores for _ in range(2)]
    assert np.array_equal(*draws)


def test_global_state_is_put_back() -> None:
    def meddles(problem):
        random.seed(1)
        np.random.seed(1)
        np.seterr(all="raise")
        return flat(problem)

    before = random.getstate(), np.random.get_state()[1].tolist(), np.geterr()
    score("meddles", meddles, a_problem())
    assert (random.getstate(), np.random.get_state()[1].tolist(), np.geterr()) == before


def test_needs_can_only_be_a_needs() -> None:
    def wrong(problem):
        return flat(problem)

    wrong.needs = {"gradients": True}
    with pytest.raises(EstimatorError, match="must be a Needs"):
        score("wrong", wrong, a_problem())


def test_needs_arithmetic() -> None:
    declared = Needs(gradients=True, text=True)
    assert declared.names() == ("gradients", "text")
    assert declared.missing_from(Needs(gradients=True)) == ("text",)
    assert declared.without("text") == Needs(gradients=True)


def test_what_kind_of_breaking_it_was_can_be_told() -> None:
    def writes(problem):
        problem.advantage[0] = 1.0

    def writes_past_the_guard(problem):
        ctypes.memset(problem.advantage.ctypes.data, 1, 1)
        return flat(problem)

    with pytest.raises(InputsChanged, match="raised ValueError: assignment destination is read-only") as caught:
        score("mine", writes, a_problem())
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(InputsChanged, match="changed the arrays it was given") as caught:
        score("mine", writes_past_the_guard, a_problem())
    assert caught.value.__cause__ is None
    with pytest.raises(TooSlow):
        score("mine", lambda p: time.sleep(30), a_problem(), timeout=0.1)


def test_memory_need_not_be_watched() -> None:
    assert score("flat", flat, a_problem(), watch_memory=False).peak_bytes == 0
