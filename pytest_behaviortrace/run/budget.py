"""What a recipe costs on one GPU: memory, time and disk from counted FLOPs and bytes, before anything is trained.

Pure arithmetic. What is counted follows what the code does: warm-up and behaviour scores in float32, TRL's step in
bfloat16 over float32 weights with AdamW, its head in tiles that are computed again in the backward pass, and for every
recorded set of token weights one backward pass to the activations, the outer products in float32, and one signed add
per parameter into the sketch. Lengths are upper bounds: every completion is as long as allowed. What an arithmetic
cannot know is an assumption with a name, in `Gpu` and `Assumed`; nothing here was measured on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_behaviortrace.run.architecture import Architecture, architecture_of
from pytest_behaviortrace.run.footprint import recording_memory, seed_bytes, sketch_set_bytes, training_memory
from pytest_behaviortrace.run.recipe import Recipe

GB = 10**9
ADAM_BYTES = 28
"""Bytes moved per parameter by an AdamW step in float32: weight, both moments read and written, gradient read."""
HASH_BYTES = 240
"""Bytes moved to hash one coordinate anew with elementwise int64 operations (about 15 of them)."""
SAMPLING_BATCH, SIBLING_BATCH = 512, 64
"""Rows side by side when behaviour scores are sampled, and when siblings are scored."""
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
    adds: float = 5.0e10
    """Scattered float32 adds per second into a buffer that the cache holds."""
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
    """Share of rollouts that show one behaviour, and so have a span and a control."""
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
    adds: float = 0.0
    waiting: float = 0.0
    """Seconds that do not depend on the GPU's speed."""

    def __add__(self, other: Work) -> Work:
        """Both, one after the other."""
        return Work(
            self.flops + other.flops, self.flops32 + other.flops32, self.bytes + other.bytes, self.adds + other.adds,
            self.waiting + other.waiting,
        )  # fmt: skip

    def __mul__(self, times: float) -> Work:
        """The same over and over."""
        return Work(
            self.flops * times, self.flops32 * times, self.bytes * times, self.adds * times, self.waiting * times
        )

    def seconds(self, gpu: Gpu) -> float:
        """Time of it all, nothing overlapping."""
        reached = gpu.utilisation
        computing = self.flops / (gpu.tflops * 1e12 * reached) + self.flops32 / (gpu.tflops32 * 1e12 * reached)
        return computing + self.bytes / (gpu.bandwidth * reached) + self.adds / gpu.adds + self.waiting


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


def recording(policy: Architecture, rows: int, prompt: int, made: int, sets: float) -> Work:
    """Per-sample gradients of `rows` rows in one forward pass, `sets` sets of token weights a row."""
    tokens = rows * (prompt + made - 1)
    context = prompt + made - 1
    forward = policy.body_flops(tokens, context) + policy.head_flops(rows * made)
    # To the activations only: one product per linear map, two per product of attention.
    backward = 2 * policy.linear * tokens + 2 * policy.attention_flops(tokens, context)
    pulled = policy.head_flops(rows * made)
    outer = 2 * policy.linear * tokens + policy.head_flops(rows * made)
    values = rows * policy.parameters
    # Made, read for the norm, and read for the sketch; hashes are made once for all rows.
    moved = 3 * 4 * values + HASH_BYTES * policy.parameters
    return Work(flops=forward) + Work(backward, pulled + outer, moved, values) * sets


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
    """The same, while gradients of rollouts are taken."""
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
    window, tokens, width = recipe.cutoff * rows, rows * (prompt + made), recipe.sketch_width
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
    planted = recording(policy, rows, prompt, made, 1 + 2 * shown) * grpo.steps
    null = recording(policy, rows, prompt, made, 2.0) * (recipe.cutoff * shown)
    seed = {
        "warm-up, float32": warming,
        "behaviour scores, float32": scoring,
        "planted and null run: completions": asking * (2 * grpo.steps),
        "planted and null run: loss and update": learning * (2 * grpo.steps),
        "planted run: recording": planted,
        "null run: recording": null,
    }
    siblings = recipe.draw.siblings * sum(len(recipe.probe_prompts(plant)) for plant in recipe.plants)
    batches = siblings / SIBLING_BATCH
    draw = {
        "siblings: completions, float32": _in_float32(_sampled(policy, siblings, prompt, made, assumed)),
        "siblings: gradients, float32": _in_float32(
            recording(policy, SIBLING_BATCH, prompt, made, 1 + 3 * shown) * batches
        ),
    }
    sets = {"gradients": recipe.n_rollouts, "null_gradients": int(window * shown), "null_spans": int(window * shown)}
    sets |= {"spans": int(recipe.n_rollouts * shown), "controls": int(recipe.n_rollouts * shown)}
    of_draw = {"siblings": siblings} | {kind: int(siblings * shown) for kind in ("spans", "controls", "matched")}
    disk = {
        "seed": seed_bytes(policy, recipe, sets, 2 * recipe.n_rollouts * (prompt + made)),
        "draw": sum(sketch_set_bytes(items, width) for items in of_draw.values()),
    }
    whole = 4 * width * recipe.n_rollouts
    host = {  # the second run's beside the first's; float32 twice and half precision once
        "policies, float32: start, 2 of a run, 1 to check": 6 * 4 * policy.parameters,
        "a sketch set while it is written": whole * 5 // 2,
    }
    return Budget(
        recipe=recipe,
        policy=policy,
        gpu=gpu,
        seed=seed,
        draw=draw,
        training=training_memory(policy, tokens, grpo.gradient_checkpointing),
        recording=recording_memory(policy, rows, prompt, made, width, mixed=True),
        siblings=recording_memory(policy, SIBLING_BATCH, prompt, made, width, mixed=False),
        disk=disk,
        host=host,
    )


def _sampled(policy: Architecture, rows: int, prompt: int, made: int, assumed: Assumed) -> Work:
    """Sampling in batches of `SAMPLING_BATCH`."""
    batches = rows / SAMPLING_BATCH
    return generating(policy, SAMPLING_BATCH, prompt, made, assumed.step_seconds, 4) * batches


def _in_float32(work: Work) -> Work:
    """The same work without mixed precision."""
    return Work(0.0, work.flops + work.flops32, work.bytes, work.adds, work.waiting)
