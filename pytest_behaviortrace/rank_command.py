"""`python -m pytest_behaviortrace rank`: which rollouts of a run of the user's own taught a behaviour."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_behaviortrace.suite import SUITE

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from pytest_behaviortrace.estimator import Estimator, EstimatorError
    from pytest_behaviortrace.evidence.recorded import RecordedEvidence
    from pytest_behaviortrace.ranked import Standing
    from pytest_behaviortrace.run.recorded import AskedRun
    from pytest_behaviortrace.verdict import Decision

TOP, DRAWS = 20, 2


def add_arguments(parser: argparse.ArgumentParser, positive: Callable[[str], int], draws: Callable[[str], int]) -> None:
    """The command's arguments; `positive` parses a number of at least 1, `draws` a number of draws."""
    parser.add_argument("path", type=Path, metavar="PATH", help="the folder that record(trainer, PATH) wrote")
    parser.add_argument("--behavior", required=True, metavar="REGEX", help="the behaviour whose cause is sought")
    parser.add_argument("--estimator", required=True, metavar="NAME", help="a registered name, or package.module:name")
    parser.add_argument(
        "--top", type=positive, default=TOP, metavar="N", help="rollouts to name (default: %(default)s)"
    )
    parser.add_argument(
        "--draws", type=draws, default=DRAWS, metavar="N",
        help="draws of fresh siblings behind the target, sampled where the cache lacks them (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object in place of the table")
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace) -> int:
    """Rank and print; returns the exit code. Progress, complaints and what estimators print go to standard error."""
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
        with _output_apart():
            estimator = Registry(folder=Path.cwd()).load(args.estimator)
        needs_of(estimator)
        asked = AskedRun.at(str(args.path), args.path.expanduser(), args.behavior)
        asked.require_outside(cache_dir)
        _require_served(asked, args.estimator, estimator, cache_dir)
    except (RegistryError, RecordedRunError, EstimatorError) as error:
        args.usage_error(str(error))
    taught = _taught(asked.run.table["advantage"])
    flag = f"--bt-cache-dir={args.cache_dir}" if args.cache_dir is not None else ""
    try:
        with _output_apart():
            evidence = _evidence(asked, args.draws, cache_dir)
            found = rank(evidence, args.estimator, estimator, args.top)
            known = standing(args.estimator, estimator, cache_dir, flag)
    except (CacheError, TrainingFailed, RecordedRunError, EstimatorError, NotApplicable) as error:
        for warning in taught:
            print(f"warning: {warning}", file=sys.stderr)
        where = _place(error) if isinstance(error, EstimatorError) else ""
        print(f"error: {error}{where}", file=sys.stderr)
        return 1
    warnings = (*taught, *_warnings(args.estimator, known, headroom(evidence, RUN)))
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


@contextlib.contextmanager
def _output_apart() -> Iterator[None]:
    """Inside, what is printed goes to standard error, from Python or below it; standard output is the ranking's."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _require_served(asked: AskedRun, name: str, estimator: Estimator, cache_dir: Path) -> None:
    """Raise `RecordedRunError` for an estimator that needs what this run's rollouts lack, before draws are sampled."""
    from pytest_behaviortrace.estimator import needs_of
    from pytest_behaviortrace.evidence.recorded import RecordedEvidence
    from pytest_behaviortrace.run.recorded import RecordedRunError, RecordedStore

    evidence = RecordedEvidence(RecordedStore(cache_dir, asked.question), asked.run, 0)
    if lacking := needs_of(estimator).missing_from(evidence.carried):
        raise RecordedRunError(
            f"{name} needs {' and '.join(lacking)}; the rollouts of {asked.given} carry none "
            f"({evidence.unserved[lacking[0]]})"
        )


def _taught(advantage: ArrayLike) -> tuple[str, ...]:
    """What the run's advantages say against ranking its rollouts at all."""
    import numpy as np  # not before the command has said how many threads it may use

    given = np.asarray(advantage, np.float64)
    bad = int(np.count_nonzero(~np.isfinite(given)))
    if bad:
        return (f"{bad} of {len(given)} advantages are not finite: what they taught is unknown",)
    return () if given.any() else ("every advantage is zero: this run taught nothing",)


def _place(error: EstimatorError) -> str:
    """Where the estimator itself stood when it raised, ` (file:line)`; empty where it did not raise."""
    frames = traceback.extract_tb(error.__cause__.__traceback__ if error.__cause__ is not None else None)
    ours = Path(__file__).parent / "scoring.py"
    inside = list(itertools.dropwhile(lambda frame: Path(frame.filename) == ours, frames))
    own = [frame for frame in inside if frame.filename == inside[0].filename]
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""


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
