"""`python -m pytest_behaviortrace dump`: the problems of one row as files, for finding out why it failed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser, positive: Callable[[str], int]) -> None:
    """The command's arguments; `positive` parses a number of at least 1."""
    parser.add_argument("row", metavar="ROW", help="id of the row, as pytest shows it")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder to write into, new or empty")
    parser.add_argument(
        "--estimator", metavar="NAME",
        help="package.module:name, where the name in the row is one that only a conftest.py registers",
    )  # fmt: skip
    parser.add_argument("--recipe", default="tiny", metavar="R", help="as the row was graded (default: %(default)s)")
    parser.add_argument("--seeds", type=positive, default=3, metavar="N", help="the same (default: %(default)s)")
    parser.add_argument("--draws", type=positive, default=2, metavar="N", help="the same (default: %(default)s)")
    parser.add_argument("--plant", metavar="P", help="the same (default: the recipe's first)")
    parser.add_argument("--run", metavar="PATH", help="the same: a recorded run of your own")
    parser.add_argument("--behavior", metavar="REGEX", help="with --run: the behaviour asked about")
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace) -> int:
    """Dump and say what is where; returns the exit code. Progress and complaints go to standard error."""
    from pytest_behaviortrace.dumping import dump, name_in
    from pytest_behaviortrace.run.cache import CacheError, folder_bytes, human_bytes
    from pytest_behaviortrace.run.orchestrate import TrainingFailed
    from pytest_behaviortrace.wording import place

    try:
        name = name_in(args.row)
        found = dump(
            args.estimator or name,
            args.row,
            args.out,
            name=name,
            recipe=args.recipe,
            seeds=args.seeds,
            draws=args.draws,
            plant=args.plant,
            run=args.run,
            behavior=args.behavior,
            cache_dir=args.cache_dir,
        )
    except (CacheError, TrainingFailed, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (ValueError, TypeError) as error:
        args.usage_error(str(error))
    print(f"{found.row.verdict}: {found.row.reason}")
    if not found.problems:
        print("the estimator was asked nothing in this row, so there is no problem to look at")
        return 1
    for problem, question in zip(found.problems, found.questions, strict=True):
        print(f"{place(problem)} ({human_bytes(folder_bytes(problem))}): {question.asked}")
    print(f"pytest_behaviortrace.load_problem({str(found.problems[0])!r}) is the problem, scores.npy what it scored")
    return 0
