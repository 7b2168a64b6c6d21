"""Cost and exactness of the per-sample gradient engine beside other ways to the same scores. Not a test; run it:

    pip install -e '.[bench]' && pip install --no-deps bergson==2.5.1
    python tests/benchmarks/engine.py [--model tiny|12m|both|1.5b] [--rounds 7] [--no-peers] [--width K] [--json FILE]

(`pip install bergson` without `--no-deps` draws in torchvision and torchaudio from other builds of torch than the one
at hand; next to torch's CPU build neither can be imported, and then transformers cannot either. bergson needs neither
here.)

Task: score 32 rollouts of 60 tokens (40 of them sampled by the policy) against 4 targets, the gradients of 4 more
rollouts, every gradient that of the mean log-probability of a completion. `tiny` is the shipped policy, `12m` a
randomly initialised Qwen2. One process, one thread; each round runs every method once, in turn.

* floors: a method's processor time over that of the floor in the same round, median and range over rounds. The floor
  is the cheapest batched forward and backward pass of the same rollouts: logits at completions only, the last token
  not read. Targets, data sets and hashes are ready before the clock starts.
* memory: growth of the process's peak over that of the floor, each method alone in a fresh process, from the moment
  the policy, rollouts and targets are there: what a method prepares counts.
* coverage: sum over rollouts of the squared norm of the gradients it holds (its own norms, or its own inner products
  of gradients with themselves), over the same by float64 autograd.
* Spearman, error: its scores against the mean target, and their relative error, with those of float64 autograd.

`1.5b` has the shapes of Qwen2.5-1.5B with random weights, needs a GPU, measures wall time and the GPU's peak memory,
and takes the autograd loop in the policy's own precision for the truth.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TQDM_DISABLE", "1")

import torch
from engine_methods import FLOORS, OURS, TORCH
from engine_peers import PEERS
from engine_setting import ROLLOUTS, TOKENS, Method, Setting, make, reference
from scipy.stats import spearmanr

FLOOR = next(iter(FLOORS))
CAN_RESET = Path("/proc/self/clear_refs")
"""Linux: writing 5 resets the mark of the most memory held."""
Builders = dict[str, Callable[[Setting], Method]]


def builders(kind: str, peers: bool) -> Builders:
    """The methods to measure; prints which peers are missing."""
    found = {**FLOORS, **OURS, **TORCH}
    if kind == "1.5b":
        return {name: build for name, build in found.items() if name != "torch.func vmap"}
    for name, (module, build) in PEERS.items() if peers else ():
        if importlib.util.find_spec(module):
            found[name] = build
        else:
            print(f"{name}: left out, because {module} is not installed (see --help)", file=sys.stderr)
    return found


def clock(setting: Setting) -> float:
    """Seconds: of this process on the CPU, of the wall where a GPU does the work."""
    if setting.device.type == "cuda":
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def agreement(setting: Setting, runs: dict[str, Any], exact: Any) -> dict[str, dict[str, float]]:
    """Method -> coverage, Spearman and relative error of its scores, from one run that also warms it up."""
    found = {}
    for name, run in runs.items():
        scores = run()
        if scores is None:
            continue
        dots = scores.dots.detach().double().cpu()
        squares = run.squares() if scores.squares is None else scores.squares
        found[name] = {
            "coverage": float(squares.double().sum()) / float(exact.squares.sum()),
            "spearman": float(spearmanr(dots, exact.dots).statistic),
            "error": float((dots - exact.dots).norm() / exact.dots.norm()),
        }
    return found


def cost(setting: Setting, runs: dict[str, Any], rounds: int) -> dict[str, dict[str, Any]]:
    """Method -> seconds and floors of every round, all methods taking turns."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            gc.collect()
            begin = clock(setting)
            run()
            seconds[name].append(clock(setting) - begin)
    return {
        name: {"seconds": spent, "floors": [a / b for a, b in zip(spent, seconds[FLOOR], strict=True)]}
        for name, spent in seconds.items()
    }


def peak_on_gpu(run: Method) -> int:
    """Bytes the GPU's peak rises during a run."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    return torch.cuda.max_memory_allocated() - before


def resident(field: str) -> int:
    """Bytes of this process: VmRSS, in memory now, or VmHWM, the most since the mark was last reset."""
    return int(re.findall(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)[0]) * 1024


def peak_alone(kind: str, width: int | None, name: str) -> int:
    """Bytes the peak of this process, a fresh one, rises above what policy, rollouts and targets take."""
    if name in PEERS:
        importlib.import_module(PEERS[name][0])
    setting = make(kind, width)
    gc.collect()
    CAN_RESET.write_text("5")
    before = resident("VmRSS")
    run = builders(kind, peers=True)[name](setting)
    for _ in range(2):
        run()
    return resident("VmHWM") - before


def peaks(kind: str, width: int | None, names: list[str]) -> dict[str, int]:
    """Method -> its peak, each measured in a process of its own."""
    found = {}
    if not CAN_RESET.exists():
        print("memory is not measured: this system keeps no mark that can be reset", file=sys.stderr)
        return {}
    for name in names:
        command = [sys.executable, __file__, "--model", kind, "--memory-of", name]
        command += ["--width", str(width)] if width else []
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"measuring the memory of {name!r} failed:\n{done.stderr}")
        found[name] = int(done.stdout.split()[-1])
    return found


def measured(kind: str, options: argparse.Namespace) -> dict[str, Any]:
    """All figures of a policy."""
    on_gpu = kind == "1.5b"
    place = {"dtype": getattr(torch, options.dtype), "device": "cuda"} if on_gpu else {}
    setting = make(kind, options.width, **place)
    exact = reference(setting, getattr(torch, options.dtype) if on_gpu else torch.float64)
    runs = {name: build(setting) for name, build in builders(kind, options.peers).items()}
    for name in FLOORS:
        runs[name]()
    agreed = agreement(setting, runs, exact)
    spent = cost(setting, runs, options.rounds)
    if on_gpu:
        memory = {name: peak_on_gpu(run) for name, run in runs.items()}
    else:
        del runs
        memory = peaks(kind, options.width, list(spent))
    methods = {name: {**spent[name], "memory": memory[name] - memory[FLOOR], **agreed.get(name, {})} for name in spent}
    size = sum(p.numel() for p in setting.model.parameters())
    return {"policy": kind, "parameters": size, "width": setting.width, "methods": methods}


def table(figures: dict[str, Any]) -> str:
    """The figures as a Markdown table with a line above it."""
    seconds = figures["methods"][FLOOR]["seconds"]
    lines = [
        f"`{figures['policy']}`: {figures['parameters'] / 1e6:.1f} M parameters, {ROLLOUTS} rollouts of {TOKENS} "
        f"tokens, sketch width {figures['width']:,}; one floor is {statistics.median(seconds):.3g} s "
        f"(medians of {len(seconds)} rounds).",
        "",
        "| method | floors (range) | memory above the floor's | coverage | Spearman | error |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in figures["methods"].items():
        ratios = row["floors"]
        shown = "1" if name == FLOOR else f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
        agreed = "- | - | -"
        if "coverage" in row:
            agreed = f"{row['coverage']:.2%} | {row['spearman']:.3f} | {row['error']:.1e}"
        memory = f"{row['memory'] / 1e6:+.0f} MB" if "memory" in row else "-"
        lines.append(f"| {name} | {shown} | {memory} | {agreed} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, and print a table for each policy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("tiny", "12m", "both", "1.5b"), default="both")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--width", type=int, help="buckets of the sketch (default: the recipe's)")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="of the 1.5b policy")
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    if options.model == "1.5b" and not torch.cuda.is_available():
        parser.error("--model 1.5b needs a GPU and torch sees none here; take tiny or 12m")
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if options.memory_of:
        print(peak_alone(options.model, options.width, options.memory_of))
        return
    kinds = ("tiny", "12m") if options.model == "both" else (options.model,)
    found = [measured(kind, options) for kind in kinds]
    print("\n\n".join(table(figures) for figures in found))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
