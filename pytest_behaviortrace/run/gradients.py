"""Exact per-sample gradients of weighted token log-probabilities: sketches, norms, and inner products.

One forward pass (without a fused head, whose product hooks cannot see), one backward pass per set of token weights,
and only over the samples that have any. Nothing of a model's size is held per sample: each parameter's gradients are
written down, summed up and dropped a few rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch

from pytest_behaviortrace.run.batching import ROWS_PER_PASS, batches
from pytest_behaviortrace.run.capture import Capture, UnsupportedModel, active_dropout
from pytest_behaviortrace.run.coverage import check_coverage
from pytest_behaviortrace.run.packing import last_mlp, only_at, packed, places
from pytest_behaviortrace.run.placing import Aligned, aligned, longest_alike, minds_padding, reads_on
from pytest_behaviortrace.run.sketch import BlockSketch, trainable
from pytest_behaviortrace.run.sums import DotSums, SampleGradients, SketchSums, Sums, WholeSums
from pytest_behaviortrace.run.uses import Use


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

    def into(self, sums: Sums) -> None:
        for name, uses in self.uses.items():
            sums.add(name, uses)


class PerSampleGradients:
    """Measures gradients of sum_t w_t log p(token t | before), p the softmax of logits / temperature, per sample.

    Of every trainable parameter (of all, where none is marked so). The model is run in evaluation mode (so gradient
    checkpointing and random numbers play no part) and left as it was: mode, `.grad`, hooks. Raises `UnsupportedModel`,
    naming the module, for a model it does not know exactly. `autocast` is entered around forward passes: the trainer's
    mixed precision. `dropout_off` accepts a model that trains with dropout and measures it without.
    """

    def __init__(
        self,
        model: Any,
        sketch: BlockSketch,
        *,
        temperature: float = 1.0,
        rows_per_pass: int = ROWS_PER_PASS,
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
        dropout_off: bool = False,
    ) -> None:
        self.model, self.sketch, self.temperature, self.rows_per_pass = model, sketch, temperature, rows_per_pass
        self.autocast, self.dropout_off = autocast, dropout_off
        self.capture = Capture(model)
        self._shapes = {name: tuple(p.shape) for name, p in trainable(model).items()}
        sizes = {name: int(torch.Size(shape).numel()) for name, shape in self._shapes.items()}
        if {name: p.size for name, p in sketch.parameters.items()} != sizes:
            raise ValueError("the sketch was laid out for another model: its parameters differ")
        self._modules = list(model.modules())
        self._head_verified = self._coverage_verified = self._pass_verified = self._reads_on = False
        self._last_mlp, self._longest = last_mlp(self.capture.backbone), longest_alike(model.config)

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
        norms = torch.zeros(*weights.shape[:2], device=device)
        logprob = torch.zeros(input_ids.shape, device=device)
        for done in self._backward_passes(input_ids, attention_mask, weights, logprob):
            done.into(sums := SketchSums(self.sketch, len(done.samples), device))
            sketch, square = sums.made()
            sketches[done.sets, done.samples], norms[done.sets, done.samples] = sketch, square.sqrt().float()
        return Measurement([SampleGradients(s, n) for s, n in zip(sketches, norms, strict=True)], logprob)

    def dots(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_weights: torch.Tensor,
        targets: Sequence[Mapping[str, torch.Tensor]],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Exact inner products (batch, q) of the samples' gradients with q targets, and exact norms (batch,); float64.

        A target maps parameter names to gradients of their shapes. Raises `ValueError` for other names or shapes, and
        as calling it does.
        """
        for target in targets:
            if {name: tuple(t.shape) for name, t in target.items()} != self._shapes:
                raise ValueError("a target is the gradient of another model: names or shapes of its parameters differ")
        if not targets:
            raise ValueError("no targets")
        weights, device = _checked(input_ids, attention_mask, [token_weights]), input_ids.device
        stacked = {
            name: torch.stack([t[name].detach().float().view(p.rows, p.columns) for t in targets])
            for name, p in self.sketch.parameters.items()
        }
        found = torch.zeros(len(input_ids), len(targets), dtype=torch.float64, device=device)
        norms = torch.zeros(len(input_ids), dtype=torch.float64, device=device)
        for done in self._backward_passes(input_ids, attention_mask, weights, torch.zeros_like(weights[0])):
            done.into(sums := DotSums(stacked, len(done.samples), device))
            found[done.samples], norms[done.samples] = sums.dots, sums.square.sqrt()
        return found, norms

    def exact(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_weights: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Parameter name -> (batch, *shape): the full gradients themselves. For small models only."""
        weights, batch = _checked(input_ids, attention_mask, [token_weights]), len(input_ids)
        shapes = {name: (p.rows, p.columns) for name, p in self.sketch.parameters.items()}
        full = {name: torch.zeros(batch, *shape, device=input_ids.device) for name, shape in self._shapes.items()}
        for done in self._backward_passes(input_ids, attention_mask, weights, torch.zeros_like(weights[0])):
            done.into(sums := WholeSums(shapes, len(done.samples), input_ids.device))
            for name, made in sums.full.items():
                full[name][done.samples] = made.view(len(made), *self._shapes[name])
        return full

    def _backward_passes(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, weights: torch.Tensor, logprob: torch.Tensor
    ) -> Iterator[_Pass]:
        """Every backward pass that any sample needs; fills in `logprob`."""
        if self._longest is not None and weights.shape[2] > self._longest:
            raise UnsupportedModel(
                f"{type(self.model).__name__} rotates positions by the length of a batch beyond {self._longest} tokens,"
                f" and this batch has {weights.shape[2]}: rollouts cannot be measured beside others"
            )
        for jobs in batches(weights, self.rows_per_pass):
            rows = torch.tensor([sample for sample, _ in jobs], device=weights.device)
            turns = torch.stack([weights[list(sets), sample] for sample, sets in jobs], 1)
            some = aligned(rows, input_ids, attention_mask, turns)
            for turn, uses in enumerate(self._backward(some, logprob)):
                done = _Pass(torch.tensor([sets[turn] for _, sets in jobs], device=rows.device), rows, uses)
                if not self._coverage_verified:
                    done.into(sums := SketchSums(self.sketch, len(rows), rows.device))
                    with self._undisturbed():
                        self._coverage_verified = check_coverage(
                            self.model, self.sketch, sums.made()[0][0],
                            some.ids[:1], some.mask[:1], some.turns[turn, :1],
                            temperature=self.temperature, autocast=self.autocast,
                        )  # fmt: skip
                yield done

    def _backward(self, some: Aligned, logprob: torch.Tensor) -> Iterator[dict[str, list[Use]]]:
        """After one forward pass: the uses of all parameters, a backward pass for each of the sets of token weights.

        Fills in `logprob` at the samples' weighted tokens.
        """
        head, ids, turns = self.capture.head, some.ids, some.turns
        # What predicts a weighted token; the last of them is predicted, never read.
        wanted = (turns != 0).any(0)[:, 1:]
        place = places(wanted)
        read = {"input_ids": ids[:, :-1], "attention_mask": some.mask[:, :-1], "use_cache": False}
        self._verify_pass(read, place[:1, : int(wanted[0].sum())])
        if self._reads_on and some.gapless:
            read["attention_mask"] = None  # it would hide nothing, and attention costs less
        with (
            self._undisturbed(),
            torch.enable_grad(),
            self.capture.watching() as calls,
            self.autocast(),
            only_at(self._last_mlp, place),
        ):
            hidden = packed(self.capture.backbone(**read).last_hidden_state, place)
        self.capture.check(calls, len(ids))
        given = hidden.detach()
        with torch.no_grad(), self.autocast():
            logits = head(given).float()
        self._verify_head(ids, some.mask, logits, place)
        said, turns = ids.gather(1, place + 1)[..., None], turns.gather(2, (place + 1).expand(len(turns), -1, -1))
        chance = torch.log_softmax(logits / self.temperature, -1)
        row, which = (turns != 0).any(0).nonzero(as_tuple=True)
        logprob[some.rows[row], some.column[row, place[row, which] + 1]] = chance.gather(2, said)[row, which, 0]
        # Turned round, so that what each token counts goes to the few features instead of the many logits.
        slope = chance.exp_().scatter_add_(2, said, torch.full_like(said, -1.0, dtype=chance.dtype))
        for number, mine in enumerate(turns / -self.temperature):
            uses: dict[str, list[Use]] = {}
            if self.capture.learns_head:
                _note(uses, self.capture.head_uses(slope, mine, given))
            if calls:
                pull = ((slope @ head.weight.detach().float()) * mine[..., None]).to(hidden.dtype)
                outputs, more = [call.output for call in calls if call.output is not None], number + 1 < len(turns)
                found = torch.autograd.grad(hidden, outputs, pull, retain_graph=more, allow_unused=True)
                for call, gradient in zip(calls, found, strict=True):
                    if gradient is not None and call.given is not None:
                        _note(uses, self.capture.uses(call.module, call.given, gradient))
            yield uses

    @torch.no_grad()
    def _verify_pass(self, read: Mapping[str, Any], place: torch.Tensor) -> None:
        """Once: neither the padding of a sample nor, in the last MLP, the tokens beside a token may matter to it.

        `place` (1, k): where the first sample predicts a weighted token.
        """
        if self._pass_verified:
            return
        first = {name: v[:1] if isinstance(v, torch.Tensor) else v for name, v in read.items()}
        tolerance = 1e-3 if self._is_exact() else 5e-2
        with self._undisturbed(), self.autocast():
            self._reads_on = reads_on(self.capture.backbone, first, place, tolerance)
            if minds_padding(self.capture.backbone, first, place, tolerance):
                raise UnsupportedModel(
                    f"{type(self.model).__name__} counts positions from the first column of a batch: what it makes of "
                    "a rollout depends on how far it is padded"
                )
            whole = packed(self.capture.backbone(**first).last_hidden_state, place).float()
            with only_at(self._last_mlp, place):
                short = packed(self.capture.backbone(**first).last_hidden_state, place).float()
        tolerance = 1e-5 if self._is_exact() else 1e-2
        if not torch.allclose(short, whole, rtol=tolerance, atol=tolerance * float(whole.abs().max())):
            self._last_mlp = None
        self._pass_verified = True

    @torch.no_grad()
    def _verify_head(self, ids: torch.Tensor, mask: torch.Tensor, logits: torch.Tensor, place: torch.Tensor) -> None:
        """Once: the model's own logits must be a linear map of its last hidden states, without caps or scales."""
        if self._head_verified:
            return
        with self._undisturbed(), self.autocast():
            own = self.model(input_ids=ids[:1, :-1], attention_mask=mask[:1, :-1], use_cache=False).logits
        tolerance, seen = 1e-3 if self._is_exact() else 5e-2, mask[0, place[0]].bool()
        if not torch.allclose(own[0, place[0]].float()[seen], logits[0][seen], rtol=tolerance, atol=tolerance):
            raise UnsupportedModel(f"{type(self.model).__name__} changes its logits after the output embeddings")
        self._head_verified = True

    def _is_exact(self) -> bool:
        """Whether forward passes are computed in float32 throughout."""
        return self.capture.head.weight.dtype == torch.float32 and isinstance(self.autocast(), nullcontext)

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """The model in evaluation mode, every module back in its own mode afterwards; refuses dropout."""
        if not self.dropout_off and self.model.training and (dropout := active_dropout(self.model)):
            raise UnsupportedModel(f"dropout is on ({', '.join(dropout)}): a training gradient is then random")
        training = [module for module in self._modules if module.training]
        for module in training:
            vars(module)["training"] = False  # hundreds of modules: a module's own way of setting it costs milliseconds
        try:
            yield
        finally:
            for module in training:
                vars(module)["training"] = True


def _note(uses: dict[str, list[Use]], found: Any) -> None:
    for name, use in found:
        uses.setdefault(name, []).append(use)


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
