"""What a problem asks, in words: for whoever finds several in one folder. Says nothing about any one item.

Read from the key under which a check has the problem scored (`Case.scores`), which tells kind, seed, draw and question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

VARIATIONS: Mapping[str, str] = {
    "unit norm": "every gradient divided by its own norm",
    "shaken": "every gradient times a random factor",
    "constructed": "the target taken in a constructed context",
    "minimal_pair": "the target taken from a minimal pair",
}
"""First entry of a key, where a check asks about changed gradients or another target."""

ABOUT = {"controls": "the control words of the same completions"}
"""What siblings of a recorded run are asked about in place of the behaviour."""


@dataclass(frozen=True, slots=True)
class Question:
    """Which items a problem holds, and what is asked about them."""

    kind: str
    items: int
    seed: int | None
    draw: int | None
    asked: str
    """For example `which of 2560 training rollouts taught 'frobnitz'?`."""


def question(key: Sequence[Any], kind: str, items: int, graded: str, recorded: bool) -> Question:
    """The question of a problem of `items` items of a kind, scored under a key.

    `graded`: what is sought, the name of a plant or, on a `recorded` run, a regular expression.
    """
    rest = list(key)
    varied = VARIATIONS.get(str(rest[0]))
    if varied is not None:
        rest = rest[1:]
    base, names = str(rest[0]), [part for part in rest[1:] if isinstance(part, str)]
    numbers = [int(part) for part in rest[1:] if not isinstance(part, str)]
    seed = numbers[0] if numbers and not recorded else None
    draw = numbers[1] if base in ("siblings", "spans") and len(numbers) > 1 else None
    asked = [_sentence(base, kind, items, graded, None if recorded else next(iter(names), None), recorded)]
    asked += [f"asked about {ABOUT[name]} instead" for name in names if name in ABOUT]
    if base == "block":
        asked[0] = f"which of {items} fresh siblings would teach {graded!r}, as far as block {names[0]!r} can tell?"
    if varied is not None:
        asked.append(varied)
    return Question(kind, items, seed, draw, "; ".join(asked))


def _sentence(base: str, kind: str, items: int, graded: str, plant: str | None, recorded: bool) -> str:
    sought = repr(graded)
    if base == "rollouts":
        if plant is not None and plant != graded:
            return f"which of {items} training rollouts taught {plant!r}, the other behaviour of the run?"
        return f"which of {items} training rollouts taught {sought}?"
    if base == "null":
        return f"which of {items} rollouts of the run without bonus would be held responsible for {sought}?"
    if base == "canaries":
        return f"which of {items} gradients, training rollouts and synthetic ones, would teach {sought}?"
    if base == "siblings":
        return f"which of {items} fresh siblings would teach {sought}?"
    if base == "spans":
        return f"which of {items} token spans of fresh siblings would teach {sought}?"
    return f"which of {items} {kind} would teach {sought}?"
