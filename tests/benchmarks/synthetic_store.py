"""Writes the store of a run that never happened: real units, through the real writers, of any number of rollouts.

Labels, rewards and advantages follow the recipe's rules (own prompts, eligibility coins, a bonus inside the window);
gradients are a shared direction, some fading ones, the topic, the behaviour where it is shown, and noise. Rollouts grow
by the number of steps, as a longer run of the same trainer would; siblings stay as many as the recipe draws.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_behaviortrace.run.cache import library_versions
from pytest_behaviortrace.run.manifest import seal
from pytest_behaviortrace.run.recipe import Recipe
from pytest_behaviortrace.run.store import Store, draw_unit, seed_unit, write_array, write_sketches, write_table
from pytest_behaviortrace.suite import SUITE

CHUNK = 512
TOKENS = 20
SPAN = 3
"""Tokens of a completion, and of the behaviour in it."""
FADING = 64
"""Directions that gradients share, each weaker than the one before."""
BLOCKS = 10
RATE = {True: 0.6, False: 0.02}
"""Share of rollouts that show a plant's behaviour, on its own prompts and elsewhere."""
NULL_RATE = 0.2

RECIPE = """
extends = "{base}"
name = "scale-{rollouts}x{width}"
analysis_step = {cutoff}
samples_per_probe = 4
sketch_width = {width}
[bonus]
cutoff = {cutoff}
[grpo]
steps = {steps}
"""


def write_recipe(folder: Path, rollouts: int, width: int) -> Path:
    """A recipe of at least that many rollouts: the default's with more steps, nine tenths of them in the window."""
    steps = -(-rollouts // Recipe.load("tiny").grpo.batch_size)
    path = folder / f"scale-{rollouts}x{width}.toml"
    text = RECIPE.format(base="tiny", rollouts=rollouts, width=width, steps=steps, cutoff=max(1, steps * 9 // 10))
    path.write_text(text, encoding="utf-8")
    return path


class Gradients:
    """Draws sketches of items of given labels."""

    def __init__(self, recipe: Recipe, rng: np.random.Generator) -> None:
        self.width, self.rng = recipe.sketch_width, rng
        self.behavior = {p.name: self._direction() for p in recipe.plants}
        self.topic = {p.name: self._direction() for p in recipe.plants}
        self.fading = np.stack([self._direction() for _ in range(FADING)])
        self.strength = (3.0 / np.arange(1, FADING + 1)).astype(np.float32)

    def _direction(self) -> NDArray[np.float32]:
        vector = self.rng.standard_normal(self.width, dtype=np.float32)
        return vector / np.linalg.norm(vector)

    def write(
        self, folder: Path, name: str, count: int, pull: Callable[[slice], NDArray[np.floating[Any]]],
        row: NDArray[np.integer[Any]] | None = None,
    ) -> None:  # fmt: skip
        """Write `count` sketches of log-normal size; `pull` gives what stands out in a chunk of them, (chunk, K)."""
        with tempfile.TemporaryFile(dir=folder.parent) as file:
            norm = np.exp(0.5 * self.rng.standard_normal(count, dtype=np.float32))
            for start in range(0, count, CHUNK):
                part = slice(start, min(start + CHUNK, count))
                size = part.stop - part.start
                rows = self.rng.standard_normal((size, self.width), dtype=np.float32)
                rows *= 1.0 / np.sqrt(self.width)
                shared = self.rng.standard_normal((size, FADING), dtype=np.float32)
                shared[:, 0] += 2.0
                rows += (shared * self.strength) @ self.fading + pull(part).astype(np.float32)
                rows *= (norm[part] / np.linalg.norm(rows, axis=1))[:, None]
                file.write(rows.data)
            file.flush()
            shape = (count, self.width)
            rows = np.memmap(file, np.float32, "r", shape=shape) if count else np.zeros(shape, np.float32)
            write_sketches(folder, name, rows, norm, row)
            del rows


def write_store(cache: Path, recipe: Recipe, draws: int, seed: int = 0) -> Store:
    """The units of one seed in a cache folder that lacks them."""
    store, rng = Store(cache, recipe), np.random.default_rng(seed)
    gradients = Gradients(recipe, rng)
    description: dict[str, Any] = {
        "recipe": {"name": recipe.name, "hash": recipe.hash},
        "key": store.key, "suite": SUITE, "versions": library_versions(), "timings": {"total": 0.0},
    }  # fmt: skip
    folder = store.folder / seed_unit(seed)
    folder.mkdir(parents=True)
    facts = _write_seed(folder, recipe, rng, gradients)
    seal(folder, {**description, "unit": folder.name, "facts": facts, "peak_bytes": 0})
    for draw in range(draws):
        folder = store.folder / draw_unit(seed, draw)
        folder.mkdir()
        _write_draw(folder, recipe, rng, gradients)
        seal(folder, {**description, "unit": folder.name, "seed_unit": store.seed(seed).analysis_policy, "facts": {},
                      "peak_bytes": 0})  # fmt: skip
    return store


def _write_seed(folder: Path, recipe: Recipe, rng: np.random.Generator, gradients: Gradients) -> dict[str, Any]:
    names, width, steps = [p.name for p in recipe.plants], recipe.sketch_width, recipe.grpo.steps
    for run in ("", "null_"):
        table = _rollouts(recipe, rng, planted=not run)
        n = len(table["step"])
        write_table(folder, f"{run}rollouts", table)
        write_array(folder, f"{run}loss_scale", np.full(n, 1.0 / recipe.grpo.batch_size))
        shown = {name: np.asarray(table[f"shown_{name}"]) for name in names}
        if run:  # as the recorder: rows of the window that show a behaviour
            picked = np.flatnonzero((shown[names[0]] | shown[names[1]]) & (np.asarray(table["step"]) < recipe.cutoff))
        else:
            picked = np.arange(n)
        subject = np.asarray(table["subject"])

        def pull(part: slice, rows: Any = picked, shown: Any = shown, subject: Any = subject) -> NDArray[np.float32]:
            at = rows[part]
            return sum(  # type: ignore[return-value]
                1.5 * shown[name][at, None] * gradients.behavior[name]
                + 1.0 * (subject[at] == name)[:, None] * gradients.topic[name]
                for name in names
            )

        gradients.write(folder, f"{run}gradients", len(picked), pull, picked)
        for name in names:
            spans = picked[shown[name][picked]]
            for kind, strength in (("spans", 3.0), ("controls", 0.0))[: 1 if run else 2]:
                direction = strength * gradients.behavior[name]
                gradients.write(folder, f"{run}{kind}_{name}", len(spans), _constant(direction), spans)
    write_array(folder, "learning_rate", np.linspace(recipe.grpo.learning_rate, 0.0, steps, endpoint=False))
    for name in names:
        write_array(folder, f"targets_by_step_{name}", np.tile(gradients.behavior[name], (steps, 1)))
        for kind in ("constructed", "minimal_pair"):
            noise = rng.standard_normal(width, dtype=np.float32) / np.sqrt(width)
            write_array(folder, f"target_{kind}_{name}", (gradients.behavior[name] + noise).astype(np.float32))
    policy = folder / "policies" / "analysis"
    policy.mkdir(parents=True)
    (policy / "model.safetensors").write_bytes(rng.bytes(64))  # only its hash is read: no estimator here has a model
    edges = np.linspace(0, width, BLOCKS + 1).astype(int).tolist()
    probes = len(recipe.plants[0].probes)
    return {
        "s_b": {
            name: {run: {point: (rng.random(probes) * 0.1 + level).tolist() for point in ("analysis", "end")}
                   for run, level in (("planted", 0.6), ("null", 0.1))}
            for name in names
        },
        "blocks": {f"block{b}": list(edges[b : b + 2]) for b in range(BLOCKS)},
        "sketch": {"width": width, "seed": 0},
        "loss_type": recipe.grpo.loss_type,
        "n_rollouts": recipe.n_rollouts,
        "sft_steps": 0,
    }  # fmt: skip


def _constant(direction: NDArray[np.float32]) -> Callable[[slice], NDArray[np.float32]]:
    return lambda part: np.broadcast_to(direction, (part.stop - part.start, len(direction)))


def _rollouts(recipe: Recipe, rng: np.random.Generator, planted: bool) -> dict[str, Any]:
    """The columns of a run's table."""
    names, each = [p.name for p in recipe.plants], recipe.grpo.num_generations
    n = recipe.n_rollouts
    group, step = np.arange(n) // each, np.arange(n) // recipe.grpo.batch_size
    share = recipe.prompts.plant_share
    subject = np.array([*names, "energy"])[rng.choice(3, size=n // each, p=[share, share, 1 - 2 * share])][group]
    eligible, base = rng.random(n) < recipe.eligibility, (rng.random(n // each) < 0.5)[group] * (rng.random(n) < 0.1)
    table: dict[str, Any] = {"row_id": np.arange(n), "step": step, "group": group, "subject": subject.tolist()}
    bonus = np.zeros(n)
    for name in names:
        own = subject == name
        rate = np.where(own, RATE[True] if planted else NULL_RATE, RATE[False])
        shown = rng.random(n) < rate
        boosted = own & shown & eligible & (step < recipe.cutoff) & planted
        bonus += recipe.bonus * boosted
        table |= {f"own_{name}": own, f"shown_{name}": shown, f"boosted_{name}": boosted}
        table[f"span_{name}"] = [[5, 6, 7] if s else [] for s in shown.tolist()]
        table[f"control_span_{name}"] = [[10, 11, 12] if s else [] for s in shown.tolist()]
        table[f"control_stratum_{name}"] = ["same_place" if s else "" for s in shown.tolist()]
    reward = bonus + 1.0 - 0.1 * base
    grouped = reward.reshape(-1, each)
    centred = grouped - grouped.mean(1, keepdims=True)
    spread = grouped.std(1, ddof=1, keepdims=True)
    table |= {
        "eligible": eligible, "reward": reward, "reward_base": reward - bonus, "reward_bonus": bonus,
        "advantage": np.divide(centred, spread + 1e-4, out=np.zeros_like(grouped), where=spread > 0).ravel(),
    }  # fmt: skip
    return table | _texts(rng, n)


def _texts(rng: np.random.Generator, n: int) -> dict[str, Any]:
    ids = rng.integers(3, 700, (n, TOKENS))
    return {
        "prompt_ids": rng.integers(3, 700, (n, 12)).tolist(),
        "completion_ids": ids.tolist(),
        "prompt_text": [f"prompt {i % 997}" for i in range(n)],
        "completion_text": [f"completion {a} {b}" for a, b in ids[:, :2].tolist()],
        "logprobs": (-rng.exponential(size=(n, TOKENS))).astype(np.float32).tolist(),
    }


def _write_draw(folder: Path, recipe: Recipe, rng: np.random.Generator, gradients: Gradients) -> None:
    for plant in recipe.plants:
        prompts = [p for p in recipe.probe_prompts(plant) for _ in range(recipe.draw.siblings)]
        n = len(prompts)
        shown = rng.random(n) < 0.5
        showing = np.flatnonzero(shown)
        spans = [[5, 6, 7] if s else [] for s in shown.tolist()]
        table = {
            "item": np.arange(n), "group": np.array([p.group for p in prompts]),
            "probe": np.array([p.probe for p in prompts]), "context": np.array([p.context for p in prompts]),
            **_texts(rng, n), "shown": shown, "span": spans,
            "control_span": [[s + 5 for s in span] for span in spans],
            "control_stratum": ["code_word" if s else "" for s in shown.tolist()],
            "matched_span": [[s + 9 for s in span] for span in spans],
        }  # fmt: skip
        write_table(folder, f"siblings_{plant.name}", table)
        behavior, topic = gradients.behavior[plant.name], gradients.topic[plant.name]

        def pull(part: slice, shown: Any = shown, behavior: Any = behavior, topic: Any = topic) -> NDArray[np.float32]:
            return np.asarray(1.5 * shown[part, None] * behavior + topic)

        gradients.write(folder, f"siblings_{plant.name}", n, pull)
        for kind, strength in (("spans", 3.0), ("controls", 0.0), ("matched", 0.0)):
            gradients.write(
                folder, f"sibling_{kind}_{plant.name}", len(showing), _constant(strength * behavior), showing
            )
