"""One unit of work in a process of its own: `python -m pytest_behaviortrace.run.worker`, started by `orchestrate`.

Reads nothing from stdin but its end: when the parent dies, however it dies, so does this process. Writes one JSON line
per progress event to stdout; whatever libraries print goes to stderr, which the parent keeps as the unit's log.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from pytest_behaviortrace.run import handover
from pytest_behaviortrace.run.cache import CacheError, library_versions, no_room
from pytest_behaviortrace.run.importing import imported
from pytest_behaviortrace.run.manifest import seal
from pytest_behaviortrace.run.recorded import store_of
from pytest_behaviortrace.run.store import Built, Store
from pytest_behaviortrace.suite import SUITE

DONE, FAILED, SAID, FULL = 0, 1, 3, 28
"""Exit codes: sealed; failed (see the log); failed, and the log's last line says it all; the disk is full."""


def main(argv: list[str] | None = None) -> int:
    """Build one unit into `--folder` and seal it there; publishing it is the parent's business."""
    parser = argparse.ArgumentParser(prog="python -m pytest_behaviortrace.run.worker", description=__doc__)
    parser.add_argument("--recipe", required=True, type=Path, help="JSON file written by the parent")
    parser.add_argument("--key", required=True, help="cache key the parent computed")
    parser.add_argument("--cache-dir", required=True, type=Path)
    parser.add_argument("--folder", required=True, type=Path, help="empty folder to build the unit in")
    parser.add_argument("--seed", required=True, type=int)
    parser.add_argument("--draw", type=int)
    parser.add_argument("--builder", required=True, help="module with build_draw, and build_seed for a recipe")
    args = parser.parse_args(argv)
    report = _event_writer(args.folder.name)
    try:
        _build(args, report)
    except BaseException as error:
        with contextlib.suppress(OSError):  # the log may be on the full disk
            traceback.print_exc()
        if no_room(error):
            return FULL
        if (sentence := sentence_of(error)) is None:
            return FAILED
        print(sentence, file=sys.stderr)
        return SAID
    return DONE


def sentence_of(error: BaseException) -> str | None:
    """What this package itself said was wrong, on one line; None for an exception of anybody else's."""
    ours = type(error).__module__.partition(".")[0] == "pytest_behaviortrace"
    return " ".join(str(error).split()) or None if ours else None


def _build(args: argparse.Namespace, report: Callable[..., None]) -> None:
    report("starting", 0.0)
    began = time.perf_counter()
    recipe = handover.loads(args.recipe.read_text(encoding="utf-8"))
    store = store_of(args.cache_dir, recipe)
    if store.key != args.key:
        raise CacheError("a library or the policy's files changed while the session was running; start it again")
    builder = imported(args.builder)
    # Asked before it is read: another process may build the seed again meanwhile, and the draw is not of that.
    origin = None if args.draw is None else store.origin(args.seed)
    if args.draw is None:
        built = builder.build_seed(recipe, args.seed, args.folder, report)
    else:
        built = builder.build_draw(recipe, args.seed, args.draw, store.seed(args.seed), args.folder, report)
    report("writing", 1.0)
    unit = store.unit_name(args.seed, args.draw)
    finish(store, unit, origin, args.folder, Built(*built), time.perf_counter() - began)


def finish(store: Store, unit: str, origin: str | None, folder: Path, built: Built, seconds: float) -> None:
    """Seal the folder that a builder has filled for a unit, in `seconds` altogether.

    `origin`: what a draw remembers of the policy it was generated from; None for a seed.
    """
    description = {
        "recipe": {"name": store.recipe.name, "hash": store.recipe.hash},
        "key": store.key,
        "suite": SUITE,
        "versions": library_versions(),
        "unit": unit,
        **({} if origin is None else {"seed_unit": origin}),
        "facts": built.facts,
        "timings": {**built.timings, "total": seconds},
        "peak_bytes": _peak_bytes(),
    }
    seal(folder, description)


def _event_writer(unit: str) -> Callable[..., None]:
    """Keeps the real stdout for events, and sends everything else that is printed to stderr."""
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    lock = threading.Lock()

    def report(stage: str, fraction: float, note: str = "") -> None:
        line = json.dumps({"unit": unit, "stage": stage, "fraction": round(float(fraction), 4), "note": note})
        with lock, contextlib.suppress(BrokenPipeError):  # the watcher ends this process
            events.write(line + "\n")
            events.flush()

    return report


def _die_with_parent() -> None:
    """End this process at once when stdin, a pipe the parent holds open, comes to its end."""

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 1):
                pass
        os._exit(FAILED)

    threading.Thread(target=watch, name="parent watcher", daemon=True).start()


def _peak_bytes() -> int:
    """Peak resident memory of this process; 0 where the platform does not tell."""
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    _die_with_parent()
    code = main()
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    os._exit(code)  # no slow or crashing teardown of native libraries once the unit is sealed
