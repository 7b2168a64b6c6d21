"""Whether anything depends on how gradients are taken. Not a test:

    OMP_NUM_THREADS=1 python tests/benchmarks/slow_loop.py FOLDER [--seeds 3] [--draws 2] [--estimators NAME ...]

Trains the `tiny` recipe twice: as sessions do, into FOLDER/fast, and into FOLDER/slow with one autograd pass for each
rollout and each span, in float32: no hooks, no pass of the trainer's. The runs are the same to the last bit but for the
gradients. Then grades all shipped estimators (or those named) on both, and prints how far gradients, targets and
estimates are apart, and every row whose verdict differs. Fails if there is one. What is there is not trained again.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from pytest_behaviortrace.run import build, orchestrate, recorder
from pytest_behaviortrace.run.gradients import Measurement, PerSampleGradients
from pytest_behaviortrace.run.recipe import Recipe
from pytest_behaviortrace.run.store import Built
from pytest_behaviortrace.run.sums import SampleGradients
from pytest_behaviortrace.run.training_pass import TrainingPass

HERE = Path(__file__).resolve().parent


def measure(
    self: PerSampleGradients, ids: torch.Tensor, mask: torch.Tensor, sets: Sequence[torch.Tensor]
) -> Measurement:
    """In place of the engine's: one sample at a time, without padding, by plain autograd on the model as it is."""
    model, named = self.model, dict(self.model.named_parameters())
    kept = {name: p.grad for name, p in named.items()}
    training = model.training
    model.eval()
    found = [SampleGradients(self.sketch.buffer(len(ids)), torch.zeros(len(ids))) for _ in sets]
    logprob = torch.zeros(ids.shape)
    for row in range(len(ids)):
        shown = mask[row].bool()
        one = ids[row, shown]
        for made, weights in zip(found, sets, strict=True):
            mine = weights[row, shown][1:].float()
            if not mine.any():
                continue
            for parameter in named.values():
                parameter.grad = None
            with torch.enable_grad():
                logits = model(input_ids=one[None], use_cache=False).logits[0, :-1].float() / self.temperature
                said = torch.log_softmax(logits, -1).gather(1, one[1:, None])[:, 0]
                (said * mine).sum().backward()
            full = {name: p.grad[None] for name, p in named.items() if p.grad is not None}
            made.sketch[row] = self.sketch.sketch(full)[0]
            made.norm[row] = float(sum(g.double().square().sum() for g in full.values()) ** 0.5)
            place = shown.nonzero()[:, 0][1:]
            logprob[row, place] = torch.where(mine != 0, said.detach(), logprob[row, place])
    for name, parameter in named.items():
        parameter.grad = kept[name]
    model.train(training)
    return Measurement(found, logprob)


class Unwatched(TrainingPass):
    """Leaves every rollout to passes of its own."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.unit = torch.zeros_like(self.unit)


@contextlib.contextmanager
def slowly() -> Iterator[None]:
    with (
        mock.patch.object(PerSampleGradients, "measure", measure),
        mock.patch.object(recorder, "TrainingPass", Unwatched),
    ):
        yield


def build_seed(*args: Any) -> Built:
    """As the builder of sessions, slowly; called in a worker."""
    with slowly():
        return build.build_seed(*args)


def build_draw(*args: Any) -> Built:
    """The same for a draw."""
    with slowly():
        return build.build_draw(*args)


def away(fast: Path, slow: Path) -> Iterator[str]:
    """How far the arrays of two units are apart: relative error of each row, per kind.

    Sketches are kept as 16-bit integers with a scale for each row: rounding alone moves a row by about 2e-5.
    """
    for path in sorted(fast.rglob("*.npy")):
        one, two = (np.load(p).astype(np.float64) for p in (path, slow / path.relative_to(fast)))
        if path.name.endswith(".scale.npy") or np.array_equal(one, two):
            continue
        one, two = (a if a.ndim > 1 else a[:, None] if ".norm." in path.name else a[None] for a in (one, two))
        size = np.linalg.norm(two, axis=-1)
        error = np.linalg.norm(one - two, axis=-1)[size > 0] / size[size > 0]
        rounded = " (rounded to 16 bits)" if path.with_name(f"{path.stem}.scale.npy").exists() else ""
        yield (
            f"  {path.stem:<30} median {np.median(error):.1e}, at most {error.max():.1e}, "
            f"{(error > 1e-5).sum()} of {error.size} above 1e-05{rounded}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument("--estimators", nargs="*")
    args = parser.parse_args()
    from pytest_behaviortrace import grade
    from pytest_behaviortrace.registry import Registry

    recipe, stores = Recipe.load("tiny"), {}
    # Workers import the builder by name.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    for name, builder in (("fast", orchestrate.BUILDER), ("slow", "slow_loop")):
        stores[name] = orchestrate.ensure(
            recipe, range(args.seeds), range(args.draws), args.folder / name, builder=builder
        )
    for seed in range(args.seeds):
        for draw in (None, *range(args.draws)):
            units = [s.seed(seed) if draw is None else s.draw(seed, draw) for s in stores.values()]
            print(f"{units[0].name}, relative to one autograd pass for each rollout")
            print(*away(*(unit.path for unit in units)), sep="\n")
    names = args.estimators or sorted(entry.name for entry in Registry().entries())
    cards = [
        grade(names, seeds=args.seeds, draws=args.draws, cache_dir=args.folder / name, progress=False)
        for name in stores
    ]
    rows = [(one, two) for one, two in zip(*(card.rows for card in cards), strict=True)]
    assert all(one.id == two.id for one, two in rows)
    moved = [abs(a.estimate - b.estimate) for a, b in rows if a.estimate is not None and b.estimate is not None]
    other = [(a, b) for a, b in rows if a.verdict != b.verdict]
    print(f"{len(rows)} rows of {len(names)} estimators: estimates differ by at most {max(moved):.1e}")
    for one, two in other:
        print(f"  {one.id}: {one.verdict} as recorded, {two.verdict} with the slow loop")
    print(f"{len(rows) - len(other)} of {len(rows)} verdicts are the same")
    sys.exit(1 if other else 0)


if __name__ == "__main__":
    main()
