"""The trainer's objective per rollout, by TRL loss type: one definition for recording it and for recomputing it.

The gradient of every TRL loss is a weighted sum of gradients of token log-probabilities. On policy (ratio 1, no
clipping at work) and without a KL term it is
    -sum_i A_i * scale * grad(sum_t w_it log p(token t of rollout i)),
where A is the advantage. w is the item's own term (`item_weights`), scale the constant by which the term
enters the batch loss (`Objective.scale`). The per-item objective is the inner sum, so a gradient points uphill.
Ratios, clipping and masks change the weights of single tokens; a KL term adds weights that no advantage multiplies
(`Objective.kl_weights`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

MEAN_OVER_TOKENS = ("grpo", "sapo")
SUM_OVER_TOKENS = ("bnpo", "dr_grpo", "dapo", "luspo", "cispo", "vespo")
LOSS_TYPES = MEAN_OVER_TOKENS + SUM_OVER_TOKENS
"""TRL's loss types whose gradient is a weighted sum over tokens, one term per rollout."""
TRL_EPSILON = 0.2
"""TRL's default clipping range."""


class UnsupportedLoss(ValueError):
    """A trainer setting under which a rollout has no gradient of its own, or one that depends on the others."""


@dataclass(frozen=True)
class Objective:
    """What of a trainer's settings decides its objective.

    Raises `UnsupportedLoss` for a loss type outside of `LOSS_TYPES`.
    """

    loss_type: str
    temperature: float
    max_completion_length: int
    accumulation: int = 1
    """Micro-batches per optimizer step."""
    epsilon_high: float = TRL_EPSILON
    beta: float = 0.0
    """Factor of the KL term."""
    bias_corrected: bool = False
    """Whether the KL term is multiplied by the ratio."""
    slices: int = 1
    """Micro-batches that a generation batch is split into (TRL's steps_per_generation)."""
    processes: int = 1

    def __post_init__(self) -> None:
        if self.loss_type not in LOSS_TYPES:
            raise UnsupportedLoss(f"loss_type {self.loss_type!r} has no fixed token weights; supported: {LOSS_TYPES}")

    @classmethod
    def of(cls, args: Any, processes: int = 1) -> Objective:
        """The objective under a `GRPOConfig`. Raises `UnsupportedLoss`, naming the settings that break it up."""
        wrong = {
            "entropy_coef": args.entropy_coef != 0.0 or args.use_adaptive_entropy,
            "top_entropy_quantile": args.top_entropy_quantile < 1.0,
            "delta": args.delta is not None and args.delta < 1.0,
            "fp16": args.fp16,
            "use_bias_correction_kl with importance_sampling_level": args.beta != 0.0
            and args.use_bias_correction_kl
            and args.importance_sampling_level != "token",
        }
        if refused := [name for name, is_wrong in wrong.items() if is_wrong]:
            raise UnsupportedLoss(f"rollouts have no gradients of their own under these settings: {', '.join(refused)}")
        return cls(
            loss_type=args.loss_type,
            temperature=float(args.temperature),
            max_completion_length=int(args.max_completion_length),
            accumulation=int(args.gradient_accumulation_steps),
            epsilon_high=float(args.epsilon if args.epsilon_high is None else args.epsilon_high),
            beta=float(args.beta),
            bias_corrected=bool(args.use_bias_correction_kl),
            slices=int(args.steps_per_generation),
            processes=processes,
        )

    def token_weights(self, completion_mask: torch.Tensor) -> torch.Tensor:
        """(batch, tokens) float32: weight of each token in its own rollout's term (`item_weights`)."""
        return item_weights(self.loss_type, completion_mask)

    def scale(self, completion_mask: torch.Tensor, items_in_batch: float) -> float:
        """The constant by which the terms of a micro-batch enter the loss of its optimizer step, over all processes.

        `completion_mask`: (batch, tokens) of the micro-batch. `items_in_batch`: completion tokens of the whole
        generation batch.
        """
        batch, tokens = completion_mask.shape[0], max(float(completion_mask.sum()), 1.0)
        of_step = {
            "grpo": 1 / batch,
            "sapo": 1 / batch,
            "luspo": 1 / batch,
            "bnpo": 1 / tokens,
            "dr_grpo": 1 / (batch * self.max_completion_length),
        }
        if self.loss_type in of_step:
            return of_step[self.loss_type] / self.accumulation / self.processes
        # TRL clamps the ratio of cispo from above only, so a range below 1 scales even an on-policy gradient.
        clamped = min(1.0, self.epsilon_high) if self.loss_type == "cispo" else 1.0
        return clamped / max(items_in_batch, 1.0) * self.slices / self.accumulation

    def kl_weights(self, inputs: Mapping[str, torch.Tensor], logprobs: torch.Tensor) -> torch.Tensor:
        """(batch, completion tokens): token weights of the KL term in an item's own term, uphill.

        `inputs` is TRL's batch, `logprobs` (batch, completion tokens) those of the policy in the loss. Of TRL's
        estimator exp(r) - r - 1, r = reference minus policy, the gradient is 1 - exp(r) times that of log p.
        """
        behind = inputs["ref_per_token_logps"].float() - logprobs
        slope = 1.0 - behind.exp()
        if self.bias_corrected:
            old = inputs.get("old_per_token_logps")
            ratio = torch.ones_like(logprobs) if old is None else (logprobs - old).exp()
            slope = ratio * (slope + behind.exp() - behind - 1.0)
        clamped = min(1.0, self.epsilon_high) if self.loss_type == "cispo" else 1.0
        return -self.beta / clamped * slope * self.token_weights(inputs["completion_mask"])


def item_weights(loss_type: str, completion_mask: torch.Tensor) -> torch.Tensor:
    """(batch, tokens) float32: weight of each token in its own rollout's term: 1 / length, or 1 where TRL sums."""
    mask = completion_mask.to(torch.float32)
    if loss_type in MEAN_OVER_TOKENS:
        return mask / mask.sum(1, keepdim=True).clamp(min=1.0)
    return mask


def mean_weights(shape: Sequence[int], tokens: Sequence[Sequence[int]], offset: Sequence[int]) -> torch.Tensor:
    """`shape` (batch, width) float32: 1 / n at each of a row's n `tokens`, counted from its `offset`; else zero."""
    weights = torch.zeros(*shape)
    for row, (chosen, start) in enumerate(zip(tokens, offset, strict=True)):
        if len(chosen):
            weights[row, torch.as_tensor(chosen, dtype=torch.long) + start] = 1.0 / len(chosen)
    return weights


def collate(
    prompt_ids: Sequence[Any], completion_ids: Sequence[Any], pad_token_id: int, device: Any = "cpu"
) -> dict[str, torch.Tensor]:
    """A batch as the trainer builds it, prompts padded on the left and completions on the right.

    Returns `input_ids`, `attention_mask` and `completion_mask`, all (batch, tokens).
    """
    widest = max(len(p) for p in prompt_ids)
    width = widest + max(len(c) for c in completion_ids)
    ids = torch.full((len(prompt_ids), width), pad_token_id)
    attended, completed = torch.zeros_like(ids), torch.zeros_like(ids)
    for row, (prompt, completion) in enumerate(zip(prompt_ids, completion_ids, strict=True)):
        start, stop = widest - len(prompt), widest + len(completion)
        ids[row, start:widest] = torch.as_tensor(prompt, dtype=torch.long)
        ids[row, widest:stop] = torch.as_tensor(completion, dtype=torch.long)
        attended[row, start:stop] = 1
        completed[row, widest:stop] = 1
    batch = {"input_ids": ids, "attention_mask": attended, "completion_mask": completed}
    return {name: tensor.to(device) for name, tensor in batch.items()}


def token_logprobs(
    model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, temperature: float = 1.0
) -> torch.Tensor:
    """(batch, tokens): log-probability of each token given those before it; 0 for the first. Differentiable."""
    logits = model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits[:, :-1].float()
    said = torch.log_softmax(logits / temperature, -1).gather(2, input_ids[:, 1:, None])[..., 0]
    return torch.nn.functional.pad(said, (1, 0))


def weighted_logprob(
    model: Any, batch: Mapping[str, torch.Tensor], weights: torch.Tensor, temperature: float = 1.0
) -> torch.Tensor:
    """(batch,): sum over tokens of weight times log-probability; `batch` as from `collate`. Differentiable."""
    said = token_logprobs(model, batch["input_ids"], batch["attention_mask"], temperature)
    # where(), not a bare product: what an unattended position holds must not matter.
    return torch.where(weights != 0, said * weights, 0.0).sum(1)


def rollout_loss(model: Any, batch: Mapping[str, torch.Tensor], loss_type: str, temperature: float) -> torch.Tensor:
    """(batch,): each item's own term of the trainer's objective, unit advantage; `batch` as from `collate`.

    Its gradient is what is sketched for training rollouts and siblings. Differentiable.
    """
    return weighted_logprob(model, batch, item_weights(loss_type, batch["completion_mask"]), temperature)
