"""What the list says of estimators and checks, against what they are."""

from __future__ import annotations

import pytest

from pytest_behaviortrace import checklist, listing
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
    assert about["test_headroom"][0] == "puts no estimator on trial"
    assert about["test_fluency_control"] == [
        "serves gradients", "rows: one per seed and draw", "declares: CHANCE 0.5, LEAST_MATCHED 100",
    ]  # fmt: skip
    assert "named controls: advantage, update-magnitude, norm-only, step, topic" in about["test_reward_control"]
    assert about["test_seed_stability"][1].startswith("rows: one per component (window-precision, ")
    assert all(lines[1].startswith("rows: one per ") for lines in about.values())
    assert set(listing.SERVED) | set(listing.INSTEAD) <= set(about)
