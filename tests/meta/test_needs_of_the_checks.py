"""What --bt-list says a check serves, against the rows: whoever declares another need is n/a there, nobody else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from check_rows import run_row

from pytest_behaviortrace import listing
from pytest_behaviortrace.estimator import EVERYTHING, Needs
from pytest_behaviortrace.grading import Grader
from pytest_behaviortrace.verdict import Verdict

PLACES: dict[str, dict[str, Any]] = {
    "fluency_control": {"seed": 0, "draw": 0},
    "trigger_alignment": {"seed": 0, "draw": 0},
    "coverage": {"seed": 0},
    "gradient_magnitude": {"seed": 0},
    "reward_control": {"seed": 0},
    "target_context": {"seed": 0},
    "lookalikes": {"seed": 0},
}


@pytest.mark.parametrize("need", [name for name in EVERYTHING.names() if name != "gradients"])
@pytest.mark.parametrize("check", PLACES)
def test_a_need_that_is_not_served_is_not_applicable(grader: Grader, check: str, need: str) -> None:
    def mine(problem: Any) -> Any:
        return np.arange(len(problem), dtype=float)

    mine.needs = Needs(**{"gradients": True, need: True})  # type: ignore[attr-defined]
    served = listing.SERVED.get(f"test_{check}", EVERYTHING.names())
    outcome = run_row(grader, check, f"with-{need}", mine, **PLACES[check])
    assert (outcome.verdict is Verdict.NOT_APPLICABLE) == (need not in served), outcome.reason
