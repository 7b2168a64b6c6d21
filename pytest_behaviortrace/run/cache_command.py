"""`python -m pytest_behaviortrace cache`: what is on disk, what is missing, what may go, and a key to keep it by."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from pytest_behaviortrace.run.recipe import Recipe

if TYPE_CHECKING:
    from pytest_behaviortrace.run.cache import Entry

ACTIONS = ("list", "check", "missing", "clear", "path", "key")
SEEDS, DRAWS = (0, 1, 2), 2


def add_arguments(
    parser: argparse.ArgumentParser, seeds: Callable[[str], list[int]], draws: Callable[[str], int]
) -> None:
    """The command's arguments; `seeds` and `draws` parse a list of seeds and a number of draws."""
    parser.add_argument("action", nargs="?", choices=ACTIONS, default="list", metavar="ACTION")
    parser.set_defaults(usage_error=parser.error)
    what = parser.add_argument_group("what to clear").add_mutually_exclusive_group()
    what.add_argument("--all", action="store_true", help="everything")
    what.add_argument(
        "--recipe",
        metavar="R",
        help="everything of the recipe of that name, in any version (`missing`, `key`: of this recipe)",
    )
    what.add_argument(
        "--stale", action="store_true", help="units of other suite or library versions than installed now"
    )
    what.add_argument("--leftovers", action="store_true", help="what dead builds left")
    units = parser.add_argument_group("what `missing` and `key` are about, of --recipe (default: tiny)")
    units.add_argument("--seeds", type=seeds, metavar="S", help="such as 0-2 or 0,3 (default: 0-2)")
    units.add_argument("--draws", type=draws, metavar="N", help=f"draws per seed (default: {DRAWS})")
    parser.description = (
        "Actions: list (default), check (hash every file), missing (hash the units a session would need, and tell how "
        "to train what is not there; exit code 1 if anything is not), clear (says what with an option), path, key "
        "(one line that names these units under this suite and these libraries, for a CI's own cache)."
    )


def run(args: argparse.Namespace) -> int:
    """Do what the action says; returns the exit code."""
    from pytest_behaviortrace.run import cache

    folder = args.cache_dir or cache.default_cache_dir()
    if args.action in ("missing", "key"):
        return _about_units(args)
    if args.seeds is not None or args.draws is not None:
        args.usage_error("--seeds and --draws say what `cache missing` and `cache key` are about")
    chosen = args.all or args.recipe or args.stale or args.leftovers
    if (args.action == "clear") != bool(chosen):
        args.usage_error("--all, --recipe, --stale and --leftovers say what `cache clear` clears; it needs one of them")
    if args.action == "path":
        print(folder)
        return 0
    if args.action in ("list", "check", "clear") and folder.exists() and not folder.is_dir():
        args.usage_error(f"{folder} is a file; give the cache folder")
    if args.action == "check" and not folder.exists():
        args.usage_error(f"{folder} does not exist: there is nothing to check")
    if args.action == "clear":
        try:
            gone = cache.clear(folder, recipe=args.recipe, stale=args.stale, leftovers=args.leftovers)
        except PermissionError as error:
            print(f"error: {cache.no_access(error)}", file=sys.stderr)
            return 1
        except (cache.CacheError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        if args.recipe and not gone:
            print(f"nothing of a recipe named {args.recipe!r} is in {folder}")
            return 0
        print(f"cleared {len(gone)} units, {cache.human_bytes(sum(entry.bytes for entry in gone))}")
        return 0
    found = cache.entries(folder, hashes=args.action == "check")
    print(cache.table(folder, found))
    return _checked(found) if args.action == "check" else 0


def _checked(found: list[Entry]) -> int:
    """Print what became of the check; 1 if a unit is not whole, or nobody could tell."""
    states = [entry.state for entry in found if entry.state != "unfinished"]
    bad = [f"{states.count(state)} {state}" for state in ("damaged", "unreadable") if state in states]
    print(f"{len(states)} units hashed, {', '.join(bad) or 'all whole'}" if states else "no units to hash")
    return 1 if bad else 0


def _about_units(args: argparse.Namespace) -> int:
    """`missing` and `key`, which speak of the units of one recipe."""
    if args.all or args.stale or args.leftovers:
        args.usage_error("--all, --stale and --leftovers say what `cache clear` clears")
    try:
        recipe = Recipe.load(args.recipe or "tiny")
    except ValueError as error:
        args.usage_error(str(error))
    seeds, draws = args.seeds or list(SEEDS), DRAWS if args.draws is None else args.draws
    return _missing(args, recipe, seeds, draws) if args.action == "missing" else _key(recipe, seeds, draws)


def _missing(args: argparse.Namespace, recipe: Recipe, seeds: list[int], draws: int) -> int:
    """Tell which of the asked units a session would have to train, and how to train them; 1 if there are any."""
    from pytest_behaviortrace.run import cache, completeness
    from pytest_behaviortrace.run.store import Store

    folder = args.cache_dir or cache.default_cache_dir()
    if folder.exists() and not folder.is_dir():
        args.usage_error(f"{folder} is a file; give the cache folder")
    found = completeness.examine(Store(folder, recipe), seeds, draws)
    if not folder.exists():
        print(f"{folder} does not exist")
    print(completeness.table(found, args.recipe or "tiny", args.cache_dir))
    return 0 if found.complete else 1


def _key(recipe: Recipe, seeds: list[int], draws: int) -> int:
    """Print the folder's name, which carries recipe, suite and library versions, and the units in it."""
    from pathlib import Path

    from pytest_behaviortrace.run.cache import recipe_folder

    print(f"{recipe_folder(Path(), recipe).name}-seeds{'.'.join(map(str, seeds))}-draws{draws}")
    return 0
