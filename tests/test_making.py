"""Classes, factories and partials as estimators: which of them work, and one sentence for each that does not."""

from __future__ import annotations

import inspect
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from problems import make_problem
from surface import QUIET

from pytest_behaviortrace import grade, needs
from pytest_behaviortrace.asked import named
from pytest_behaviortrace.estimator import EstimatorError
from pytest_behaviortrace.registry import Registry, RegistryError
from pytest_behaviortrace.scoring import score

THIS = "making_examples"


class Defaults:
    def __init__(self, rank=8):
        self.rank = rank

    def __call__(self, problem):
        return problem.advantage * self.rank


class Required(Defaults):
    def __init__(self, rank):
        super().__init__(rank)


class Fails:
    def __init__(self, path="weights"):
        raise OSError("no weights")


class Methodless:
    def __init__(self, rank=8):
        self.rank = rank

    def scores(self, problem):
        return problem.advantage


class Blind:
    def __call__(self):
        return [1.0]


def two(problem, power=2):
    return problem.advantage**power


def only(problem=None):
    return problem.advantage


def scores(problem=None):
    return [1.0, 2.0]


@needs()
def declared(problem=None):
    return problem.advantage


def needy(problem, power):
    return problem.advantage**power


def by_name(*, problem):
    return problem.advantage


def factory(rank=8):
    return Defaults(rank)


def asking(rank):
    return Defaults(rank)


def of_class():
    return Defaults


def of_nothing():
    return None


def of_factory():
    return of_nothing


WORKS: dict[str, Any] = {
    "Defaults": Defaults, "instance": Required(3), "two": two, "declared": declared, "factory": factory,
    "partial_of_function": partial(needy, power=3), "called_partial": partial(Defaults, 4)(),
}  # fmt: skip
FACTORY = "a function that can be called without arguments is taken for a factory, which makes the estimator"
DEFAULT = f"{FACTORY}; if this one scores a problem itself, its first argument must have no default"
REFUSED: dict[str, tuple[Any, str]] = {
    "Required": (
        Required,
        "calling its class raised TypeError: Required.__init__() missing 1 required positional argument: 'rank'; it is "
        "called without arguments: give it defaults, or give an instance",
    ),
    "Fails": (Fails, "calling its class raised OSError: no weights (making_examples.py, line "),
    "Methodless": (
        Methodless,
        "its class returned Methodless, which cannot be called with a problem: it needs a method "
        "__call__(self, problem)",
    ),
    "Blind": (Blind, "it takes no problem; if it makes the estimator, call it, and give what it returns"),
    "only": (only, "calling its factory raised AttributeError: 'NoneType' object has no attribute 'advantage' "),
    "scores": (scores, f"its factory returned list, which cannot be called with a problem ({DEFAULT})"),
    "needy": (
        needy,
        "it gets one argument by position, the problem, and its own are problem, power (missing a required argument: "
        "'power'); give all but the first a default",
    ),
    "by_name": (
        by_name,
        "it gets one argument by position, the problem, and its own are problem (too many positional arguments); give "
        "all but the first a default",
    ),
    "of_class": (of_class, "its factory returned the class Defaults; let it return an instance, Defaults()"),
    "of_nothing": (of_nothing, f"its factory returned NoneType, which cannot be called with a problem ({FACTORY})"),
    "of_factory": (of_factory, "it takes no problem; if it makes the estimator, call it, and give what it returns"),
    "partial_of_factory": (
        partial(factory, rank=4),
        "it takes no problem; if it makes the estimator, call it, and give what it returns",
    ),
    "partial_of_class": (
        partial(Required),
        "it is a partial of the class Required, no instance; call it, and give what it returns",
    ),
}


def example_source() -> str:
    """The examples above as a module of their own."""
    own = sys.modules[__name__]
    members = [value for value in vars(own).values() if getattr(value, "__module__", None) == __name__]
    kept = [value for value in members if inspect.isclass(value) or not value.__name__.startswith(("test_", "example"))]
    partials = "partial_of_factory = partial(factory, rank=4)\npartial_of_class = partial(Required)\n"
    head = "from functools import partial\nfrom pytest_behaviortrace import needs\n\n"
    return head + "\n\n".join(inspect.getsource(value) for value in kept) + "\n\n" + partials


@pytest.mark.parametrize("name", WORKS)
def test_what_makes_or_is_an_estimator(name: str) -> None:
    problem = make_problem(np.eye(4))
    estimator = Registry([{"mine": WORKS[name]}]).load("mine")
    assert score("mine", estimator, problem).scores.shape == (4,)


@pytest.mark.parametrize("name", REFUSED)
def test_an_object_that_cannot_be_one_is_refused_before_training(name: str, tmp_path: Path) -> None:
    given, message = REFUSED[name]
    with pytest.raises(RegistryError) as caught:
        grade(given, name="mine", cache_dir=tmp_path)
    text = str(caught.value)
    expected = f"estimator 'mine' (given as an object): {message}"
    assert text.startswith(expected.replace(f"({THIS}.py", f"({Path(__file__).name}"))
    assert name != "only" or text.endswith(f"; {DEFAULT}")
    assert "\n" not in text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", REFUSED)
def test_a_path_to_one_ends_pytest_with_usage(name: str, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(**{THIS: example_source()})
    result = pytester.runpytest_subprocess(*QUIET, f"--bt-estimator={THIS}:{name}", "--bt-cache-dir=cache")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    said = f"ERROR: estimator '{THIS}:{name}' ({THIS}:{name}): {REFUSED[name][1]}"
    assert [line for line in result.errlines if line.startswith(said)]
    assert not (pytester.path / "cache").exists()


def test_a_factory_that_needs_arguments_is_seen_by_what_it_returns() -> None:
    estimator = Registry([{"mine": asking}]).load("mine")
    with pytest.raises(
        EstimatorError, match=r"returned Defaults, not 4 real numbers .*; if it makes the estimator, give"
    ):
        score("mine", estimator, make_problem(np.eye(4)))
    with pytest.raises(EstimatorError, match=r"returned NoneType, not 4 real numbers \(dtype object\)$"):
        score("mine", lambda problem: None, make_problem(np.eye(4)))  # type: ignore[arg-type, return-value]


def test_a_partial_has_the_name_of_what_is_inside() -> None:
    assert list(named(partial(partial(needy, power=3)))) == ["needy"]
    with pytest.raises(ValueError, match="two estimators are called 'needy'; give a dict"):
        named([partial(needy, power=3), partial(needy, power=4)])


def test_what_has_no_signature_is_left_alone() -> None:
    class Odd(Defaults):
        @property
        def __signature__(self):
            raise RuntimeError("no signature")

    assert isinstance(Registry([{"mine": Odd()}]).load("mine"), Odd)
    assert Registry([{"mine": max}]).load("mine") is max


def test_the_cause_stays_with_the_error() -> None:
    with pytest.raises(RegistryError) as caught:
        Registry([{"mine": Fails}]).load("mine")
    assert isinstance(caught.value.__cause__, OSError)
