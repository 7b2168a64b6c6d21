"""What the list says of estimators and checks, against what they are."""

from __future__ import annotations

import re

import pytest

from pytest_behaviortrace import checklist, gates, listing
from pytest_behaviortrace.estimator import Needs, needs, needs_of
from pytest_behaviortrace.registry import Registered, Registry

SHIPPED = [entry for entry in Registry().entries() if listing._is_own(entry)]


@pytest.mark.parametrize("entry", SHIPPED, ids=lambda entry: entry.name)
def test_needs_read_from_the_source_are_those_declared(entry: Registered) -> None:
    declared = needs_of(Registry().load(entry.name)).names()
    assert listing.needs(entry) == (", ".join(declared) or "nothing")


def test_an_object_of_a_hook_tells_its_needs() -> None:
    @needs(text=True)
    def mine(problem: object) -> object:
        return problem

    assert listing.needs(Registered("mine", "hook", mine)) == "text"
    assert listing.needs(Registered("mine", "hook", Needs)) == listing.UNKNOWN
    assert listing.needs(Registered("mine", "other 1.0", "other.package:mine")) == listing.UNKNOWN


def test_every_check_says_what_it_has() -> None:
    about = {check.name: list(listing.about(check)) for check in checklist.declared()}
    assert about["test_headroom"] == ["puts no estimator on trial", "rows: one per seed", "controls: none"]
    assert about["test_fluency_control"] == [
        "serves gradients", "rows: one per seed and draw", "controls: norm-only, length (each also turned round)",
    ]  # fmt: skip
    assert about["test_gradient_magnitude"][-1] == (
        "controls: norm-only, update-magnitude (each also turned round), and their mixture"
    )
    assert about["test_target_context"][-1] == "controls: topic (also turned round)"
    assert about["test_seed_stability"][1].startswith("rows: one per component (window-precision, ")
    assert about["test_seed_stability"][2] == (
        "controls: those of gradient_magnitude (window-precision), fluency_control (fluency-controlled-auc), "
        "reward_control (decoy-auc)"
    )
    assert all(lines[1].startswith("rows: one per ") for lines in about.values())
    assert all(lines[2].startswith("controls") for lines in about.values())


def test_no_check_is_made_up() -> None:
    checks = {check.name: check for check in checklist.declared()}
    assert set(listing.SERVED) | set(listing.INSTEAD) <= set(checks)
    for check in checks.values():
        assert set(check.origins) <= set(checks)
    assert listing.MIXTURE == gates.MIXTURE


def test_no_constant_of_a_source_file_is_shown() -> None:
    shown = "\n".join(line for check in checklist.declared() for line in listing.about(check))
    assert not re.findall(r"\b[A-Z]{2,}_?[A-Z]*\b", shown)
