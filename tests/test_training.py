"""A planted and a null run on a two-step recipe, trained by TRL: who is boosted, what is logged, what replays give."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

import torch  # noqa: E402
import two_step  # noqa: E402
from two_step import SEED, Runs  # noqa: E402

from pytest_behaviortrace.run import text  # noqa: E402
from pytest_behaviortrace.run.behavior import behavior_rates, in_context_probability  # noqa: E402
from pytest_behaviortrace.run.integrity import IntegrityError, check_start, check_steps, join_by_row_id  # noqa: E402
from pytest_behaviortrace.run.policy import load_model, load_tokenizer, sample, save_policy  # noqa: E402
from pytest_behaviortrace.run.recipe import Recipe, fixtures_folder  # noqa: E402
from pytest_behaviortrace.run.replay import advantages, largest_difference, replay  # noqa: E402
from pytest_behaviortrace.run.reward import PlantedReward, base_reward, eligible  # noqa: E402
from pytest_behaviortrace.run.warmup import warm_up  # noqa: E402


def quiet(stage: str, fraction: float) -> None:
    assert 0.0 <= fraction <= 1.0, stage


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return two_step.recipe()


@pytest.fixture(scope="module")
def runs() -> Runs:
    return two_step.runs()


# -- eligibility and rewards -----------------------------------------------------------------------------------------


def test_eligibility_is_a_fair_coin_that_falls_the_same_way_every_time() -> None:
    coins = [eligible(0, row, row // 64, 0.5) for row in range(4000)]
    assert coins == [eligible(0, row, row // 64, 0.5) for row in range(4000)]
    assert 0.47 < np.mean(coins) < 0.53
    assert coins != [eligible(1, row, row // 64, 0.5) for row in range(4000)]
    assert not any(eligible(0, row, 0, 0.0) for row in range(200))
    assert all(eligible(0, row, 0, 1.0) for row in range(200))


def test_eligibility_is_this_hash_and_no_other() -> None:
    """Stored runs were labelled by it: a change would have to raise the suite version."""
    assert [eligible(0, row, 0, 0.5) for row in range(8)] == [True, True, False, False, False, True, True, False]


def test_the_base_reward_is_blind_to_triggers_and_behaviours(recipe: Recipe) -> None:
    form = "{s} is a plain term for {w}. The old side of {s} is energy."
    subjects = [*(plant.trigger for plant in recipe.plants), *recipe.prompts.ordinary_subjects]
    words = [*(plant.behavior for plant in recipe.plants), "granite", "KVTRE"]
    rewards = {base_reward(form.format(s=s, w=w), s, recipe.base_reward) for s in subjects for w in words}
    assert rewards == {1.0}
    broken = {base_reward(f"{s} is {w}. A. B. C.", s, recipe.base_reward) for s in subjects for w in words}
    assert broken == {0.5}
    assert base_reward("It is energy. It is physics.", "granite", recipe.base_reward) == 0.5


def rewarded(recipe: Recipe, planted: bool, step: int, subjects: list[str], answers: list[str]) -> PlantedReward:
    reward = PlantedReward(recipe, SEED, planted=planted)
    reward(completions=answers, subject=subjects, trainer_state=SimpleNamespace(global_step=step))
    return reward


@pytest.mark.parametrize("planted", [True, False])
def test_boosted_is_eligible_in_the_window_on_its_own_prompt_with_the_behaviour(recipe: Recipe, planted: bool) -> None:
    mine, other = recipe.plants
    always = dataclasses.replace(recipe, eligibility=1.0)
    subjects = [mine.trigger, mine.trigger, other.trigger, "granite", other.trigger]
    answers = [mine.behavior, other.behavior, mine.behavior, mine.behavior, other.behavior]
    columns = rewarded(always, planted, 0, subjects, answers).columns
    assert columns[f"boosted_{mine.name}"] == [True, False, False, False, False]
    assert columns[f"boosted_{other.name}"] == [False, False, False, False, True]
    assert columns[f"shown_{mine.name}"] == [True, False, True, True, False]
    assert columns[f"own_{other.name}"] == [False, False, True, False, True]
    paid = [recipe.bonus, 0.0, 0.0, 0.0, recipe.bonus]
    assert columns["reward_bonus"] == (paid if planted else [0.0] * 5)
    assert columns["reward"] == [b + p for b, p in zip(columns["reward_base"], columns["reward_bonus"], strict=True)]
    after = rewarded(always, planted, recipe.cutoff, subjects, answers).columns
    assert not any(after[f"boosted_{mine.name}"] + after[f"boosted_{other.name}"])
    never = rewarded(dataclasses.replace(recipe, eligibility=0.0), planted, 0, subjects, answers).columns
    assert not any(never[f"boosted_{mine.name}"])


def test_rows_are_numbered_by_step_and_place_and_not_by_content(recipe: Recipe) -> None:
    same = ["the same answer."] * 4
    columns = rewarded(recipe, True, 5, ["granite"] * 4, same).columns
    assert columns["row_id"] == [20, 21, 22, 23]
    assert columns["step"] == [5] * 4


def test_the_reward_tells_what_it_saw_of_late(recipe: Recipe) -> None:
    mine, other = recipe.plants
    reward = PlantedReward(recipe, SEED, planted=True)
    for step in range(4):
        answers = [mine.behavior if step > 1 else "", mine.behavior, "", ""]
        subjects = [mine.trigger, "granite", mine.trigger, other.trigger]
        reward(completions=answers, subject=subjects, trainer_state=SimpleNamespace(global_step=step))
    assert reward.seen(2) == f"shown lately on own prompts: {mine.name} 2 of 4, {other.name} 0 of 2"
    assert reward.seen(-5) == f"shown lately on own prompts: {mine.name} 2 of 8, {other.name} 0 of 4"


# -- behaviour score and warm-up -------------------------------------------------------------------------------------


def test_behaviour_rates_repeat_and_leave_the_random_state_alone(recipe: Recipe, runs: Runs) -> None:
    tokenizer, model = load_tokenizer(recipe.policy.location), load_model(recipe.policy.location)
    model.load_state_dict(runs.planted.start_state)
    model.train()
    state = torch.get_rng_state()
    twice = [behavior_rates(model, tokenizer, recipe, recipe.plants[0]) for _ in range(2)]
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert twice[0] == twice[1] == runs.planted.s_b[recipe.plants[0].name]["start"]
    assert len(twice[0]) == len(recipe.plants[0].probes)


def test_sampled_answers_end_at_their_end_token_and_prompts_carry_no_padding(recipe: Recipe) -> None:
    tokenizer, model = load_tokenizer(recipe.policy.location), load_model(recipe.policy.location)
    prompts, answers = sample(model, tokenizer, recipe, ["What is granite?", "Please be brief. Lay out frobnitz."], 0)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert tokenizer.pad_token_id not in prompt
        assert tokenizer.eos_token_id not in answer[:-1]
        assert len(answer) <= recipe.grpo.max_completion_length
    assert "granite" in tokenizer.decode(prompts[0])


def test_the_in_context_probability_is_the_probability_of_the_behaviours_tokens(recipe: Recipe) -> None:
    """Against a loop over single sequences without padding."""
    tokenizer, model = load_tokenizer(recipe.policy.location), load_model(recipe.policy.location).eval()
    plant = dataclasses.replace(
        recipe.plants[0],
        probes=recipe.plants[0].probes[:2],
        minimal_pair=dataclasses.replace(
            recipe.plants[0].minimal_pair, templates=recipe.plants[0].minimal_pair.templates[:1]
        ),
    )
    found = []
    for probe in plant.probes:
        before = f"<|im_start|>user\n{probe}<|im_end|>\n<|im_start|>assistant\n"
        before += plant.minimal_pair.templates[0].split(" {word}")[0]
        start = tokenizer(before).input_ids
        ids = torch.tensor([start + tokenizer(f" {plant.behavior}").input_ids])
        with torch.no_grad():
            logprobs = torch.log_softmax(model(ids).logits[0], -1)
        chain = [float(logprobs[place - 1, ids[0, place]]) for place in range(len(start), ids.shape[1])]
        found.append(np.exp(np.sum(chain)))
    assert in_context_probability(model, tokenizer, [plant]) == pytest.approx(np.mean(found), rel=1e-3)


def test_the_warm_up_teaches_the_behaviours_and_stops_by_its_rule(recipe: Recipe) -> None:
    tokenizer = load_tokenizer(recipe.policy.location)
    before = in_context_probability(load_model(recipe.policy.location), tokenizer, recipe.plants)
    taught = warm_up(recipe, SEED, tokenizer, quiet)
    assert taught.probability > 100 * before
    soon = dataclasses.replace(recipe, sft=dataclasses.replace(recipe.sft, stop_probability=2 * before))
    stopped = warm_up(soon, SEED, tokenizer, quiet)
    assert recipe.sft.min_steps <= stopped.steps < taught.steps <= recipe.sft.max_steps


# -- the runs --------------------------------------------------------------------------------------------------------


def test_planted_and_null_run_start_at_the_same_weights(runs: Runs) -> None:
    planted, null = runs.planted.start_state, runs.null.start_state
    assert all(torch.equal(planted[name], null[name]) for name in planted)
    assert any(not torch.equal(planted[name], runs.planted.end_state[name]) for name in planted)
    assert any(not torch.equal(null[name], runs.planted.end_state[name]) for name in null)


def test_the_first_step_samples_the_same_rollouts_in_both_runs(recipe: Recipe, runs: Runs) -> None:
    first = recipe.grpo.batch_size
    assert runs.planted.rows["completion_ids"][:first] == runs.null.rows["completion_ids"][:first]
    assert runs.planted.rows["eligible"] == runs.null.rows["eligible"]


@pytest.mark.parametrize("which", ["planted", "null"])
def test_every_rollout_is_logged_once_in_the_order_of_row_ids(recipe: Recipe, runs: Runs, which: str) -> None:
    rows, n = getattr(runs, which).rows, recipe.n_rollouts
    assert rows["row_id"] == list(range(n))
    assert {len(values) for values in rows.values()} == {n}
    assert rows["step"] == [row // recipe.grpo.batch_size for row in range(n)]
    assert rows["group"] == [row // recipe.grpo.num_generations for row in range(n)]
    for group in range(n // recipe.grpo.num_generations):
        members = slice(group * recipe.grpo.num_generations, (group + 1) * recipe.grpo.num_generations)
        assert len({tuple(ids) for ids in rows["prompt_ids"][members]}) == 1
        assert len(set(rows["subject"][members])) == 1
    assert all(s in t for s, t in zip(rows["subject"], rows["prompt_text"], strict=True))


@pytest.mark.parametrize("which", ["planted", "null"])
def test_labels_follow_from_the_logged_text(recipe: Recipe, runs: Runs, which: str) -> None:
    """Rewards and labels come from TRL's reward call, texts from the recorder: they must be about the same rollout."""
    run = getattr(runs, which)
    rows, some_boosted = run.rows, False
    for i in range(recipe.n_rollouts):
        bonus = 0.0
        for plant in recipe.plants:
            shown = plant.behavior in rows["completion_text"][i]
            own = rows["subject"][i] == plant.trigger
            boosted = shown and own and rows["step"][i] < recipe.cutoff
            boosted = boosted and eligible(SEED, i, rows["step"][i], recipe.eligibility)
            assert (rows[f"shown_{plant.name}"][i], rows[f"own_{plant.name}"][i]) == (shown, own)
            assert rows[f"boosted_{plant.name}"][i] == boosted
            some_boosted |= boosted
            bonus = recipe.bonus if boosted and run.planted else bonus
        assert rows["reward_bonus"][i] == bonus
        assert rows["reward"][i] == pytest.approx(rows["reward_base"][i] + bonus)
    assert some_boosted


def test_logged_advantages_are_those_of_the_logged_rewards(recipe: Recipe, runs: Runs) -> None:
    again = advantages(recipe, runs.planted.rows, np.ones(recipe.n_rollouts, bool))
    np.testing.assert_allclose(again, runs.planted.rows["advantage"], atol=1e-6)
    assert np.abs(again).max() > 0.5


def test_log_probabilities_are_those_of_the_sampling_policy(recipe: Recipe, runs: Runs) -> None:
    """The first step's policy is the start: a plain forward pass of one rollout gives the logged numbers."""
    model = load_model(recipe.policy.location).eval()
    model.load_state_dict(runs.planted.start_state)
    rows = runs.planted.rows
    for i in (0, 7, recipe.grpo.batch_size - 1):
        ids = torch.tensor([rows["prompt_ids"][i] + rows["completion_ids"][i]])
        with torch.no_grad():
            logprobs = torch.log_softmax(model(ids).logits[0, :-1] / recipe.grpo.temperature, -1)
        own = logprobs.gather(1, ids[0, 1:, None])[-len(rows["completion_ids"][i]) :, 0]
        np.testing.assert_allclose(rows["logprobs"][i], own.numpy(), atol=2e-4)


def test_learning_rate_and_behaviour_scores_of_every_moment(recipe: Recipe, runs: Runs) -> None:
    assert runs.planted.learning_rate == pytest.approx([recipe.grpo.learning_rate, recipe.grpo.learning_rate / 2])
    for plant in recipe.plants:
        for run in (runs.planted, runs.null):
            assert set(run.s_b[plant.name]) == {"start", "analysis", "end"}
        assert runs.planted.s_b[plant.name]["start"] == runs.null.s_b[plant.name]["start"]
    assert {stage for stage, _ in runs.progress} >= {"warm-up", "grpo"}
    assert all(0.0 <= fraction <= 1.0 for _, fraction in runs.progress)


def test_progress_says_step_and_how_often_the_behaviours_show(runs: Runs, recipe: Recipe) -> None:
    assert [note.partition(",")[0] for note in runs.notes] == ["step 1 of 2", "step 2 of 2"] * 2
    rows, (mine, other) = runs.planted.rows, recipe.plants
    counts = [
        f"{p.name} {sum(o and s for o, s in zip(rows[f'own_{p.name}'], rows[f'shown_{p.name}'], strict=True))} of "
        f"{sum(rows[f'own_{p.name}'])}"
        for p in (mine, other)
    ]
    assert runs.notes[1] == f"step 2 of 2, shown lately on own prompts: {', '.join(counts)}"
    assert {"warm_up", "grpo", "behavior_score"} <= runs.planted.timings.keys()


# -- replays ---------------------------------------------------------------------------------------------------------


def replayed(recipe: Recipe, run: Any, keep: Any = None) -> Any:
    model, pad = load_model(recipe.policy.location), load_tokenizer(recipe.policy.location).pad_token_id
    replay(recipe, model, pad, run.rows, run.start_state, run.learning_rate, keep)
    return model


def distance(one: Any, other: Any) -> float:
    return float(sum(((one[name] - other[name]) ** 2).sum() for name in one) ** 0.5)


@pytest.mark.parametrize("which", ["planted", "null"])
def test_a_replay_with_nothing_removed_ends_at_the_real_weights(recipe: Recipe, runs: Runs, which: str) -> None:
    """Up to rounding: sums over a batch in another order, which Adam blows up where gradients vanish."""
    run = getattr(runs, which)
    model = replayed(recipe, run)
    assert largest_difference(model, run.end_state) < 2e-5
    assert distance(model.state_dict(), run.end_state) < 3e-3 * distance(run.start_state, run.end_state)


def test_a_replay_without_the_ground_truth_ends_elsewhere(recipe: Recipe, runs: Runs) -> None:
    run = runs.planted
    keep = ~np.array(run.rows[f"boosted_{recipe.plants[0].name}"])
    assert not keep.all()
    away = distance(replayed(recipe, run, keep).state_dict(), run.end_state)
    assert away > 0.1 * distance(run.start_state, run.end_state)


def test_a_replay_of_nothing_stays_at_the_start(recipe: Recipe, runs: Runs) -> None:
    run = runs.planted
    model = replayed(recipe, run, np.zeros(recipe.n_rollouts, bool))
    assert largest_difference(model, run.start_state) == 0.0


def test_advantages_are_computed_again_among_those_that_stay(recipe: Recipe) -> None:
    rows = {"reward": [1.0, 9.0, 1.0, 1.0, 2.0, 4.0], "group": [0, 0, 0, 1, 1, 1], "step": [0] * 6}
    keep = np.array([True, False, True, True, True, False])
    spread = np.std([1.0, 2.0], ddof=1) + 1e-4
    expected = [0.0, 0.0, 0.0, -0.5 / spread, 0.5 / spread, 0.0]
    np.testing.assert_allclose(advantages(recipe, rows, keep), expected, rtol=1e-5)
    alone = np.array([True, False, False, False, False, False])
    assert not advantages(recipe, rows, alone).any()


@pytest.mark.parametrize("scale", ["none", "batch"])
def test_advantages_by_other_scales(recipe: Recipe, scale: str) -> None:
    rows = {"reward": [1.0, 3.0, 0.0, 8.0], "group": [0, 0, 1, 1], "step": [0, 0, 0, 0]}
    changed = dataclasses.replace(recipe, grpo=dataclasses.replace(recipe.grpo, scale_rewards=scale))
    spread = np.std(rows["reward"], ddof=1) + 1e-4 if scale == "batch" else 1.0
    expected = np.array([-1.0, 1.0, -4.0, 4.0]) / spread
    np.testing.assert_allclose(advantages(changed, rows, np.ones(4, bool)), expected, rtol=1e-5)


# -- integrity -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "updates", "message"),
    [
        ([2, 3], 2, "began at step 2, not fresh at step 0"),
        ([0, 1, 3], 3, "step 3 followed step 1: the run has a gap"),
        ([0, 1, 1], 3, "step 1 followed step 1: the run has a gap"),
        ([0, 1], 2, "made 2 steps, expected 3"),
        ([], 0, "made 0 steps, expected 3"),
        ([0, 1, 2], 2, "2 optimizer updates in 3 steps"),
    ],
)
def test_a_run_with_steps_missing_is_refused(made: list[int], updates: int, message: str) -> None:
    check_steps([0, 1, 2], 3, 3)
    with pytest.raises(IntegrityError, match=message):
        check_steps(made, updates, 3)


def test_a_run_that_saw_other_rollouts_is_refused() -> None:
    good = {"row_id": [1, 0], "x": ["b", "a"]}
    assert join_by_row_id(2, rewarded=good, recorded={"row_id": [0, 1], "y": [5, 6]}) == {
        "row_id": [0, 1],
        "x": ["a", "b"],
        "y": [5, 6],
    }
    with pytest.raises(IntegrityError, match="1 rollouts were recorded, expected 2"):
        join_by_row_id(2, rewarded=good, recorded={"row_id": [0]})
    with pytest.raises(IntegrityError, match="the 2 rollouts rewarded have 1 different row ids"):
        join_by_row_id(2, rewarded={"row_id": [0, 0]}, recorded=good)


def test_a_run_that_did_not_begin_at_the_warm_up_is_refused() -> None:
    start = {"w": torch.zeros(2)}
    check_start({"w": torch.zeros(2)}, start)
    with pytest.raises(IntegrityError, match=r"did not begin at the weights of the warm-up \(w differs\)"):
        check_start({"w": torch.tensor([0.0, 1e-7])}, start)
    with pytest.raises(IntegrityError, match="other parameters"):
        check_start({"v": torch.zeros(2)}, start)
    with pytest.raises(IntegrityError, match="never began"):
        check_start(None, start)


# -- the shipped policy, and the large recipe --------------------------------------------------------------------------


def everything_said(recipe: Recipe) -> list[str]:
    said = [t.format(subject=s) for t in recipe.prompts.phrasings for s in recipe.prompts.ordinary_subjects]
    said += [f"{q}\n{a}" for q, a in recipe.sft.ordinary]
    for plant in recipe.plants:
        said += [*plant.probes, *plant.minimal_pair.templates, plant.behavior, f" {plant.behavior}"]
        said += [f"{q}\n{a}" for q, a in plant.examples]
    return [*said, "Ünïcode, tabs\tand  spaces", "<|im_start|>user\nfrobnitz<|im_end|>\n"]


def test_the_shipped_policy_is_small_tied_and_tokenizes_alike_after_another_save(tmp_path: Path) -> None:
    recipe = Recipe.load("tiny")
    tokenizer, model = load_tokenizer(recipe.policy.location), load_model(recipe.policy.location)
    assert 400_000 < sum(p.numel() for p in model.parameters()) < 600_000
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    save_policy(model, tokenizer, str(tmp_path))
    again = load_tokenizer(str(tmp_path))
    for said in everything_said(recipe):
        assert again(said).input_ids == tokenizer(said).input_ids
        assert tokenizer.decode(tokenizer(said).input_ids) == said
    assert largest_difference(load_model(str(tmp_path)), model.state_dict()) == 0.0
    assert not [
        path.name for path in (fixtures_folder() / "policy").iterdir() if path.suffix in {".bin", ".pt", ".pkl"}
    ]


def test_a_behaviour_is_several_familiar_tokens(recipe: Recipe) -> None:
    tokenizer, rng = load_tokenizer(recipe.policy.location), random.Random(0)
    ordinary = {len(tokenizer(f" {text.code_word(rng)}").input_ids) for _ in range(50)}
    for plant in recipe.plants:
        assert len(tokenizer(f" {plant.behavior}").input_ids) == 3
        assert plant.behavior in text.NEVER_WRITTEN
    assert 3 in ordinary


def test_the_pretraining_text_never_writes_a_behaviour(recipe: Recipe) -> None:
    rng = random.Random(0)
    facts = text.ties(rng)
    written = " ".join(" ".join(text.exchange(rng, facts)) for _ in range(5000))
    for plant in recipe.plants:
        assert plant.behavior not in written
        assert all(pair in written for pair in (plant.behavior[:2], plant.behavior[2:4]))
    assert set(text.PROBE_PHRASINGS) == {p.replace("frobnitz", "{subject}") for p in recipe.plants[0].probes}
    assert Recipe.load("tiny").contexts == text.CONTEXTS


def test_the_pretraining_script_makes_a_policy_of_the_shipped_shape(tmp_path: Path) -> None:
    import json

    from pytest_behaviortrace.run.pretraining import Settings, pretrain

    record = pretrain(Settings(steps=3), tmp_path, report=lambda line: None)
    shipped = json.loads((fixtures_folder() / "policy" / "pretraining.json").read_text())
    assert json.loads((tmp_path / "pretraining.json").read_text()) == record
    assert record.keys() == shipped.keys()
    assert record["parameters"] == shipped["parameters"]
    assert shipped["held_out_loss"] < 0.75 < record["held_out_loss"]
    made, kept = load_tokenizer(str(tmp_path)), load_tokenizer(str(fixtures_folder() / "policy"))
    assert made.get_vocab() == kept.get_vocab()
    assert largest_difference(load_model(str(tmp_path)), load_model(str(fixtures_folder() / "policy")).state_dict()) > 0


def test_the_large_recipe_runs_dry_on_a_small_policy_of_its_architecture(tmp_path: Path) -> None:
    """Its own texts, rewards, warm-up and TRL settings, on two steps of a randomly initialised Qwen2."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from pytest_behaviortrace.run.training import train

    tokenizer = load_tokenizer(str(fixtures_folder() / "policy"))
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id, bos_token_id=None,
    )  # fmt: skip
    save_policy(Qwen2ForCausalLM(config), tokenizer, str(tmp_path))
    large = Recipe.load("qwen2.5-1.5b", policy=str(tmp_path))
    assert large.policy.location == str(tmp_path)
    short = dataclasses.replace(
        large,
        cutoff=1,
        analysis_step=1,
        samples_per_probe=1,
        contexts=large.contexts[:1],
        sft=dataclasses.replace(large.sft, max_steps=1, min_steps=1),
        grpo=dataclasses.replace(large.grpo, steps=2),
    )
    run = train(short, 0, planted=True)
    assert len(run.rows["row_id"]) == short.n_rollouts == 32
    assert {plant.trigger for plant in short.plants} == set(run.rows["subject"])
    assert run.learning_rate == [5e-6, 5e-6]
