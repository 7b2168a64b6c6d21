"""The properties that the stress tests ask for, each a function that looks for a violation on one problem."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_behaviortrace.estimator import EstimatorError, InputsChanged, Needs, TooSlow
from pytest_behaviortrace.problem import AttributionProblem
from pytest_behaviortrace.scoring import score
from pytest_behaviortrace.trial import Trial
from pytest_behaviortrace.variations import contents, copied, flipped, relocated, renamed, served_values, taken

Scores = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Bars:
    """How far apart two scores of the same item may lie. `checks/test_stress.py` says why."""

    relative: float
    """As a share of the problem's largest score."""
    rounding: float
    """As a share of the largest score that the same numbers give without cancellation."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A violation: in a sentence, the call that changes the problem, and the scores in question."""

    sentence: str
    code: str = ""
    scores: tuple[str, ...] = ()


@dataclass
class Caller:
    """Calls the estimator on trial; every call gets arrays of its own."""

    trial: Trial
    needs: Needs
    bars: Bars

    def __call__(self, problem: AttributionProblem) -> Scores:
        """Its scores. Raises `EstimatorError` where it breaks."""
        return self.on(copied(problem))

    def on(self, problem: AttributionProblem) -> Scores:
        """Its scores on the very arrays of this problem."""
        trial = self.trial
        assert trial.estimator is not None
        scored = score(str(trial.name), trial.estimator, problem, trial.bench.timeout, watch_memory=False)
        trial.spend(scored.seconds, scored.peak_bytes)
        return scored.scores

    def apart(self, first: Scores, second: Scores, problem: AttributionProblem) -> NDArray[np.intp]:
        """Places where two rows of scores differ by more than rounding can explain."""
        with np.errstate(over="ignore"):
            gap = np.abs(first - second)
        far = gap > self.bars.relative * _largest(first, second)
        if far.any():
            far &= gap > self.bars.rounding * max(_largest(first, second), self._uncancelled(problem))
        return np.flatnonzero(far)

    def _uncancelled(self, problem: AttributionProblem) -> float:
        """Largest score under any choice of signs of the target's entries.

        A sum that cancels is off by rounding of its terms, not of its value. With the signs turned so that the terms
        add up, the score is as large as the terms.
        """
        if not self.needs.gradients:
            return 0.0
        served, largest = served_values(problem), 0.0
        for signs in itertools.product((1, -1), repeat=len(served["target"]) - 1):
            turn = np.array((1, *signs), np.float32)
            targets = {name: served[name] * turn for name in ("target", "targets_by_step")}
            try:
                largest = max(largest, _largest(self(problem.replacing(**targets))))
            except TooSlow:
                raise
            except EstimatorError:
                continue
        return largest


@dataclass(frozen=True)
class Property:
    """One property: what it says, the search for a violation, and who is asked about it."""

    said: str
    broken: Callable[[Caller, AttributionProblem, Any], Finding | None]
    claim: str | None = None
    """Field of `Claims`; None: nobody can do without it."""
    least: int = 1
    """Fewest items of a problem that can show a violation."""
    model: bool = False
    """Only estimators that use the model are asked."""


def finite(call: Caller, problem: AttributionProblem, _: None) -> Finding | None:
    """One finite number per item, whatever the problem."""
    try:
        call(problem)
    except TooSlow:
        raise
    except InputsChanged as error:
        if error.__cause__ is None:  # it did score, and the row "inputs" judges the rest
            raise
        return Finding(str(error))
    except EstimatorError as error:
        return Finding(str(error))
    return None


def deterministic(call: Caller, problem: AttributionProblem, _: None) -> Finding | None:
    """To the last bit: what breaks a tie must not be chance."""
    first = call(problem)
    random.random(), np.random.random()  # each call gets global state as it finds it; between two others draw from it
    second = call(problem)
    different = np.flatnonzero(first != second)
    if not len(different):
        return None
    i = different[0]
    sentence = f"item {i} scores {first[i]!s} on one call and {second[i]!s} on the next"
    return Finding(sentence, scores=(_written("first call", first), _written("second call", second)))


def inputs(call: Caller, problem: AttributionProblem, _: None) -> Finding | None:
    """Arrays look the same after the call as before it."""
    given = copied(problem)
    before = contents(given)
    try:
        call.on(given)
    except InputsChanged as error:
        return Finding(str(error))
    after = contents(given)
    if changed := [name for name, value in before.items() if after[name] != value]:
        return Finding(f"problem.{changed[0]} is not what it was before the call")
    return None


def permutation(call: Caller, problem: AttributionProblem, order: Sequence[int]) -> Finding | None:
    """Scores move with the items."""
    before, after = call(problem), call(taken(problem, order))
    return _compare(call, problem, before[order], after, f"taken(problem, {order})")


def duplicates(call: Caller, problem: AttributionProblem, item: int) -> Finding | None:
    """An item and its copy at the end are worth the same."""
    items = [*range(len(problem)), item]
    changed = taken(problem, items)
    scores = call(changed)
    expected = scores.copy()
    expected[-1] = scores[item]
    return _compare(call, changed, expected, scores, f"taken(problem, {items})")


def batches(call: Caller, problem: AttributionProblem, part: Sequence[int]) -> Finding | None:
    """An item scores alone, or beside some of the others, as it scores beside all of them."""
    whole = call(problem)
    for items in [list(part), *([i] for i in range(len(problem)))]:
        some = call(taken(problem, items))
        if finding := _compare(call, problem, whole[items], some, f"taken(problem, {items})"):
            return finding
    return None


def renaming(call: Caller, problem: AttributionProblem, names: tuple[dict[int, int], dict[str, str]]) -> Finding | None:
    """Ids and prompts are names, no more."""
    groups, prompts = names
    code = f"renamed(problem, {groups}{f', {prompts!r}' if prompts else ''})"
    return _compare(call, problem, call(problem), call(renamed(problem, groups, prompts)), code)


def target_sign(call: Caller, problem: AttributionProblem, _: None) -> Finding | None:
    """What would teach a behaviour would teach its opposite as much less."""
    return _compare(call, problem, -call(problem), call(flipped(problem)), "flipped(problem)")


def row_ids(call: Caller, problem: AttributionProblem, rows: int) -> Finding | None:
    """It does not matter where in a larger table the rows stand."""
    moved = call.on(relocated(problem, rows))
    return _compare(call, problem, call(problem), moved, f"relocated(problem, {rows})")


PROPERTIES: dict[str, Property] = {
    "finite": Property("every item gets one finite number", finite),
    "deterministic": Property("the same problem gets the same scores again", deterministic),
    "inputs": Property("the arrays of the problem stay as they were", inputs),
    "permutation": Property("scores move with their items", permutation, "permutation", 2),
    "duplicates": Property("identical items get identical scores", duplicates, "duplicates"),
    "batches": Property("neither other items nor padding matter", batches, "batches", 2, model=True),
    "renaming": Property("names of groups and prompts do not matter", renaming, "renaming"),
    "row-ids": Property("where the rows stand does not matter", row_ids),
    "target-sign": Property("the opposite target gets the opposite scores", target_sign, claim="target_sign"),
}
"""By the name of their row."""


def _compare(call: Caller, problem: AttributionProblem, expected: Scores, found: Scores, code: str) -> Finding | None:
    apart = call.apart(expected, found, problem)
    if not len(apart):
        return None
    i = apart[0]
    sentence = f"item {i} of {code} scores {found[i]!s}, not {expected[i]!s}"
    return Finding(sentence, code, (_written("scores", found), _written("expected", expected)))


def _largest(*scores: Scores) -> float:
    return max(float(np.abs(row).max(initial=0.0)) for row in scores)


def _written(what: str, scores: Scores) -> str:
    return f"{what}: {scores.tolist()}"
