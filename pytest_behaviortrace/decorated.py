"""What `parametrize_with_checks` may decorate, and how it refuses: one sentence in place of a traceback."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

ARGUMENT = "row"
"""Name of the argument through which a test gets its row."""
SUPPORTED = f"decorate a plain function or a method of a plain class: def test_it({ARGUMENT}): {ARGUMENT}()"


class CannotParametrize(pytest.Collector.CollectError, ValueError, TypeError):
    """A decorator that cannot be used as it is written.

    Of a `CollectError` pytest shows the sentence alone; whoever calls the decorator outside of pytest gets the
    `ValueError` or `TypeError` that `grade` raises for the same argument.
    """


@contextmanager
def in_a_sentence(place: str) -> Iterator[None]:
    """Refusals of what was asked for become `CannotParametrize`, with the decorator's place before the sentence."""
    try:
        yield
    except (ValueError, TypeError) as error:
        line = (str(error).splitlines() or [type(error).__name__])[0]
        raise CannotParametrize(f"{place}: parametrize_with_checks: {line}") from None


def place_of_caller(depth: int) -> str:
    """File and line of a caller, such as `test_own.py:4`."""
    frame = sys._getframe(depth + 1)
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def require_test(test: Any) -> None:
    """Raise `TypeError`, one sentence, for what pytest cannot give rows to."""
    name = getattr(test, "__name__", repr(test)[:80])
    if inspect.isclass(test):
        raise TypeError(f"{name} is a class; {SUPPORTED}")
    function = test.__func__ if isinstance(test, staticmethod) else test
    if isinstance(test, classmethod) or not (inspect.isfunction(function) or isinstance(test, functools.partial)):
        raise TypeError(f"{name} is a {type(test).__name__} and no test function; {SUPPORTED}")
    for is_one, what in (
        (inspect.iscoroutinefunction, "async"), (inspect.isasyncgenfunction, "async"),
        (inspect.isgeneratorfunction, "a generator"),
    ):  # fmt: skip
        if is_one(function):
            raise TypeError(f"{name} is {what}, and a row is called and returns nothing to wait for; {SUPPORTED}")
    found = inspect.signature(function).parameters.get(ARGUMENT)
    if found is None:
        raise TypeError(f"{name} has no argument {ARGUMENT!r}; write def {name}({ARGUMENT}): {ARGUMENT}()")
    by_name = found.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    if not by_name or found.default is not inspect.Parameter.empty:
        raise TypeError(
            f"{name} takes {ARGUMENT!r} in a way in which pytest gives nothing to it ({found}); "
            f"write def {name}({ARGUMENT}): {ARGUMENT}()"
        )


def require_brackets(estimators: Any) -> None:
    """Raise `TypeError` where the decorator was given the test itself: its estimators were left out."""
    if inspect.isfunction(estimators) and list(inspect.signature(estimators).parameters)[-1:] == [ARGUMENT]:
        raise TypeError(
            f"it was given the test {estimators.__name__} in place of estimators; "
            f"write @parametrize_with_checks([estimator, ...])"
        )


def require_parametrized(item: Any) -> None:
    """End a test that pytest runs without its row: it parametrizes no methods of `unittest.TestCase`."""
    owner = getattr(item, "cls", None)
    if isinstance(owner, type) and issubclass(owner, unittest.TestCase):
        pytest.fail(
            f"{owner.__name__}.{item.name} is decorated with parametrize_with_checks, and pytest gives no arguments to "
            f"methods of unittest.TestCase; {SUPPORTED}",
            pytrace=False,
        )
