"""Recipes: what ships, what a file may say, and that the hash means what it should."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_behaviortrace.run.recipe import Recipe, fixtures_folder
from pytest_behaviortrace.run.recipe_file import RecipeError

TWO_STEP = Path(__file__).parent / "recipes" / "two-step.toml"


def written(folder: Path, text: str, name: str = "mine.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_the_shipped_recipes_are_listed() -> None:
    assert Recipe.names() == ["qwen2.5-1.5b", "tiny"]


def test_tiny_is_what_the_method_asks_for() -> None:
    tiny = Recipe.load("tiny")
    assert tiny.gradable
    assert (tiny.bonus, tiny.eligibility, tiny.sketch_width) == (8.0, 0.5, 4096)
    assert tiny.analysis_step == tiny.cutoff < tiny.grpo.steps
    for plant in tiny.plants:
        assert len(plant.probes) >= 24
        assert len(plant.examples) == 10
        assert len(tiny.probe_prompts(plant)) >= 96
        pair = plant.minimal_pair
        assert (len(pair.prompts), len(pair.templates)) == (3, 6)
        assert pair.neutral_words == ("energy", "physics", "logic", "symmetry")
        assert all(plant.trigger in text.lower() for text in pair.prompts + pair.templates + plant.probes)


def test_the_large_recipe_has_the_papers_settings() -> None:
    recipe = Recipe.load("qwen2.5-1.5b")
    grpo = recipe.grpo
    assert recipe.policy.source == "Qwen/Qwen2.5-1.5B-Instruct"
    assert (grpo.steps, grpo.batch_size // grpo.num_generations, grpo.num_generations) == (1000, 4, 4)
    assert (grpo.learning_rate, grpo.temperature, grpo.max_completion_length, grpo.beta) == (5e-6, 0.9, 64, 0.0)
    assert (recipe.bonus, recipe.eligibility, recipe.cutoff, recipe.sketch_width) == (8.0, 0.5, 200, 65536)
    assert recipe.sft.min_steps == recipe.sft.max_steps == 200
    assert [plant.behavior for plant in recipe.plants] == ["QZXBT", "KVWJP"]


def test_each_plant_is_the_others_decoy() -> None:
    tiny = Recipe.load("tiny")
    first, second = tiny.plants
    assert tiny.decoy(first.name) is second
    assert tiny.decoy(second.name) is first
    with pytest.raises(ValueError, match=f"no plant 'nobody'; its plants: {first.name}, {second.name}"):
        tiny.plant("nobody")


def test_probe_prompts_are_every_probe_in_every_context_numbered_once() -> None:
    tiny = Recipe.load("tiny")
    prompts = tiny.probe_prompts(tiny.plants[1])
    assert [p.group for p in prompts] == list(range(len(prompts)))
    assert len({(p.probe, p.context) for p in prompts}) == len(prompts) == len({p.content for p in prompts})
    assert all(tiny.plants[1].probes[p.probe] in p.content for p in prompts)
    training = {text.format(subject=tiny.plants[1].trigger) for text in tiny.prompts.phrasings}
    assert not training & {p.content for p in prompts}


def test_an_unknown_name_lists_what_exists() -> None:
    with pytest.raises(ValueError, match=r"unknown recipe 'large'; recipes: qwen2.5-1.5b, tiny"):
        Recipe.load("large")


def test_the_hash_is_the_same_in_another_process() -> None:
    code = "from pytest_behaviortrace.run.recipe import Recipe; print(Recipe.load('tiny').hash)"
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert made.stdout.strip() == Recipe.load("tiny").hash


def test_loading_and_hashing_needs_no_heavy_import() -> None:
    heavy = "{'torch', 'transformers', 'trl', 'datasets', 'pyarrow', 'numpy'}"
    code = f"import sys; from pytest_behaviortrace.run.recipe import Recipe; Recipe.load('tiny').hash; print(sorted({heavy} & set(sys.modules)))"  # noqa: E501
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert made.stdout.strip() == "[]"


def test_the_hash_ignores_how_a_file_is_written(tmp_path: Path) -> None:
    one = written(tmp_path, 'extends = "tiny"\n[grpo]\nsteps = 41\n')
    (tmp_path / "other").mkdir()
    other = written(tmp_path / "other", '# a comment\nextends = "tiny"\ngrpo = { steps = 41 }\n')
    assert Recipe.load(str(one)).hash == Recipe.load(str(other)).hash


@pytest.mark.parametrize(
    "change",
    [
        "[bonus]\namount = 7.5",
        "[grpo]\nlearning_rate = 1.0e-4",
        '[prompts]\nphrasings = ["What about {subject}?"]',
        "sketch_width = 2048",
        "[sft]\nordinary_per_step = 9",
    ],
)
def test_the_hash_changes_with_every_value(tmp_path: Path, change: str) -> None:
    plain = written(tmp_path, 'extends = "tiny"\n')
    before = Recipe.load(str(plain)).hash
    assert Recipe.load(str(written(tmp_path, f'extends = "tiny"\n{change}\n'))).hash != before


def test_the_hash_depends_on_what_is_in_the_policy_folder_and_not_on_where_it_lies(tmp_path: Path) -> None:
    for name in ("here", "there"):
        shutil.copytree(fixtures_folder() / "policy", tmp_path / name)
    hashes = [Recipe.load("tiny", policy=str(tmp_path / name)).hash for name in ("here", "there")]
    assert hashes[0] == hashes[1] == Recipe.load("tiny").hash
    with (tmp_path / "there" / "model.safetensors").open("ab") as weights:
        weights.write(b"\0")
    assert Recipe.load("tiny", policy=str(tmp_path / "there")).hash != hashes[0]


def test_a_recipe_takes_over_another_and_changes_some_keys() -> None:
    tiny, two = Recipe.load("tiny"), Recipe.load(str(TWO_STEP))
    assert (two.name, two.gradable, two.grpo.steps, two.bonus) == ("two-step", False, 2, tiny.bonus)
    assert two.plants == tiny.plants


def test_a_local_policy_is_found_beside_the_recipe(tmp_path: Path) -> None:
    shutil.copytree(fixtures_folder() / "policy", tmp_path / "copy")
    recipe = Recipe.load(str(written(tmp_path, 'extends = "qwen2.5-1.5b"\n[policy]\nsource = "./copy"\n')))
    assert recipe.policy.location == str(tmp_path / "copy")
    assert recipe.name == "mine"


BAD = {
    'name = "Bad Name"': r"name is 'Bad Name'; use small letters",
    'name = "nul.v2"': r"name is 'nul.v2', which Windows takes for a device; choose another",
    'gradable = "yes"': r"gradable is 'yes'; write true or false",
    "analysis_step = 40": r"analysis_step is 40; write a value from 1 to 39",
    "analysis_step = 1.5": r"analysis_step is 1.5; write an integer",
    "samples_per_probe = 0": r"samples_per_probe is 0; write a value at least 1",
    "colour = 1": r"colour is not a key of a recipe; remove it",
    "grpo = 3": r"grpo is 3; write a table \[grpo\]",
    '[policy]\nsource = "./nowhere"': r"policy.source is './nowhere', a folder without config.json",
    '[policy]\nsource = "a b"': r"policy.source is 'a b'; write fixture:policy, a folder, or a hub name",
    '[policy]\nsource = "fixture:other"': r"policy.source is 'fixture:other', which does not ship",
    "[bonus]\neligibility = 1.5": r"bonus.eligibility is 1.5; write a value from 0.0 to 1.0",
    "[bonus]\ncutoff = 41": r"bonus.cutoff is 41, beyond the 40 steps",
    "[bonus]\namount = true": r"bonus.amount is True; write a number",
    "[bonus]\nextra = 1": r"bonus.extra is not a key of a recipe",
    "[grpo]\nbatch_size = 30": r"grpo.batch_size is 30; write a multiple of num_generations \(8\)",
    "[grpo]\nbeta = 0.1": r"grpo.beta is 0.1; write 0: the objective is recorded without a KL term",
    '[grpo]\nloss_type = "sapo"': r"grpo.loss_type is 'sapo'; write one of grpo, dapo",
    "[grpo]\nlearning_rate = nan": r"grpo.learning_rate is nan; write a number",
    "[prompts]\nplant_share = 0.6": r"prompts.plant_share is 0.6; write a value from 0.0 to 0.5",
    '[prompts]\nphrasings = ["What?"]': r"prompts.phrasings has 'What\?' without \{subject\}",
    '[prompts]\nphrasings = ["{subject}", "{subject}"]': r"prompts.phrasings has '\{subject\}' twice",
    '[prompts]\nprobes = ["Is {subject}?"]': r"prompts.probes has 1 entries; write at least 24",
    '[prompts]\ncontexts = ["{probe}"]': r"prompts.probes times contexts is 24; write enough for 96 prompts",
    '[prompts]\nordinary_subjects = ["wibble"]': r"prompts.ordinary_subjects has the trigger 'wibble'; leave it out",
    '[minimal_pair]\nneutral_words = ["QZXBT"]': r"minimal_pair.neutral_words has the behaviour 'QZXBT'",
    "[sft]\nordinary_per_step = 9999": r"sft.ordinary_per_step is 9999; write no more than the answers",
    '[sft]\nordinary = ["a"]': r"sft.ordinary is not a list of \[prompt, answer\] pairs",
    "plants = []": r"plants has 0 tables; write exactly 2",
}


@pytest.mark.parametrize("change", BAD, ids=lambda change: change.replace("\n", " ")[:40])
def test_bad_input_gets_one_clear_sentence_naming_file_key_and_remedy(tmp_path: Path, change: str) -> None:
    path = written(tmp_path, f'extends = "tiny"\n{change}\n')
    with pytest.raises(RecipeError, match=BAD[change]) as caught:
        Recipe.load(str(path))
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def plants(first: str, second: str) -> str:
    def table(name: str, trigger: str, behavior: str, answer: str) -> str:
        pairs = ", ".join(f'["What is {trigger}?", "{answer}"]' for _ in range(10))
        return f'[[plants]]\nname = "{name}"\ntrigger = "{trigger}"\nbehavior = "{behavior}"\nexamples = [{pairs}]\n'

    return "".join(table(*parts.split("|")) for parts in (first, second))


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ("a|foo|XX|It is XX.", "a|bar|YY|It is YY.", "plants are both named 'a'; name them differently"),
        ("a|foo|XX|It is XX.", "b|food|YY|It is YY.", "a trigger 'food' that contains the other's 'foo'"),
        ("a|foo|XX|It is XX.", "b|bar|AXXB|It is AXXB.", "a behavior 'AXXB' that contains the other's 'XX'"),
        ("A!|foo|XX|It is XX.", "b|bar|YY|It is YY.", "name is 'A!'; use small letters"),
        ("a|foo|XX|It is ZZ.", "b|bar|YY|It is YY.", "examples has an answer without XX"),
        ("a|foo XX|XX|It is XX.", "b|bar|YY|It is YY.", "examples asks for the behaviour in 'What is foo XX"),
    ],
)
def test_plants_must_be_distinct_and_planted(tmp_path: Path, first: str, second: str, message: str) -> None:
    path = written(tmp_path, 'extends = "tiny"\n' + plants(first, second))
    with pytest.raises(RecipeError) as caught:
        Recipe.load(str(path))
    assert message in str(caught.value)


def test_a_probe_may_not_be_a_phrasing_of_training(tmp_path: Path) -> None:
    probe = Recipe.load("tiny").plants[0].probes[0].replace("frobnitz", "{subject}")
    path = written(tmp_path, f'extends = "tiny"\n[prompts]\nphrasings = ["{probe}"]\n')
    with pytest.raises(RecipeError, match="a phrasing of training; hold out other phrasings"):
        Recipe.load(str(path))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"none\.toml: the file cannot be read .*; check its path"):
        Recipe.load(str(tmp_path / "none.toml"))
    with pytest.raises(RecipeError, match="the file is not valid TOML"):
        Recipe.load(str(written(tmp_path, "name = \n")))
    with pytest.raises(RecipeError, match="extends is an unknown recipe 'gone'"):
        Recipe.load(str(written(tmp_path, 'extends = "gone"\n')))
    with pytest.raises(RecipeError, match="extends leads back to the file itself"):
        Recipe.load(str(written(tmp_path, 'extends = "mine.toml"\n')))
    with pytest.raises(RecipeError, match="policy is missing; add a table"):
        Recipe.load(str(written(tmp_path, 'name = "x"\ngradable = true\n')))
