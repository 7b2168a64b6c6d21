"""The arguments of `train --budget` and what it does: count, print, end."""

from __future__ import annotations

import argparse
import math

from pytest_behaviortrace.run import budget, budget_report
from pytest_behaviortrace.run.recipe import Recipe

GPU_OPTIONS = {
    "memory": "GB",
    "tflops": "dense bfloat16 TFLOP/s",
    "tflops32": "float32 TFLOP/s",
    "bandwidth": "TB/s",
    "utilisation": "share of these that is reached, at most 1",
}
UNITS = {"memory": budget.GB, "bandwidth": 1e12}
"""Bytes in what an option counts, where that is not the number itself."""
MOST = 1e5
"""GB, or TB/s, that no GPU has: whoever states more thinks of bytes."""
IGNORED = ("verify", "plant", "seeds", "draws")
"""Options of `train` that have no meaning beside `--budget`."""


def add_arguments(train: argparse.ArgumentParser) -> None:
    """`--budget`, and a `--gpu-...` option for every number of `budget.Gpu`."""
    train.add_argument(
        "--budget", action="store_true", help="train nothing: print memory and time on one GPU, counted, and end"
    )
    gpu = train.add_argument_group("the GPU that --budget counts for (default: what an A100 of 80 GB states)")
    for option, what in GPU_OPTIONS.items():
        gpu.add_argument(f"--gpu-{option}", type=_above_zero, metavar="X", help=what)
    train.set_defaults(usage_error=train.error)


def run(args: argparse.Namespace) -> int | None:
    """Print the budget; None where none was asked for. Ends with a usage error for arguments that are wrong."""
    stated = {option: value for option in GPU_OPTIONS if (value := getattr(args, f"gpu_{option}")) is not None}
    if not args.budget:
        if stated:
            args.usage_error("--gpu-... options say what --budget counts for")
        return None
    if given := [f"--{name}" for name in IGNORED if getattr(args, name) not in (None, False)]:
        args.usage_error(f"--budget counts one run of the recipe; {given[0]} has no meaning beside it")
    for option, factor in UNITS.items():
        if stated.get(option, 0.0) > MOST:
            args.usage_error(f"--gpu-{option} is in {GPU_OPTIONS[option]}, and no GPU has {stated[option]:g}")
        if option in stated:
            stated[option] *= factor
    if stated.get("utilisation", 1.0) > 1.0:
        args.usage_error("--gpu-utilisation is a share, at most 1")
    try:
        found = budget.budget(Recipe.load(args.recipe), budget.Gpu(**stated))
    except ValueError as error:
        args.usage_error(str(error))
    print(budget_report.render(found))
    return 0


def _above_zero(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value
