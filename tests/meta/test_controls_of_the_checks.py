"""The controls that a check declares, which --bt-list shows and calibrations use, against the gates of its rows."""

from __future__ import annotations

from typing import Any

import pytest
from check_rows import run_row
from pytest_behaviortrace.checks import test_seed_stability as seed_stability
from test_needs_of_the_checks import PLACES

from pytest_behaviortrace.checklist import declared
from pytest_behaviortrace.estimators.gradient import gas
from pytest_behaviortrace.gates import MIXTURE
from pytest_behaviortrace.grading import Grader

CHECKS = {check.name: check for check in declared()}


def both_ways(names: tuple[str, ...]) -> set[str]:
    return {sign + name for name in names for sign in ("", "-") if (sign, name) != ("-", MIXTURE)}


@pytest.mark.parametrize("check", PLACES)
def test_the_controls_in_the_list_are_those_of_the_gates(grader: Grader, check: str) -> None:
    decision = run_row(grader, check, "gas", gas, **PLACES[check]).decision
    assert decision is not None
    assert decision.gates
    found = {gate.control for gate in decision.gates if gate.control is not None}
    assert found == both_ways(CHECKS[f"test_{check}"].controls)


def test_headroom_compares_with_nothing(grader: Grader) -> None:
    assert all(gate.control is None for gate in grader.headroom(0).gates)


@pytest.mark.parametrize("component", seed_stability.COMPONENTS)
def test_a_component_has_the_controls_of_its_check(
    grader: Grader, component: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: set[str] = set()
    own = seed_stability.row

    def row(seed: int, draw: int, name: str, statistic: Any, controls: Any, chance: float) -> Any:
        found.update(controls)
        return own(seed, draw, name, statistic, controls, chance)

    monkeypatch.setattr(seed_stability, "row", row)
    run_row(grader, "seed_stability", "gas", gas, component=component)
    assert found == both_ways(CHECKS[seed_stability.COMPONENTS[component]].controls)
