"""`python -m pytest_behaviortrace rank`: which rollouts of a run of the user's own taught a behaviour."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_behaviortrace.suite import SUITE

if TYPE_CHECKING:
    from pytest_behaviortrace.evidence.recorded import RecordedEvidence
    from pytest_behaviortrace.ranked import Standing
    from pytest_behaviortrace.run.recorded import AskedRun
    from pytest_behaviortrace.verdict import Decision

TOP, DRAWS = 20, 2


def add_arguments(parser: argparse.ArgumentParser, positive: Callable[[str], int]) -> None:
    """The command's arguments; `positive` parses a number of at least 1."""
    parser.add_argument("path", type=Path, metavar="PATH", help="the folder that record(trainer, PATH) wrote")
    parser.add_argument("--behavior", required=True, metavar="REGEX", help="the behaviour whose cause is sought")
    parser.add_argument("--estimator", required=True, metavar="NAME", help="a registered name, or package.module:name")
    parser.add_argument(
        "--top", type=positive, default=TOP, metavar="N", help="rollouts to name (default: %(default)s)"
    )
    parser.add_argument(
        "--draws", type=positive, default=DRAWS, metavar="N",
        help="draws of fresh siblings behind the target, sampled where the cache lacks them (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object in place of the table")
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace) -> int:
    """Rank and print; returns the exit code. Progress and complaints go to standard error."""
    from pytest_behaviortrace.estimator import EstimatorError, needs_of
    from pytest_behaviortrace.headroom import headroom
    from pytest_behaviortrace.ranked import Ranking
    from pytest_behaviortrace.ranking import rank
    from pytest_behaviortrace.registry import Registry, RegistryError
    from pytest_behaviortrace.reports import ranking as report
    from pytest_behaviortrace.run.cache import CacheError, default_cache_dir
    from pytest_behaviortrace.run.orchestrate import TrainingFailed
    from pytest_behaviortrace.run.recorded import RUN, AskedRun, RecordedRunError
    from pytest_behaviortrace.session import describe_run
    from pytest_behaviortrace.standing import standing
    from pytest_behaviortrace.verdict import NotApplicable

    cache_dir = args.cache_dir or default_cache_dir()
    try:
        estimator = Registry(folder=Path.cwd()).load(args.estimator)
        needs_of(estimator)
        asked = AskedRun.at(str(args.path), args.path.expanduser(), args.behavior)
        asked.require_outside(cache_dir)
    except (RegistryError, RecordedRunError, EstimatorError) as error:
        args.usage_error(str(error))
    try:
        evidence = _evidence(asked, args.draws, cache_dir)
        found = rank(evidence, args.estimator, estimator, args.top)
    except (CacheError, TrainingFailed, RecordedRunError, EstimatorError, NotApplicable) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    flag = f"--bt-cache-dir={args.cache_dir}" if args.cache_dir is not None else ""
    known = standing(args.estimator, estimator, cache_dir, flag)
    warnings = _warnings(args.estimator, known, headroom(evidence, RUN))
    ranking = Ranking(
        SUITE,
        describe_run(asked),
        args.estimator,
        found.top,
        found.shown,
        found.shared,
        found.interval,
        found.resamples,
        known,
        warnings,
    )
    if args.json:
        print(report.to_json(ranking))
    else:
        report.show(ranking, sys.stdout)
    return 0


def _evidence(asked: AskedRun, draws: int, cache_dir: Path) -> RecordedEvidence:
    """The run's problems, its draws sampled where the cache lacks them.

    Raises `RecordedRunError` where no sibling shows the behaviour: there is no target then.
    """
    from pytest_behaviortrace.evidence.recorded import RecordedEvidence
    from pytest_behaviortrace.run.orchestrate import ensure_draws
    from pytest_behaviortrace.run.progress import display_for
    from pytest_behaviortrace.run.recorded import ASKED, RUN, RecordedRunError

    store = ensure_draws(asked.question, range(draws), cache_dir, display_for(sys.stderr))
    evidence = RecordedEvidence(store, asked.run, draws)
    if not evidence.in_context_target(RUN, ASKED).any():
        raise RecordedRunError(
            f"no fresh completion of the last policy of {asked.given} shows {asked.question.behavior!r}: there is no "
            f"gradient of producing it that rollouts could be compared with"
        )
    return evidence


def _warnings(name: str, known: Standing, room: Decision) -> tuple[str, ...]:
    """What should keep a reader from believing the table."""
    found = [f"{name} fails {check} on the embedded run, where the cause is known" for check in known.failed]
    if room.verdict != "pass":
        found.append(f"of this run there is {room.reason}")
    return tuple(found)
