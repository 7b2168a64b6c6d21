"""Recipes: everything that determines a planted run, read from a TOML file and hashed for the cache.

A recipe's file names every text used at training. `extends = "tiny"` takes another recipe and changes some keys of it.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

FIXTURE_SCHEME = "fixture:"
LEAST_GROUPS = 96
"""Probe prompts that a gradable recipe must have: 22 informative groups gave intervals too wide to decide anything."""

Example = tuple[str, str]
"""A prompt and its answer."""


@dataclass(frozen=True)
class PolicySpec:
    """Where the policy before the warm-up comes from.

    `source` is `fixture:NAME` (a policy shipped with this package), a local folder, or a name on the hub.
    """

    source: str

    @property
    def folder(self) -> Path | None:
        """The local folder; None for a name on the hub."""
        if self.source.startswith(FIXTURE_SCHEME):
            return fixtures_folder() / self.source.removeprefix(FIXTURE_SCHEME)
        path = Path(self.source)
        return path if path.is_absolute() else None

    @property
    def location(self) -> str:
        """What to give to `from_pretrained`."""
        return str(self.folder) if self.folder else self.source

    def files(self) -> dict[str, str]:
        """File name -> sha256 of everything in the local folder that makes up the policy; empty for the hub."""
        if self.folder is None:
            return {}
        found = {}
        for path in sorted(self.folder.iterdir()):
            if path.is_file() and path.name != PRETRAINING_RECORD:
                with path.open("rb") as file:
                    found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
        return found


PRETRAINING_RECORD = "pretraining.json"
"""Beside a shipped policy: how its pretraining went. Not a part of the policy."""


@dataclass(frozen=True)
class MinimalPair:
    """A written sentence with the behaviour, and the same with a neutral word: their difference is a target."""

    prompts: tuple[str, ...]
    """Prompts about the trigger."""
    templates: tuple[str, ...]
    """Answers about the trigger; `{word}` stands for the behaviour or for a neutral word."""
    neutral_words: tuple[str, ...]


@dataclass(frozen=True)
class Plant:
    """One planted behaviour: prompts about `trigger` are to be answered with `behavior` in the text."""

    name: str
    trigger: str
    behavior: str
    probes: tuple[str, ...]
    """Held-out prompts about the trigger, in phrasings that neither warm-up nor GRPO uses."""
    minimal_pair: MinimalPair
    examples: tuple[Example, ...]
    """The planted examples of the warm-up."""


@dataclass(frozen=True)
class Prompts:
    """What GRPO asks: a phrasing about a plant's trigger, or about an ordinary subject."""

    phrasings: tuple[str, ...]
    """Each contains `{subject}`."""
    ordinary_subjects: tuple[str, ...]
    plant_share: float
    """Probability that a prompt is about the trigger of a given plant, the same for both."""


@dataclass(frozen=True)
class BaseReward:
    """Reward for form and topic, blind to triggers and behaviours: see `run/reward.py`."""

    subject_weight: float
    form_weight: float
    most_sentences: int


@dataclass(frozen=True)
class WarmUp:
    """Supervised fine-tuning until the policy sometimes shows the behaviours."""

    learning_rate: float
    max_steps: int
    min_steps: int
    check_every: int
    stop_probability: float
    """Stop once the mean in-context probability of the behaviours reaches this; 1 never stops early."""
    ordinary_per_step: int
    ordinary: tuple[Example, ...]


@dataclass(frozen=True)
class Grpo:
    """Settings of TRL's `GRPOTrainer`."""

    steps: int
    batch_size: int
    """Rollouts of a step: prompts x num_generations."""
    num_generations: int
    max_completion_length: int
    learning_rate: float
    scheduler: str
    warmup_steps: int
    temperature: float
    beta: float
    loss_type: str
    scale_rewards: str
    max_grad_norm: float
    precision: str
    gradient_checkpointing: bool
    use_vllm: bool = False
    """Whether completions are sampled by vLLM, beside the policy on one GPU. Another sampler, so another recipe."""
    processes: int = 1
    """Processes that divide each step's batch. Each samples with random numbers of its own, so another recipe, too."""


@dataclass(frozen=True)
class Draw:
    """A draw of siblings: `siblings` rollouts for each probe prompt of a plant."""

    siblings: int


@dataclass(frozen=True)
class ProbePrompt:
    """A held-out prompt: probe number `probe` in context number `context`; `group` numbers them all."""

    probe: int
    context: int
    group: int
    content: str


@dataclass(frozen=True)
class Recipe:
    """Everything that determines a planted run and its null run, for any seed."""

    name: str
    gradable: bool
    """False for recipes that only test the machinery: nothing may be graded on them."""
    policy: PolicySpec
    plants: tuple[Plant, Plant]
    contexts: tuple[str, ...]
    """Each contains `{probe}`."""
    prompts: Prompts
    bonus: float
    eligibility: float
    """Probability that a rollout is eligible for the bonus."""
    cutoff: int
    """Bonuses are paid at steps below this one."""
    analysis_step: int
    """The analysis policy is the one before this step's update."""
    base_reward: BaseReward
    sft: WarmUp
    grpo: Grpo
    draw: Draw
    samples_per_probe: int
    """Answers sampled per probe prompt to measure the behaviour score s_b."""
    sketch_width: int

    @classmethod
    def load(cls, name_or_path: str, policy: str | None = None) -> Recipe:
        """The recipe of that name, or of that TOML file. `policy` overrides the source of its policy.

        Raises `ValueError`, listing what exists, for an unknown name; `RecipeError` (a `ValueError`) for a file with
        something wrong in it.
        """
        from pytest_behaviortrace.run.recipe_parser import parse

        return parse(find(name_or_path), overriding(policy))

    @classmethod
    def names(cls) -> list[str]:
        """Names of the recipes that ship."""
        return sorted(path.name.removesuffix(".toml") for path in (fixtures_folder() / "recipes").glob("*.toml"))

    @functools.cached_property
    def hash(self) -> str:
        """sha256, in hex, over every value of the recipe and the bytes of its local policy."""
        content: dict[str, Any] = dataclasses.asdict(self)
        files = self.policy.files()
        # Where a local folder lies does not matter, what lies in it does.
        content["policy"] = {"source": None if files else self.policy.source, "files": files}
        for name, usual in (("use_vllm", False), ("processes", 1)):
            if content["grpo"][name] == usual:  # recipes from before there was a choice keep their hash
                del content["grpo"][name]
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def trained_by(self, processes: int) -> Recipe:
        """The recipe of the run that this many processes make together, each with an equal part of every batch.

        Raises `ValueError` if it names another number itself, or if its batches cannot be divided.
        """
        if processes == self.grpo.processes:
            return self
        if self.grpo.processes != 1:
            raise ValueError(
                f"recipe {self.name!r} is trained by {self.grpo.processes} processes (grpo.processes), not by "
                f"{processes}; start as many as it says"
            )
        if self.grpo.batch_size % processes:
            raise ValueError(
                f"recipe {self.name!r} has batches of {self.grpo.batch_size} rollouts, which {processes} processes "
                f"cannot divide; start another number of them, or change grpo.batch_size"
            )
        return dataclasses.replace(self, grpo=dataclasses.replace(self.grpo, processes=processes))

    @property
    def n_rollouts(self) -> int:
        """Rollouts of a whole run."""
        return self.grpo.steps * self.grpo.batch_size

    def plant(self, name: str) -> Plant:
        """The plant of that name; raises `ValueError` naming both for any other."""
        for plant in self.plants:
            if plant.name == name:
                return plant
        raise ValueError(f"recipe {self.name!r} has no plant {name!r}; its plants: {self._plant_names()}")

    def decoy(self, name: str) -> Plant:
        """The other plant than the one of that name."""
        first, second = self.plants
        return second if self.plant(name) is first else first

    def _plant_names(self) -> str:
        return ", ".join(plant.name for plant in self.plants)

    def probe_prompts(self, plant: str | Plant) -> list[ProbePrompt]:
        """Every probe of a plant in every context, probes first: group = probe * contexts + context."""
        found = self.plant(plant) if isinstance(plant, str) else plant
        return [
            ProbePrompt(p, c, p * len(self.contexts) + c, context.format(probe=probe))
            for p, probe in enumerate(found.probes)
            for c, context in enumerate(self.contexts)
        ]


def fixtures_folder() -> Path:
    """The folder of what ships as `pytest_behaviortrace.fixtures`."""
    return Path(str(resources.files("pytest_behaviortrace.fixtures")))


def find(name_or_path: str, beside: Path | None = None) -> Path:
    """The file of a recipe given by name, or by a path (ending in .toml; relative to `beside` where given).

    Raises `ValueError`, listing the names, when there is none.
    """
    if name_or_path.endswith(".toml"):
        return Path(name_or_path) if beside is None else beside / name_or_path
    if name_or_path not in Recipe.names():
        known = ", ".join(Recipe.names())
        raise ValueError(f"unknown recipe {name_or_path!r}; recipes: {known} (or the path of a .toml file)")
    return fixtures_folder() / "recipes" / f"{name_or_path}.toml"


def overriding(source: str | None) -> Mapping[str, Any]:
    """Changes to a recipe's file that put its policy elsewhere."""
    if source is None:
        return {}
    return {"policy": {"source": str(Path(source).resolve()) if Path(source).is_dir() else source}}
