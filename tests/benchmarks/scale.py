"""How warm grading grows with the number of rollouts. Not a test; run it on two otherwise idle cores:

    python tests/benchmarks/scale.py [--sizes 2560x4096 10240x4096 40960x4096 100000x8192] [--folder DIR] [--keep]

Writes a synthetic store of each size (one seed, two draws; `synthetic_store.py`) and grades the estimators on it in one
fresh `pytest --bt-estimator=...` session, the real path from hashing the store to the scorecard. Prints wall and CPU
seconds and two peaks of memory, sampled: anonymous memory is what grading itself holds, and the figure to go by; the
total counts pages of mapped files as well, which the system takes back when it needs them. Per rollout and bucket a
store takes about 5 bytes, and grading on it up to 16 more in temporary files (TMPDIR), 13 GB for the largest size.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from synthetic_store import write_recipe, write_store

from pytest_behaviortrace.run.recipe import Recipe

SIZES = ("2560x4096", "10240x4096", "40960x4096", "100000x8192")
ESTIMATORS = ("gas", "token-gas", "trak")
DRAWS = 2
SAMPLING = 0.05


def memory(pid: int) -> tuple[int, int]:
    """Anonymous and total resident bytes of a process; zeros once it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0, 0
    found = {key: int(value.split()[0]) * 1024 for key, _, value in (line.partition(":") for line in lines)
             if key in ("RssAnon", "VmRSS")}  # fmt: skip
    return found.get("RssAnon", 0), found.get("VmRSS", 0)


def graded(recipe: Path, cache: Path, folder: Path, estimators: list[str], extra: list[str]) -> dict[str, Any]:
    """One session: what it cost and what it said."""
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    flags = [f"--bt-estimator={name}" for name in estimators]
    flags += [f"--bt-recipe={recipe}", f"--bt-cache-dir={cache}", "--bt-seeds=1", f"--bt-draws={DRAWS}"]
    begin = time.perf_counter()
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *flags, f"--bt-report={report}", *extra]
    with (folder / "session.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
        anonymous = total = 0
        while True:
            ended, _, usage = os.wait4(process.pid, os.WNOHANG)
            if ended:
                break
            now = memory(process.pid)
            anonymous, total = max(anonymous, now[0]), max(total, now[1])
            time.sleep(SAMPLING)
    if not report.exists():
        raise SystemExit((folder / "session.log").read_text(encoding="utf-8")[-4000:])
    rows = json.loads(report.read_text(encoding="utf-8"))["rows"]
    return {
        "wall": time.perf_counter() - begin, "cpu": usage.ru_utime + usage.ru_stime, "anonymous": anonymous,
        "total": total, "verdicts": dict(collections.Counter(row["verdict"] for row in rows)),
    }  # fmt: skip


def main() -> None:
    """Measure every size and print one line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=SIZES, metavar="ROLLOUTSxBUCKETS")
    parser.add_argument("--estimators", nargs="+", default=ESTIMATORS)
    parser.add_argument("--folder", type=Path, help="where stores are written (default: a temporary folder)")
    parser.add_argument("--keep", action="store_true", help="leave the stores in the folder, and use those that are")
    parser.add_argument("--pytest", nargs=argparse.REMAINDER, default=[], help="more arguments of the sessions")
    options = parser.parse_args()
    print(f"cores: {os.cpu_count()}, load {os.getloadavg()[0]:.1f}; {', '.join(options.estimators)}")
    print("rollouts x buckets      wall      CPU   anonymous     total  verdicts")
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        for size in options.sizes:
            rollouts, width = map(int, size.split("x"))
            path, cache = write_recipe(folder, rollouts, width), folder / "cache"
            recipe = Recipe.load(str(path))
            from pytest_behaviortrace.run.store import Store

            store = Store(cache, recipe)
            if store.missing([0], range(DRAWS)):
                shutil.rmtree(store.folder, ignore_errors=True)
                write_store(cache, recipe, DRAWS)
            found = graded(path, cache, folder, options.estimators, options.pytest)
            print(f"{recipe.n_rollouts:>8,} x {width:<8,} {found['wall']:8.1f} s {found['cpu']:6.1f} s "
                  f"{found['anonymous'] / 1e9:7.2f} GB {found['total'] / 1e9:6.2f} GB  {found['verdicts']}",
                  flush=True)  # fmt: skip
            if not options.keep:
                shutil.rmtree(store.folder)


if __name__ == "__main__":
    main()
