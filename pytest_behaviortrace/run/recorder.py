"""Records every rollout of a TRL run and its gradient, without changing the run.

Rows are numbered when they are generated. Their gradients are taken at the policy that the loss first meets them with:
in the trainer's own backward pass where it tells them apart, in a pass of our own for the rest (rollouts of advantage
zero, behaviour spans, and everything beside a KL term).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pytest_behaviortrace.run.gradients import PerSampleGradients
from pytest_behaviortrace.run.integrity import check_sum, everywhere
from pytest_behaviortrace.run.loss import Objective, mean_weights
from pytest_behaviortrace.run.rows import Collected, Columns, RecordingError, Sink, generated_rows, unpadded
from pytest_behaviortrace.run.sketch import BlockSketch
from pytest_behaviortrace.run.sketch_set import SketchSet
from pytest_behaviortrace.run.sums import SampleGradients
from pytest_behaviortrace.run.training_pass import TrainingPass

Select = Callable[[Sequence[int]], NDArray[np.bool_]]
"""Row ids -> which of them get gradients."""


@dataclass(frozen=True)
class Capture:
    """What to record beside the rows: sketches of this width, for these behaviours, of the rows `select` picks."""

    width: int
    behaviors: Mapping[str, Any]
    """Name -> behaviour, as `find_spans` takes it."""
    select: Select | None = None
    """None: every row."""
    only_shown: bool = False
    """Whether rows that show none of the behaviours go without gradients."""


@dataclass(eq=False)
class _Batch:
    """A micro-batch between its loss and the end of its backward pass."""

    inputs: Mapping[str, Any]
    row_ids: list[int]
    objective: Objective
    scale: float
    picked: torch.Tensor
    """(batch,) bool: rows that get gradients."""
    watch: TrainingPass | None
    fresh: bool
    """Whether nothing had been accumulated in `.grad` before."""
    logprobs: torch.Tensor | None = field(default=None)


class RolloutRecorder:
    """Takes rows and, with a `Capture`, gradients during one run; `sink` keeps them (default: this object)."""

    def __init__(self, capture: Capture | None = None, sink: Sink | None = None) -> None:
        self.capture = capture
        """None: rows alone."""
        self.collected = Collected(capture.width if capture else 1)
        self.sink: Sink = sink or self.collected
        self.steps: list[int] = []
        """Optimizer steps in the order their loss was computed."""
        self.attached = False
        """Whether it watches a trainer."""
        self.next_row = 0
        """Row id of the first rollout of the next generation batch."""
        self._open: dict[int, dict[str, Any]] = {}
        self._engine: PerSampleGradients | None = None
        self._batch: _Batch | None = None
        self._sum_checked = False

    def restart(self, next_row: int) -> None:
        """Training begins, perhaps again: rollouts that were generated and not learned from are forgotten."""
        self.next_row, self._open = next_row, {}

    # -- called around the trainer's methods -------------------------------------------------------------------------
    def generated(self, trainer: Any, output: dict[str, Any], rewards: NDArray[np.float64] | None) -> None:
        """Number the rows of one generation batch, in the order of generation, and keep them.

        A tensor `row_id` is put into `output`: it is shuffled and split along with everything else. `rewards` (rows,
        functions): before weighting; NaN where a function gave none.
        """
        count, processes = len(output["completion_ids"]), int(trainer.accelerator.num_processes)
        if count * processes != trainer.args.generation_batch_size:
            raise RecordingError(
                f"TRL generated {count * processes} rollouts, expected {trainer.args.generation_batch_size}"
            )
        if self._open and min(self._open) < self.next_row - 4 * count * processes:
            raise RecordingError(f"rollout {min(self._open)} was generated but never entered a loss")
        first = self.next_row + int(trainer.accelerator.process_index) * count
        self.next_row += count * processes
        row_ids = range(first, first + count)
        output["row_id"] = torch.arange(first, first + count, device=output["completion_ids"].device)
        behaviors = self.capture.behaviors if self.capture else {}
        self._open |= dict(zip(row_ids, generated_rows(trainer, row_ids, output, rewards, behaviors), strict=True))

    def entering(self, trainer: Any, model: Any, inputs: Mapping[str, Any]) -> None:
        """Begin to watch a micro-batch whose loss is about to be computed."""
        self.steps.append(int(trainer.state.global_step))
        row_ids = inputs["row_id"].tolist()
        if not all(row_id in self._open for row_id in row_ids):
            if trainer.num_iterations == 1:
                raise RecordingError(f"rollout {row_ids[0]} entered the loss twice")
            return  # a later pass over rows that were recorded when the loss first met them
        if inputs["advantages"].dim() != 1:
            raise RecordingError("the trainer gives every token an advantage of its own; a rollout has no single one")
        objective, mask = Objective.of(trainer.args, int(trainer.accelerator.num_processes)), inputs["completion_mask"]
        scale = objective.scale(mask, float(inputs["num_items_in_batch"]))
        picked, watch = self._picked(row_ids).to(mask.device), None
        plain = trainer.accelerator.unwrap_model(model)
        if self.capture is not None:
            engine = self._made_engine(trainer, plain, objective)
            # What its share of this process's loss is divided by is what the trainer multiplied it with.
            whole = -scale * objective.processes * inputs["advantages"].float()
            alone = picked & (whole != 0) & (objective.beta == 0.0)
            watch = TrainingPass(
                engine.capture, engine.sketch, *_tokens(inputs), mask.shape[1],
                torch.where(alone, 1.0 / torch.where(whole == 0, 1.0, whole), 0.0),
                temperature=objective.temperature, autocast=engine.autocast,
            )  # fmt: skip
            watch.__enter__()
        fresh = not self._sum_checked and all(p.grad is None or not bool(p.grad.any()) for p in plain.parameters())
        self._batch = _Batch(inputs, row_ids, objective, scale, picked, watch, fresh)

    def predicted(self, logprobs: torch.Tensor) -> None:
        """Keep the (batch, completion tokens) log-probabilities that a loss is made of."""
        if self._batch is not None:
            self._batch.logprobs = logprobs.detach().float()
            if self._batch.watch is not None:
                self._batch.watch.predicted(logprobs)

    def passed(self, trainer: Any) -> None:
        """Record a micro-batch after its backward pass, before any update."""
        batch, self._batch = self._batch, None
        if batch is None:
            return
        if batch.logprobs is None:
            self._close(batch)
            raise RecordingError("TRL's loss did not ask _get_per_token_logps_and_entropies for log-probabilities")
        self._close(batch)
        if batch.watch is not None:
            self._gradients(trainer, batch)
        sampled = batch.inputs.get("old_per_token_logps")
        kept = unpadded(batch.logprobs if sampled is None else sampled.float(), batch.inputs["completion_mask"])
        step = int(trainer.state.global_step)
        rows = [
            self._open.pop(row_id) | {"step": step, "loss_scale": batch.scale, "logprobs": logprobs}
            for row_id, logprobs in zip(batch.row_ids, kept, strict=True)
        ]
        self.sink.add_rows(rows)

    def abandon(self) -> None:
        """Stop watching: the trainer's step failed."""
        batch, self._batch = self._batch, None
        if batch is not None:
            self._close(batch)

    # -- gradients ---------------------------------------------------------------------------------------------------
    def _close(self, batch: _Batch) -> None:
        if batch.watch is not None:
            batch.watch.__exit__(None, None, None)

    def _picked(self, row_ids: Sequence[int]) -> torch.Tensor:
        if self.capture is None:
            return torch.zeros(len(row_ids), dtype=torch.bool)
        picked = np.ones(len(row_ids), bool) if self.capture.select is None else self.capture.select(row_ids)
        if self.capture.only_shown:
            picked = picked & [any(self._open[r][f"span_{b}"] for b in self.capture.behaviors) for r in row_ids]
        return torch.from_numpy(np.asarray(picked, bool))

    def _made_engine(self, trainer: Any, plain: Any, objective: Objective) -> PerSampleGradients:
        if self._engine is None:
            assert self.capture is not None
            accelerator = trainer.accelerator
            self._engine = PerSampleGradients(
                plain,
                BlockSketch.for_model(plain, self.capture.width),
                temperature=objective.temperature,
                autocast=nullcontext if accelerator.mixed_precision == "no" else accelerator.autocast,
                dropout_off=True,
            )
        return self._engine

    def _gradients(self, trainer: Any, batch: _Batch) -> None:
        assert self._engine is not None
        assert batch.watch is not None
        made, sets = batch.watch.result(), self._own_weights(batch)
        if sets:
            own = dict(zip(sets, self._engine(*_tokens(batch.inputs), list(sets.values())), strict=True))
            if (rest := own.pop("gradients", None)) is not None:
                chosen = (sets["gradients"] != 0).any(1)
                made.sketch[chosen], made.norm[chosen] = rest.sketch[chosen], rest.norm[chosen]
            for name, found in own.items():
                self._emit(name, found, (sets[name] != 0).any(1), batch.row_ids)
            kl = own.get("kl_gradients")
        else:
            kl = None
        self._emit("gradients", made, batch.picked, batch.row_ids)
        ready = batch.fresh and bool(batch.picked.all())
        if not self._sum_checked and everywhere(trainer.accelerator, ready):
            shares = made.sketch * batch.inputs["advantages"].float()[:, None] + (0.0 if kl is None else kl.sketch)
            self._sum_checked = check_sum(trainer, self._engine.sketch, self._engine.model, shares * batch.scale)

    def _own_weights(self, batch: _Batch) -> dict[str, torch.Tensor]:
        """Token weights (batch, tokens) of the sets of gradients that the trainer's backward pass did not show."""
        assert self.capture is not None
        assert batch.watch is not None
        assert batch.logprobs is not None
        inputs, objective, watched = batch.inputs, batch.objective, batch.watch.unit != 0
        mask, advantage = inputs["completion_mask"], inputs["advantages"].float()
        width = inputs["prompt_ids"].shape[1]
        terms = {"gradients": objective.token_weights(mask)}
        if objective.beta != 0.0:
            kl = objective.kl_weights(inputs, batch.logprobs)
            whole = -batch.scale * objective.processes
            policy = (batch.watch.slope / whole - kl) / torch.where(advantage == 0, 1.0, advantage)[:, None]
            terms["gradients"] = torch.where(advantage[:, None] == 0, terms["gradients"], policy)
            terms["kl_gradients"] = kl
        chosen = {"gradients": batch.picked & ~watched, "kl_gradients": batch.picked}
        sets = {
            name: torch.nn.functional.pad(torch.where(chosen[name][:, None] & (mask != 0), weights, 0.0), (width, 0))
            for name, weights in terms.items()
        }
        shape, picked = (len(mask), width + mask.shape[1]), batch.picked.tolist()
        for name in self.capture.behaviors:
            tokens = [self._open[r][f"span_{name}"] if p else () for r, p in zip(batch.row_ids, picked, strict=True)]
            sets[f"spans_{name}"] = mean_weights(shape, tokens, [width] * len(mask)).to(mask.device)
        return {name: weights for name, weights in sets.items() if weights.any()}

    def _emit(self, kind: str, made: SampleGradients, chosen: torch.Tensor, row_ids: Sequence[int]) -> None:
        """Hands gradients of the chosen rows to the sink, in the order of row ids, whatever the shuffle."""
        order = np.argsort(row_ids)
        order = order[chosen.cpu().numpy()[order]]
        if len(order):
            index = torch.from_numpy(order).to(made.norm.device)
            self.sink.add_sketches(kind, made.sketch[index], made.norm[index], np.asarray(row_ids, np.int64)[order])

    # -- read afterwards ---------------------------------------------------------------------------------------------
    def columns(self) -> Columns:
        """Columns of every row, in the order of row ids."""
        return self.collected.columns()

    def recorded(self, kind: str) -> SketchSet:
        """Gradients of one kind (`gradients`, `spans_{behaviour}`), in the order of row ids."""
        return self.collected.sketches(kind)

    def mean_span_by_step(self, behavior: str, steps: Sequence[int]) -> NDArray[np.float32]:
        """(S, K): mean behaviour-span gradient of each step's rollouts, zero where none; `steps` is each row's step."""
        spans = self.recorded(f"spans_{behavior}")
        when = np.asarray(steps)[spans.row]
        means = np.zeros((int(max(steps)) + 1, spans.rows.shape[1]), np.float32)
        for step in np.unique(when):
            means[step] = spans.rows[when == step].mean(0)
        return means


def _tokens(inputs: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and attention mask (batch, tokens) of a batch, prompts and completions side by side."""
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
    return ids, torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
