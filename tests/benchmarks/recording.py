"""What recording costs: the same run with and without a recorder, in turns. Not a test; run it on an idle machine:

    OMP_NUM_THREADS=1 python tests/benchmarks/recording.py [--steps N] [--pairs 5] [--seed 0] [--start FOLDER] [--check]

Trains the planted run of a seed of the `tiny` recipe from one warm start: once with TRL's trainer alone, once recorded
as `build_seed` records it, which of them first in turns. Prints ratios of wall and processor time (median and range)
of the GRPO part, and of the whole run with its warm-up (measured once) and behaviour scores; then where the processor
time of the recorded runs goes, and that of the trainer alone beside it. Fails unless all runs end at the same weights
to the last bit. `--start` takes a saved policy as warm start, `--check` compares what was recorded with a slow loop.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from trl import GRPOTrainer  # type: ignore[attr-defined]

from pytest_behaviortrace.run import recorder as recording
from pytest_behaviortrace.run import training
from pytest_behaviortrace.run.gradients import PerSampleGradients
from pytest_behaviortrace.run.loss import collate, mean_weights, rollout_loss, weighted_logprob
from pytest_behaviortrace.run.policy import load_model, load_tokenizer
from pytest_behaviortrace.run.recipe import Recipe
from pytest_behaviortrace.run.recorder import Capture, RolloutRecorder
from pytest_behaviortrace.run.sketch import BlockSketch
from pytest_behaviortrace.run.training_pass import TrainingPass
from pytest_behaviortrace.run.warmup import WarmStart, copy_state, warm_up

GRPO, WHOLE = ("grpo",), ("warm_up", "set_up", "grpo", "behavior_score")
ALLOWED = 1e-5
"""Relative error of a recorded sketch or norm."""
PARTS: tuple[tuple[Any, str, str], ...] = (
    (GRPOTrainer, "_generate_and_score_completions", "completions and rewards"),
    (GRPOTrainer, "training_step", "loss and backward pass"),
    (TrainingPass, "__enter__", "recording: inside the trainer's backward pass"),
    (TrainingPass, "_begin", "recording: inside the trainer's backward pass"),
    (TrainingPass, "_arrived", "recording: inside the trainer's backward pass"),
    (TrainingPass, "result", "recording: inside the trainer's backward pass"),
    (PerSampleGradients, "__call__", "recording: passes of its own"),
    (RolloutRecorder, "generated", "recording: rows"),
    (RolloutRecorder, "entering", "recording: around the step"),
    (RolloutRecorder, "passed", "recording: around the step"),
    (recording, "check_sum", "recording: the check of one step"),
)


class Clock:
    """Wall and processor seconds by stage, in the place of the clock of `train`."""

    def __init__(self) -> None:
        self.laps: dict[str, tuple[float, float]] = {}
        self.last = np.array([time.monotonic(), time.process_time()])

    def lap(self, name: str) -> None:
        now = np.array([time.monotonic(), time.process_time()])
        self.laps[name], self.last = tuple(now - self.last), now


class Stopwatch:
    """Processor seconds by part; what a part calls that is a part itself counts there alone."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner = [0.0]

    def around(self, part: str, own: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(own)
        def timed(*args: Any, **named: Any) -> Any:
            self._inner.append(0.0)
            begin = time.process_time()
            try:
                return own(*args, **named)
            finally:
                taken = time.process_time() - begin
                self.seconds[part] = self.seconds.get(part, 0.0) + taken - self._inner.pop()
                self._inner[-1] += taken

        return timed

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for owner, name, part in PARTS:
                stack.enter_context(mock.patch.object(owner, name, self.around(part, getattr(owner, name))))
            yield


class Watch(training._Watch):
    """Also keeps the policies that some steps start from."""

    kept: Sequence[int] = ()
    policies: dict[int, Any] = {}  # noqa: RUF012 - one run at a time

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **unused: Any) -> None:
        super().on_step_begin(args, state, control, model=model, **unused)
        if state.global_step in self.kept:
            self.policies[state.global_step] = copy_state(model)


def run(recipe: Recipe, seed: int, start: WarmStart, *, recorded: bool, watch: Stopwatch) -> Any:
    """The planted run; its timings are (wall, processor) seconds."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(training, "_Clock", Clock))
        stack.enter_context(watch.watching())
        if not recorded:
            stack.enter_context(mock.patch.object(training, "attach", return_value=None))
            stack.enter_context(
                mock.patch.object(training, "join_by_row_id", lambda expected, recorded, rewarded: rewarded)
            )
        behaviors = {plant.name: plant.behavior for plant in recipe.plants}
        recorder = RolloutRecorder(Capture(recipe.sketch_width, behaviors)) if recorded else None
        return training.train(recipe, seed, planted=True, recorder=recorder, start=start)


def slow_loop(recipe: Recipe, made: Any, policies: dict[int, Any]) -> dict[str, list[float]]:
    """Relative error of what was recorded of each rollout of some steps: one autograd pass for each, in float32."""
    model, tokenizer, rows = load_model(recipe.policy.location), load_tokenizer(recipe.policy.location), made.rows
    sketch, grpo = BlockSketch.for_model(model, recipe.sketch_width), recipe.grpo
    away: dict[str, list[float]] = {}
    for kind in ("gradients", *(f"spans_{plant.name}" for plant in recipe.plants)):
        found = made.recorder.recorded(kind)
        for step, policy in policies.items():
            model.load_state_dict(policy)
            for place in np.flatnonzero(np.asarray(rows["step"])[found.row] == step):
                row = int(found.row[place])
                prompt, said = rows["prompt_ids"][row], rows["completion_ids"][row]
                batch = collate([prompt], [said], tokenizer.pad_token_id)
                if kind == "gradients":
                    term = rollout_loss(model, batch, grpo.loss_type, grpo.temperature)
                else:
                    weights = mean_weights(
                        batch["input_ids"].shape, [rows[kind.replace("s_", "_")][row]], [len(prompt)]
                    )
                    term = weighted_logprob(model, batch, weights, grpo.temperature)
                model.zero_grad()
                term.sum().backward()
                full = {name: p.grad[None] for name, p in model.named_parameters() if p.grad is not None}
                truth = sketch.sketch(full)[0].double()
                norm = float(sum(g.double().square().sum() for g in full.values())) ** 0.5
                error = float((torch.from_numpy(found.rows[place].copy()).double() - truth).norm() / truth.norm())
                away.setdefault(kind, []).append(max(error, abs(float(found.norm[place]) / norm - 1)))
    return away


def shares(recorded: Stopwatch, plain: Stopwatch, pairs: int) -> Iterator[str]:
    yield f"{'processor seconds of the GRPO part, a run':<50}{'recorded':>10}{'alone':>10}"
    for part in dict.fromkeys(part for _, _, part in PARTS):
        columns = [watch.seconds.get(part, 0.0) / pairs for watch in (recorded, plain)]
        yield f"  {part:<48}" + "".join(f"{seconds:>10.2f}" for seconds in columns)


def ratios(timings: Sequence[tuple[Any, Any]], stages: Sequence[str], kind: int) -> str:
    """Median and range of recorded by unrecorded over pairs."""
    plain, recorded = (np.array([sum(t[s][kind] for s in stages) for t in side]) for side in zip(*timings, strict=True))
    by_pair = recorded / plain
    return (
        f"{np.median(by_pair):.3f} ({by_pair.min():.3f}-{by_pair.max():.3f}); "
        f"{np.median(plain):.2f} s -> {np.median(recorded):.2f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, help="fewer steps than the recipe has")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=Path, help="folder of a policy to start from instead of a warm-up")
    parser.add_argument("--check", action="store_true", help="compare with a slow loop")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    recipe = Recipe.load("tiny")
    if args.steps:
        grpo = dataclasses.replace(recipe.grpo, steps=args.steps)
        recipe = dataclasses.replace(recipe, grpo=grpo, cutoff=args.steps, analysis_step=args.steps - 1)
    clock = Clock()
    if args.start:
        rates = {plant.name: [0.0] for plant in recipe.plants}
        start = WarmStart(load_model(str(args.start)).state_dict(), 0, 0.0, rates)
        clock.last[:] = time.monotonic(), time.process_time()
    else:
        start = warm_up(recipe, args.seed, load_tokenizer(recipe.policy.location), lambda stage, done: None)
    clock.lap("warm_up")
    timings, ends, watches = [], [], {flag: Stopwatch() for flag in (False, True)}
    for pair in range(args.pairs):
        both: dict[bool, Any] = {}
        for recorded in (False, True) if pair % 2 == 0 else (True, False):
            made = run(recipe, args.seed, start, recorded=recorded, watch=watches[recorded])
            both[recorded] = made.timings | clock.laps
            ends.append(made.end_state)
        timings.append((both[False], both[True]))
    for end in ends[1:]:
        assert all(torch.equal(end[name], tensor) for name, tensor in ends[0].items()), "recording changed the run"
    print(f"{args.pairs} pairs of {recipe.grpo.steps} steps: all ended at the same weights, bit for bit")
    for title, stages in (("GRPO alone", GRPO), ("whole run", WHOLE)):
        for kind, name in enumerate(("wall", "processor")):
            print(f"{title}, {name} time, recorded by unrecorded: {ratios(timings, stages, kind)}")
    print(*shares(watches[True], watches[False], args.pairs), sep="\n")
    if args.check:
        Watch.kept = sorted({0, recipe.grpo.steps // 2, recipe.grpo.steps - 1})
        with mock.patch.object(training, "_Watch", Watch):
            made = run(recipe, args.seed, start, recorded=True, watch=Stopwatch())
        away = slow_loop(recipe, made, Watch.policies)
        for kind, errors in away.items():
            print(
                f"{kind} of steps {Watch.kept}, relative to a slow loop: median {np.median(errors):.1e}, "
                f"at most {max(errors):.1e}, {sum(e > ALLOWED for e in errors)} of {len(errors)} above {ALLOWED:.0e}"
            )
        assert all(max(errors) <= ALLOWED for errors in away.values()), "a slow loop gives something else"


if __name__ == "__main__":
    main()
