"""Records every rollout of a TRL run and its gradient, without changing the run.

`RecordingTrainer` is TRL's `GRPOTrainer` with three windows: rows are numbered when they are generated, TRL's own token
log-probabilities are kept as they are computed, and gradients are taken at the policy about to be updated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from trl import GRPOTrainer  # type: ignore[attr-defined]

from pytest_behaviortrace.run.gradients import PerSampleGradients
from pytest_behaviortrace.run.loss import Objective, item_weights, mean_weights
from pytest_behaviortrace.run.sketch import BlockSketch
from pytest_behaviortrace.run.sketch_set import SketchCollector, SketchSet
from pytest_behaviortrace.run.spans import find_spans

Columns = dict[str, list[Any]]
Select = Callable[[Sequence[int]], NDArray[np.bool_]]
"""Row ids -> which of them get gradients."""


@dataclass(frozen=True)
class Capture:
    """What to record beside the rows: sketches of this width, for these behaviours, of the rows `select` picks."""

    width: int
    behaviors: dict[str, str]
    """Plant name -> behaviour string."""
    select: Select | None = None
    """None: every row."""
    controls: bool = True
    """Whether control spans get gradients too."""


class RolloutRecorder:
    """Collects rows and, with a `Capture`, gradients during one run."""

    def __init__(self, capture: Capture | None = None) -> None:
        self.capture = capture
        self.steps: list[int] = []
        """Optimizer steps in the order their loss was computed."""
        self._rows: dict[int, dict[str, Any]] = {}
        self._sets: dict[str, SketchCollector] = {}
        self._engine: PerSampleGradients | None = None

    # -- called by the trainer -----------------------------------------------------------------------------------------
    def generated(self, trainer: Any, row_ids: Sequence[int], output: dict[str, Any]) -> None:
        """Keep the rows of one generation batch, in the order of generation."""
        tokenizer = trainer.processing_class
        for k, row_id in enumerate(row_ids):
            prompt = output["prompt_ids"][k][output["prompt_mask"][k].bool()].tolist()
            completion = output["completion_ids"][k][output["completion_mask"][k].bool()].tolist()
            row: dict[str, Any] = {
                "row_id": row_id,
                "prompt_ids": prompt,
                "completion_ids": completion,
                "prompt_text": tokenizer.decode(prompt),
                "completion_text": tokenizer.decode(completion, skip_special_tokens=True),
                "advantage": float(output["advantages"][k]),
            }
            for plant, behavior in (self.capture.behaviors if self.capture else {}).items():
                found = find_spans(tokenizer, completion, behavior)
                row |= {f"span_{plant}": list(found.behavior), f"control_span_{plant}": list(found.control)}
                row[f"control_stratum_{plant}"] = found.stratum
            self._rows[row_id] = row

    def updating(self, trainer: Any, model: Any, inputs: dict[str, Any]) -> None:
        """Take gradients of a batch at the policy about to be updated by it."""
        self.steps.append(int(trainer.state.global_step))
        objective, mask, row_ids = Objective.for_trainer(trainer), inputs["completion_mask"], inputs["row_id"].tolist()
        scale = objective.loss_scale(
            mask, float(inputs["num_items_in_batch"]), trainer.args.gradient_accumulation_steps
        )
        for row_id, value in zip(row_ids, scale.tolist(), strict=True):
            self._rows[row_id]["loss_scale"] = value
        if self.capture is None:
            return
        sets = self._weights(objective, inputs, row_ids)
        if not sets:
            return
        if self._engine is None:
            sketch = BlockSketch.for_model(model, self.capture.width)
            autocast = trainer.accelerator.autocast
            self._engine = PerSampleGradients(model, sketch, temperature=objective.temperature, autocast=autocast)
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        attended = torch.cat([inputs["prompt_mask"], mask], 1)
        for (name, weights), made in zip(sets.items(), self._engine(ids, attended, list(sets.values())), strict=True):
            chosen = (weights != 0).any(1).nonzero()[:, 0]
            collector = self._sets.setdefault(name, SketchCollector(self.capture.width))
            items = np.asarray(row_ids)[chosen.cpu().numpy()]
            collector.add(made.sketch[chosen], made.norm[chosen], items)

    def updated(self, inputs: dict[str, Any], logprobs: torch.Tensor) -> None:
        """Keep TRL's token log-probabilities of a batch, under the policy that also sampled it (on-policy)."""
        for k, row_id in enumerate(inputs["row_id"].tolist()):
            self._rows[row_id]["logprobs"] = logprobs[k][inputs["completion_mask"][k].bool()].float().tolist()

    def _weights(self, objective: Objective, inputs: dict[str, Any], row_ids: Sequence[int]) -> dict[str, torch.Tensor]:
        """Token weights (B, L) of each set of gradients that has any row in this batch."""
        assert self.capture is not None
        mask, width = inputs["completion_mask"], inputs["prompt_ids"].shape[1]
        picked = np.ones(len(row_ids), bool) if self.capture.select is None else self.capture.select(row_ids)
        full = item_weights(objective.loss_type, mask) * torch.from_numpy(picked).to(mask.device)[:, None]
        sets = {"gradients": torch.nn.functional.pad(full, (width, 0))}
        shape, offset = (len(row_ids), width + mask.shape[1]), [width] * len(row_ids)
        for plant in self.capture.behaviors:
            kinds = {"spans": "span", "controls": "control_span"} if self.capture.controls else {"spans": "span"}
            for kind, column in kinds.items():
                tokens = [self._rows[r][f"{column}_{plant}"] if p else () for r, p in zip(row_ids, picked, strict=True)]
                sets[f"{kind}_{plant}"] = mean_weights(shape, tokens, offset).to(mask.device)
        return {name: weights for name, weights in sets.items() if weights.any()}

    # -- read afterwards -------------------------------------------------------------------------------------------------
    def columns(self) -> Columns:
        """Columns of every row, in the order of row ids."""
        rows = [self._rows[row_id] for row_id in sorted(self._rows)]
        return {name: [row[name] for row in rows] for name in (rows[0] if rows else {})}

    def recorded(self, kind: str) -> SketchSet:
        """Gradients of one kind (`gradients`, `spans_{plant}`, `controls_{plant}`), in the order of row ids."""
        assert self.capture is not None
        return self._sets.setdefault(kind, SketchCollector(self.capture.width)).finish()

    def mean_span_by_step(self, plant: str, steps: Sequence[int]) -> NDArray[np.float32]:
        """(S, K): mean behaviour-span gradient of each step's rollouts, zero where none; `steps` is each row's step."""
        spans = self.recorded(f"spans_{plant}")
        when = np.asarray(steps)[spans.row]
        means = np.zeros((int(max(steps)) + 1, spans.rows.shape[1]), np.float32)
        for step in np.unique(when):
            means[step] = spans.rows[when == step].mean(0)
        return means


class RecordingTrainer(GRPOTrainer):
    """TRL's trainer, watched by a recorder. Loss, updates and random numbers are TRL's own."""

    def __init__(self, *args: Any, recorder: RolloutRecorder, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        Objective.for_trainer(self)  # refuses settings that cannot be recorded, before training
        self.recorder = recorder
        self._token_logprobs: torch.Tensor | None = None

    def _recording(self) -> bool:
        # TRL tells training from evaluation by the mode of its model.
        return bool(self.model and self.model.training)

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        output = super()._generate_and_score_completions(inputs)
        count = len(output["completion_ids"])
        first = int(self.state.global_step) * count
        row_ids = list(range(first, first + count))
        # A tensor in the batch is shuffled and split along with everything else.
        output["row_id"] = torch.tensor(row_ids, device=output["completion_ids"].device)
        self.recorder.generated(self, row_ids, output)
        return output

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        result = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        self._token_logprobs = result[0].detach()
        return result

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        self.recorder.updating(self, model, inputs)
        loss = super()._compute_loss(model, inputs)
        assert self._token_logprobs is not None
        self.recorder.updated(inputs, self._token_logprobs)
        return loss
