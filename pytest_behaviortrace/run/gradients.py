"""Exact per-sample gradients of weighted token log-probabilities: their CountSketches and their norms.

One forward pass (without a fused head, whose product hooks cannot see), one backward pass per set of token weights,
and only over the samples that have any. Nothing of a model's size is held per sample: each parameter's gradients are
made, sketched and dropped a few rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch

from pytest_behaviortrace.run.capture import Capture, UnsupportedModel, Use, active_dropout
from pytest_behaviortrace.run.sketch import BlockSketch

CHUNK_ELEMENTS = 2**21
"""Numbers of per-sample gradients held at a time (8 MiB)."""
MOST_TURNS = 3
"""Backward passes after one forward pass: a full gradient, a span and its control."""


class SampleGradients(NamedTuple):
    """Gradients of a batch under one set of token weights."""

    sketch: torch.Tensor
    """(batch, K) float32; zero where a sample has no weight."""
    norm: torch.Tensor
    """(batch,) float32: exact Euclidean norms of the full gradients."""


class Measurement(NamedTuple):
    """Gradients for each set of token weights, and what the policy thought of the tokens."""

    gradients: list[SampleGradients]
    logprob: torch.Tensor
    """(batch, tokens) float32: log-probability of each token that any set gives weight; 0 elsewhere."""


class _Pass(NamedTuple):
    """One backward pass: the set each of its samples is in, which samples of the batch, and every parameter's uses."""

    sets: torch.Tensor
    samples: torch.Tensor
    uses: dict[str, list[Use]]


class PerSampleGradients:
    """Measures gradients of sum_t w_t log p(token t | before), p the softmax of logits / temperature, per sample.

    The model is run in evaluation mode (so gradient checkpointing and random numbers play no part) and left as it was:
    mode, `.grad`, hooks. Raises `UnsupportedModel`, naming the module, for a model it does not know exactly.
    `autocast` is entered around forward passes: the trainer's mixed precision.
    """

    def __init__(
        self,
        model: Any,
        sketch: BlockSketch,
        *,
        temperature: float = 1.0,
        rows_per_pass: int = 64,
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.model, self.sketch, self.temperature, self.rows_per_pass = model, sketch, temperature, rows_per_pass
        self.autocast = autocast
        self.capture = Capture(model)
        self._shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
        sizes = {name: int(torch.Size(shape).numel()) for name, shape in self._shapes.items()}
        if {name: p.size for name, p in sketch.parameters.items()} != sizes:
            raise ValueError("the sketch was laid out for another model: its parameters differ")
        self._head_verified = False

    def __call__(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_weights: Sequence[torch.Tensor]
    ) -> list[SampleGradients]:
        """Sketch and exact norm of every sample's gradient, for each set of token weights.

        `input_ids`, `attention_mask` and each set are (batch, tokens); the weight at t belongs to token t itself.
        Raises `ValueError` for weights of a first token, which nothing predicts, or of an unattended one.
        """
        return self.measure(input_ids, attention_mask, token_weights).gradients

    def measure(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_weights: Sequence[torch.Tensor]
    ) -> Measurement:
        """As calling it, with the log-probabilities of the tokens."""
        weights, device = _checked(input_ids, attention_mask, token_weights), input_ids.device
        sketches = torch.zeros(*weights.shape[:2], self.sketch.width, device=device)
        squares = torch.zeros(*weights.shape[:2], dtype=torch.float64, device=device)
        logprob = torch.zeros(input_ids.shape, device=device)
        for done in self._backward_passes(input_ids, attention_mask, weights, logprob):
            buffer = self.sketch.buffer(len(done.samples), device)
            square = torch.zeros(len(done.samples), dtype=torch.float64, device=device)
            for name, start, values in self._values(done):
                self.sketch.add(buffer, name, start, values)
                square += torch.linalg.vector_norm(values, dim=1).double().square()
            sketches[done.sets, done.samples] = self.sketch.finish(buffer)
            squares[done.sets, done.samples] = square
        norms = squares.sqrt().float()
        return Measurement([SampleGradients(s, n) for s, n in zip(sketches, norms, strict=True)], logprob)

    def exact(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_weights: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Parameter name -> (batch, *shape): the full gradients themselves. For small models only."""
        weights, batch = _checked(input_ids, attention_mask, [token_weights]), len(input_ids)
        full = {name: torch.zeros(batch, *shape, device=input_ids.device) for name, shape in self._shapes.items()}
        for done in self._backward_passes(input_ids, attention_mask, weights, torch.zeros_like(weights[0])):
            for name, start, values in self._values(done):
                full[name].view(batch, -1)[done.samples, start : start + values.shape[1]] = values
        return full

    def _backward_passes(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, weights: torch.Tensor, logprob: torch.Tensor
    ) -> Iterator[_Pass]:
        """Every backward pass that any sample needs; fills in `logprob`."""
        for jobs in self._batches(weights):
            rows = torch.tensor([sample for sample, _ in jobs], device=weights.device)
            turns = torch.stack([weights[list(sets), sample] for sample, sets in jobs], 1)
            attended, weighted = attention_mask[rows].any(0).nonzero(), (turns != 0).flatten(0, 1).any(0).nonzero()
            # Nothing to the left was attended, nothing to the right matters.
            shown = slice(int(attended[0]), int(weighted[-1]) + 1)
            ids, mask, low = input_ids[rows, shown], attention_mask[rows, shown], int(weighted[0]) - shown.start
            for turn, uses in enumerate(self._backward(ids, mask, turns[..., shown], low, rows, logprob[:, shown])):
                yield _Pass(torch.tensor([sets[turn] for _, sets in jobs], device=rows.device), rows, uses)

    def _batches(self, weights: torch.Tensor) -> list[list[tuple[int, tuple[int, ...]]]]:
        """(sample, sets) jobs that share a forward pass: equal in their number of sets, most first.

        A sample in more sets than `MOST_TURNS` makes several jobs: a second forward pass over it is cheaper than
        backward passes over all its companions.
        """
        jobs = []
        for sample, wanted in enumerate((weights != 0).any(2).t().tolist()):
            sets = [number for number, is_wanted in enumerate(wanted) if is_wanted]
            jobs += [(sample, tuple(sets[k : k + MOST_TURNS])) for k in range(0, len(sets), MOST_TURNS)]
        batches: list[list[tuple[int, tuple[int, ...]]]] = []
        for job in sorted(jobs, key=lambda job: -len(job[1])):
            current = batches[-1] if batches else []
            if not current or len(current) == self.rows_per_pass or len(job[1]) < len(current[-1][1]):
                batches.append([])
            batches[-1].append(job)
        return batches

    def _backward(
        self,
        ids: torch.Tensor,
        mask: torch.Tensor,
        turns: torch.Tensor,
        low: int,
        rows: torch.Tensor,
        logprob: torch.Tensor,
    ) -> Iterator[dict[str, list[Use]]]:
        """After one forward pass: the uses of all parameters, a backward pass for each of `turns`' token weights.

        `turns` is (turns, size, tokens), zero before token `low`. Fills in `logprob` at `rows` of the batch.
        """
        head = self.capture.head
        with _undisturbed(self.model), torch.enable_grad(), self.capture.watching() as calls, self.autocast():
            # The last weighted token is predicted, never read.
            read = {"input_ids": ids[:, :-1], "attention_mask": mask[:, :-1], "use_cache": False}
            hidden = self.model.base_model(**read).last_hidden_state[:, low - 1 :]
        self.capture.check(calls, len(ids))
        given = hidden.detach()
        with torch.no_grad(), self.autocast():
            logits = head(given).float()
        self._verify_head(ids, mask, logits, low)
        said, turns = ids[:, low:, None], turns[..., low:, None]
        chance = torch.log_softmax(logits / self.temperature, -1)
        place, token = (turns != 0).any(0)[..., 0].nonzero(as_tuple=True)
        logprob[rows[place], token + low] = chance.gather(2, said)[place, token, 0]
        chance = chance.exp_()
        for number, mine in enumerate(turns / self.temperature):
            slope = (chance * -mine).scatter_add_(2, said, mine)
            pull = (slope @ head.weight.detach().float()).to(hidden.dtype)
            outputs, more = [call.output for call in calls], number + 1 < len(turns)
            gradients = torch.autograd.grad(hidden, outputs, pull, retain_graph=more, allow_unused=True)
            yield self.capture.uses(calls, gradients, (slope, given.float()))

    def _values(self, done: _Pass) -> Iterator[tuple[str, int, torch.Tensor]]:
        """(parameter name, first coordinate, (samples, coordinates) float32), a few rows of a parameter at a time.

        What is yielded is overwritten by what comes next.
        """
        size = len(done.samples)
        largest = size * max((*shape, 1)[1] for shape in self._shapes.values())
        scratch = torch.empty(max(CHUNK_ELEMENTS, largest), device=self.capture.head.weight.device)
        for name, parts in done.uses.items():
            rows, columns = (*self._shapes[name], 1)[:2]
            step = max(1, CHUNK_ELEMENTS // (size * columns))
            for start in range(0, rows, step):
                stop = min(start + step, rows)
                values = scratch[: size * (stop - start) * columns].view(size, stop - start, columns)
                for number, part in enumerate(parts):
                    part.add_rows(values, start, stop, fresh=number == 0)
                yield name, start * columns, values.view(size, -1)

    @torch.no_grad()
    def _verify_head(self, ids: torch.Tensor, mask: torch.Tensor, logits: torch.Tensor, low: int) -> None:
        """Once: the model's own logits must be a linear map of its last hidden states, without caps or scales."""
        if self._head_verified:
            return
        with _undisturbed(self.model), self.autocast():
            own = self.model(input_ids=ids[:1, :-1], attention_mask=mask[:1, :-1], use_cache=False).logits
        exact = self.capture.head.weight.dtype == torch.float32 and isinstance(self.autocast(), nullcontext)
        tolerance, seen = 1e-3 if exact else 5e-2, mask[0, low - 1 : -1].bool()
        if not torch.allclose(own[0, low - 1 :].float()[seen], logits[0][seen], rtol=tolerance, atol=tolerance):
            raise UnsupportedModel(f"{type(self.model).__name__} changes its logits after the output embeddings")
        self._head_verified = True


def _checked(
    input_ids: torch.Tensor, attention_mask: torch.Tensor, token_weights: Sequence[torch.Tensor]
) -> torch.Tensor:
    if not token_weights:
        raise ValueError("no token weights")
    for given in (attention_mask, *token_weights):
        if given.shape != input_ids.shape:
            raise ValueError(f"tokens are {tuple(input_ids.shape)}, but a mask or weights {tuple(given.shape)}")
    stacked = torch.stack([w.to(torch.float32) for w in token_weights])
    # What is attended and follows an attended token can be predicted.
    predicted = torch.zeros_like(attention_mask, dtype=torch.bool)
    predicted[:, 1:] = (attention_mask[:, 1:] != 0) & (attention_mask[:, :-1] != 0)
    if (stacked * ~predicted).any():
        raise ValueError("token weights fall on a first token, which nothing predicts, or on an unattended one")
    return stacked


@contextmanager
def _undisturbed(model: Any) -> Iterator[None]:
    """The model in evaluation mode, every module back in its own mode afterwards; refuses dropout."""
    if model.training and (dropout := active_dropout(model)):
        raise UnsupportedModel(f"dropout is on ({', '.join(dropout)}): a training gradient is then random")
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
