"""`python -m pytest_behaviortrace calibrate`: measures, prints and writes how far the verdicts can be trusted."""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_behaviortrace.run.recipe import Recipe
    from pytest_behaviortrace.run.store import Store

SCHEMA = 1
REPETITIONS = 1000
BROKEN_OFF = 130
"""Exit code of a study that was interrupted, or lost a worker."""
FEWER = 300
"""Most repetitions of the two smaller studies, which run in one process."""
MOST_WORKERS = 256
"""All of them are started at once."""
FOLLOWED, COMPARED = 30, 100
"""One repetition in so many gives inconclusive rows more data, and compares verdicts under all resamples."""
RECORDED_SEEDS, RECORDED_DRAWS = 3, 2
"""What the marginals are taken from: the default session."""


def add_arguments(parser: argparse.ArgumentParser, count: Any) -> None:
    """Declare the command's options; `count` parses a whole number."""
    parser.add_argument("--recipe", default="tiny", metavar="R", help="recorded run to imitate (default: %(default)s)")
    parser.add_argument("--plant", metavar="P", help="graded behaviour (default: the recipe's first)")
    parser.add_argument("--repetitions", type=count, default=REPETITIONS, metavar="N", help="default: %(default)s")
    parser.add_argument("--seeds", type=count, default=3, metavar="N", help="synthetic seeds (default: %(default)s)")
    parser.add_argument("--draws", type=count, default=2, metavar="N", help="draws per seed (default: %(default)s)")
    parser.add_argument("--resamples", type=count, default=200, metavar="N", help="per interval (default: %(default)s)")
    parser.add_argument("--between-seeds", type=_spread, default=0.0, metavar="SD", help="spread of the true signal")
    parser.add_argument("--between-draws", type=_spread, default=0.0, metavar="SD", help="the same between draws")

    def some(text: str) -> int:
        if (number := int(count(text))) > MOST_WORKERS:
            raise argparse.ArgumentTypeError(f"{text!r} is more than {MOST_WORKERS}")
        return number

    parser.add_argument("--workers", type=some, default=None, metavar="N", help="processes (default: one per core)")
    parser.add_argument("--intervals", action="store_true", help="compare kinds of interval instead")
    parser.add_argument("--sizes", action="store_true", help="compare numbers of seeds and draws instead")
    parser.add_argument("--out", type=Path, metavar="PATH.json", help="write every count")


def _spread(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a standard deviation of at least 0")
    return number


def run(args: argparse.Namespace, store: Store, recipe: Recipe) -> int:
    """Run the study on the marginals of the recorded runs in `store`; 1 if a target is missed or it was broken off."""
    from pytest_behaviortrace.calibration import intervals, marginals, repetition, sizes, study
    from pytest_behaviortrace.evidence import EvidenceStore
    from pytest_behaviortrace.run.progress import display_for

    plant = recipe.plant(args.plant).name if args.plant else recipe.plants[0].name
    measured = marginals.measure(EvidenceStore(store, recipe, plant, RECORDED_DRAWS), range(RECORDED_SEEDS))
    display = display_for(sys.stderr)
    if args.intervals or args.sizes:
        display.start({study.TASK: 1.0})
        repetitions, tell = min(args.repetitions, FEWER), functools.partial(display.update, study.TASK)
        try:
            if args.sizes:
                lines = sizes.needed(measured, repetition.Plan(resamples=args.resamples), repetitions, tell)
            else:
                lines = intervals.coverage(measured, repetitions, tell=tell)
        finally:
            display.stop()
        print("\n".join(lines))
        return 0
    plan = repetition.Plan(
        seeds=args.seeds, draws=args.draws, resamples=args.resamples,
        between_seeds=args.between_seeds, between_draws=args.between_draws,
        follow_up=args.repetitions // FOLLOWED, compared=args.repetitions // COMPARED,
    )  # fmt: skip
    found = study.run(measured, plan, args.repetitions, display, args.workers)
    print("\n".join(study.render(found)))
    if found.repetitions < args.repetitions:
        return BROKEN_OFF
    if args.out is not None:
        try:
            write(args.out, found.as_dict(), recipe)
        except OSError as error:
            print(f"error: {args.out} was not written: {error.strerror or error}", file=sys.stderr)
            return 1
    return 1 if found.misses() or found.undecided() else 0


def write(path: Path, found: dict[str, Any], recipe: Recipe) -> None:
    """Write the study so that `path` holds the whole of it or what was there before. Raises `OSError`."""
    from pytest_behaviortrace.suite import SUITE

    report = {"schema": SCHEMA, "suite": SUITE, "recipe": {"name": recipe.name, "hash": recipe.hash}, **found}
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
