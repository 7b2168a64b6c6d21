"""Measures sessions: cold, warm, inactive and collect-only. Not a test; run it on two otherwise idle cores:

    python tests/benchmarks/sessions.py [--cold] [--estimator token-gas] [--cache-dir DIR]

`--cold` trains the default recipe into an empty folder first (minutes) and prints the stages of every unit.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

INACTIVE_RUNS = 15
PROBE = """
import sys, time
start = time.perf_counter()
import pytest_behaviortrace.plugin
print(time.perf_counter() - start)
"""


def timed(*args: str, cwd: str) -> tuple[float, subprocess.CompletedProcess[str]]:
    """Wall seconds of one pytest session in an empty folder."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *args], cwd=cwd, capture_output=True, text=True
    )
    return time.perf_counter() - start, done


def inactive(folder: str) -> None:
    """What the installed plugin costs a session that does not use it: interleaved with and without, medians."""
    Path(folder, "test_one.py").write_text("def test_one():\n    assert True\n")
    with_plugin, without = [], []
    for _ in range(INACTIVE_RUNS):
        with_plugin.append(timed("-q", cwd=folder)[0])
        without.append(timed("-q", "-p", "no:behaviortrace", cwd=folder)[0])
    difference = statistics.median(a - b for a, b in zip(with_plugin, without, strict=True))
    print(f"inactive session: {statistics.median(with_plugin):.3f} s, of which the plugin {1000 * difference:.1f} ms")
    imports = [
        float(subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True).stdout) for _ in range(5)
    ]
    print(f"importing the plugin (pytest included): {1000 * min(imports):.1f} ms")


def main() -> None:
    """Run the measurements and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--estimator", default="token-gas")
    parser.add_argument("--cache-dir", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cache = options.cache_dir or Path(folder, "cache")
        grade = [f"--bt-estimator={options.estimator}", f"--bt-cache-dir={cache}"]
        print(f"cores: {os.cpu_count()}, load {os.getloadavg()[0]:.1f}")
        if options.cold:
            seconds, done = timed(*grade, cwd=folder)
            print(f"cold session: {seconds:.0f} s; {done.stdout.splitlines()[-1]}")
            peak = 0
            for manifest in sorted(cache.glob("*/*/manifest.json")):
                unit = json.loads(manifest.read_text())
                size = sum(entry["bytes"] for entry in unit["files"].values())
                peak = max(peak, unit["peak_bytes"])
                stages = ", ".join(f"{stage} {s:.0f}" for stage, s in unit["timings"].items() if s >= 1)
                print(f"  {unit['unit']}: {size / 1e6:.0f} MB; {stages}")
            children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
            print(f"  peak memory: worker {peak / 1e9:.2f} GB (two at a time), session {children / 1e9:.2f} GB")
            total = sum(path.stat().st_size for path in cache.rglob("*") if path.is_file())
            print(f"  cache: {total / 1e6:.0f} MB")
        seconds, done = timed(*grade, cwd=folder)
        print(f"warm session: {seconds:.1f} s; {done.stdout.splitlines()[-1]}")
        seconds, _ = timed(*grade, "--collect-only", cwd=folder)
        print(f"collect only: {seconds:.1f} s")
        inactive(folder)


if __name__ == "__main__":
    main()
