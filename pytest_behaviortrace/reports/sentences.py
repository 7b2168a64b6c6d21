"""Rows -> sentences for somebody who does not know the words of the checks: how many failed, and why one did."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pytest_behaviortrace.scorecard import SEVERITY, Row

SAID = {
    "error": "broke", "fail": "failed", "inconclusive": "inconclusive", "n/a": "not applicable", "pass": "passed",
}  # fmt: skip

_GATE = re.compile(
    r"(?P<how>contradicted|not above|undecided, wider than [\d.]+): (?P<control>above )?(?P<what>.+?): [-+]?\d+\.\d+ \["
)
"""How `verdict.decide` words what a row hangs on."""


def tally(rows: Sequence[Row]) -> str:
    """For example `2 of 3 rows failed, 1 inconclusive`, worst first."""
    parts: list[str] = []
    for verdict in SEVERITY:
        those = [row for row in rows if row.verdict == verdict]
        if not those:
            continue
        expected = sum(row.expected_failure is not None for row in those)
        known = f" ({expected} expected)" if expected else ""
        if len(those) == len(rows):
            number = f"all {len(rows)} rows" if len(rows) > 1 else "its only row"
        else:
            number = str(len(those)) if parts else f"{len(those)} of {len(rows)} rows"
        parts.append(f"{number} {SAID[verdict]}{known}")
    return ", ".join(parts)


def why(row: Row) -> str:
    """What a failed or open row hangs on, in a sentence without the reason's numbers; empty where there is none."""
    if row.verdict == "fail" and row.reason.startswith("not on every seed and draw: "):
        return "The claim must hold on every single seed and draw, and on at least one of them it does not."
    found = _GATE.match(row.reason)
    if row.verdict not in ("fail", "inconclusive") or found is None:
        return ""
    how, what = found["how"], found["what"]
    if found["control"]:
        if how == "contradicted":
            return f"Refuted: {what} alone ranks clearly better than this estimator."
        if how == "not above":
            return f"Not shown to be better than {what} alone, although the interval is narrow enough to show it."
        return f"Undecided: the interval is too wide to say whether it is better than {what} alone."
    if how == "contradicted":
        return f"Refuted: {what} lies clearly below what chance gives."
    if how == "not above":
        return f"Not shown to be better than chance, or by too little: {what} is known precisely, and it is too low."
    return f"Undecided: the interval of {what} is too wide to tell this estimator from chance."
