"""How long one call of an estimator may take: the rule behind `timeout=` and --bt-estimator-timeout."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

LONGEST = 1_000_000
"""Seconds, 11 days: what timers of every system bear. Whoever wants more wants no limit."""


def fault(number: float) -> str | None:
    """What is wrong with a number of seconds, and what to do: the end of a sentence; None where it is a limit."""
    if not (math.isfinite(number) and number > 0):
        return "is not a number of seconds above 0; give one, such as 60"
    if number > LONGEST:
        return f"is more than {LONGEST:,} seconds; give fewer, such as 60, or none at all for no limit"
    return None


def seconds(value: Any, name: str) -> float | None:
    """The time limit that an argument called `name` sets; None for none.

    Raises `TypeError` for what is no number (True is none), `ValueError` for one that is no limit; one sentence.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name}={value!r:.80} is not a number of seconds; give one, such as 60, or None for no limit")
    try:
        number = float(value)
    except OverflowError:  # a whole number beyond every float
        raise ValueError(f"{name} {fault(LONGEST + 1.0)}") from None
    if (wrong := fault(number)) is not None:
        raise ValueError(f"{name}={value!r} {wrong}")
    return number
