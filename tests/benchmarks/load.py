"""Measures sessions under load and prints a Markdown table. Not a test; run it on two otherwise idle cores:

    python tests/benchmarks/load.py many --cache-dir DIR [--estimators 1000] [--check reward_control ...]
                                         [--skip stress] [--seeds 1] [--draws 1] [-n 2]
    python tests/benchmarks/load.py cold [--cache-dir EMPTY] [-n 4]

`many` grades estimators that an ini file names, on a warm cache: what collecting, grading and every report cost.
`cold` grades twelve shipped estimators on workers from an empty cache (minutes), and again serially from the warm one.
Memory is the proportional share of every process of the session together, looked at twice a second.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

TWELVE = (
    "advantage", "dot", "fluency", "gas", "gas-centered", "local-buffer", "norm-only", "random", "token-gas",
    "tracincp", "trak", "update-magnitude",
)  # fmt: skip
FORMATS = ("json", "md", "csv", "html")
LOOK_EVERY = 0.5
CHECKS = Path(__file__).parents[2] / "checks"

MANY = """
from pytest_behaviortrace.estimator import needs

def make(number):
    @needs(gradients=True)
    def score(problem):
        return problem.advantage * (problem.gradients @ problem.target + 1e-3 * number * problem.gradient_norm)
    return score

NAMES = [f"e{number:04}" for number in range(COUNT)]
globals().update({name: make(number) for number, name in enumerate(NAMES)})
"""
CONFTEST = """
import many

def pytest_behaviortrace_estimators(config):
    return {name: f"many:{name}" for name in many.NAMES}
"""


@dataclass
class Watched:
    """What one session cost."""

    output: str = ""
    code: int = 0
    wall: float = 0.0
    cpu: float = 0.0
    peak: int = 0
    """Bytes of all its processes at the worst moment."""
    largest: int = 0
    """Bytes of the largest of them."""
    training: set[int] = field(default_factory=set)
    """Processes that trained a unit."""

    @property
    def last(self) -> str:
        """Pytest's last line."""
        return self.output.strip().splitlines()[-1].strip("= ")

    def line(self, what: str) -> str:
        """A line of the table."""
        memory = f"{self.peak / 1e6:.0f} MB"
        if self.largest < self.peak:
            memory += f" (largest process {self.largest / 1e6:.0f})"
        return f"| {what} | {self.wall:.1f} s | {self.cpu:.1f} s | {memory} | {self.last} |"


HEAD = "| session | wall | CPU | peak memory | pytest says |\n|---|---|---|---|---|"


def session(folder: Path, *args: str) -> Watched:
    """One pytest session in a folder, watched until it ends."""
    found, before = Watched(), resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *args],
            cwd=folder, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        done = threading.Event()
        watcher = threading.Thread(target=watch, args=(process.pid, found, done))
        watcher.start()
        found.code = process.wait()
        found.wall = time.perf_counter() - start
        done.set()
        watcher.join()
        output.seek(0)
        found.output = output.read()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    found.cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return found


def watch(pid: int, found: Watched, done: threading.Event) -> None:
    """Look at a process and its descendants until told to stop."""
    while not done.wait(LOOK_EVERY):
        shares = list(memory(pid, found))
        found.peak = max(found.peak, sum(shares))
        found.largest = max([found.largest, *shares])


def memory(pid: int, found: Watched) -> Iterator[int]:
    """Bytes of each living process of the tree; those that train are noted."""
    try:
        tree = [psutil.Process(pid)]
        tree += tree[0].children(recursive=True)
    except psutil.Error:
        return
    for process in tree:
        try:
            if "pytest_behaviortrace.run.worker" in process.cmdline():
                found.training.add(process.pid)
            full = process.memory_full_info()
            yield int(getattr(full, "pss", full.uss))
        except psutil.Error:
            continue


def repository(folder: Path, count: int) -> None:
    """A project whose ini file names so many estimators."""
    names = " ".join(f"e{number:04}" for number in range(count))
    (folder / "many.py").write_text(MANY.replace("COUNT", str(count)), encoding="utf-8")
    (folder / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    (folder / "pytest.ini").write_text(f"[pytest]\nbt_estimators = {names}\n", encoding="utf-8")
    (folder / "test_own.py").write_text("def test_own(): pass\n", encoding="utf-8")


def checks(skipped: Sequence[str]) -> list[str]:
    """Names of the shipped checks that are graded, where some are left out; none: all of them are."""
    if not skipped:
        return []
    every = [path.stem.removeprefix("test_") for path in sorted(CHECKS.glob("test_*.py"))]
    if unknown := set(skipped).difference(every):
        raise SystemExit(f"unknown check {min(unknown)!r}; checks: {', '.join(every)}")
    return [name for name in every if name not in skipped]


def many(options: argparse.Namespace, folder: Path) -> None:
    """Estimators by ini, warm."""
    repository(folder, options.estimators)
    cache = [f"--bt-cache-dir={options.cache_dir.absolute()}", "-q"]
    cache += [f"checks/test_{check}.py" for check in options.check or checks(options.skip)]
    cache += [f"--bt-seeds={options.seeds}", f"--bt-draws={options.draws}"]
    workers = [f"-n{options.workers}"] if options.workers else []
    print(HEAD)
    print(session(folder, *cache, "--collect-only").line(f"{options.estimators} collected"), flush=True)
    formats = options.report or FORMATS
    reports = [f"--bt-report=report.{suffix}" for suffix in formats]
    graded = session(folder, *cache, *workers, *reports)
    print(graded.line(" ".join([f"{options.estimators} graded", *workers, *options.check])))
    print(f"\nprocessor time per estimator: {graded.cpu / options.estimators:.2f} s")
    print("\n| report | bytes |\n|---|---|")
    for suffix in formats:
        print(f"| .{suffix} | {(folder / f'report.{suffix}').stat().st_size:,} |")


def cold(options: argparse.Namespace, folder: Path) -> None:
    """Twelve shipped estimators on workers from an empty cache, then serially from the warm one."""
    cache = options.cache_dir.absolute() if options.cache_dir else folder / "cache"
    asked = [f"--bt-cache-dir={cache}", "-q", *(f"--bt-estimator={name}" for name in TWELVE)]
    workers = options.workers or 4
    print(HEAD)
    first = session(folder, *asked, f"-n{workers}", "--bt-report=workers.json")
    print(first.line(f"twelve, -n{workers}, cold"), flush=True)
    second = session(folder, *asked, "--bt-report=serial.json")
    print(second.line("twelve, serial, warm"))
    same = (folder / "workers.json").read_bytes() == (folder / "serial.json").read_bytes()
    units = sorted(json.loads(path.read_text(encoding="utf-8"))["unit"] for path in cache.glob("*/*/manifest.json"))
    print(f"\n{len(units)} units, trained by {len(first.training)} processes (warm: {len(second.training)}): {units}")
    print(f"reports byte for byte the same: {same}")


def main() -> None:
    """Run the measurement that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("many", "cold"))
    parser.add_argument("--cache-dir", type=Path)
    parser.add_argument("--estimators", type=int, default=1000)
    parser.add_argument("--check", action="append", default=[], help="only this check (repeatable)")
    parser.add_argument("--skip", action="append", default=[], help="every check but this (repeatable)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument("--report", action="append", choices=FORMATS, help="only this report (repeatable)")
    parser.add_argument("-n", dest="workers", type=int, default=0)
    options = parser.parse_args()
    if options.what == "many" and options.cache_dir is None:
        parser.error("many needs a warm cache: --cache-dir=DIR")
    print(f"cores: {os.cpu_count()}, load before: {os.getloadavg()[0]:.1f}\n")
    with tempfile.TemporaryDirectory() as folder:
        {"many": many, "cold": cold}[options.what](options, Path(folder))


if __name__ == "__main__":
    main()
