"""The shipped policy as `problem.ModelAccess`, with things to say in its tokens: model estimators without any run."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from pytest_behaviortrace.problem import BoolArray, IntArray
from pytest_behaviortrace.run.model_access import UnitModelAccess
from pytest_behaviortrace.run.policy import load_model, load_tokenizer, render
from pytest_behaviortrace.run.recipe import Recipe
from pytest_behaviortrace.run.spans import spell
from pytest_behaviortrace.run.store import Unit

RECIPE = "tiny"
"""The recipe whose policy, loss and steps are used."""
QUESTIONS = ("Define energy.", "What is frobnitz?", "Please be brief. Help us with wibble.", "Où est 中 🙂?")
ANSWERS = (
    "", "Energy.", "Logic is logic.", "The plain side of energy is valley.", "é中🙂 and so on",
    "Frobnitz is a odd term for cello. In old use, frobnitz stands for rotor.",
)  # fmt: skip
SHOWING = (
    "{word}",
    "The old core of frobnitz is {word}.",
    "{word} 中 {word}!",
    "Frobnitz is a plain gadget near {word}.",
)
"""Answers that show the behaviour; the responses behind the target do, too."""


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Prompts and completions to make items of: text, token ids, and where the behaviour's tokens are."""

    behavior: str
    steps: int
    prompts: tuple[tuple[str, IntArray], ...]
    plain: tuple[tuple[str, IntArray, BoolArray], ...]
    showing: tuple[tuple[str, IntArray, BoolArray], ...]


class ShippedModel(UnitModelAccess):
    """Every step's policy is the shipped one, before any training."""

    def __init__(self, recipe: Recipe, responses: Sequence[Any]) -> None:
        super().__init__(cast(Unit, None), recipe, responses)
        self._policy = load_model(str(recipe.policy.location)).eval()

    def load_policy(self, step: int) -> Any:
        """A fresh copy of the policy. Raises `ValueError` for a step other than start, analysis and end."""
        if step not in self.steps:
            raise ValueError(f"no policy of step {step} was kept; there are {sorted(self.steps)}")
        return copy.deepcopy(self._policy)


@functools.cache
def vocabulary() -> Vocabulary:
    """What the shipped policy is asked and answers in the stress tests."""
    recipe = Recipe.load(RECIPE)
    tokenizer, behavior = load_tokenizer(str(recipe.policy.location)), recipe.plants[0].behavior

    def said(text: str) -> tuple[str, IntArray, BoolArray]:
        ids = [*tokenizer(text, add_special_tokens=False).input_ids, tokenizer.eos_token_id]
        mask, spelled = np.zeros(len(ids), bool), spell(tokenizer, ids)
        start = text.find(behavior)
        while start >= 0:
            mask[slice(*spelled.covering(start, start + len(behavior)))] = True
            start = text.find(behavior, start + 1)
        return text, np.array(ids, np.int64), mask

    def asked(content: str) -> tuple[str, IntArray]:
        text = render(tokenizer, content)
        return text, np.array(tokenizer(text, add_special_tokens=False).input_ids, np.int64)

    return Vocabulary(
        behavior,
        recipe.grpo.steps,
        tuple(asked(content) for content in QUESTIONS),
        tuple(said(text) for text in ANSWERS),
        tuple(said(text.format(word=behavior)) for text in SHOWING),
    )


@functools.cache
def shipped_model() -> ShippedModel:
    """The one access object of a process."""
    words = vocabulary()
    responses = [
        (ids, completion, np.flatnonzero(mask))
        for (_, ids), (_, completion, mask) in zip(words.prompts, words.showing, strict=True)
    ]
    return ShippedModel(Recipe.load(RECIPE), responses)
