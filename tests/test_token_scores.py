"""The optional method of an estimator that scores tokens: what it is given, and what becomes of what it returns."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from problems import make_problem

from pytest_behaviortrace.estimator import Claims, Needs
from pytest_behaviortrace.isolation import Isolated
from pytest_behaviortrace.problem import AttributionProblem
from pytest_behaviortrace.registry import Registered
from pytest_behaviortrace.token_scores import among, token_scores


def unread() -> Any:
    raise AssertionError("nobody reads this")


def a_problem(**given: Any) -> AttributionProblem:
    return make_problem(np.arange(12.0).reshape(6, 2), **given)


class Scorer:
    """An estimator whose token scores a test gives."""

    needs = Needs(gradients=True)

    def __init__(self, made: Any) -> None:
        self.token_scores = made

    def __call__(self, problem: AttributionProblem) -> Any:
        raise AssertionError("only its tokens are asked for")


def told(made: Any, timeout: float | None = None) -> tuple[Any, str]:
    return token_scores("mine", Scorer(made), among(a_problem(), np.array([4, 1])), timeout)


def test_it_is_given_the_shown_items_in_their_order_and_the_whole_runs_target() -> None:
    seen = {}

    def made(problem: AttributionProblem) -> Any:
        seen.update(gradients=problem.gradients, logprob=problem.logprob, target=problem.target,
                    reference=problem.reference)  # fmt: skip
        return [np.full(length, score) for length, score in zip(problem.length, problem.gradients[:, 0], strict=True)]

    found, note = told(made)
    assert note == ""
    assert [row.tolist() for row in found] == [[8.0, 8.0], [2.0, 2.0]]
    whole = a_problem()
    assert seen["logprob"].tolist() == [-5.0, -2.0]
    assert seen["gradients"].tolist() == whole.gradients[[4, 1]].tolist()
    assert seen["target"].tolist() == whole.target.tolist()
    assert len(seen["reference"]) == 6


def test_nothing_is_made_that_is_not_read() -> None:
    problem = among(a_problem().replacing(model=unread, gradients=unread, reference=unread), np.array([3]))
    found, note = token_scores("mine", Scorer(lambda p: [[1, 2]]), problem)
    assert (np.array(found).tolist(), note) == ([[1.0, 2.0]], "")


def test_text_and_masks_follow_the_items() -> None:
    words = tuple("abcdef")
    some = among(a_problem(completion_text=words), np.array([5, 0]))
    assert some.completion_text == ("f", "a")
    assert len(some.behavior_mask) == 2


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda p: 1 / 0, "raised ZeroDivisionError: division by zero"),
        (lambda p: exit(3), "raised SystemExit"),
        (lambda p: pytest.fail("please"), "raised Failed"),
        (lambda p: None, "returned NoneType, not one array per item"),
        (lambda p: [np.zeros(2)], "returned 1 arrays, expected 2"),
        (lambda p: np.zeros((2, 3)), "returned shape (3,) of float64 for item 0, expected (2,)"),
        (lambda p: [np.zeros(2), np.array(["a", "b"])], "for item 1, expected (2,)"),
        (lambda p: [np.zeros(2), [0.0, np.nan]], "NaN or infinite (item 1)"),
        (lambda p: p.span_gradients, "does not declare"),
        (lambda p: np.copyto(p.advantage, 0.0), "raised ValueError"),
    ],
)
def test_what_goes_wrong_is_told(made: Any, said: str) -> None:
    found, note = told(made)
    assert found is None
    assert note.startswith("token_scores failed: estimator 'mine' on 2 rollouts")
    assert said in note


def test_a_generator_is_read_under_the_time_limit_and_its_errors_are_its_own() -> None:
    def endless(problem: Any) -> Any:
        yield np.zeros(problem.length[0])
        while True:
            pass

    def broken(problem: Any) -> Any:
        yield np.zeros(problem.length[0])
        raise RuntimeError("half-way")

    def too_many(problem: Any) -> Any:
        while True:
            yield np.zeros(1)

    assert "took longer than 0.2 s" in told(endless, timeout=0.2)[1]
    assert "RuntimeError: half-way" in told(broken)[1]
    assert "returned more than" in told(too_many)[1]


def test_a_method_that_cannot_be_looked_up_is_told() -> None:
    class Odd:
        needs = Needs()

        def __call__(self, problem: Any) -> Any:
            return np.zeros(len(problem))

        @property
        def token_scores(self) -> Any:
            raise RuntimeError("not today")

    each, note = token_scores("odd", Odd(), a_problem())
    assert each is None
    assert note == "token_scores failed: RuntimeError: not today"


def test_it_has_the_time_limit_of_scores() -> None:
    found, note = told(lambda p: time.sleep(30), timeout=0.2)
    assert found is None
    assert "took longer than 0.2 s" in note


def test_without_the_method_there_are_none_and_why_is_told() -> None:
    found, note = token_scores("gas", lambda problem: np.zeros(len(problem)), a_problem())
    assert (found, note) == (None, "no scores of single tokens: gas has no method token_scores(problem)")


def test_an_isolated_estimator_is_not_asked() -> None:
    apart = Isolated(Registered("mine", "here", "nowhere:mine"), Path(), Needs(), Claims())
    found, note = token_scores("mine", apart, a_problem())
    assert found is None
    assert note == (
        "no scores of single tokens: an isolated estimator (--bt-isolate) is not asked for token_scores(problem); "
        "grade without isolation to see them"
    )
