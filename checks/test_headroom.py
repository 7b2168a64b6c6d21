"""Claim: this run can tell estimators apart.

No estimator is on trial. Pass or inconclusive, from the store alone: the behaviour emerged (planted minus null s_b of
at least 0.2, lower bound over probes above 0), ground truth and decoys are numerous, a perfect ranker could show it
(ceiling minus chance), a draw has enough within-group pairs. Thresholds and sources: `pytest_behaviortrace.headroom`.
Every other check asks for the same decision, so leaving this one out skips nothing. Of a recorded run, without null run
and ground truth: a draw has enough pairs, and some siblings show the behaviour while others do not.
"""

from pytest_behaviortrace import showing
from pytest_behaviortrace.grading import Case


def test_headroom(bt_case: Case, bt_seed: int) -> None:
    bt_case.show(lambda: showing.learning(bt_case.evidence, bt_seed))
    bt_case.conclude(bt_case.grader.headroom(bt_seed))
