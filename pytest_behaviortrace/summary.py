"""One line that says how an estimator stands: for badges, comments and the head of every report. Pure."""

from __future__ import annotations

from pytest_behaviortrace.scorecard import SEVERITY, Scorecard

WORDS = {"pass": "passed", "fail": "failed", "error": "error"}
"""Verdicts that read otherwise behind a number; the others stay as they are."""


def summary(scorecard: Scorecard, estimator: str) -> str:
    """For example `checklist failed; 29 of 39 rows passed, 7 failed, 2 inconclusive, 1 n/a; suite ..., recipe ...`.

    Rows that were expected to fail are counted as what they are, and their number is given.
    """
    rows, missing = scorecard.of(estimator), scorecard.missing(estimator)
    counted = [f"{sum(row.verdict == 'pass' for row in rows)} of {len(rows) + missing} rows passed"]
    for verdict in SEVERITY:
        those = [row for row in rows if row.verdict == verdict]
        if verdict == "pass" or not those:
            continue
        expected = sum(row.expected_failure is not None for row in those)
        counted.append(f"{len(those)} {WORDS.get(verdict, verdict)}" + (f" ({expected} expected)" if expected else ""))
    if missing:
        counted.append(f"{missing} not run")
    return f"checklist {scorecard.checklist_verdict(estimator)}; {', '.join(counted)}; {graded_on(scorecard)}"


def graded_on(scorecard: Scorecard) -> str:
    """For example `suite 2026.12.2, recipe tiny@89aa7c0f`."""
    run = scorecard.run
    if run is not None:
        return f"suite {scorecard.suite}, recorded run {run.path}@{run.manifest_sha256[:8]}"
    return f"suite {scorecard.suite}, recipe {scorecard.recipe}@{scorecard.recipe_hash[:8]}"
