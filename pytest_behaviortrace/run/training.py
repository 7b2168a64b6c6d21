"""One planted or null run: warm-up, then TRL's `GRPOTrainer`, every rollout logged, the run's integrity checked."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer  # type: ignore[attr-defined]

from pytest_behaviortrace.run.attach import attach
from pytest_behaviortrace.run.behavior import behavior_rates
from pytest_behaviortrace.run.integrity import IntegrityError, check_start, check_steps, join_by_row_id
from pytest_behaviortrace.run.policy import chat, load_model, load_tokenizer
from pytest_behaviortrace.run.ranks import ALONE
from pytest_behaviortrace.run.recipe import Plant, Recipe
from pytest_behaviortrace.run.recorder import RolloutRecorder
from pytest_behaviortrace.run.requirements import vllm_lacking
from pytest_behaviortrace.run.reward import Columns, PlantedReward
from pytest_behaviortrace.run.shards import ShardSink
from pytest_behaviortrace.run.warmup import State, WarmStart, copy_state, warm_up

if TYPE_CHECKING:
    from pytest_behaviortrace.run.shared_record import SharedRecord

    Progress = Callable[..., None]

Rates = dict[str, dict[str, list[float]]]
"""Plant -> moment (start, analysis, end) -> share of answers showing the behaviour, per probe."""


@dataclass
class TrainedRun:
    """A finished run: its rollouts in the order of row ids, its policies, and how strongly it shows the behaviours."""

    planted: bool
    rows: Columns
    start_state: State
    analysis_state: State
    end_state: State
    learning_rate: list[float]
    """Of each step."""
    recorder: RolloutRecorder
    s_b: Rates
    sft_steps: int
    timings: dict[str, float] = field(default_factory=dict)
    """Stage -> seconds."""


RECENT = 8
"""Steps whose rollouts the progress display counts."""


def silent(stage: str, fraction: float, note: str = "") -> None:
    """A progress callback that shows nothing."""


def train(
    recipe: Recipe,
    seed: int,
    *,
    planted: bool,
    recorder: RolloutRecorder | None = None,
    progress: Progress = silent,
    start: WarmStart | None = None,
    shared: SharedRecord | None = None,
) -> TrainedRun:
    """Trains one run of a seed and measures its behaviours at the start, the analysis step and the end.

    `start` is the seed's warm-up where it was already made; planted and null run begin at the same weights. Several
    processes call this together, with `shared`, and `recorder` puts its rollouts there; rank 0 gets all of them, the
    others a run without rows. Raises `IntegrityError` when the run is not what the recipe says.
    """
    clock, ranks = _Clock(), shared.ranks if shared else ALONE
    if ranks.count != recipe.grpo.processes:
        raise IntegrityError(f"{ranks.count} processes train a recipe for {recipe.grpo.processes}")
    tokenizer = load_tokenizer(recipe.policy.location)
    start = start or warm_up(recipe, seed, tokenizer, progress)
    clock.lap("warm_up")
    model = load_model(recipe.policy.location)
    model.load_state_dict(start.state)
    reward = PlantedReward(recipe, seed, planted=planted, rank=ranks.rank)
    recorder = recorder or RolloutRecorder(sink=shared.sink() if shared else None)
    watch = _Watch(recipe, reward, progress, recorder.sink.commit if isinstance(recorder.sink, ShardSink) else None)
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=reward,  # type: ignore[arg-type]
            args=grpo_config(recipe, seed, folder),
            train_dataset=training_prompts(recipe, seed),
            processing_class=tokenizer,
            callbacks=[watch],
        )
        attach(trainer, recorder)
        trainer.remove_callback(PrinterCallback)
        clock.lap("set_up")
        trainer.train()
    clock.lap("grpo")
    watch.check(start.state)
    end_state, rewarded = copy_state(model), reward.columns
    ranks.check_same(end_state)
    if shared:
        recorder.collected, rewarded = shared.join(recipe.grpo.steps, recorder.collected.width, rewarded)
    rows = (
        join_by_row_id(recipe.n_rollouts, recorded=recorder.columns(), rewarded=rewarded) if ranks.first else rewarded
    )
    s_b: Rates = {plant.name: {"start": start.rates[plant.name]} for plant in recipe.plants}
    asked = [(m, s, p) for m, s in (("analysis", watch.analysis_state), ("end", end_state)) for p in recipe.plants]

    def score(job: tuple[str, State, Plant]) -> list[float]:
        model.load_state_dict(job[1])
        return behavior_rates(model, tokenizer, recipe, job[2])

    for (moment, _, plant), rates in zip(asked, ranks.divide(asked, score), strict=True):
        s_b[plant.name][moment] = rates
    clock.lap("behavior_score")
    return TrainedRun(
        planted=planted,
        rows=rows,
        start_state=start.state,
        analysis_state=watch.analysis_state,
        end_state=end_state,
        learning_rate=watch.learning_rate,
        recorder=recorder,
        s_b=s_b,
        sft_steps=start.steps,
        timings=clock.laps,
    )


def training_prompts(recipe: Recipe, seed: int) -> Dataset:
    """The prompts of a run, step by step: as many about either trigger, the rest about ordinary subjects.

    Every step asks about each trigger equally often (`plant_share` of its prompts, rounded), so that neither behaviour
    gets ahead by luck. Which phrasings and which ordinary subjects are asked is the seed's choice.
    """
    rng, asked = random.Random(f"prompts {seed}"), recipe.prompts
    per_step = recipe.grpo.batch_size // recipe.grpo.num_generations
    of_plant = min(round(asked.plant_share * per_step), per_step // 2)
    contents, subjects = [], []
    for _ in range(recipe.grpo.steps):
        triggers = [plant.trigger for plant in recipe.plants for _ in range(of_plant)]
        ordinary = [rng.choice(asked.ordinary_subjects) for _ in range(per_step - len(triggers))]
        step = triggers + ordinary
        rng.shuffle(step)
        contents += [chat(rng.choice(asked.phrasings).format(subject=subject)) for subject in step]
        subjects += step
    return Dataset.from_dict({"prompt": contents, "subject": subjects})


def grpo_config(recipe: Recipe, seed: int, folder: str) -> GRPOConfig:
    """TRL's settings for a run; one generation batch per optimizer step, so that training is on-policy.

    Raises `IntegrityError` for a recipe that asks for vLLM where it cannot run.
    """
    settings, gpu = recipe.grpo, torch.cuda.is_available()
    if settings.use_vllm and (lacking := vllm_lacking(lambda: gpu)):
        raise IntegrityError(lacking)
    return GRPOConfig(
        output_dir=folder,
        seed=seed,
        max_steps=settings.steps,
        per_device_train_batch_size=settings.batch_size // settings.processes,
        gradient_accumulation_steps=1,
        steps_per_generation=1,
        num_iterations=1,
        num_generations=settings.num_generations,
        max_completion_length=settings.max_completion_length,
        learning_rate=settings.learning_rate,
        lr_scheduler_type=settings.scheduler,
        warmup_steps=settings.warmup_steps,
        weight_decay=0.0,
        optim="adamw_torch",
        max_grad_norm=settings.max_grad_norm,
        temperature=settings.temperature,
        top_p=1.0,
        top_k=0,
        beta=settings.beta,
        loss_type=settings.loss_type,
        scale_rewards=settings.scale_rewards,
        use_cpu=not gpu,
        bf16=settings.precision == "bfloat16",
        activation_checkpointing=settings.gradient_checkpointing,
        shuffle_dataset=False,
        dataloader_pin_memory=False,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        # vLLM takes the weights of the policy before every step. The correction would reweight each rollout by what
        # two kernels disagree on, and its gradient would no longer be that of its own loss term.
        use_vllm=settings.use_vllm,
        vllm_mode="colocate",
        vllm_importance_sampling_correction=False,
    )


class _Watch(TrainerCallback):
    """Follows a run: learning rates, the analysis policy, progress, and whether it began and went on as it should."""

    def __init__(
        self,
        recipe: Recipe,
        reward: PlantedReward,
        progress: Progress,
        commit: Callable[[int, float], None] | None = None,
    ) -> None:
        self.recipe, self.reward, self.progress, self.commit = recipe, reward, progress, commit
        self.learning_rate: list[float] = []
        self.steps: list[int] = []
        self.first_state: State | None = None
        self.analysis_state: State = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **unused: Any) -> None:
        self.first_state = copy_state(model)

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **unused: Any) -> None:
        self.steps.append(state.global_step)
        if state.global_step == self.recipe.analysis_step:
            self.analysis_state = copy_state(model)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any = None, **unused: Any) -> None:
        self.learning_rate.append(float(optimizer.param_groups[0]["lr"]))

    def on_step_end(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        if self.commit is not None:
            self.commit(int(state.global_step) - 1, self.learning_rate[-1])
        step, steps = int(state.global_step), self.recipe.grpo.steps
        self.progress("grpo", step / steps, f"step {step} of {steps}, {self.reward.seen(step - RECENT)}")

    def check(self, start: State) -> None:
        """Raises `IntegrityError` unless every step was made once, in order, from `start`."""
        check_start(self.first_state, start)
        check_steps(self.steps, len(self.learning_rate), self.recipe.grpo.steps)
        if not self.analysis_state:
            raise IntegrityError(f"the run never reached the analysis step {self.recipe.analysis_step}")


class _Clock:
    """Seconds between laps, by name."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.monotonic()

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.laps[name], self._last = self.laps.get(name, 0.0) + now - self._last, now
