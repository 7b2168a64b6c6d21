"""What a problem asks, in words: for whoever finds several in one folder. Says nothing about any one item.

Read from the key under which a check has the problem scored (`Case.scores`), which tells kind, seed, draw and question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

VARIATIONS: Mapping[str, str] = {
    "unit norm": "every gradient divided by its own norm",
    "shaken": "every gradient times a random factor; decides nothing",
    "constructed": "target from a constructed context; decides nothing",
    "minimal_pair": "target from a minimal pair; decides nothing",
}
"""First entry of a key, where a check asks about changed gradients or another target."""

ABOUT = {"controls": "asked about the control words of the same completions in its place"}
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
    name = next(iter(names), None) if base == "block" or not recorded else None
    remarks = [ABOUT[name] for name in names if name in ABOUT] + ([varied] if varied is not None else [])
    remark = f" ({'; '.join(remarks)})" if remarks else ""
    return Question(kind, items, seed, draw, f"{_sentence(base, kind, items, graded, name)}{remark}?")


def _sentence(base: str, kind: str, items: int, graded: str, name: str | None) -> str:
    """`name`: the block, or the plant of a planted run, in the key."""
    sought = repr(graded)
    if base == "rollouts":
        if name is not None and name != graded:
            return f"which of {items} training rollouts taught {name!r}, the other behaviour of the run"
        return f"which of {items} training rollouts taught {sought}"
    if base == "null":
        return f"which of {items} rollouts of the run without bonus would be held responsible for {sought}"
    if base == "canaries":
        return f"which of {items} gradients, training rollouts and synthetic ones, would teach {sought}"
    what = {"siblings": "fresh siblings", "block": "fresh siblings", "spans": "token spans of fresh siblings"}
    asked = f"which of {items} {what.get(base, kind)} would teach {sought}"
    return f"{asked}, as far as block {name!r} can tell" if base == "block" else asked
