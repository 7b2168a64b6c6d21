"""What the checklist says of an estimator on the embedded run, from the cache alone: nothing is ever trained here."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from pytest_behaviortrace import checklist
from pytest_behaviortrace.estimator import Estimator
from pytest_behaviortrace.grading import Grader
from pytest_behaviortrace.options import DRAWS, RECIPE, SEEDS
from pytest_behaviortrace.ranked import Standing
from pytest_behaviortrace.run.recipe import Recipe
from pytest_behaviortrace.run.store import Store
from pytest_behaviortrace.scorecard import Row, Scorecard, worst
from pytest_behaviortrace.suite import SUITE
from pytest_behaviortrace.trial import Trial
from pytest_behaviortrace.verdict import ClaimFailed, Inconclusive, NotApplicable, Verdict


def standing(name: str, estimator: Estimator, cache_dir: Path, cache_flag: str = "") -> Standing:
    """The estimator's standing; unknown where a unit of the embedded run is missing or damaged.

    `cache_flag` (such as `--bt-cache-dir=DIR`) belongs into the command that grades it.
    """
    command = shlex.join(["pytest", f"--bt-estimator={name}", *([cache_flag] if cache_flag else [])])
    recipe = Recipe.load(RECIPE)
    store = Store(cache_dir, recipe)
    absent = list(store.problems(range(SEEDS), range(DRAWS)))
    if absent:
        return Standing(None, {}, command, f"{absent[0]} of the embedded run is not in the cache {cache_dir}")
    plant = recipe.plants[0].name
    grader = Grader(store, recipe, plant=plant, seeds=range(SEEDS), draws=DRAWS)
    rows = tuple(_rows(grader, name, estimator))
    card = Scorecard(SUITE, recipe.name, recipe.hash, plant, {}, (), rows, {name: frozenset(row.id for row in rows)})
    checks = {}
    for check, those in card.by_check(name).items():
        applicable = [row for row in those if row.verdict != "n/a"]
        checks[check.removeprefix("test_")] = worst(applicable or those).verdict
    return Standing(card.checklist_verdict(name), checks, command)


def _rows(grader: Grader, name: str, estimator: Estimator) -> Iterator[Row]:
    for check in checklist.declared():
        if "bt_estimator" not in check.arguments:
            continue
        for spec in check.rows([name], grader.seeds, grader.draws):
            verdict, reason = _outcome(check, spec, grader, estimator)
            yield Row(spec.id, name, spec.check, spec.seed, spec.draw, verdict.value, reason=reason)


def _outcome(
    check: checklist.Check, spec: checklist.RowSpec, grader: Grader, estimator: Estimator
) -> tuple[Verdict, str]:
    case: Trial
    if check.needs_run:
        case = grader.case(spec.estimator, estimator, spec.seed, spec.draw, spec.component)
    else:
        case = grader.trial(spec.estimator, estimator, spec.component)
    try:
        check.run(spec, case)
    except ClaimFailed as error:
        return Verdict.FAIL, str(error)
    except Inconclusive as error:
        return Verdict.INCONCLUSIVE, str(error)
    except NotApplicable as error:
        return Verdict.NOT_APPLICABLE, str(error)
    except Exception as error:  # whatever an estimator breaks with
        return Verdict.ERROR, str(error)
    return Verdict.PASS, ""
