"""Records every rollout of a TRL run and its gradient, without changing the run.

`RecordingTrainer` is TRL's `GRPOTrainer` with three windows: rows are numbered when they are generated, TRL's own token
log-probabilities are kept as they are computed, and gradients are taken at the policy about to be updated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from trl import GRPOTrainer  # type: ignore[attr-defined]

from pytest_behaviortrace.run.gradients import PerSampleGradients
from pytest_behaviortrace.run.loss import Objective, UnsupportedLoss, item_weights, mean_weights
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
    only_shown: bool = False
    """Whether rows that show none of the behaviours go without gradients."""
    controls: bool = True
    """Whether control spans get gradients too."""


class RecordingError(RuntimeError):
    """TRL, or the run, did something that the recorder does not understand."""


class RolloutRecorder:
    """Collects rows and, with a `Capture`, gradients during one run."""

    def __init__(self, capture: Capture | None = None) -> None:
        self.capture = capture
        """None: rows alone."""
        self.steps: list[int] = []
        """Optimizer steps in the order their loss was computed."""
        self.seconds = 0.0
        """Time spent on gradients."""
        self._rows: dict[int, dict[str, Any]] = {}
        self._sets: dict[str, SketchCollector] = {}
        self._engine: PerSampleGradients | None = None

    # -- called by the trainer ---------------------------------------------------------------------------------------
    def generated(self, trainer: Any, row_ids: Sequence[int], output: dict[str, Any]) -> None:
        """Keep the rows of one generation batch, in the order of generation."""
        if missing := {"prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages"} - output.keys():
            raise RecordingError(f"TRL's generation batch lacks {', '.join(sorted(missing))}")
        if repeated := self._rows.keys() & set(row_ids):
            raise RecordingError(f"rollout {min(repeated)} was generated twice; a recorder records one run")
        tokenizer = trainer.processing_class
        prompts = _unpadded(output["prompt_ids"], output["prompt_mask"])
        completions = _unpadded(output["completion_ids"], output["completion_mask"])
        for place, (row_id, advantage) in enumerate(zip(row_ids, output["advantages"].tolist(), strict=True)):
            completion = completions[place]
            row: dict[str, Any] = {
                "row_id": row_id,
                "prompt_ids": prompts[place],
                "completion_ids": completion,
                "prompt_text": tokenizer.decode(prompts[place], clean_up_tokenization_spaces=False),
                "completion_text": tokenizer.decode(
                    completion, skip_special_tokens=True, clean_up_tokenization_spaces=False
                ),
                "advantage": advantage,
            }
            for plant, behavior in (self.capture.behaviors if self.capture else {}).items():
                found = find_spans(tokenizer, completion, behavior)
                row |= {f"span_{plant}": list(found.behavior), f"control_span_{plant}": list(found.control)}
                row[f"control_stratum_{plant}"] = found.stratum
            self._rows[row_id] = row

    def updating(self, trainer: Any, model: Any, inputs: dict[str, Any]) -> None:
        """Take gradients of a batch at the policy about to be updated by it."""
        self.steps.append(int(trainer.state.global_step))
        if inputs.get("old_per_token_logps") is not None:
            raise RecordingError("TRL holds the batch to have been sampled by an older policy: it is not on-policy")
        objective, mask, row_ids = Objective.of(trainer.args), inputs["completion_mask"], inputs["row_id"].tolist()
        scale = objective.scale(mask, float(inputs["num_items_in_batch"]))
        for row_id in row_ids:
            self._rows[row_id]["loss_scale"] = scale
        if self.capture is None:
            return
        started = time.perf_counter()
        sets = self._weights(objective, inputs, row_ids)
        if sets:
            self._sketch(self._made_engine(trainer, model, objective), sets, inputs, np.asarray(row_ids, np.int64))
        self.seconds += time.perf_counter() - started

    def updated(self, inputs: dict[str, Any], logprobs: torch.Tensor) -> None:
        """Keep TRL's token log-probabilities of a batch, under the policy that also sampled it (on-policy)."""
        kept = _unpadded(logprobs.float(), inputs["completion_mask"])
        for row_id, values in zip(inputs["row_id"].tolist(), kept, strict=True):
            if "logprobs" in self._rows[row_id]:
                raise RecordingError(f"rollout {row_id} entered the loss twice")
            self._rows[row_id]["logprobs"] = values

    def _made_engine(self, trainer: Any, model: Any, objective: Objective) -> PerSampleGradients:
        if self._engine is None:
            assert self.capture is not None
            plain = trainer.accelerator.unwrap_model(model)
            self._engine = PerSampleGradients(
                plain,
                BlockSketch.for_model(plain, self.capture.width),
                temperature=objective.temperature,
                autocast=trainer.accelerator.autocast,
            )
        return self._engine

    def _weights(self, objective: Objective, inputs: dict[str, Any], row_ids: Sequence[int]) -> dict[str, torch.Tensor]:
        """Token weights (batch, tokens) of each set of gradients that has any row in this batch."""
        assert self.capture is not None
        mask, width = inputs["completion_mask"], inputs["prompt_ids"].shape[1]
        picked = np.ones(len(row_ids), bool) if self.capture.select is None else self.capture.select(row_ids)
        if self.capture.only_shown:
            picked = picked & [any(self._rows[r][f"span_{p}"] for p in self.capture.behaviors) for r in row_ids]
        full = item_weights(objective.loss_type, mask) * torch.from_numpy(picked).to(mask.device)[:, None]
        sets = {"gradients": torch.nn.functional.pad(full, (width, 0))}
        shape, offset = (len(row_ids), width + mask.shape[1]), [width] * len(row_ids)
        for plant in self.capture.behaviors:
            kinds = {"spans": "span", "controls": "control_span"} if self.capture.controls else {"spans": "span"}
            for kind, column in kinds.items():
                tokens = [self._rows[r][f"{column}_{plant}"] if p else () for r, p in zip(row_ids, picked, strict=True)]
                sets[f"{kind}_{plant}"] = mean_weights(shape, tokens, offset).to(mask.device)
        return {name: weights for name, weights in sets.items() if weights.any()}

    def _sketch(
        self,
        engine: PerSampleGradients,
        sets: dict[str, torch.Tensor],
        inputs: dict[str, Any],
        row_ids: NDArray[np.int64],
    ) -> None:
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        attended = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
        # In the order of row ids, whatever the shuffle: so a run's sketches come out sorted.
        order = np.argsort(row_ids)
        for (name, weights), made in zip(sets.items(), engine(ids, attended, list(sets.values())), strict=True):
            chosen = order[(weights != 0).any(1).cpu().numpy()[order]]
            collector = self._sets.setdefault(name, SketchCollector(engine.sketch.width))
            collector.add(made.sketch[chosen], made.norm[chosen], row_ids[chosen])

    # -- read afterwards ---------------------------------------------------------------------------------------------
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
    """TRL's trainer, watched by a recorder. Loss, updates and random numbers are TRL's own.

    Raises `UnsupportedLoss` for settings under which rollouts have no gradients of their own.
    """

    def __init__(self, *args: Any, recorder: RolloutRecorder, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        Objective.of(self.args)
        if self.tools or self.environment_factories is not None or self.aux_loss_enabled:
            raise UnsupportedLoss("rollouts with tools, environments or a router's auxiliary loss cannot be recorded")
        if self.accelerator.num_processes != 1:
            raise UnsupportedLoss("a run can be recorded in one process only")
        self.recorder = recorder
        self._token_logprobs: torch.Tensor | None = None

    def _recording(self) -> bool:
        # TRL tells training from evaluation by the mode of its model.
        return bool(self.model and self.model.training)

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        output = super()._generate_and_score_completions(inputs)
        if self._recording():
            count = len(inputs)
            settings: Any = self.args
            if count != settings.generation_batch_size:
                raise RecordingError(f"TRL generated {count} rollouts, expected {settings.generation_batch_size}")
            first = int(self.state.global_step) * count
            # A tensor in the batch is shuffled and split along with everything else.
            output["row_id"] = torch.arange(first, first + count, device=output["completion_ids"].device)
            self.recorder.generated(self, range(first, first + count), output)
        return output

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        result = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        self._token_logprobs = result[0].detach()
        return result

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        if not self._recording():
            return super()._compute_loss(model, inputs)  # type: ignore[no-untyped-call]
        self.recorder.updating(self, model, inputs)
        self._token_logprobs = None
        loss = super()._compute_loss(model, inputs)  # type: ignore[no-untyped-call]
        if self._token_logprobs is None:
            raise RecordingError("TRL's loss did not ask _get_per_token_logps_and_entropies for log-probabilities")
        self.recorder.updated(inputs, self._token_logprobs)
        return loss


def _unpadded(values: torch.Tensor, mask: torch.Tensor) -> list[list[Any]]:
    return [row[kept].tolist() for row, kept in zip(values, mask.bool(), strict=True)]
