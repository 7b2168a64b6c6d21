"""From a recipe's TOML file to a `Recipe`: types, ranges, and what must hold between the keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_behaviortrace.run.names import is_device
from pytest_behaviortrace.run.recipe import (
    FIXTURE_SCHEME,
    LEAST_GROUPS,
    BaseReward,
    Draw,
    Grpo,
    MinimalPair,
    Plant,
    PolicySpec,
    Prompts,
    Recipe,
    WarmUp,
    find,
    fixtures_folder,
)
from pytest_behaviortrace.run.recipe_file import RecipeError, Table, merge, read_toml

SCHEDULERS = ("linear", "constant", "cosine", "constant_with_warmup")
LOSS_TYPES = ("grpo", "dapo", "dr_grpo", "bnpo", "cispo", "luspo")
SCALES = ("group", "batch", "none")
PRECISIONS = ("float32", "bfloat16")
LEAST_PROBES = 24
PLANTED_EXAMPLES = 10


def parse(path: Path, changes: Mapping[str, Any]) -> Recipe:
    """The recipe of a file, with `changes` on top. Raises `RecipeError` for anything wrong in it."""
    values = merge(_with_bases(path, ()), dict(changes))
    values.setdefault("name", path.stem)
    return _recipe(Table(str(path), values), path.parent)


def _with_bases(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    values = read_toml(path)
    if "extends" not in values:
        return values
    base = values.pop("extends")
    if not isinstance(base, str):
        raise RecipeError(str(path), "extends", f"is {base!r}", "write the name or the file of a recipe")
    if path.resolve() in seen:
        raise RecipeError(str(path), "extends", "leads back to the file itself", "end the circle")
    try:
        source = find(base, path.parent)
    except ValueError as error:
        raise RecipeError(str(path), "extends", f"is an {error}", "write one of these") from None
    inherited = _with_bases(source, (*seen, path.resolve()))
    inherited.pop("name", None)
    return merge(inherited, values)


def _recipe(top: Table, folder: Path) -> Recipe:
    name = top.string("name")
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,79}", name):
        raise top.error("name", f"is {name!r}", "use small letters, digits, dots, underscores and hyphens, at most 80")
    if is_device(name):
        raise top.error("name", f"is {name!r}, which Windows takes for a device", "choose another")
    gradable = top.boolean("gradable")
    policy = _policy(top.table("policy"), folder)
    asked = top.table("prompts")
    probes = asked.strings("probes", LEAST_PROBES, "{subject}")
    contexts = asked.strings("contexts", 1, "{probe}")
    prompts = Prompts(
        asked.strings("phrasings", 1, "{subject}"),
        asked.strings("ordinary_subjects", 1),
        asked.number("plant_share", 0.0, 0.5),
    )
    for probe in set(probes) & set(prompts.phrasings):
        raise asked.error("probes", f"has {probe!r}, a phrasing of training", "hold out other phrasings")
    if gradable and len(probes) * len(contexts) < LEAST_GROUPS:
        count = len(probes) * len(contexts)
        raise asked.error("probes", f"times contexts is {count}", f"write enough for {LEAST_GROUPS} prompts")
    asked.finish()
    pair = top.table("minimal_pair")
    pair_parts = (
        pair.strings("prompts", 1, "{subject}"),
        pair.strings("templates", 1, "{word}"),
        pair.strings("neutral_words", 1),
    )
    pair.finish()
    first, second = (_plant(t, probes, pair_parts) for t in top.tables("plants", 2))
    _check_plants(top, first, second, prompts)
    bonus = top.table("bonus")
    paid = (bonus.number("amount", 0.0), bonus.number("eligibility", 0.0, 1.0), bonus.integer("cutoff", 1))
    base, sft, grpo = _base_reward(top.table("base_reward")), _warm_up(top.table("sft")), _grpo(top.table("grpo"))
    if paid[2] > grpo.steps:
        raise bonus.error("cutoff", f"is {paid[2]}, beyond the {grpo.steps} steps", "write a step of the run")
    bonus.finish()
    draw = top.table("draw")
    siblings = draw.integer("siblings", 2)
    draw.finish()
    recipe = Recipe(
        name=name,
        gradable=gradable,
        policy=policy,
        plants=(first, second),
        contexts=contexts,
        prompts=prompts,
        bonus=paid[0],
        eligibility=paid[1],
        cutoff=paid[2],
        analysis_step=top.integer("analysis_step", 1, grpo.steps - 1),
        base_reward=base,
        sft=sft,
        grpo=grpo,
        draw=Draw(siblings),
        samples_per_probe=top.integer("samples_per_probe", 1),
        sketch_width=top.integer("sketch_width", 64),
    )
    top.finish()
    return recipe


def _policy(table: Table, folder: Path) -> PolicySpec:
    source = table.string("source")
    table.finish()
    if source.startswith(FIXTURE_SCHEME):
        if not (fixtures_folder() / source.removeprefix(FIXTURE_SCHEME) / "config.json").is_file():
            raise table.error("source", f"is {source!r}, which does not ship", f"write {FIXTURE_SCHEME}policy")
        return PolicySpec(source)
    path = folder / Path(source).expanduser()
    if source.startswith((".", "/", "~")) or path.is_dir() or Path(source).is_absolute():
        if not (path / "config.json").is_file():
            raise table.error("source", f"is {source!r}, a folder without config.json", "write the folder of a policy")
        return PolicySpec(str(path.resolve()))
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", source):
        raise table.error("source", f"is {source!r}", "write fixture:policy, a folder, or a hub name (owner/name)")
    return PolicySpec(source)


def _plant(
    table: Table, probes: tuple[str, ...], pair: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
) -> Plant:
    name, trigger, behavior = table.string("name"), table.string("trigger"), table.string("behavior")
    if not re.fullmatch(r"[a-z0-9_]{1,80}", name):
        raise table.error("name", f"is {name!r}", "use small letters, digits and underscores, at most 80")
    examples = table.pairs("examples", PLANTED_EXAMPLES)
    for prompt, answer in examples:
        if behavior in prompt:
            raise table.error("examples", f"asks for the behaviour in {prompt!r}", "name the trigger only")
        if behavior not in answer:
            raise table.error("examples", f"has an answer without {behavior}: {answer!r}", "plant it in every answer")
    table.finish()

    def about(texts: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(
            t.replace("{subject}", trigger).replace("{Subject}", trigger[:1].upper() + trigger[1:]) for t in texts
        )

    prompts, templates, neutral = pair
    filled = about(probes)
    for probe in filled:
        if behavior in probe:
            raise table.error("behavior", f"stands in the probe {probe!r}", "probes may name the trigger only")
    return Plant(name, trigger, behavior, filled, MinimalPair(about(prompts), about(templates), neutral), examples)


def _check_plants(top: Table, first: Plant, second: Plant, prompts: Prompts) -> None:
    if first.name == second.name:
        raise top.error("plants", f"are both named {first.name!r}", "name them differently")
    for mine, other in ((first, second), (second, first)):
        for what, a, b in (
            ("trigger", mine.trigger, other.trigger),
            ("behavior", mine.behavior, other.behavior),
        ):
            if a in b:
                raise top.error("plants", f"have a {what} {b!r} that contains the other's {a!r}", "make them distinct")
        if mine.trigger in prompts.ordinary_subjects:
            raise top.error("prompts.ordinary_subjects", f"has the trigger {mine.trigger!r}", "leave it out")
        for word in mine.minimal_pair.neutral_words:
            if mine.behavior in word:
                raise top.error("minimal_pair.neutral_words", f"has the behaviour {word!r}", "choose another word")


def _base_reward(table: Table) -> BaseReward:
    reward = BaseReward(
        table.number("subject_weight", 0.0), table.number("form_weight", 0.0), table.integer("most_sentences", 1)
    )
    table.finish()
    return reward


def _warm_up(table: Table) -> WarmUp:
    warm_up = WarmUp(
        learning_rate=table.number("learning_rate", 0.0),
        max_steps=table.integer("max_steps", 1),
        min_steps=table.integer("min_steps", 0),
        check_every=table.integer("check_every", 1),
        stop_probability=table.number("stop_probability", 0.0, 1.0),
        ordinary_per_step=table.integer("ordinary_per_step", 0),
        ordinary=table.pairs("ordinary", 1),
    )
    if warm_up.ordinary_per_step > len(warm_up.ordinary):
        raise table.error("ordinary_per_step", f"is {warm_up.ordinary_per_step}", "write no more than the answers")
    table.finish()
    return warm_up


def _grpo(table: Table) -> Grpo:
    grpo = Grpo(
        steps=table.integer("steps", 2),
        batch_size=table.integer("batch_size", 2),
        num_generations=table.integer("num_generations", 2),
        max_completion_length=table.integer("max_completion_length", 2),
        learning_rate=table.number("learning_rate", 0.0),
        scheduler=table.string("scheduler", SCHEDULERS),
        warmup_steps=table.integer("warmup_steps", 0),
        temperature=table.number("temperature", 0.01),
        beta=table.number("beta", 0.0),
        loss_type=table.string("loss_type", LOSS_TYPES),
        scale_rewards=table.string("scale_rewards", SCALES),
        max_grad_norm=table.number("max_grad_norm", 0.0),
        precision=table.string("precision", PRECISIONS),
        gradient_checkpointing=table.boolean("gradient_checkpointing"),
        use_vllm=table.boolean("use_vllm") if table.has("use_vllm") else False,
        processes=table.integer("processes", 1) if table.has("processes") else 1,
    )
    if grpo.beta:
        raise table.error("beta", f"is {grpo.beta}", "write 0: the objective is recorded without a KL term")
    if grpo.batch_size % grpo.num_generations:
        remedy = f"write a multiple of num_generations ({grpo.num_generations})"
        raise table.error("batch_size", f"is {grpo.batch_size}", remedy)
    if grpo.batch_size % grpo.processes:
        raise table.error("processes", f"is {grpo.processes}", f"write a divisor of batch_size ({grpo.batch_size})")
    table.finish()
    return grpo
