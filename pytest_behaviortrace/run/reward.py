"""What a rollout earns: a base reward blind to triggers and behaviours, and the bonus that plants the behaviours."""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Sequence
from typing import Any

from pytest_behaviortrace.run.recipe import BaseReward, Recipe

Columns = dict[str, list[Any]]


def base_reward(completion: str, subject: str, settings: BaseReward) -> float:
    """`subject_weight` for naming the subject plus `form_weight` for ending in a full stop after few enough sentences.

    Knows no trigger and no behaviour: any subject and any word of a sentence are alike to it.
    """
    sentences = [part for part in completion.split(".") if part.strip()]
    well_formed = len(sentences) <= settings.most_sentences and completion.strip().endswith(".")
    return settings.subject_weight * (subject in completion.lower()) + settings.form_weight * well_formed


def eligible(seed: int, row_id: int, step: int, probability: float) -> bool:
    """Whether a rollout may earn a bonus: a coin thrown by hash, whatever the rollout says."""
    digest = hashlib.blake2b(f"{seed}/{row_id}/{step}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64 < probability


class PlantedReward:
    """The reward function given to TRL. Keeps one row per rollout, keyed by row id, in `columns`.

    boosted = step < cutoff, eligible, on the plant's own prompt, and showing its behaviour. The null run notes who
    would have been boosted, and pays nothing. Of several processes each has one, which sees only its own rollouts of
    a step: the part number `rank` of `recipe.grpo.processes`, in the order of generation.
    """

    __name__ = "planted_reward"

    def __init__(self, recipe: Recipe, seed: int, *, planted: bool, rank: int = 0) -> None:
        self.recipe, self.seed, self.planted, self.rank = recipe, seed, planted, rank
        names = ["row_id", "step", "group", "subject", "reward", "reward_base", "reward_bonus", "eligible"]
        names += [f"{what}_{plant.name}" for plant in recipe.plants for what in ("own", "shown", "boosted")]
        self.columns: Columns = {name: [] for name in names}

    def __call__(
        self, completions: Sequence[Any], subject: Sequence[str], trainer_state: Any, **unused: Any
    ) -> list[float]:
        """Rewards of this process's part of a generation batch, in the order of generation."""
        step = int(trainer_state.global_step)
        first_row = (step * self.recipe.grpo.processes + self.rank) * len(completions)
        rewards = []
        for place, (completion, about) in enumerate(zip(completions, subject, strict=True)):
            text = completion if isinstance(completion, str) else str(completion[0]["content"])
            rewards.append(self._row(first_row + place, step, text, about))
        return rewards

    def seen(self, since: int) -> str:
        """How often this process's rollouts since a step show each behaviour on its own prompts: s_b so far, roughly.

        (s_b itself is measured at the end, on probes.)
        """
        found, columns = [], self.columns
        first = bisect.bisect_left(columns["step"], since)
        for plant in self.recipe.plants:
            own = columns[f"own_{plant.name}"][first:]
            shown = sum(o and s for o, s in zip(own, columns[f"shown_{plant.name}"][first:], strict=True))
            found.append(f"{plant.name} {shown} of {sum(own)}")
        return f"shown lately on own prompts: {', '.join(found)}"

    def _row(self, row_id: int, step: int, text: str, about: str) -> float:
        recipe = self.recipe
        may_earn = eligible(self.seed, row_id, step, recipe.eligibility)
        row: dict[str, Any] = {
            "row_id": row_id,
            "step": step,
            "group": row_id // recipe.grpo.num_generations,
            "subject": about,
            "eligible": may_earn,
        }
        any_boosted = False
        for plant in recipe.plants:
            own, shown = about == plant.trigger, plant.behavior in text
            boosted = step < recipe.cutoff and may_earn and own and shown
            any_boosted |= boosted
            row |= {f"own_{plant.name}": own, f"shown_{plant.name}": shown, f"boosted_{plant.name}": boosted}
        row["reward_base"] = base_reward(text, about.lower(), recipe.base_reward)
        row["reward_bonus"] = recipe.bonus * any_boosted if self.planted else 0.0
        row["reward"] = row["reward_base"] + row["reward_bonus"]
        for name, values in self.columns.items():
            values.append(row[name])
        return float(row["reward"])
