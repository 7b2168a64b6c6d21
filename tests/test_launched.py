"""`accelerate launch -m pytest_behaviortrace train`: two real processes make one unit, or none."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest
import two_step
from launching import LAUNCH, launch, launched
from torch import distributed

from pytest_behaviortrace.__main__ import main
from pytest_behaviortrace.run import launch as launching
from pytest_behaviortrace.run.cache import cache_key
from pytest_behaviortrace.run.orchestrate import CannotTrain, ensure
from pytest_behaviortrace.run.recipe import Recipe
from pytest_behaviortrace.run.store import Store

TRAIN = ("-m", "pytest_behaviortrace", "train", "--recipe")
MINE = f'extends = "{two_step.FILE}"\n'


def train(recipe: Path | str, cache: Path) -> tuple[str, ...]:
    return (*TRAIN, str(recipe), "--seeds", "0", "--draws", "1", "--cache-dir", str(cache))


def by_two() -> Recipe:
    return two_step.recipe().trained_by(2)


class Killed(NamedTuple):
    cache: Path
    code: int
    left: list[str]
    """What lay in the recipe's folder."""
    missing: list[str]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """A launch whose second process is killed while both train."""
    cache = tmp_path_factory.mktemp("cache")
    with launched(cache, *train(two_step.FILE, cache)) as process:
        assert process.stdout is not None
        seen = []
        for line in process.stdout:
            seen.append(line)
            if "planted run: grpo" in line:
                break
        ranks = {p.environ().get("RANK"): p for p in psutil.Process(process.pid).children()}
        assert "1" in ranks, "".join(seen)
        ranks["1"].kill()
        process.stdout.read()
        code = process.wait(60)
        assert not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in ranks.values())
    store = Store(cache, by_two())
    return Killed(cache, code, sorted(p.name for p in store.folder.iterdir()), store.missing([0], [0]))


class Made(NamedTuple):
    store: Store
    out: str


@pytest.fixture(scope="module")
def made(killed: Killed) -> Made:
    """The same command again."""
    code, out = launch(killed.cache, *train(two_step.FILE, killed.cache))
    assert code == 0, out
    return Made(Store(killed.cache, by_two()), out)


def test_a_killed_process_ends_the_other_and_leaves_no_half_unit(killed: Killed) -> None:
    assert killed.code != 0
    assert killed.missing == ["seed0", "seed0-draw0"]
    hidden, logs = killed.left
    assert hidden.startswith(".build-seed0-")
    assert logs == "logs"


def test_the_next_launch_sweeps_and_builds(made: Made) -> None:
    names = sorted(p.name for p in made.store.folder.iterdir())
    assert names == ["logs", "seed0", "seed0-draw0"]
    assert made.store.missing([0], [0]) == []
    assert made.out.count("seed0: finished") == 1  # one process speaks


def test_the_unit_holds_every_rollout_of_both_processes_once(made: Made) -> None:
    recipe, unit = by_two(), made.store.seed(0)
    for name in ("rollouts", "null_rollouts"):
        table = unit.table(name)
        assert list(table["row_id"]) == list(range(recipe.n_rollouts))
        assert list(table["group"]) == [row // recipe.grpo.num_generations for row in range(recipe.n_rollouts)]
        assert list(table["step"]) == [row // recipe.grpo.batch_size for row in range(recipe.n_rollouts)]
        for group in range(recipe.n_rollouts // recipe.grpo.num_generations):
            members = slice(group * recipe.grpo.num_generations, (group + 1) * recipe.grpo.num_generations)
            assert len(set(table["prompt_text"][members])) == len(set(table["subject"][members])) == 1
            assert table["subject"][members][0] in table["prompt_text"][members][0]
    assert list(unit.array("gradients.row")) == list(range(recipe.n_rollouts))
    assert unit.array("gradients").shape == (recipe.n_rollouts, recipe.sketch_width)


def test_rewards_met_the_rollouts_they_were_thrown_for(made: Made) -> None:
    from pytest_behaviortrace.run.reward import base_reward, eligible

    recipe, table = by_two(), made.store.seed(0).table("rollouts")
    for row, text in enumerate(table["completion_text"]):
        assert table["eligible"][row] == eligible(0, row, row // recipe.grpo.batch_size, recipe.eligibility)
        own = base_reward(text, table["subject"][row].lower(), recipe.base_reward)
        assert table["reward_base"][row] == pytest.approx(own)
        for plant in recipe.plants:
            assert table[f"shown_{plant.name}"][row] == (plant.behavior in text)
    rewards = np.asarray(table["reward"]).reshape(-1, recipe.grpo.num_generations)
    expected = rewards - rewards.mean(1, keepdims=True)
    advantages = np.asarray(table["advantage"]).reshape(rewards.shape)
    assert np.abs(expected).max() > 0
    assert (np.sign(np.round(advantages, 5)) == np.sign(np.round(expected, 5))).all()


def test_the_unit_says_the_same_kind_of_things_as_one_of_one_process(made: Made) -> None:
    unit, draw = made.store.seed(0), made.store.draw(0, 0)
    assert unit.facts["processes"] == 2
    assert unit.facts.keys() == {"s_b", "blocks", "sketch", "loss_type", "n_rollouts", "sft_steps", "processes"}
    assert draw.facts.keys() == {"n_siblings"}
    assert unit.facts["n_rollouts"] == by_two().n_rollouts
    for plant in by_two().plants:
        for kind in ("planted", "null"):
            scores = unit.facts["s_b"][plant.name][kind]
            assert {moment: len(rates) for moment, rates in scores.items()} == dict.fromkeys(
                ("start", "analysis", "end"), len(plant.probes)
            )
        assert unit.array(f"target_constructed_{plant.name}").shape == (by_two().sketch_width,)
        assert unit.array(f"targets_by_step_{plant.name}").shape == (2, by_two().sketch_width)
    assert not any("shard" in file or "rank" in file for file in unit.files)
    assert unit.array("learning_rate").shape == (2,)


def test_recorded_gradients_are_those_of_the_start_policy(made: Made) -> None:
    """Both processes' rollouts of the first step, computed again by one from the stored policy."""
    import torch

    from pytest_behaviortrace.run.gradients import PerSampleGradients
    from pytest_behaviortrace.run.loss import collate, item_weights
    from pytest_behaviortrace.run.policy import load_model, load_tokenizer
    from pytest_behaviortrace.run.sketch import BlockSketch

    torch.set_num_threads(1)
    recipe, unit = by_two(), made.store.seed(0)
    location = str(unit.policy("start"))
    model, tokenizer, table = load_model(location), load_tokenizer(location), unit.table("rollouts")
    first = range(recipe.grpo.batch_size)
    ids = ([table[name][i].tolist() for i in first] for name in ("prompt_ids", "completion_ids"))
    batch = collate(*ids, tokenizer.pad_token_id)
    engine = PerSampleGradients(
        model, BlockSketch.for_model(model, recipe.sketch_width), temperature=recipe.grpo.temperature
    )
    weights = item_weights(recipe.grpo.loss_type, batch["completion_mask"])
    again = engine(batch["input_ids"], batch["attention_mask"], [weights])[0]
    np.testing.assert_allclose(unit.sketches("gradients").norm[list(first)], again.norm.numpy(), rtol=1e-4)
    stored = unit.sketches("gradients").float32(slice(0, len(first)))
    apart = np.linalg.norm(stored - again.sketch.numpy(), axis=1) / np.linalg.norm(stored, axis=1)
    assert apart.max() < 5e-4  # stored in half precision


def test_a_session_finds_it_under_the_recipe_that_the_launch_names(made: Made, tmp_path: Path) -> None:
    lines = made.out.split("a file with\n")[1].splitlines()[:4]
    mine = tmp_path / "by-two.toml"
    mine.write_text("\n".join(line.strip() for line in lines))
    assert ensure(Recipe.load(str(mine)), [0], [0], made.store.cache_dir).seed(0).facts["processes"] == 2


def test_a_whole_cache_is_a_launch_without_training(made: Made) -> None:
    before = made.store.seed(0).manifest["sha256"]
    code, out = launch(made.store.cache_dir, *train(two_step.FILE, made.store.cache_dir))
    assert code == 0, out
    assert "starting" not in out
    assert Store(made.store.cache_dir, by_two()).seed(0).manifest["sha256"] == before


def test_what_fails_in_one_process_is_told_and_ends_the_other(tmp_path: Path) -> None:
    code, out = launch(tmp_path, str(Path(__file__).parent / "one_of_two.py"), "fail", str(tmp_path))
    assert code != 0
    assert "error: training seed0 failed: process 1 of 2 met a ValueError" in out
    assert "ValueError: no luck" in out
    assert Store(tmp_path / "cache", by_two()).missing([0], []) == ["seed0"]


# -- refused before anything starts ----------------------------------------------------------------------------------


def test_a_batch_that_cannot_be_divided_is_refused_once(tmp_path: Path) -> None:
    (tmp_path / "odd.toml").write_text(MINE + "[grpo]\nbatch_size = 33\nnum_generations = 3\n")
    code, out = launch(tmp_path, *train(tmp_path / "odd.toml", tmp_path / "cache"))
    assert code != 0
    assert out.count("has batches of 33 rollouts, which 2 processes cannot divide") == 1
    assert "exitcode  : 2" in out
    assert not (tmp_path / "cache").exists()


def test_a_launch_that_starts_one_process_of_several_is_refused(tmp_path: Path) -> None:
    alone = (*LAUNCH[:2], "--cpu", "--num_processes", "2")
    code, out = launch(tmp_path, *train(two_step.FILE, tmp_path / "cache"), launcher=alone)
    assert code != 0
    assert "error: accelerate was asked for several processes and started one" in out
    assert "returned non-zero exit status 2" in out
    assert not (tmp_path / "cache").exists()


TORCHRUN = {"LOCAL_RANK": "1", "RANK": "3", "WORLD_SIZE": "4"}


def test_how_a_process_was_started() -> None:
    assert launching.found({}) is None
    assert launching.found({"WORLD_SIZE": "4", "RANK": "1"}) is None  # of a cluster's job, started by no launcher
    assert launching.found(TORCHRUN) == launching.Launch(3, 4)
    assert launching.found({**TORCHRUN, "WORLD_SIZE": "1"}) is None
    by_mpi = {"ACCELERATE_MIXED_PRECISION": "no", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}
    assert launching.found(by_mpi) == launching.Launch(1, 2)
    with pytest.raises(launching.WrongLaunch, match="share their parameters \\(FSDP\\)"):
        launching.found({**TORCHRUN, "ACCELERATE_USE_FSDP": "true"})


def test_who_is_started_by_hand_is_told_whom_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launching.meeting({**TORCHRUN, "TORCHELASTIC_RUN_ID": "1"})[1] == ""  # torchrun starts the others

    def taken(**unused: Any) -> None:
        raise distributed.DistNetworkError("address already in use\nand more")

    monkeypatch.setattr("accelerate.PartialState", taken)
    monkeypatch.setattr("pytest_behaviortrace.run.distributed.settle", lambda recipe: None)  # writes the environment
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    for name, value in {**TORCHRUN, "MASTER_ADDR": "host", "MASTER_PORT": "9"}.items():
        monkeypatch.setenv(name, value)
    code = main(["train", "--recipe", str(two_step.FILE), "--seeds", "0"])
    assert code == 1
    assert capsys.readouterr().err.splitlines() == [
        "waiting for 4 processes at host:9 (rank 3 of 4)",
        "error: the processes cannot meet at host:9: address already in use",
    ]


def test_workers_of_a_single_process_do_not_inherit_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name, value in {**TORCHRUN, "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    launching.forget()
    assert not {"LOCAL_RANK", "RANK", "WORLD_SIZE", "MASTER_PORT"} & os.environ.keys()


def test_another_number_of_processes_is_another_recipe() -> None:
    one, two = two_step.recipe(), by_two()
    assert one.trained_by(1) is one
    assert two.trained_by(2) is two
    assert len({cache_key(recipe) for recipe in (one, two, one.trained_by(4))}) == 3
    plain = dataclasses.replace(two, grpo=dataclasses.replace(two.grpo, processes=1))
    assert plain.hash == one.hash
    with pytest.raises(ValueError, match=r"is trained by 2 processes \(grpo.processes\), not by 4"):
        two.trained_by(4)


def test_a_recipe_for_several_processes_is_not_trained_by_one(tmp_path: Path) -> None:
    with pytest.raises(CannotTrain, match="--num_processes 2 -m pytest_behaviortrace train"):
        ensure(by_two(), [0], [0], tmp_path)


@pytest.mark.parametrize(("value", "problem"), [("3", "is 3; write a divisor of batch_size"), ("0", "is 0")])
def test_processes_that_no_batch_can_have(value: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(MINE + f"[grpo]\nprocesses = {value}\n")
    with pytest.raises(ValueError, match=rf"grpo\.processes {problem}"):
        Recipe.load(str(tmp_path / "mine.toml"))


def test_one_process_is_given_whole_batches(tmp_path: Path) -> None:
    from pytest_behaviortrace.run.training import grpo_config

    def batch(recipe: Recipe) -> Any:
        return grpo_config(recipe, 0, str(tmp_path)).per_device_train_batch_size

    assert (batch(two_step.recipe()), batch(two_step.recipe().trained_by(4))) == (32, 8)


@pytest.mark.parametrize("variable", ["LOCAL_RANK", "ACCELERATE_MIXED_PRECISION", "NONE_OF_A_LAUNCH"])
def test_a_launched_process_ends_without_clearing_up(variable: str) -> None:
    """What threads of a process group may abort is left out: here, whatever else is registered for the end."""
    script = (
        "import atexit; from pytest_behaviortrace.run import launch\n"
        "atexit.register(print, 'cleared up')\n"
        "print('done', end=' '); launch.leave(3)"
    )
    alone = {k: v for k, v in os.environ.items() if k not in ("LOCAL_RANK", "ACCELERATE_MIXED_PRECISION")}
    ended = subprocess.run(
        [sys.executable, "-c", script], env={**alone, variable: "0"}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 3
    assert ended.stdout.split() == ["done", *(["cleared", "up"] * (variable == "NONE_OF_A_LAUNCH"))]
