"""Values from the command line, the environment and ini files; every bad one is one sentence, before any training."""

from __future__ import annotations

from pathlib import Path

import pytest
from surface import QUIET, Repo, modules_after

from pytest_behaviortrace import bounds, checklist, grade, options, time_limit
from pytest_behaviortrace.registry import Registry
from pytest_behaviortrace.run.recipe import Recipe
from pytest_behaviortrace.settings import Settings, resolve, unwritable

HERE = Path(__file__).parent
FIRST, SECOND = (plant.name for plant in Recipe.load("tiny").plants)


@pytest.fixture
def settle(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    """Settings of a command line; without the plugin's own activation, which would grade."""
    monkeypatch.setenv("BEHAVIORTRACE_CACHE", str(pytester.path / "from-environment"))

    def settle(*args: str) -> Settings:
        return resolve(pytester.parseconfig(*QUIET, "--bt-estimator=gas", *args), Registry())

    return settle


def test_defaults(settle, pytester):
    settings = settle()
    assert settings.estimators == ("gas",)
    assert (settings.seeds, settings.draws) == ((0, 1, 2), 2)
    assert settings.recipe.name == "tiny"
    assert settings.plant == FIRST
    assert settings.cache_dir == pytester.path / "from-environment"
    assert (settings.reports, settings.fail_on, settings.estimator_timeout) == ((), "fail", None)
    assert (settings.baseline, settings.exhibits) == (None, False)


def test_every_flag(settle, pytester):
    settings = settle(
        "--bt-estimator=dot", "--bt-seeds=5", "--bt-draws", "1", "--bt-recipe=tiny", f"--bt-plant={SECOND}",
        "--bt-cache-dir=there", "--bt-report=out/card.json", "--bt-report=card.HTML", "--bt-fail-on=inconclusive",
        "--bt-estimator-timeout=1.5",
    )  # fmt: skip
    assert settings.estimators == ("gas", "dot")
    assert (settings.seeds, settings.draws) == ((0, 1, 2, 3, 4), 1)
    assert settings.plant == SECOND
    assert settings.cache_dir == pytester.path / "there"
    assert settings.reports == (pytester.path / "out" / "card.json", pytester.path / "card.HTML")
    assert settings.exhibits
    assert (settings.fail_on, settings.estimator_timeout) == ("inconclusive", 1.5)
    assert not (pytester.path / "out").exists()


def test_every_ini_value_and_the_command_line_beats_it(settle, pytester, monkeypatch):
    monkeypatch.delenv("BEHAVIORTRACE_CACHE")
    pytester.makeini(
        "[pytest]\nbt_estimators = dot gas\nbt_seeds = 4\nbt_draws = 3\nbt_recipe = tiny\n"
        f"bt_plant = {SECOND}\nbt_cache_dir = kept\nbt_fail_on = inconclusive\nbt_estimator_timeout = 60"
    )
    settings = settle()
    assert settings.estimators == ("gas",)
    assert (len(settings.seeds), settings.draws, settings.fail_on) == (4, 3, "inconclusive")
    assert settings.plant == SECOND
    assert settings.cache_dir == pytester.path / "kept"
    assert settings.estimator_timeout == 60
    settings = settle("--bt-seeds=1", "--bt-fail-on=fail")
    assert (settings.seeds, settings.fail_on) == ((0,), "fail")


def test_estimators_from_the_ini_file(pytester):
    pytester.makeini("[pytest]\nbt_estimators = dot gas dot")
    assert resolve(pytester.parseconfig(*QUIET), Registry()).estimators == ("dot", "gas")


def test_the_environment_beats_the_ini_file_for_the_cache(settle, pytester):
    pytester.makeini("[pytest]\nbt_cache_dir = kept")
    assert settle().cache_dir == pytester.path / "from-environment"
    assert settle("--bt-cache-dir=there").cache_dir == pytester.path / "there"


def test_flags_that_a_rerun_must_repeat(settle):
    settings = settle("--bt-seeds", "2", f"--bt-plant={SECOND}", "--bt-report", "card.json", "-q")
    assert settings.typed == ("--bt-seeds=2", f"--bt-plant={SECOND}")


BAD = [
    ("--bt-seeds=0", "--bt-seeds: '0' is not a number of at least 1; give how many, such as 3"),
    ("--bt-seeds=-1", "--bt-seeds: '-1' is not a number of at least 1"),
    ("--bt-draws=two", "--bt-draws: 'two' is not a number of at least 1"),
    ("--bt-seeds=100000000", "--bt-seeds: '100000000' is more than 3,000; give fewer"),
    ("--bt-seeds=3001", "--bt-seeds: '3001' is more than 3,000; give fewer"),
    ("--bt-draws=1001", "--bt-draws: '1001' is more than 1,000; give fewer"),
    (f"--bt-draws={'9' * 5000}", "99 is more than 1,000; give fewer"),
    ("--bt-seeds=\u0663", "--bt-seeds: '\u0663' is not a number of at least 1"),
    ("--bt-estimator=nobody", "unknown estimator 'nobody'. Registered: advantage, dot, fluency, gas"),
    ("--bt-estimator=token_gas", "unknown estimator 'token_gas'; did you mean 'token-gas'?"),
    ("--bt-recipe=huge", "--bt-recipe: unknown recipe 'huge'; recipes: qwen2.5-1.5b, tiny"),
    ("--bt-recipe=absent.toml", "cannot be read"),
    ("--bt-plant=rose", f"--bt-plant: recipe 'tiny' has no plant 'rose'; its plants: {FIRST}, {SECOND}"),
    ("--bt-report=card.pdf", "--bt-report: 'card.pdf' does not say in which format; end it in .json or .html or"),
    ("--bt-report=card", "--bt-report: 'card' does not say in which format"),
    ("--bt-report=folder.json", "is a folder; give the path of a file"),
    ("--bt-report=file/card.json", "--bt-report: 'file/card.json' cannot be written"),
    ("--bt-fail-on=never", "--bt-fail-on: 'never' is not known; choose fail or inconclusive or regression"),
    ("--bt-fail-on=regression", "bt_fail_on: 'regression' needs something to compare with; name an earlier JSON"),
    ("--bt-estimator-timeout=0", "--bt-estimator-timeout: '0' is not a number of seconds above 0"),
    ("--bt-estimator-timeout=nan", "--bt-estimator-timeout: 'nan' is not a number of seconds above 0"),
    ("--bt-estimator-timeout=soon", "--bt-estimator-timeout: 'soon' is not a number of seconds above 0"),
    ("--bt-estimator-timeout=1e300", "--bt-estimator-timeout: '1e300' is more than 1,000,000 seconds; give fewer"),
]


@pytest.mark.parametrize(("flag", "message"), BAD, ids=[flag[:40] for flag, _ in BAD])
def test_a_bad_value_is_one_sentence(settle, pytester, flag, message):
    pytester.mkdir("folder.json")
    (pytester.path / "file").touch()
    with pytest.raises(pytest.UsageError) as caught:
        settle(flag)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_largest_numbers_are_those_that_are_documented(settle):
    most = settle("--bt-seeds=3000", "--bt-draws=1000", "--bt-estimator-timeout=1000000")
    assert (len(most.seeds), most.draws) == (bounds.MOST_SEEDS, bounds.MOST_DRAWS)
    assert most.estimator_timeout == time_limit.LONGEST
    said = {flag: text for flag, _, _, text in options.FLAGS}
    assert f"at most {bounds.MOST_SEEDS:,}" in said["--bt-seeds"]
    assert f"at most {bounds.MOST_DRAWS:,}" in said["--bt-draws"]


def test_rows_are_counted_without_being_made():
    checks = checklist.declared()
    for names, seeds, draws in ((1, 3, 2), (2, 1, 1), (40, 2, 3)):
        planned = checklist.planned(checks, [f"e{number}" for number in range(names)], range(seeds), draws)
        assert checklist.count(checks, names, seeds, draws) == len(planned)


@pytest.mark.parametrize(
    ("seeds", "draws", "rows", "said"),
    [
        (1_000, 9, 250_000, None),
        (1_000, 10, 0, "1,000 seeds with 10 draws each are 11,000 runs and draws, more than 10,000"),
        (3_001, 1, 0, "more than 3,000 seeds"),
        (1, 1_001, 0, "more than 1,000 draws"),
        (3, 2, 250_001, "250,001 rows, more than 250,000 in one session"),
    ],
)
def test_what_is_too_much_together(seeds, draws, rows, said):
    assert bounds.too_much(seeds, draws, rows) == said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"seeds": 10**8}, "seeds, draws, estimators: more than 3,000 seeds; ask for fewer"),
        ({"draws": 10**8}, "more than 1,000 draws"),
        (
            {"estimator": {f"e{n}": "gas" for n in range(100)}, "seeds": 999, "draws": 9},
            "rows, more than 250,000 in one session",
        ),
    ],
)
def test_python_is_told_the_same(arguments, said):
    with pytest.raises(ValueError, match=said):
        grade(**{"estimator": "gas"} | arguments)


def test_a_bad_ini_value_names_the_file(settle, pytester):
    pytester.makeini("[pytest]\nbt_seeds = none")
    with pytest.raises(pytest.UsageError, match=r"bt_seeds in .*tox\.ini: 'none' is not a number"):
        settle()


def test_a_recipe_that_must_not_be_graded(settle):
    with pytest.raises(pytest.UsageError, match="only tests the machinery"):
        settle(f"--bt-recipe={HERE / 'recipes' / 'two-step.toml'}")


def test_probing_a_folder_leaves_nothing(tmp_path):
    assert unwritable(tmp_path / "a" / "b") is None
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    assert "file" in (unwritable(tmp_path / "file" / "below") or "")


# -- the same from outside ---------------------------------------------------------------------------------------------
@pytest.fixture
def repo(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Repo:
    return Repo(pytester, monkeypatch)


@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["serial", "xdist"])
@pytest.mark.parametrize(
    "flags",
    [
        ("--bt-estimator=nobody",),
        ("--bt-estimator=good", "--bt-seeds=0"),
        ("--bt-estimator=good", "--bt-seeds=100000000"),
        ("--bt-estimator=good", "--bt-seeds=3000", "--bt-draws=1000"),
    ],
    ids=["estimator", "seeds", "many seeds", "many runs"],
)
def test_usage_errors_exit_4_before_training(repo, workers, flags):
    result = repo.run(*flags, *workers)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert len([line for line in result.errlines if line.startswith("ERROR: ")]) == 1
    assert "Traceback" not in result.stderr.str()
    assert repo.trained() == []


def test_an_unwritable_cache_is_refused_before_training_but_not_for_collecting(repo):
    (repo.path / "file").touch()
    result = repo.run("--bt-estimator=good", "--bt-cache-dir=file/cache")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: the cache folder */file/cache cannot be written (*); choose another with *"])
    assert repo.run("--bt-estimator=good", "--bt-cache-dir=file/cache", "--collect-only").ret == 0


@pytest.mark.parametrize("flag", ["--bt-seeds=2", "--bt-report=card.json"])
def test_a_flag_without_an_estimator_is_a_usage_error(repo, flag):
    result = repo.run(flag)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --bt-* does nothing alone; name an estimator*"])


@pytest.mark.parametrize("arg", ["checks/test_headroom.py", "installed/checks/test_headroom.py", "installed/checks"])
def test_a_shipped_check_without_an_estimator_is_a_usage_error(repo, arg):
    result = repo.run(arg)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: the shipped checks grade an estimator*"])


def test_flags_in_addopts_alone_change_nothing(repo):
    repo.pytester.makeini("[pytest]\naddopts = --bt-seeds=2")
    repo.run().assert_outcomes(passed=1)


def test_the_list(repo):
    repo.pytester.makepyfile(doubles="raise RuntimeError('imported')")
    result = repo.run("--bt-list")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "estimators*",
            "  bad  *hook pytest_behaviortrace_estimators; needs: known when it is imported (-v)",
            "  gas  *pytest-behaviortrace * (shipped); needs: gradients",
            "checks:",
        ]
    )
    result.stdout.fnmatch_lines(["  gradient_magnitude * claim of test_gradient_magnitude."])


def test_the_list_imports_what_it_is_asked_to(repo):
    repo.pytester.makepyfile(doubles="raise RuntimeError('imported')")
    result = repo.run("--bt-list", "-v")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["  bad  *; needs: unknown: RuntimeError: imported (doubles.py, line 1)"])
    result.stdout.fnmatch_lines(["  string-match  *(shipped); needs: text, behavior"])


def test_the_list_has_what_was_asked_for_by_its_path(repo):
    asked = ("--bt-list", "--bt-estimator=doubles:short", "--bt-estimator=gas")
    plain = repo.run(*asked)
    assert plain.ret == 0
    plain.stdout.fnmatch_lines(
        ["  doubles:short * registered nowhere; needs: known when it is imported (-v)", "checks:"]
    )
    repo.pytester.makepyfile(mine="from pytest_behaviortrace import needs\n@needs(text=True)\ndef own(problem): ...\n")
    told = repo.run("--bt-list", "-v", "--bt-estimator=mine:own", "--bt-estimator=mine:absent")
    told.stdout.fnmatch_lines(
        [
            "  mine:own * registered nowhere; needs: text",
            "  mine:absent * registered nowhere; needs: unknown: *mine has no 'absent'",
            "checks:",
        ]
    )
    assert [line.split()[0] for line in told.outlines].count("gas") == 1
    unknown = repo.run("--bt-list", "--bt-estimator=nobody")
    assert unknown.ret == pytest.ExitCode.USAGE_ERROR
    unknown.stderr.fnmatch_lines(["ERROR: unknown estimator 'nobody'*"])


def test_the_plain_list_imports_nothing_heavy(pytester):
    loaded = modules_after("--bt-list", cwd=pytester.path)
    assert not {"numpy", "torch", "trl", "transformers", "pyarrow", "rich", "hypothesis"} & loaded
    assert "pytest_behaviortrace.estimators.gradient" not in loaded


def test_help_lists_every_flag(pytester):
    text = pytester.runpytest_subprocess(*QUIET, "--help").stdout.str()
    for flag in ("estimator", "list", "seeds", "draws", "recipe", "plant", "cache-dir", "report", "fail-on"):
        assert f"--bt-{flag}" in text
    for ini in ("bt_estimators", "bt_seeds", "bt_cache_dir", "bt_estimator_timeout", "bt_expected_failures"):
        assert ini in text


def test_the_header_states_estimator_recipe_cache_and_scope(repo):
    result = repo.run("--bt-estimator=good", "--collect-only")
    result.stdout.fnmatch_lines(["behaviortrace *: good; tiny@????????, 9 of 9 units to train; checks only (*"])
    result = repo.run("--bt-estimator=good", "--bt-seeds=1", "--collect-only", ".")
    result.stdout.fnmatch_lines(["behaviortrace *, 3 of 3 units to train; checks + your tests"])
