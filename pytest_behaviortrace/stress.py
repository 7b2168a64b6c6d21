"""Stress tests of one estimator: properties of its scores, tried on drawn problems until one breaks or all hold.

A counterexample is shrunk by Hypothesis and reported as source. Imported by `checks/test_stress.py` alone, since
Hypothesis takes a while to load.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import hypothesis
from hypothesis import configuration
from hypothesis import strategies as st

from pytest_behaviortrace.estimator import EstimatorError, TooSlow, claims_of, needs_of
from pytest_behaviortrace.isolation import NO_MODEL, Isolated
from pytest_behaviortrace.problem import AttributionProblem
from pytest_behaviortrace.problem_source import problem_source
from pytest_behaviortrace.properties import PROPERTIES, Bars, Caller, Finding, Property
from pytest_behaviortrace.strategies import MOST_ITEMS, attribution_problems, prompts
from pytest_behaviortrace.trial import Trial
from pytest_behaviortrace.variations import served_values
from pytest_behaviortrace.verdict import Decision, NotApplicable, Verdict

ISOLATED_EXAMPLES = 5
"""Problems per row for an isolated estimator, each call of which starts a process; what breaks is not shrunk."""
MODEL_ITEMS = 3
"""Most items of a problem on which an estimator takes gradients of its own."""


def _names(problem: AttributionProblem) -> st.SearchStrategy[tuple[dict[int, int], dict[str, str]]]:
    """New names of groups, and of prompts unless a model reads them."""
    groups, served = sorted(set(problem.group.tolist())), served_values(problem)
    new_groups = st.lists(st.integers(0, 99), min_size=len(groups), max_size=len(groups), unique=True)
    texts = sorted(set(served["prompt_text"])) if "prompt_text" in served and "model" not in served else []
    new_texts = st.lists(prompts().map(lambda said: said[0]), min_size=len(texts), max_size=len(texts), unique=True)
    return st.tuples(
        new_groups.map(lambda new: dict(zip(groups, new, strict=True))),
        new_texts.map(lambda new: dict(zip(texts, new, strict=True))),
    )


def _places(problem: AttributionProblem) -> st.SearchStrategy[int]:
    return st.integers(0, len(problem) - 1)


ARGUMENTS: dict[str, Callable[[AttributionProblem], st.SearchStrategy[Any]]] = {
    "permutation": lambda problem: st.permutations(range(len(problem))),
    "duplicates": _places,
    "batches": lambda problem: st.lists(_places(problem), min_size=1, max_size=len(problem) - 1, unique=True),
    "renaming": _names,
    "row-ids": lambda problem: st.integers(1, 50),
}
"""What a property does with a problem: an order, an item to repeat, items to score alone, new names, rows to move."""


class Example(NamedTuple):
    """A problem, and one of the `ARGUMENTS`."""

    problem: AttributionProblem
    argument: Any


@dataclass
class Tally:
    """What became of the problems of one row."""

    tried: int = 0
    judged: int = 0
    """Tried, and the estimator did not break."""
    last: tuple[Example, Finding] | None = None
    smallest: tuple[Example, Finding] | None = None
    """The violations met last, and on the fewest items."""
    gave_up: EstimatorError | None = None


class Violated(Exception):
    """Tells Hypothesis that a problem is a counterexample."""


def examine(trial: Trial, name: str, bars: Bars, examples: int, model_examples: int) -> Decision:
    """The decision on one property of the estimator on trial; its reason's further lines are the counterexample.

    Raises `NotApplicable` where the property is not claimed or cannot be asked about, `EstimatorError` where the
    estimator is too slow.
    """
    assert trial.estimator is not None
    assert trial.name is not None
    asked, needs = PROPERTIES[name], needs_of(trial.estimator)
    _require(trial, name, asked)
    if trial.name in trial.bench.given_up:
        raise trial.bench.given_up[trial.name]
    most = MODEL_ITEMS if needs.model else MOST_ITEMS
    problems = attribution_problems(needs=needs, min_items=asked.least, max_items=most)
    caller = Caller(trial, needs, bars)
    arguments = ARGUMENTS.get(name, lambda problem: st.none())
    isolated = isinstance(trial.estimator, Isolated)
    budget = ISOLATED_EXAMPLES if isolated else model_examples if needs.model else examples
    tally = _try(asked, caller, examples_of(problems, arguments), budget, shrinks=not isolated)
    if tally.gave_up is not None and tally.last is None:
        trial.bench.given_up[trial.name] = tally.gave_up
        raise tally.gave_up
    return _decision(trial.name, name, asked, tally)


def _require(trial: Trial, name: str, asked: Property) -> None:
    """Raise `NotApplicable` for a property that the estimator does not claim or that does not concern it."""
    assert trial.estimator is not None
    if isinstance(trial.estimator, Isolated) and trial.estimator.needs.model:
        raise NotApplicable(f"{trial.name} needs model; {NO_MODEL}")
    if asked.claim is not None and not getattr(claims_of(trial.estimator), asked.claim):
        raise NotApplicable(f"{trial.name} does not claim {name} (Claims({asked.claim}=False))")
    if asked.model and not needs_of(trial.estimator).model:
        raise NotApplicable(f"{trial.name} does not use the model, so it batches and pads nothing")
    if name == "target-sign" and not (needs_of(trial.estimator).gradients or needs_of(trial.estimator).model):
        raise NotApplicable(f"{trial.name} reads no target that could be turned round")


@st.composite
def examples_of(draw: st.DrawFn, problems: st.SearchStrategy[AttributionProblem], arguments: Any) -> Example:
    """A problem and an argument that fits it."""
    problem = draw(problems)
    return Example(problem, draw(arguments(problem)))


def _try(asked: Property, caller: Caller, drawn: st.SearchStrategy[Example], examples: int, *, shrinks: bool) -> Tally:
    """Try a property on as many problems, then shrink the first that breaks it."""
    tally = Tally()

    @hypothesis.settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(hypothesis.Phase.generate, *((hypothesis.Phase.shrink,) if shrinks else ())),
        suppress_health_check=list(hypothesis.HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
        verbosity=hypothesis.Verbosity.quiet,
    )
    @hypothesis.given(drawn)
    def attempt(case: Example) -> None:
        if tally.gave_up is not None:
            return
        counting = tally.last is None
        tally.tried += counting
        try:
            finding = asked.broken(caller, *case)
        except TooSlow as error:
            tally.gave_up = error
            return
        except EstimatorError:  # the business of the rows "finite" and "inputs"
            return
        tally.judged += counting
        if finding is not None:
            tally.last = case, finding
            if tally.smallest is None or len(case.problem) < len(tally.smallest[0].problem):
                tally.smallest = tally.last
            raise Violated

    with _nothing_left_behind():
        try:
            attempt()
        except Violated:  # Hypothesis ends by running the smallest once more
            pass
        except hypothesis.errors.Flaky:  # it did not happen again; it was a violation all the same
            tally.last = tally.smallest
    return tally


def _decision(estimator: str, name: str, asked: Property, tally: Tally) -> Decision:
    if tally.last is not None:
        case, finding = tally.last
        after = f"problem {tally.tried}, shrunk to {len(case.problem)} item{'s' * (len(case.problem) != 1)}"
        lines = [f"{name} does not hold: {finding.sentence} ({after})", *_counterexample(case, finding)]
        return Decision(Verdict.FAIL, "\n".join(lines), n=tally.tried)
    if not tally.judged:
        reason = f"{estimator} breaks on all of {tally.tried} problems (see the rows finite and inputs)"
        return Decision(Verdict.INCONCLUSIVE, reason, n=tally.tried)
    skipped = f", the estimator breaks on {tally.tried - tally.judged} of them" if tally.judged < tally.tried else ""
    return Decision(Verdict.PASS, f"{asked.said} ({tally.tried} problems{skipped})", n=tally.tried)


def _counterexample(case: Example, finding: Finding) -> list[str]:
    call = finding.code.partition("(")[0]
    imports = [f"from pytest_behaviortrace.variations import {call}"] if call else []
    lines = ["", f"# {finding.sentence}", *problem_source(case.problem, *imports).splitlines()]
    if call:
        lines.append(f"changed = {finding.code}")
    return [*lines, *(f"# {line}" for line in finding.scores), ""]


@contextlib.contextmanager
def _nothing_left_behind() -> Iterator[None]:
    """Hypothesis keeps what it learns about local modules in a folder `.hypothesis`: not in the user's repository."""
    before = getattr(configuration, "__hypothesis_home_directory", None)
    with tempfile.TemporaryDirectory() as folder:
        configuration.set_hypothesis_home_dir(folder)
        try:
            yield
        finally:
            configuration.set_hypothesis_home_dir(before)
