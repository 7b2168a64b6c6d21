"""Hypothesis strategies for attribution problems: small, awkward in every way a real one can be, and quick to shrink.

    from hypothesis import given
    from pytest_behaviortrace.strategies import attribution_problems

    @given(attribution_problems())
    def test_mine(problem):
        assert np.isfinite(mymethod(problem)).all()

One item and up; ties, duplicates, zero gradients and targets; constant rewards; a single group; one label only; huge
and tiny scales; ragged and empty completions; text of many scripts. Every number is drawn as a small whole number and
then scaled: sums are exact in double precision, and nothing depends on which modules are loaded (Hypothesis mixes
constants found in local modules into numbers from 100 up, and into texts).
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from pytest_behaviortrace.estimator import Needs
from pytest_behaviortrace.problem import AttributionProblem, Kind
from pytest_behaviortrace.problem_source import problem_source as problem_source

if TYPE_CHECKING:
    from pytest_behaviortrace.problem import ModelAccess
    from pytest_behaviortrace.run.stress_access import Vocabulary

CARRIED: dict[Kind, Needs] = {
    "rollouts": Needs(gradients=True, spans=True, text=True, behavior=True, model=True),
    "siblings": Needs(gradients=True),
    "spans": Needs(gradients=True, spans=True),
    "canaries": Needs(gradients=True, spans=True),
}
"""What the checks' problems of each kind carry."""
MOST_ITEMS, MOST_GROUPS, MOST_STEPS, WIDEST = 8, 4, 6, 4

SCALES = (1.0, 0.1, 1e12, 1e-12)
"""Of all gradients, and of the target. Products of the two stay within single precision."""
ITEM_SCALES = (1.0, 1.0, 1.0, 1e6, 1e-6)
"""Of one item's gradients beside the others'."""
LEARNING_RATES = (0.5, 1e-6)
REWARDS = (0.0, 1.0, 0.5, -1.0, 8.0)
MOST_NATS = 80
"""Tenths of a nat per token of the least fluent item."""
PIECES = ("a", " ", "the", "\n", "é", "中文", "🙂", "שלום", "e\u0301", "\u200d")
"""What texts are made of; no piece shares a character with a behaviour."""
TRIGGERS = ("frobnitz", "wibble")
"""Prompts may hold the shipped recipe's trigger words, too."""
BEHAVIORS = ("QZXBT", "K", "Ж🙃W")
END = 0
"""Token that ends a completion; every other token is one character, its code point."""
MOST_PIECES = 4

_ONE_LABEL = st.sampled_from((None, None, None, True, False))
_ONE_REWARD = st.sampled_from((False, False, False, True))

Word = tuple[str, list[int], list[bool]]
"""Text, token ids, and which tokens spell the behaviour."""


def attribution_problems(
    *,
    kinds: Collection[Kind] | None = None,
    needs: Needs | None = None,
    min_items: int = 1,
    max_items: int = MOST_ITEMS,
) -> st.SearchStrategy[AttributionProblem]:
    """Problems of these `kinds` that carry `needs` and nothing else.

    Without `needs`: all that a kind carries in the checks, except the model. Without `kinds`: every kind that carries
    the needs; without both: rollouts. Where the model is needed, texts are the shipped policy's and `problem.model` is
    `shipped_model()`. Raises `ValueError` for kinds that do not carry the needs, and for impossible sizes.
    """
    if not 1 <= min_items <= max_items:
        raise ValueError(f"sizes from {min_items} to {max_items}: give 1 <= min_items <= max_items")
    if kinds is None:
        asked = needs or CARRIED["rollouts"].without("model")
        kinds = tuple(kind for kind, carried in CARRIED.items() if not asked.missing_from(carried))
    elif needs is not None:
        for kind in kinds:
            if missing := needs.missing_from(CARRIED[kind]):
                raise ValueError(f"a problem of kind {kind!r} carries no {' and no '.join(missing)}")
    return _problems(tuple(kinds), needs, min_items, max_items)


def shipped_model() -> ModelAccess:
    """`problem.model` of drawn problems: the shipped policy before any training, at every step. Imports torch."""
    from pytest_behaviortrace.run import stress_access

    return stress_access.shipped_model()


@st.composite
def _problems(draw: st.DrawFn, kinds: Sequence[Kind], needs: Needs | None, least: int, most: int) -> AttributionProblem:
    kind = draw(st.sampled_from(kinds))
    carried = CARRIED[kind].without("model") if needs is None else needs
    trained = kind == "rollouts"
    words = _vocabulary() if carried.model else None
    width = draw(st.integers(1, WIDEST))
    steps = words.steps if words else draw(st.integers(1, MOST_STEPS))
    names = draw(st.lists(st.integers(0, 99), min_size=1, max_size=MOST_GROUPS, unique=True))
    when = draw(_exactly(len(names), st.integers(0, min(steps, MOST_STEPS) - 1)))
    drawn = draw(st.lists(_items(width, len(names), kind, carried, words), min_size=least, max_size=most))
    items = _with_duplicates(drawn)
    one_label, one_reward = draw(_ONE_LABEL) if trained else True, draw(_ONE_REWARD) if trained else False
    scale, target_scale = draw(st.sampled_from(SCALES)), draw(st.sampled_from(SCALES))

    place = np.array([item["group"] for item in items])
    group = np.array(names, np.int64)[place]
    step = np.array(when, np.int64)[place] if trained else np.full(len(items), steps)
    shown = [item["shown"] if one_label is None else one_label for item in items]
    reward = np.array([item["reward"] * (not one_reward) for item in items]) if trained else np.full(len(items), np.nan)
    advantage = _advantages(reward, group) if trained else np.ones(len(items))
    loss_type = draw(st.sampled_from(("grpo", "dapo")))
    behavior = words.behavior if words else draw(st.sampled_from(BEHAVIORS)) if carried.text or carried.behavior else ""
    said = [_said(item, behavior, shown[i], words) for i, item in enumerate(items)]
    length = np.array([len(ids) for _, ids, _ in said])
    served: dict[str, Any] = {}
    if carried.gradients or carried.spans:
        sizes = np.array([item["scale"] for item in items])[:, None] * scale
        rows = _float32(np.array([item["gradient"] for item in items]) * sizes)
        spans = rows
        if trained:
            spans = _float32(np.array([item["span"] for item in items]) * sizes * np.array(shown)[:, None])
    if carried.gradients:
        others = _float32(np.array(draw(st.lists(_vectors(width), max_size=3))).reshape(-1, width) * scale)
        served |= {
            "gradients": rows,
            "gradient_norm": _float32(np.linalg.norm(rows.astype(np.float64), axis=1)),
            "target": _float32(np.array(draw(_vectors(width))) * target_scale),
            "targets_by_step": _targets(spans, shown, step, steps) if trained else _cycled(others, steps, width),
            "reference": rows * _float32(advantage)[:, None] if trained else others,
            "blocks": _blocks(width, draw(st.integers(1, width))),
        }
    if carried.spans:
        served["span_gradients"] = spans
    if carried.text:
        asked = draw(_exactly(len(names), prompts(words)))
        served |= {
            "prompt_ids": tuple(np.array(asked[p][1], np.int64) for p in place),
            "completion_ids": tuple(np.array(ids, np.int64) for _, ids, _ in said),
            "prompt_text": tuple(asked[p][0] for p in place),
            "completion_text": tuple(text for text, _, _ in said),
        }
    if carried.behavior:
        served |= {"behavior": behavior, "behavior_mask": tuple(np.array(mask, bool) for _, _, mask in said)}
    if carried.model:
        served["model"] = shipped_model
    return AttributionProblem(
        kind=kind,
        loss_type=loss_type,
        loss_scale=np.full(len(items), 1.0 / (len(items) if loss_type == "grpo" else length.sum())),
        step=step,
        group=group,
        advantage=advantage,
        reward=reward,
        logprob=np.array([item["nats"] / -10 + 0.0 for item in items]),
        length=length,
        learning_rate=draw(st.sampled_from(LEARNING_RATES)) * (np.ones(steps) if words else _decay(steps)),
        rng_seed=(draw(st.integers(0, 99)),),
        carried=carried,
        lazy=served,
    )


@functools.cache
def _items(
    width: int, groups: int, kind: Kind, carried: Needs, words: Vocabulary | None
) -> st.SearchStrategy[dict[str, Any]]:
    """One item, before anything that depends on the others. `again`: it repeats the item before it."""
    parts: dict[str, st.SearchStrategy[Any]] = {
        "again": st.sampled_from((False, False, False, False, True)),
        "group": st.integers(0, groups - 1),
        "nats": st.integers(0, MOST_NATS),
    }
    if kind == "rollouts":
        parts |= {"reward": st.sampled_from(REWARDS), "shown": st.booleans()}
    if carried.gradients or carried.spans:
        parts |= {"gradient": _vectors(width), "scale": st.sampled_from(ITEM_SCALES)}
        parts |= {"span": _vectors(width)} if kind == "rollouts" else {}
    if words:
        parts["words"] = st.integers(0, max(len(words.plain), len(words.showing)) - 1)
    elif carried.text or carried.behavior:
        parts["words"] = _texts()
    else:
        parts["words"] = st.integers(0, MOST_PIECES).map("a".__mul__)
    return st.fixed_dictionaries(parts)


@functools.cache
def _exactly(count: int, values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(values, min_size=count, max_size=count)


@functools.cache
def _vectors(width: int) -> st.SearchStrategy[list[int]]:
    return _exactly(width, st.integers(-9, 9))


@functools.cache
def _texts() -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(PIECES), max_size=MOST_PIECES).map("".join)


@functools.cache
def prompts(words: Vocabulary | None = None) -> st.SearchStrategy[tuple[str, Any]]:
    """A prompt's text, never empty, and its token ids."""
    pieces = st.lists(st.sampled_from((*PIECES, *TRIGGERS)), min_size=1, max_size=MOST_PIECES).map("".join)
    return st.sampled_from(words.prompts) if words else pieces.map(lambda text: (text, [*map(ord, text)]))


def _with_duplicates(drawn: list[dict[str, Any]]) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    for item in drawn:
        items.append(items[-1] if items and item["again"] else item)
    return items


def _said(item: dict[str, Any], behavior: str, shown: bool, words: Vocabulary | None) -> Word:
    """The item's completion, with the behaviour in its middle where it is shown."""
    if words:
        chosen = words.showing if shown else words.plain
        text, ids, mask = chosen[item["words"] % len(chosen)]
        return text, ids.tolist(), mask.tolist()
    plain, spelled = item["words"], behavior if shown else ""
    half = len(plain) // 2
    text = plain[:half] + spelled + plain[half:]
    mask = [half <= i < half + len(spelled) for i in range(len(text))]
    return text, [*map(ord, text), END], [*mask, False]


def _advantages(reward: NDArray[np.float64], group: NDArray[np.int64]) -> NDArray[np.float64]:
    """Standardised within groups as TRL does it; 0 where all rewards of a group are the same."""
    advantage = np.zeros(len(reward))
    for name in np.unique(group):
        own = reward[group == name]
        if np.ptp(own) > 0:
            advantage[group == name] = (own - own.mean()) / (own.std(ddof=1) + 1e-4)
    return advantage


def _targets(spans: NDArray[np.float32], shown: list[bool], step: NDArray[np.int64], steps: int) -> NDArray[np.float32]:
    """(S, K): mean span gradient of each step's own items that show the behaviour."""
    targets = np.zeros((steps, spans.shape[1]), np.float32)
    for s in np.unique(step[np.array(shown)]):
        targets[s] = spans[np.array(shown) & (step == s)].mean(0, dtype=np.float64)
    return targets


def _cycled(rows: NDArray[np.float32], count: int, width: int) -> NDArray[np.float32]:
    return rows[np.arange(count) % len(rows)] if len(rows) else np.zeros((count, width), np.float32)


def _decay(steps: int) -> NDArray[np.float64]:
    return 1 - np.arange(steps) / steps


def _blocks(width: int, cut: int) -> dict[str, slice]:
    blocks = {"embedding": slice(0, cut), "layers.0": slice(cut, width)}
    return {name: part for name, part in blocks.items() if part.stop > part.start}


def _float32(values: NDArray[np.floating[Any] | np.integer[Any]]) -> NDArray[np.float32]:
    return np.asarray(values, np.float32) + np.float32(0.0)  # no -0.0: it says nothing more, and reads badly


def _vocabulary() -> Vocabulary:
    from pytest_behaviortrace.run import stress_access

    return stress_access.vocabulary()
