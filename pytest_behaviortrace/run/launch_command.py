"""`train` as one of several processes that accelerate or torchrun launched."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_behaviortrace.run import launch

if TYPE_CHECKING:
    from pytest_behaviortrace.run.recipe import Recipe


def run(args: argparse.Namespace) -> int | None:
    """Train with the processes that were launched together, and return the exit code; None if this one is alone."""
    try:
        launched = launch.found()
    except launch.WrongLaunch as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if launched is None:
        launch.forget()
        return None
    from pytest_behaviortrace.run.cache import default_cache_dir
    from pytest_behaviortrace.run.distributed import ensure_together, refuse
    from pytest_behaviortrace.run.recipe import Recipe

    try:
        if args.verify:
            raise ValueError("--verify replays a run in one process; give it in a call of its own, without a launcher")
        asked = Recipe.load(args.recipe)
        recipe = asked.trained_by(launched.count)
    except ValueError as error:
        try:
            return refuse(str(error))
        except launch.CannotMeet:
            print(f"error: {error}", file=sys.stderr)
            return 2
    folder = args.cache_dir or default_cache_dir()
    try:
        code = ensure_together(recipe, args.seeds, range(args.draws), folder)
    except launch.CannotMeet as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        if launched.rank == 0:
            raise
        return 130  # every process is interrupted, one says so
    if code == 0 and launched.rank == 0:
        print(summary(recipe, asked, args.recipe, args.seeds, args.draws, folder))
    return code


def summary(recipe: Recipe, asked: Recipe, name: str, seeds: Sequence[int], draws: int, cache_dir: Path) -> str:
    """What was trained and, where the recipe `asked` for said nothing of it, how a session names the same recipe."""
    from pytest_behaviortrace.run.cache import recipe_folder

    many, folder = recipe.grpo.processes, recipe_folder(Path(cache_dir).absolute(), recipe)
    lines = [
        f"{recipe.name}: seeds {', '.join(map(str, seeds))} with {draws} draws each are in {folder}, "
        f"trained by {many} processes"
    ]
    if recipe is not asked:
        base = str(Path(name).absolute()) if name.endswith(".toml") else name
        lines += [
            "they sample otherwise than one process does, so this is another recipe; a session finds it in a file with",
            f'    extends = "{base}"',
            f'    name = "{recipe.name}"',
            "    [grpo]",
            f"    processes = {many}",
        ]
    return "\n".join(lines)
