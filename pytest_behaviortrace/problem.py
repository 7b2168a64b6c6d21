"""The question put to an estimator: items, their gradients, and the target. Never the labels."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from pytest_behaviortrace.estimator import EVERYTHING, Needs, UndeclaredAccess

if TYPE_CHECKING:
    import torch

IntArray = NDArray[np.integer[Any]]
FloatArray = NDArray[np.floating[Any]]
BoolArray = NDArray[np.bool_]
Kind = Literal["rollouts", "siblings", "spans", "canaries"]
_T = TypeVar("_T")

MOST_SHOWN = 16
"""Most items of a problem that is shown whole."""


class ModelAccess(Protocol):
    """What a problem offers to estimators that compute gradients of their own (need `model`)."""

    def load_policy(self, step: int) -> Any:
        """The `PreTrainedModel` as it was before the update of `step`; only start, analysis and end exist.

        Raises `ValueError` for any other step.
        """

    def rollout_loss(self, model: Any, batch: Mapping[str, Any]) -> torch.Tensor:
        """The trainer's own objective per item (unit advantage), shape (batch,): its gradient is what is sketched."""

    def target_loss(self, model: Any) -> torch.Tensor:
        """Scalar whose gradient is the target: mean log-probability of the behaviour's tokens in other responses."""


@dataclass(frozen=True, eq=False)
class AttributionProblem:
    """Which of these n items taught (or would teach) the behaviour? Frozen; every array is read-only.

    Columns every problem has, one entry per item unless another shape is given:

    `kind`: what the items are. Siblings, spans and canaries were never trained on: advantage 1, reward NaN.
    `step`, `group`: optimizer step before which the item was generated (S: after the last one), and an id of its prompt
    group (ids mean nothing).
    `advantage`, `reward`: as the trainer saw them. `logprob`: mean log-probability, nats per token, under the policy
    that produced the item. `length`: completion tokens.
    `learning_rate` (S,): learning rate of each optimizer step; there is none at step S, which siblings may have.
    `loss_type`, `loss_scale`: TRL's loss type, and the constant by which an item's term enters the batch loss.
    """

    kind: Kind
    loss_type: str
    loss_scale: FloatArray
    step: IntArray
    group: IntArray
    advantage: FloatArray
    reward: FloatArray
    logprob: FloatArray
    length: IntArray
    learning_rate: FloatArray
    rng_seed: tuple[int, ...]
    carried: Needs = EVERYTHING
    """What this problem can serve at all; an estimator that needs more is n/a here."""
    allowed: Needs = EVERYTHING
    """What the estimator at hand declared; see `scoped`."""
    lazy: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Values, or zero-argument functions giving them on first use, of everything served by need."""
    undeclared: list[str] = field(default_factory=list, repr=False, init=False)
    """What was read without being declared, in case the estimator swallowed the exception."""
    _made: dict[str, Any] = field(default_factory=dict, repr=False, init=False)

    def __len__(self) -> int:
        """Number of items n."""
        return len(self.step)

    @property
    def n_items(self) -> int:
        """Number of items n."""
        return len(self.step)

    @property
    def rng(self) -> np.random.Generator:
        """A generator seeded by the problem: the same stream on every access, for every estimator."""
        return np.random.default_rng(self.rng_seed)

    def scoped(self, allowed: Needs) -> AttributionProblem:
        """The same problem for an estimator that declared `allowed`; everything else is taken out of it."""
        lazy = {name: value for name, value in self.lazy.items() if getattr(allowed, NEED_OF.get(name, "gradients"))}
        return replace(self, allowed=allowed, lazy=lazy)

    def replacing(self, **values: Any) -> AttributionProblem:
        """The same problem with some served values or columns exchanged (arrays become read-only)."""
        columns = {k: values.pop(k) for k in tuple(values) if k in self.__dataclass_fields__}
        return replace(self, lazy={**self.lazy, **{k: _freeze(v) for k, v in values.items()}}, **columns)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """How Hypothesis and IPython show a problem: a small one as source that makes it (`problem_source`)."""
        from pytest_behaviortrace.problem_source import problem_expression

        text = repr(self)
        if len(self) <= MOST_SHOWN:
            with contextlib.suppress(ValueError):  # over the policies of a run
                text = problem_expression(self)
        printer.text(text)

    def __post_init__(self) -> None:
        for name in COLUMNS:
            object.__setattr__(self, name, _freeze(getattr(self, name)))

    def _serve(self, need: str, name: str) -> Any:
        if not getattr(self.allowed, need):
            self.undeclared.append(name)
            raise UndeclaredAccess(
                f"problem.{name} needs Needs({need}=True); the estimator declared {self.allowed.names() or 'nothing'}"
            )
        if not getattr(self.carried, need):
            raise UndeclaredAccess(f"a problem of kind {self.kind!r} here carries no {need}, so no problem.{name}")
        if name not in self._made:
            value = self.lazy[name]
            self._made[name] = _freeze(value() if callable(value) and not isinstance(value, type) else value)
        return self._made[name]

    # -- need: gradients -----------------------------------------------------------------------------------------
    @property
    def gradients(self) -> NDArray[np.float32]:
        """(n, K): CountSketch of the gradient of each item's objective term, unit advantage, at its own policy."""
        return self._serve("gradients", "gradients")  # type: ignore[no-any-return]

    @property
    def gradient_norm(self) -> NDArray[np.float32]:
        """(n,): exact Euclidean norm of each item's full gradient (the sketch's own norm is an estimate of it)."""
        return self._serve("gradients", "gradient_norm")  # type: ignore[no-any-return]

    @property
    def target(self) -> NDArray[np.float32]:
        """(K,): gradient of producing the behaviour, in the same sketch; never built from the items scored."""
        return self._serve("gradients", "target")  # type: ignore[no-any-return]

    @property
    def targets_by_step(self) -> NDArray[np.float32]:
        """(S, K): mean behaviour-span gradient of each step's own rollouts at that step's policy; zero where none."""
        return self._serve("gradients", "targets_by_step")  # type: ignore[no-any-return]

    @property
    def reference(self) -> NDArray[np.float32]:
        """(m, K): advantage-weighted gradients of the training rollouts, the reference set of whitening estimators."""
        return self._serve("gradients", "reference")  # type: ignore[no-any-return]

    @property
    def blocks(self) -> Mapping[str, slice]:
        """Which buckets of a sketch carry which parameter block; inner products add up over blocks."""
        return self._serve("gradients", "blocks")  # type: ignore[no-any-return]

    # -- need: spans ---------------------------------------------------------------------------------------------
    @property
    def span_gradients(self) -> NDArray[np.float32]:
        """(n, K): gradient of the mean log-probability of the behaviour's tokens alone; zero rows where none."""
        return self._serve("spans", "span_gradients")  # type: ignore[no-any-return]

    # -- need: text ----------------------------------------------------------------------------------------------
    @property
    def prompt_ids(self) -> tuple[IntArray, ...]:
        """n arrays of prompt token ids."""
        return self._serve("text", "prompt_ids")  # type: ignore[no-any-return]

    @property
    def completion_ids(self) -> tuple[IntArray, ...]:
        """n arrays of completion token ids."""
        return self._serve("text", "completion_ids")  # type: ignore[no-any-return]

    @property
    def prompt_text(self) -> tuple[str, ...]:
        """n prompts as the policy read them."""
        return self._serve("text", "prompt_text")  # type: ignore[no-any-return]

    @property
    def completion_text(self) -> tuple[str, ...]:
        """n completions, special tokens left out."""
        return self._serve("text", "completion_text")  # type: ignore[no-any-return]

    # -- need: behavior ------------------------------------------------------------------------------------------
    @property
    def behavior(self) -> str:
        """The string whose cause is sought."""
        return self._serve("behavior", "behavior")  # type: ignore[no-any-return]

    @property
    def behavior_mask(self) -> tuple[BoolArray, ...]:
        """n arrays, True at the completion tokens that spell the behaviour."""
        return self._serve("behavior", "behavior_mask")  # type: ignore[no-any-return]

    # -- need: model ---------------------------------------------------------------------------------------------
    @property
    def model(self) -> ModelAccess:
        """Policies, the trainer's objective and the target's, for estimators with gradients of their own."""
        return self._serve("model", "model")  # type: ignore[no-any-return]


Thunk = Callable[[], _T]

COLUMNS = ("loss_scale", "step", "group", "advantage", "reward", "logprob", "length", "learning_rate")
"""The arrays every problem has."""

NEED_OF = {
    "span_gradients": "spans",
    "prompt_ids": "text",
    "completion_ids": "text",
    "prompt_text": "text",
    "completion_text": "text",
    "behavior": "behavior",
    "behavior_mask": "behavior",
    "model": "model",
}
"""Which need serves what; everything else that is served takes `gradients`."""


def _freeze(value: Any) -> Any:
    """A read-only view of an array made read-only itself (so that the view cannot be reopened), or a tuple of such."""
    if isinstance(value, np.ndarray):
        value.flags.writeable = False
        return value.view()
    if isinstance(value, tuple):
        return tuple(_freeze(v) for v in value)
    return value
