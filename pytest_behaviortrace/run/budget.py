"""What a recipe costs on one GPU: memory, time and disk from counted FLOPs and bytes, before anything is trained.

Pure arithmetic. What is counted follows what the code does: warm-up and behaviour scores in float32, TRL's step in
bfloat16 over float32 weights with AdamW, its head in tiles that are computed again in the backward pass. Rollouts are
recorded inside of that backward pass: logits once more, inputs and gradients brought into a sketch's order, the outer
products in float32, and two passes over them. Rollouts of advantage zero and behaviour spans take a forward pass and a
backward pass to the activations of their own. Lengths are upper bounds: every completion is as long as allowed. What an
arithmetic cannot know is an assumption with a name, in `Gpu` and `Assumed`; nothing here was measured on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_behaviortrace.run.architecture import Architecture, architecture_of
from pytest_behaviortrace.run.footprint import (
    pass_memory,
    recording_memory,
    seed_bytes,
    sketch_set_bytes,
    training_memory,
)
from pytest_behaviortrace.run.recipe import Recipe

GB = 10**9
ADAM_BYTES = 28
"""Bytes moved per parameter by an AdamW step in float32: weight, both moments read and written, gradient read."""
ORDERING_BYTES = 24
"""Bytes moved per number that is brought into a sketch's order: rows picked, then columns, then signs; in and out."""
LOGIT_BYTES = 40
"""Bytes moved per logit between scores and their gradient: softmax, its exponentials, weights, the tokens said; in and
out."""
SAMPLING_BATCH = 512
"""Rows side by side when behaviour scores are sampled."""
VLLM_MEMORY = 0.3
"""Share of the GPU that TRL gives to vLLM by default."""


@dataclass(frozen=True)
class Gpu:
    """A GPU, and how much of what its maker states is reached. Defaults: an A100 with 80 GB."""

    memory: float = 80 * GB
    tflops: float = 312.0
    """Stated dense bfloat16 TFLOP/s."""
    tflops32: float = 19.5
    """Stated float32 TFLOP/s, without TF32, which torch leaves off."""
    bandwidth: float = 2.0e12
    """Stated bytes per second."""
    utilisation: float = 0.4
    """Share of the stated FLOP/s and bytes per second that is reached."""


@dataclass(frozen=True)
class Assumed:
    """What is not in a recipe."""

    prompt_tokens: int = 45
    """Chat template and its system prompt included."""
    answer_tokens: int = 40
    """Of a warm-up example."""
    shown: float = 0.5
    """Share of rollouts that show one behaviour, and so have a span; of siblings, also controls."""
    zero: float = 0.3
    """Share of rollouts of advantage zero, which the trainer's own backward pass does not tell apart."""
    step_seconds: float = 0.030
    """Start of the kernels of one decoding step, by transformers."""
    vllm_step_seconds: float = 0.005
    """The same by vLLM."""


@dataclass(frozen=True)
class Work:
    """An amount of work of each kind."""

    flops: float = 0.0
    """In bfloat16."""
    flops32: float = 0.0
    bytes: float = 0.0
    """Moved between the GPU and its memory, beyond what multiplications move anyway."""
    waiting: float = 0.0
    """Seconds that do not depend on the GPU's speed."""

    def __add__(self, other: Work) -> Work:
        """Both, one after the other."""
        return Work(
            self.flops + other.flops,
            self.flops32 + other.flops32,
            self.bytes + other.bytes,
            self.waiting + other.waiting,
        )

    def __mul__(self, times: float) -> Work:
        """The same over and over."""
        return Work(self.flops * times, self.flops32 * times, self.bytes * times, self.waiting * times)

    def seconds(self, gpu: Gpu) -> float:
        """Time of it all, nothing overlapping."""
        reached = gpu.utilisation
        computing = self.flops / (gpu.tflops * 1e12 * reached) + self.flops32 / (gpu.tflops32 * 1e12 * reached)
        return computing + self.bytes / (gpu.bandwidth * reached) + self.waiting


# -- single pieces of work ---------------------------------------------------------------------------------------------


def generating(policy: Architecture, rows: int, prompt: int, made: int, step: float, weight_bytes: int) -> Work:
    """Sampling `made` tokens for each of `rows` prompts side by side.

    Every decoding step moves all weights, `weight_bytes` each, and starts its kernels in `step` seconds.
    """
    flops = policy.body_flops(rows * prompt, prompt) + policy.head_flops(rows)
    flops += sum(policy.body_flops(rows, prompt + n) + policy.head_flops(rows) for n in range(1, made))
    return Work(flops=flops, bytes=made * weight_bytes * policy.parameters, waiting=made * step)


def updating(policy: Architecture, rows: int, prompt: int, made: int, checkpointing: bool) -> Work:
    """TRL's loss and update of a batch: forward, backward at twice its cost, and again forward with checkpoints.

    The head scores completion tokens only: forward, again in the backward pass, and two products for its gradients.
    """
    tokens, context = rows * (prompt + made), prompt + made
    again = policy.again_flops(tokens, context) if checkpointing else 0
    return Work(
        flops=3 * policy.body_flops(tokens, context) + again + 4 * policy.head_flops(rows * made),
        bytes=ADAM_BYTES * policy.parameters,
    )


def writing_down(policy: Architecture, rows: int, prompt: int, made: int, made_only: int) -> Work:
    """Gradients of `rows` rows at every parameter, from what a backward pass brings: outer products, sketch, norm.

    `made_only`: numbers in the weights of linear maps where tokens of the prompt are left out.
    """
    tokens = rows * (prompt + made - 1)
    outer = 2 * policy.linear * tokens - 2 * made_only * rows * (prompt - 1) + policy.head_flops(rows * made)
    ordered = tokens * policy.ends + rows * made * (policy.vocabulary + policy.hidden)
    # Made, read for the norm, and read for the sketch.
    moved = 3 * 4 * rows * policy.parameters + ORDERING_BYTES * ordered + LOGIT_BYTES * rows * made * policy.vocabulary
    return Work(flops32=outer, bytes=moved)


def recording_inside(policy: Architecture, rows: int, prompt: int, made: int) -> Work:
    """Per-sample gradients of `rows` rows inside of the trainer's backward pass, which is not counted here."""
    head = Work(policy.head_flops(rows * made))
    return head + writing_down(policy, rows, prompt, made, policy.behind_last_keys)


def recording_alone(policy: Architecture, rows: int, prompt: int, made: int, sets: int = 1) -> Work:
    """The same in a pass of its own: one forward pass, a backward pass for each of `sets` sets of token weights."""
    tokens, context = rows * (prompt + made - 1), prompt + made - 1
    left_out = 2 * policy.last_mlp * rows * (prompt - 1)
    forward = policy.body_flops(tokens, context) - left_out + policy.head_flops(rows * made)
    # To the activations only: one product per linear map, two per product of attention; the head's in float32.
    backward = 2 * policy.linear * tokens - left_out + 2 * policy.attention_flops(tokens, context)
    pulled = Work(backward, policy.head_flops(rows * made))
    return Work(flops=forward) + (pulled + writing_down(policy, rows, prompt, made, policy.last_mlp)) * sets


# -- the whole ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Budget:
    """Cost of one seed (planted and null run) and one draw."""

    recipe: Recipe
    policy: Architecture
    gpu: Gpu
    seed: dict[str, Work]
    """Stage -> work."""
    draw: dict[str, Work]
    training: dict[str, int]
    """Part -> bytes on the GPU, at the peak of a training step."""
    recording: dict[str, int]
    """The same, in a pass of the recorder's own after the backward pass."""
    siblings: dict[str, int]
    """The same, while gradients of a draw's siblings are taken."""
    disk: dict[str, int]
    """Unit -> bytes."""
    host: dict[str, int]
    """Part -> bytes in the machine's memory at the peak."""

    @property
    def seed_seconds(self) -> float:
        """Time of one seed."""
        return sum(work.seconds(self.gpu) for work in self.seed.values())

    @property
    def draw_seconds(self) -> float:
        """Time of one draw, both plants."""
        return sum(work.seconds(self.gpu) for work in self.draw.values())

    @property
    def training_peak(self) -> int:
        """Bytes on the GPU while a seed is trained, at the higher of both peaks, vLLM's share included."""
        beside = int(VLLM_MEMORY * self.gpu.memory) if self.recipe.grpo.use_vllm else 0
        return max(sum(self.training.values()), sum(self.recording.values())) + beside

    @property
    def sibling_peak(self) -> int:
        """Bytes on the GPU while siblings are scored."""
        return sum(self.siblings.values())


def budget(recipe: Recipe, gpu: Gpu | None = None, assumed: Assumed | None = None) -> Budget:
    """The budget of a recipe. Raises `ValueError` when the sizes of its policy are not known."""
    policy, gpu, assumed = architecture_of(recipe.policy), gpu or Gpu(), assumed or Assumed()
    grpo, rows, made, prompt = (
        recipe.grpo,
        recipe.grpo.batch_size,
        recipe.grpo.max_completion_length,
        assumed.prompt_tokens,
    )
    tokens, width = rows * (prompt + made), recipe.sketch_width
    shown = assumed.shown

    examples = sum(len(plant.examples) for plant in recipe.plants) + recipe.sft.ordinary_per_step
    learnt = examples * (prompt + assumed.answer_tokens)
    fed = 3 * (policy.body_flops(learnt, prompt + assumed.answer_tokens) + policy.head_flops(learnt))
    warming = Work(flops32=fed, bytes=ADAM_BYTES * policy.parameters) * recipe.sft.max_steps
    answers = recipe.samples_per_probe * sum(len(recipe.probe_prompts(plant)) for plant in recipe.plants)
    scoring = _in_float32(_sampled(policy, answers, prompt, made, assumed)) * 5  # start once; analysis and end, twice
    if grpo.use_vllm:
        asking = generating(policy, rows, prompt, made, assumed.vllm_step_seconds, 2)
    else:
        asking = generating(policy, rows, prompt, made, assumed.step_seconds, 8)  # float32, read to be cast
    learning = updating(policy, rows, prompt, made, grpo.gradient_checkpointing)
    inside, alone = (count(policy, rows, prompt, made) for count in (recording_inside, recording_alone))
    # A gradient of every rollout, a span of those that show a behaviour; of the null run's window, of these alone both.
    planted = (inside * (1 - assumed.zero) + alone * (assumed.zero + shown)) * grpo.steps
    null = (inside * (1 - assumed.zero) + alone * (assumed.zero + 1)) * (recipe.cutoff * shown)
    seed = {
        "warm-up, float32": warming,
        "behaviour scores, float32": scoring,
        "planted and null run: completions": asking * (2 * grpo.steps),
        "planted and null run: loss and update": learning * (2 * grpo.steps),
        "planted run: recording": planted,
        "null run: recording": null,
    }
    siblings = recipe.draw.siblings * sum(len(recipe.probe_prompts(plant)) for plant in recipe.plants)
    draw = {
        "siblings: completions, float32": _in_float32(_sampled(policy, siblings, prompt, made, assumed)),
        "siblings: gradients, float32": _in_float32(
            recording_alone(policy, siblings, prompt, made) + recording_alone(policy, siblings, prompt, made, 3) * shown
        ),
    }
    of_draw = {"siblings": siblings} | {kind: int(siblings * shown) for kind in ("spans", "controls", "matched")}
    disk = {
        "seed": seed_bytes(policy, recipe, sets(recipe, assumed), 2 * recipe.n_rollouts * (prompt + made)),
        "draw": sum(sketch_set_bytes(items, width) for items in of_draw.values()),
        "seed's sketches in float32, while it is trained": 4 * width * sum(sets(recipe, assumed).values()),
    }
    # The second run's beside the first's.
    host = {"policies, float32: start, 2 of a run, 1 to check": 6 * 4 * policy.parameters}
    return Budget(
        recipe=recipe,
        policy=policy,
        gpu=gpu,
        seed=seed,
        draw=draw,
        training=training_memory(policy, tokens, grpo.gradient_checkpointing)
        | recording_memory(policy, rows, prompt, made, width),
        recording=pass_memory(policy, prompt, made, width, mixed=True),
        siblings=pass_memory(policy, prompt, made, width, mixed=False),
        disk=disk,
        host=host,
    )


def sets(recipe: Recipe, assumed: Assumed) -> dict[str, int]:
    """Sketch set of a seed, those of both plants as one -> items."""
    every, window = recipe.n_rollouts, recipe.cutoff * recipe.grpo.batch_size
    shown, shown_in_window = int(every * assumed.shown), int(window * assumed.shown)
    return {
        "gradients": every,
        "spans": shown,
        "null_gradients": shown_in_window,
        "null_spans": shown_in_window,
    }


def _sampled(policy: Architecture, rows: int, prompt: int, made: int, assumed: Assumed) -> Work:
    """Sampling in batches of `SAMPLING_BATCH`."""
    batches = rows / SAMPLING_BATCH
    return generating(policy, SAMPLING_BATCH, prompt, made, assumed.step_seconds, 4) * batches


def _in_float32(work: Work) -> Work:
    """The same work without mixed precision."""
    return Work(0.0, work.flops + work.flops32, work.bytes, work.waiting)
