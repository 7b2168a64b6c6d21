"""One repetition: a synthetic world, every contender before every check, and how each ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_behaviortrace import checklist
from pytest_behaviortrace.calibration.contenders import NAMED, TRUE_SIGNAL, Contender, signal_of, worthless
from pytest_behaviortrace.calibration.marginals import Marginals
from pytest_behaviortrace.calibration.synthetic import SyntheticEvidence
from pytest_behaviortrace.calibration.world import Dials
from pytest_behaviortrace.estimator import EstimatorError
from pytest_behaviortrace.grading import Grader
from pytest_behaviortrace.statistics import RESAMPLES
from pytest_behaviortrace.verdict import ClaimFailed, Inconclusive, NotApplicable, Verdict

STRONG = 0.8
"""AUC of the true signal's content, at equal fluency and norm, that counts as strong."""
POWER = (0.6, 0.7, 0.8, 0.9)
"""AUCs of the power curve."""
COMPARED = (0.7, 0.8)
"""Those at which verdicts under fewer resamples are compared: where rows are near their bars."""
LUCK = 0.5
"""Spread of an effect between seeds, in standard deviations, whose mean is 0: a score that lives on lucky seeds."""
MORE = 4.0
"""How many times the data an inconclusive row is given, to see whether that decides it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a study runs: sizes, and how many resamples each interval gets."""

    seeds: int = 3
    draws: int = 2
    resamples: int = 200
    between_seeds: float = 0.0
    """Spread of the true signal between seeds."""
    between_draws: float = 0.0
    """The same between draws."""
    follow_up: int = 40
    """Repetitions in which inconclusive rows are given more data."""
    compared: int = 10
    """Repetitions whose verdicts are compared with those under the checks' own number of resamples."""


ACROSS_SEEDS = ("seed_stability",)
"""What lucky seeds are up against: on a seed where it is lucky such a score does find the cause, and a row says so."""

CHECKS = {check.name.removeprefix("test_"): check for check in checklist.declared() if check.needs_run}
"""Every check that judges by statistics; the others ask for properties, which chance does not give."""


class World:
    """One repetition's synthetic evidence, and the real checks on it."""

    def __init__(self, marginals: Marginals, dials: Dials, plan: Plan, number: int) -> None:
        self.marginals, self.dials, self.plan, self.number = marginals, dials, plan, number
        self.evidence = SyntheticEvidence(marginals, dials, plan.draws, number)
        self.grader = Grader.on(self.evidence, range(plan.seeds), resamples=plan.resamples)

    def rows(self, check: str) -> list[checklist.RowSpec]:
        """The rows a check has for one estimator."""
        return list(CHECKS[check].rows(["contender"], range(self.plan.seeds), self.plan.draws))

    def verdict(self, contender: Contender, row: checklist.RowSpec) -> Verdict:
        """How the real check ends on this row."""
        estimator = self.grader.memo(("made", contender.name), lambda: contender.make(self.evidence))
        case = self.grader.case(contender.name, estimator, row.seed, row.draw, row.component)
        try:
            CHECKS[row.check.removeprefix("test_")].run(row, case)
        except ClaimFailed:
            return Verdict.FAIL
        except Inconclusive:
            return Verdict.INCONCLUSIVE
        except NotApplicable:
            return Verdict.NOT_APPLICABLE
        except EstimatorError:
            return Verdict.ERROR
        return Verdict.PASS

    def first_miss(self, contender: Contender, check: str) -> Verdict:
        """Pass if every row of the check passes, else the verdict of the first that does not."""
        for row in self.rows(check):
            if (verdict := self.verdict(contender, row)) is not Verdict.PASS:
                return verdict
        return Verdict.PASS

    def with_more(self) -> World:
        """The same seeds' effects with more prompt groups and probes."""
        return World(self.marginals, replace(self.dials, groups=self.dials.groups * MORE), self.plan, self.number)


Counts = dict[str, int]
"""What is counted: `kind|contender|check|outcome` -> how often."""


def repetition(marginals: Marginals, plan: Plan, number: int) -> Counts:
    """Everything the study counts in one repetition."""
    counts: Counts = {}
    strong = World(marginals, Dials(signal=signal_of(STRONG)), plan, number)
    _false_passes(counts, strong, worthless())
    lucky = World(marginals, Dials(between_seeds=LUCK), plan, number)
    _false_passes(counts, lucky, [Contender("lucky seeds", TRUE_SIGNAL.make, ACROSS_SEEDS)])
    for auc in POWER:
        dials = Dials(signal_of(auc), between_seeds=plan.between_seeds, between_draws=plan.between_draws)
        world = strong if dials == strong.dials else World(marginals, dials, plan, number)
        _power(counts, world, f"{auc:.2f}", number < plan.follow_up)
        if number < plan.compared and auc in COMPARED:
            _compare(counts, world, f"{auc:.2f}")
    return counts


def _add(counts: Counts, *key: str) -> None:
    name = "|".join(key)
    counts[name] = counts.get(name, 0) + 1


def _false_passes(counts: Counts, world: World, contenders: Sequence[Contender]) -> None:
    for contender in contenders:
        passed = True
        for check in contender.checks:
            verdict = world.first_miss(contender, check)
            _add(counts, "worthless", contender.name, check, verdict.value)
            passed &= verdict is Verdict.PASS
        for check in CHECKS:
            name = check
            if passed and name not in contender.checks and name != "headroom":
                passed = world.first_miss(contender, name) is Verdict.PASS
        _add(counts, "worthless", contender.name, "whole checklist", "pass" if passed else "fail")


def _power(counts: Counts, world: World, label: str, follow_up: bool) -> None:
    more = world.with_more() if follow_up else None
    everything = True
    for check in CHECKS:
        if check == "headroom":
            continue
        every = True
        for row in world.rows(check):
            verdict = world.verdict(TRUE_SIGNAL, row)
            every &= verdict is Verdict.PASS
            _add(counts, "row", label, check, verdict.value)
            if more is not None and verdict is Verdict.INCONCLUSIVE:
                later = more.verdict(TRUE_SIGNAL, row)
                _add(counts, "more", label, check, later.value)
        _add(counts, "power", label, check, "pass" if every else "not")
        everything &= every
    _add(counts, "power", label, "whole checklist", "pass" if everything else "not")


def _compare(counts: Counts, world: World, label: str) -> None:
    """Whether rows end alike under the study's resamples and under the checks' own number."""
    full = World(world.marginals, world.dials, replace(world.plan, resamples=RESAMPLES), world.number)
    for check in NAMED:
        for row in world.rows(check):
            fewer, all_of_them = world.verdict(TRUE_SIGNAL, row), full.verdict(TRUE_SIGNAL, row)
            _add(counts, "alike", label, check, "yes" if fewer is all_of_them else "no")
            for size, verdict in (("fewer", fewer), ("full", all_of_them)):
                _add(counts, "resamples", size, check, verdict.value)
