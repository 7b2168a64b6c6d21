"""Exhibits -> the data of the rollout viewer, and JSON that is safe inside a script element."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_behaviortrace.exhibit import Exhibit, Viewed
from pytest_behaviortrace.reports.intervals import where
from pytest_behaviortrace.scorecard import Row, Scorecard

BUDGET = 600_000
"""Characters of JSON that the viewer may take; beyond, every ranking shows fewer of its first rollouts."""
LEAST = 3

_ESCAPES = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026", 0x2028: "\\u2028", 0x2029: "\\u2029"}


def script_json(value: Any) -> str:
    """JSON without a character that could end a script element or start markup."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).translate(_ESCAPES)


def rankings(scorecard: Scorecard, budget: int = BUDGET) -> list[dict[str, Any]]:
    """One entry per row that shows rollouts: whose, where, what is to be said, and the first of its ranking.

    A prompt or a completion that several rankings show is written in each: what is shown of them differs by score.
    """
    found = [
        (row, scorecard.exhibits[row.id])
        for row in scorecard.rows
        if row.estimator is not None and scorecard.exhibits.get(row.id, Exhibit()).get("rollouts")
    ]
    found.sort(key=lambda pair: (scorecard.estimators.index(str(pair[0].estimator)), pair[0].seed or 0, pair[0].id))
    most = max((len(exhibit["rollouts"]) for _, exhibit in found), default=0)
    while True:
        shown = [_ranking(row, exhibit, most) for row, exhibit in found]
        size = len(script_json(shown))
        if size <= budget or most <= LEAST:
            return shown
        most = max(LEAST, min(most - 1, int(most * budget / size)))


def _ranking(row: Row, exhibit: Exhibit, most: int) -> dict[str, Any]:
    return {
        "estimator": row.estimator,
        "place": where(row),
        "check": row.check.removeprefix("test_"),
        "note": exhibit.get("rollouts_note", ""),
        "rollouts": [_rollout(rollout) for rollout in exhibit["rollouts"][:most]],
    }


def _rollout(rollout: Viewed) -> Mapping[str, Any]:
    scores = rollout["token_scores"]
    return {
        **{name: rollout[name] for name in ("rank", "step", "prompt")},
        **{name: _finite(rollout[name]) for name in ("score", "advantage", "reward", "fluency")},
        "tokens": rollout["tokens"],
        "blank": blanks(rollout["tokens"]),
        "behavior": [number for number, is_behavior in enumerate(rollout["behavior"]) if is_behavior],
        "scores": None if scores is None else [_finite(float(f"{score:.3g}")) for score in scores],
        "kind": kind(rollout),
    }


def blanks(tokens: Sequence[str]) -> list[tuple[int, str]]:
    """Place and kind of tokens that have no text of their own, which a page must name or they would not be seen.

    `end`: behind the last text, the token that ends the answer. `special`: another token that is no text. `part`: more
    of the character before, which takes several tokens (a special token right behind such a character reads the same).
    """
    texts = [number for number, token in enumerate(tokens) if token]
    last = texts[-1] if texts else -1
    found, rest = [], 0
    for number, token in enumerate(tokens):
        if token:
            rest = len(token[-1].encode("utf-8", "replace")) - 1  # a token is at least one byte of a character
        elif rest:
            rest -= 1
            found.append((number, "part"))
        else:
            found.append((number, "end" if number > last else "special"))
    return found


def _finite(number: float | None) -> float | None:
    """JSON knows no NaN, which the reward of something that was never rewarded is."""
    return number if number is not None and math.isfinite(number) else None


def kind(rollout: Viewed) -> str:
    """What the rollout is, in words; empty where nobody knows."""
    if rollout["truth"] is None:
        return ""
    if rollout["truth"]:
        return "ground truth"
    return "decoy" if rollout["decoy"] else "look-alike" if rollout["lookalike"] else "neither"
