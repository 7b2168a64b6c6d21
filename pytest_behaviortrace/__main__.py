"""Command line: `python -m pytest_behaviortrace train | rank | dump | compare | cache | ...`. It delegates."""

from __future__ import annotations

import argparse
import functools
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_behaviortrace import bounds, compare_command, dump_command, output, rank_command
from pytest_behaviortrace.calibration import command
from pytest_behaviortrace.installed import wrong_versions
from pytest_behaviortrace.run import budget_command, cache_command, launch, launch_command
from pytest_behaviortrace.run.cache_command import DRAWS, SEEDS

if TYPE_CHECKING:
    from pytest_behaviortrace.run.recipe import Recipe
    from pytest_behaviortrace.run.store import Store

EXIT_CODES = """\
exit codes:
  0    done
  1    it did not work: training failed, the disk is full; or verification, a cache check or a calibration found
       something wrong or missing (for calibrate also: too few repetitions to tell)
  2    usage error: an argument or a recipe is wrong; or standard output could not be written (a full disk)
  130  interrupted (Ctrl-C); finished units are kept
  141  whoever read standard output left before the end (a pipe to head)
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    return output.guarded(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    parser = _parser()
    args = parser.parse_args(argv)
    if args.command in ("train", "rank", "dump", "calibrate") and (lacking := wrong_versions()) is not None:
        parser.error(lacking)
    if hasattr(args, "seeds") and (excess := _excess(args)) is not None:
        parser.error(f"--seeds and --draws: {excess}; ask for fewer")
    try:
        commands = {"train": _train, "rank": _rank, "calibrate": _calibrate, "cache": _cache, "list": _list}
        commands |= {"compare": _compare, "dump": _dump}
        return commands[args.command](args, parser)
    except PermissionError as error:
        from pytest_behaviortrace.run.cache import no_access

        print(f"error: {no_access(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; finished units are kept", file=sys.stderr)
        return 130


def _excess(args: argparse.Namespace) -> str | None:
    """What is too much of the units that were asked for."""
    seeds = args.seeds if isinstance(args.seeds, int) else len(args.seeds or SEEDS)
    return bounds.too_much(seeds, DRAWS if args.draws is None else args.draws)


def _parser() -> argparse.ArgumentParser:
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m pytest_behaviortrace",
        description="Train the planted runs ahead of a session, look after the cache, list what exists.",
        epilog=EXIT_CODES,
        formatter_class=style,
    )
    where = argparse.ArgumentParser(add_help=False)
    where.add_argument("--cache-dir", type=Path, metavar="DIR", help="default: $BEHAVIORTRACE_CACHE or the user cache")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    train = commands.add_parser(
        "train", parents=[where], help="train what is missing in the cache", epilog=EXIT_CODES, formatter_class=style
    )
    train.add_argument("--recipe", default="tiny", metavar="R", help="name or .toml file (default: %(default)s)")
    train.add_argument("--seeds", type=_seeds, metavar="S", help="such as 0-2 or 0,3 (default: 0-2)")
    train.add_argument("--draws", type=_draws, metavar="N", help=f"draws per seed (default: {DRAWS})")
    train.add_argument(
        "--verify",
        action="store_true",
        help="then replay each run without its ground truth, and print whether that is the cause (minutes per seed)",
    )
    train.add_argument("--plant", metavar="P", help="behaviour to verify (default: the recipe's first)")
    budget_command.add_arguments(train)

    rank = commands.add_parser(
        "rank", parents=[where], help="which rollouts of a run of your own taught a behaviour", epilog=EXIT_CODES,
        formatter_class=style,
    )  # fmt: skip
    rank_command.add_arguments(rank, _positive, _some_draws)

    dump = commands.add_parser(
        "dump", parents=[where], help="write the problems of one row into a folder, to find out why it failed",
        epilog=EXIT_CODES, formatter_class=style,
    )  # fmt: skip
    dump_command.add_arguments(dump, _positive)

    calibrate = commands.add_parser(
        "calibrate", parents=[where], help="measure how often the checks pass what is worthless, and what is not",
        epilog=EXIT_CODES, formatter_class=style,
    )  # fmt: skip
    command.add_arguments(calibrate, _positive)

    compare = commands.add_parser(
        "compare", help="what got worse between two JSON reports", epilog=compare_command.EXIT_CODES,
        formatter_class=style,
    )  # fmt: skip
    compare_command.add_arguments(compare)

    cache = commands.add_parser(
        "cache",
        parents=[where],
        help="list, check or clear what is on disk, tell what is missing",
        epilog=EXIT_CODES,
        formatter_class=style,
    )
    cache_command.add_arguments(cache, _seeds, _draws)

    listing = commands.add_parser(
        "list", help="list estimators, checks and recipes", epilog=EXIT_CODES, formatter_class=style
    )
    listing.add_argument("-v", "--verbose", action="store_true", help="import every estimator to tell its needs")
    return parser


def _ensured(
    name: str, plant: str | None, seeds: list[int], draws: int, folder: Path | None, parser: argparse.ArgumentParser
) -> tuple[Store, Recipe] | int:
    """The store with these units in it, trained where missing, or the exit code of what went wrong."""
    from pytest_behaviortrace.run.cache import CacheError, default_cache_dir
    from pytest_behaviortrace.run.orchestrate import TrainingFailed, ensure
    from pytest_behaviortrace.run.progress import display_for
    from pytest_behaviortrace.run.recipe import Recipe

    try:
        recipe = Recipe.load(name)
        if plant:
            recipe.plant(plant)
    except ValueError as error:
        parser.error(str(error))
    try:
        return ensure(recipe, seeds, range(draws), folder or default_cache_dir(), display_for(sys.stderr)), recipe
    except (CacheError, TrainingFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _train(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    if (code := budget_command.run(args)) is not None:
        return code
    args.seeds, args.draws = args.seeds or list(SEEDS), DRAWS if args.draws is None else args.draws
    if (code := launch_command.run(args)) is not None:
        return code
    trained = _ensured(args.recipe, args.plant, args.seeds, args.draws, args.cache_dir, parser)
    if isinstance(trained, int):
        return trained
    store, recipe = trained
    print(f"{recipe.name}: seeds {', '.join(map(str, args.seeds))} with {args.draws} draws each are in {store.folder}")
    return _verify(store, recipe, args) if args.verify else 0


def _calibrate(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Train what the marginals are taken from, then run the study on it."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # one process per core; read when numpy is imported
    if args.out is not None and (not args.out.parent.is_dir() or (args.out.exists() and not args.out.is_file())):
        parser.error(f"--out {args.out}: give the path of a file in a folder that exists")
    if args.out is not None:
        try:
            with tempfile.TemporaryFile(dir=args.out.parent):
                pass
        except OSError as error:
            parser.error(f"--out {args.out} cannot be written ({error.strerror or error}); choose another path")
    seeds = list(range(command.RECORDED_SEEDS))
    trained = _ensured(args.recipe, args.plant, seeds, command.RECORDED_DRAWS, args.cache_dir, parser)
    return trained if isinstance(trained, int) else command.run(args, *trained)


def _rank(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as in a grading session on the embedded run
    return rank_command.run(args)


def _dump(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as in a grading session on the embedded run
    return dump_command.run(args)


def _verify(store: Store, recipe: Recipe, args: argparse.Namespace) -> int:
    """Print the causal table of each seed; 1 if a seed does not keep the recipe's promises."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is imported; replays must run as training did
    from pytest_behaviortrace.run import verify
    from pytest_behaviortrace.run.progress import display_for
    from pytest_behaviortrace.run.store import seed_unit

    display, tables = display_for(sys.stderr), []
    display.start({f"verifying {seed_unit(seed)}": 1.0 for seed in args.seeds})
    try:
        for seed in args.seeds:
            task = f"verifying {seed_unit(seed)}"
            run = verify.LoggedRun.of_unit(seed, store.seed(seed))
            tables.append(verify.verify(recipe, run, args.plant, functools.partial(display.update, task)))
            display.finish(task)
    finally:
        display.stop()
    print(verify.render(tables))
    return 1 if any(table.failures() for table in tables) else 0


def _compare(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    return compare_command.run(args)


def _cache(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    return cache_command.run(args)


def _list(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    from pytest_behaviortrace import listing
    from pytest_behaviortrace.registry import Registry
    from pytest_behaviortrace.run.recipe import Recipe

    print("\n".join(listing.lines(Registry(), imported=args.verbose)))
    print("recipes:")
    for name in Recipe.names():
        print(f"  {name}")
    return 0


def _seeds(text: str) -> list[int]:
    """`0-2,5` -> [0, 1, 2, 5]."""
    seeds: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        ends = [bounds.number(end, bounds.LARGEST_SEED) for end in ((first, last) if dash else (first, first))]
        low, high = ends
        if low is None or high is None or high < low:
            raise argparse.ArgumentTypeError(f"{text!r:.80} is not a list of seeds such as 0-2 or 0,3")
        if high > bounds.LARGEST_SEED:
            raise argparse.ArgumentTypeError(f"{text!r:.80} has a seed above {bounds.LARGEST_SEED:,}")
        seeds.update(range(low, min(high, low + bounds.MOST_SEEDS) + 1))
        if len(seeds) > bounds.MOST_SEEDS:
            raise argparse.ArgumentTypeError(f"{text!r:.80} are more than {bounds.MOST_SEEDS:,} seeds")
    return sorted(seeds)


def _whole(text: str, least: int, most: int) -> int:
    number = bounds.number(text, most)
    if number is None or number < least:
        raise argparse.ArgumentTypeError(f"{text!r:.80} is not a number of at least {least}")
    if number > most:
        raise argparse.ArgumentTypeError(f"{text!r:.80} is more than {most:,}")
    return number


def _positive(text: str) -> int:
    return _whole(text, 1, bounds.MOST)


def _draws(text: str, least: int = 0) -> int:
    return _whole(text, least, bounds.MOST_DRAWS)


def _some_draws(text: str) -> int:
    return _draws(text, 1)


if __name__ == "__main__":
    launch.leave(main())
