"""How a row ends: runs its check, and says verdict, reason and numbers, whoever asked for it."""

from __future__ import annotations

import math
import traceback
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from pytest_behaviortrace.interrupts import never_swallowed
from pytest_behaviortrace.verdict import ENDS_THE_SESSION, ClaimFailed, Decision, Inconclusive, NotApplicable, Verdict

if TYPE_CHECKING:
    from pytest_behaviortrace.checklist import Check, RowSpec
    from pytest_behaviortrace.exhibit import Exhibit
    from pytest_behaviortrace.run.progress import Display
    from pytest_behaviortrace.session import GradingSession
    from pytest_behaviortrace.trial import Trial


@dataclass(frozen=True, slots=True, eq=False)
class Ended:
    """A row that ran."""

    verdict: Verdict
    reason: str
    error: BaseException | None
    """What the check raised: an outcome of `verdict`, or, for an error, whatever it was; None on pass."""
    case: Trial | None
    """None where there was no evidence to work with."""
    expected_failure: str | None
    """Why it was expected to fail, if it did."""

    @property
    def properties(self) -> dict[str, Any]:
        """What `scorecard.row_of` makes a row of: every `bt_*` property that has a value, in plain types."""
        decision: Decision | None = getattr(self.case, "decision", None)
        found: dict[str, Any] = {}
        if decision is not None and self.verdict is not Verdict.ERROR:
            names = [field.name for field in fields(decision) if field.name not in ("gates", "floors")]
            found = {name: getattr(decision, name) for name in names}
        found |= {"verdict": self.verdict.value, "reason": self.reason, "expected_failure": self.expected_failure}
        if self.case is not None:
            found |= {"seconds": self.case.seconds, "peak_bytes": self.case.peak_bytes}
        return {f"bt_{name}": plain for name, value in found.items() if (plain := _plain(value)) is not None}


def run(
    grading: GradingSession, check: Check, spec: RowSpec, showing: Callable[[], AbstractContextManager[Display]]
) -> Ended:
    """Run a row, training first what is missing, shown on the display that `showing` opens.

    Only what is meant to end the whole session (Ctrl-C, `pytest.exit`) is raised; everything else is how the row ended.
    """
    case: Any = None
    verdict, error = Verdict.PASS, None
    with never_swallowed():
        try:
            case = grading.case(spec, showing)
            check.run(spec, case)
            if case.decision is None:
                raise RuntimeError(f"{check.name} ended without a verdict")
            reason = case.decision.reason
        except ENDS_THE_SESSION:
            raise
        except BaseException as raised:
            verdict, reason, error = verdict_of(raised), sentence(raised), raised
    expected = grading.expected_failures.reason(spec.estimator, spec.check, verdict)
    return Ended(verdict, reason, error, case, expected)


def shown(grading: GradingSession, spec: RowSpec, ended: Ended) -> Exhibit | None:
    """What a row shows in reports with pictures, where someone wants it.

    Where that cannot be gathered it is told, as a warning, and the row stays as it is.
    """
    if ended.case is None or not grading.settings.exhibits:
        return None
    case: Any = ended.case
    try:
        found: Exhibit = case.exhibit(pictures=grading.pictured(spec))
    except Exception as error:
        warnings.warn(f"{spec.id} shows nothing in the report: {sentence(error)}", stacklevel=1)
        return None
    return found


def let_go(error: BaseException | None) -> None:
    """Empty the frames of an exception that has been reported, and of what caused it.

    Scores are remembered, errors in place of them too, and a frame of an estimator may hold all of its arrays.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def verdict_of(error: BaseException) -> Verdict:
    """The verdict that an exception out of a check stands for; everything that is no outcome is an error."""
    for kind, verdict in (
        (ClaimFailed, Verdict.FAIL),
        (Inconclusive, Verdict.INCONCLUSIVE),
        (NotApplicable, Verdict.NOT_APPLICABLE),
    ):
        if isinstance(error, kind):
            return verdict
    return Verdict.ERROR


def sentence(error: BaseException) -> str:
    """The first line of an exception's message; the type before it unless the exception is one of this package's."""
    text = (str(error).splitlines() or [""])[0]
    if (log := getattr(error, "log", None)) is not None:
        text = f"{text} Log: {log}"
    ours = type(error).__module__.startswith(f"{__package__}.")
    return text if ours else f"{type(error).__name__}: {text}"


def _plain(value: Any) -> Any:
    """A value that JUnit and xdist can carry: numpy's numbers become Python's, and what is not finite is left out."""
    if value is None or isinstance(value, str):
        return None if value is None else str(value)
    if isinstance(value, float) or not hasattr(value, "__index__"):
        return float(value) if math.isfinite(value) else None
    return int(value)
