"""Rows of the real checks: where they are, how they are run outside of pytest's own items, and how they end."""

from __future__ import annotations

from typing import Any, NamedTuple

from pytest_behaviortrace import checklist
from pytest_behaviortrace.estimator import EstimatorError
from pytest_behaviortrace.grading import Grader
from pytest_behaviortrace.verdict import ClaimFailed, Decision, Inconclusive, NotApplicable, Verdict

SEEDS, DRAWS, PLANT = (0, 1, 2), 2, "frobnitz"
CHECKS = {check.name.removeprefix("test_"): check for check in checklist.declared()}


class Outcome(NamedTuple):
    """How a row ended, and the numbers it recorded on the way."""

    verdict: Verdict
    reason: str
    decision: Decision | None


def run_row(grader: Grader, check: str, name: str | None = None, estimator: Any = None, **place: Any) -> Outcome:
    """The row as the plugin runs it."""
    spec = checklist.RowSpec(f"test_{check}", name, **place)
    case = grader.case(name, estimator, place.get("seed"), place.get("draw"), place.get("component"))
    try:
        CHECKS[check].run(spec, case)
    except ClaimFailed as error:
        return Outcome(Verdict.FAIL, str(error), case.decision)
    except Inconclusive as error:
        return Outcome(Verdict.INCONCLUSIVE, str(error.msg), case.decision)
    except NotApplicable as error:
        return Outcome(Verdict.NOT_APPLICABLE, str(error.msg), case.decision)
    except EstimatorError as error:
        return Outcome(Verdict.ERROR, str(error), case.decision)
    assert case.decision is not None, "a check must conclude"
    return Outcome(Verdict.PASS, case.decision.reason, case.decision)


def places(check: str) -> list[dict[str, Any]]:
    """Where a check has rows: its seeds, draws and components."""
    specs = CHECKS[check].rows(["x"], SEEDS, DRAWS)
    return [{"seed": s.seed, "draw": s.draw, "component": s.component} for s in specs]
