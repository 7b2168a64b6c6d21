"""What somebody gave -> an estimator that can be called with a problem: classes and factories are called here, once.

Whether a function makes the estimator or is it, only its arguments tell; so every refusal says for what it was taken.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from pytest_behaviortrace.attributes import cause, require_readable
from pytest_behaviortrace.wording import few

FACTORY = "a function that can be called without arguments is taken for a factory, which makes the estimator"
SCORES = f"{FACTORY}; if this one scores a problem itself, its first argument must have no default"


class Unusable(Exception):
    """What was given makes no estimator; what is wrong with it, and as `__cause__` what its own code raised."""


def ready(given: Any) -> Any:
    """The estimator: what a class or a factory makes without arguments, or what was given itself.

    A factory is a function that can be called without arguments and declares no `needs`. Raises `Unusable`, and
    `attributes.Unreadable` for objects that cannot even be asked what they are.
    """
    require_readable(given)
    if inspect.isclass(given):
        made = _of_class(given)
    elif is_factory(given):
        made = _of_factory(given)
    else:
        made = given
    if not callable(made):
        raise Unusable(f"it is a {type(made).__name__}, which cannot be called with a problem")
    _require_a_problem(made)
    return made


def is_factory(given: object) -> bool:
    """Whether it is a function that makes the estimator."""
    if not inspect.isroutine(given) or hasattr(given, "needs"):
        return False
    signature = _signature(given)
    return signature is not None and _refusal(signature) is None


def _of_class(given: type[Any]) -> Any:
    signature = _signature(given)
    needy = signature is not None and _refusal(signature) is not None
    made = _called(given, "class", "; it is called without arguments: give it defaults, or give an instance" * needy)
    if not callable(made):
        raise Unusable(
            f"its class returned {type(made).__name__}, which cannot be called with a problem: it needs a method "
            f"__call__(self, problem)"
        )
    return made


def _of_factory(given: Any) -> Any:
    signature = _signature(given)
    why = SCORES if signature is not None and signature.parameters else FACTORY
    made = _called(given, "factory", f"; {why}" * (why == SCORES))
    if inspect.isclass(made):
        raise Unusable(f"its factory returned the class {made.__name__}; let it return an instance, {made.__name__}()")
    if not callable(made):
        raise Unusable(f"its factory returned {type(made).__name__}, which cannot be called with a problem ({why})")
    return made


def _called(given: Any, kind: str, hint: str) -> Any:
    try:
        made = given()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise Unusable(f"calling its {kind} raised {cause(error)}{hint}") from error
    require_readable(made)
    return made


def _require_a_problem(made: Any) -> None:
    """Raise `Unusable` for what cannot be called with a problem: before training, not in every row."""
    if type(made) is functools.partial and inspect.isclass(made.func):
        name = made.func.__name__
        raise Unusable(f"it is a partial of the class {name}, no instance; call it, and give what it returns")
    signature = _signature(made)
    if signature is None or (refusal := _refusal(signature, None)) is None:
        return
    if _refusal(signature) is None:
        raise Unusable("it takes no problem; if it makes the estimator, call it, and give what it returns")
    raise Unusable(
        f"it gets one argument by position, the problem, and its own are {few([*signature.parameters])} ({refusal}); "
        f"give all but the first a default"
    )


def _signature(given: Any) -> inspect.Signature | None:
    """None where there is none, as for some of what is written in C, or where it raises to be asked for it."""
    try:
        return inspect.signature(given)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return None


def _refusal(signature: inspect.Signature, *arguments: object) -> str | None:
    """Why these arguments do not do; None if they do."""
    try:
        signature.bind(*arguments)
    except TypeError as error:
        return str(error)
    return None
