"""Cost of recording gradients, in floors: one floor is TRL's own forward and backward pass on the same batch.

    OMP_NUM_THREADS=1 python tests/benchmarks/gradients.py [steps]

Trains the first steps of the `tiny` recipe. CPU time, so that other processes matter little.
"""

from __future__ import annotations

import dataclasses
import sys
import time
import warnings
from typing import Any

import numpy as np
import torch


def main(steps: int) -> None:
    warnings.simplefilter("ignore")
    from pytest_behaviortrace.run import training
    from pytest_behaviortrace.run.recipe import Recipe
    from pytest_behaviortrace.run.recorder import Capture, RecordingTrainer, RolloutRecorder

    torch.set_num_threads(1)
    floors: list[float] = []
    recorded: list[float] = []

    class Timed(RolloutRecorder):
        def updating(self, trainer: Any, model: Any, inputs: Any) -> None:
            begin = time.process_time()
            super().updating(trainer, model, inputs)
            recorded.append(time.process_time() - begin)

    class TimedTrainer(RecordingTrainer):
        generating = 0.0

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            begin = time.process_time()
            output = super()._generate_and_score_completions(inputs)
            self.generating = time.process_time() - begin
            return output

        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            begin = time.process_time()
            output = super().training_step(*args, **kwargs)
            floors.append(time.process_time() - begin - self.generating - recorded[-1])
            return output

    training.RecordingTrainer = TimedTrainer
    recipe = Recipe.load("tiny")
    grpo = dataclasses.replace(recipe.grpo, steps=steps)
    recipe = dataclasses.replace(recipe, grpo=grpo, cutoff=steps, analysis_step=steps - 1, samples_per_probe=1)
    recorder = Timed(Capture(recipe.sketch_width, {p.name: p.behavior for p in recipe.plants}))
    rows = training.train(recipe, 0, planted=True, recorder=recorder).rows
    shown = [bool(a or b) for a, b in zip(*(rows[f"span_{p.name}"] for p in recipe.plants), strict=True)]
    cost = np.array(recorded) / np.array(floors)
    print(
        f"floor {np.median(floors):.3f} s, recording {np.median(recorded):.3f} s a step of {grpo.batch_size} rollouts"
    )
    print(f"{np.median(cost):.2f} floors (median of {steps} steps; {np.mean(shown):.0%} of rollouts with spans)")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 6)
