"""`checks/test_stress.py` on doubles, row by row: a property that holds, one broken, one not claimed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import stress_doubles as doubles
from pytest_behaviortrace.checks import test_stress as check
from surface import QUIET

from pytest_behaviortrace import checklist
from pytest_behaviortrace.estimator import EstimatorError, claims, claims_of, needs
from pytest_behaviortrace.scoring import score
from pytest_behaviortrace.session import GradingSession
from pytest_behaviortrace.trial import Bench
from pytest_behaviortrace.verdict import ClaimFailed, Decision, Inconclusive, NotApplicable, Verdict

(DECLARED,) = [found for found in checklist.declared() if found.name == "test_stress"]
SHIPPED = sorted(point.name for point in metadata.entry_points(group="pytest_behaviortrace.estimators"))
ALWAYS = {"finite", "deterministic", "inputs", "row-ids"}
"""Properties that nobody can do without."""
MODEL_ROWS = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


class Outcome(NamedTuple):
    verdict: Verdict
    reason: str
    decision: Decision | None


def run_row(estimator: Any, component: str, bench: Bench | None = None) -> Outcome:
    """The row as the plugin runs it."""
    trial = (bench or Bench()).trial("mine", estimator, component)
    try:
        DECLARED.run(checklist.RowSpec("test_stress", "mine", component=component), trial)
    except ClaimFailed as error:
        return Outcome(Verdict.FAIL, str(error), trial.decision)
    except Inconclusive as error:
        return Outcome(Verdict.INCONCLUSIVE, str(error.msg), trial.decision)
    except NotApplicable as error:
        return Outcome(Verdict.NOT_APPLICABLE, str(error.msg), trial.decision)
    return Outcome(Verdict.PASS, trial.decision.reason, trial.decision)


def all_rows(estimator: Any) -> dict[str, Verdict]:
    return {component: run_row(estimator, component).verdict for component in check.COMPONENTS}


def replayed(source: str, estimator: Any) -> dict[str, Any]:
    """What the printed source defines, and the estimator's scores of it."""
    found: dict[str, Any] = {}
    exec(source, found)
    for name in ("problem", "changed"):
        if name in found:
            found[f"scores of {name}"] = score("mine", estimator, found[name]).scores
    return found


# -- what ships ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_estimator_has_what_it_claims(name):
    (point,) = metadata.entry_points(group="pytest_behaviortrace.estimators", name=name)
    estimator, claimed = point.load(), claims_of(point.load())
    assert (name == "random") == (not claimed.permutation) == (not claimed.duplicates)
    assert claimed.target_sign == (point.value.split(":")[0].endswith(".gradient"))
    not_asked = {"batches"}  # none of them uses the model
    not_asked |= {row for row in ("permutation", "duplicates", "renaming") if not getattr(claimed, row)}
    not_asked |= set() if claimed.target_sign else {"target-sign"}
    found = all_rows(estimator)
    assert {row for row, verdict in found.items() if verdict is Verdict.NOT_APPLICABLE} == not_asked
    assert {verdict for row, verdict in found.items() if row not in not_asked} == {Verdict.PASS}


# -- rows --------------------------------------------------------------------------------------------------------------
def test_an_honest_estimator_passes_every_row_that_concerns_it():
    found = all_rows(doubles.honest)
    assert found.pop("batches") is Verdict.NOT_APPLICABLE
    assert set(found.values()) == {Verdict.PASS}


def test_the_budget_is_fixed_and_reported():
    outcome = run_row(doubles.honest, "permutation")
    assert outcome.reason == f"scores move with their items ({check.EXAMPLES} problems)"
    assert outcome.decision.n == check.EXAMPLES


BROKEN = [
    ("finite", doubles.unguarded_cosine, "returned 1 scores that are NaN or infinite (first: item 0)"),
    ("finite", doubles.standardised, "returned 1 scores that are NaN"),
    ("finite", doubles.by_reward, "on 1 siblings returned 1 scores that are NaN"),
    ("finite", doubles.breaks_on_pairs, "raised KeyError: 'odd sizes only'"),
    ("finite", doubles.in_place, "raised ValueError: output array is read-only"),
    ("deterministic", doubles.rolling_dice, "on the next"),
    ("inputs", doubles.in_place, "raised ValueError: output array is read-only"),
    ("inputs", doubles.by_force, "problem.completion_ids is not what it was before the call"),
    ("permutation", doubles.by_position, "item 0 of taken(problem, [1, 0]) scores 0.0, not 0.01"),
    ("duplicates", doubles.by_position, "item 1 of taken(problem, [0, 0]) scores 0.01, not 0.0"),
    ("duplicates", doubles.once_each, "item 1 of taken(problem, [0, 0]) scores -5.0, not 2.0"),
    ("renaming", doubles.by_group_id, "item 0 of renamed(problem, {0: 1}) scores 1.0, not 0.0"),
    ("renaming", doubles.by_prompt, "item 0 of renamed(problem, {0: 0}, {'a': 'aa'}) scores 2.0, not 1.0"),
    ("row-ids", doubles.by_group_id, "item 0 of relocated(problem, 1) scores 1.0, not 0.0"),
    ("row-ids", doubles.by_alignment, "item 0 of relocated(problem, 1) scores 2.0, not 0.0"),
    ("target-sign", doubles.squared, "item 0 of flipped(problem) scores"),
]


@pytest.mark.parametrize(("row", "estimator", "message"), BROKEN, ids=lambda v: getattr(v, "__name__", None))
def test_a_broken_property_fails_with_a_small_problem_that_shows_it_again(row, estimator, message):
    outcome = run_row(estimator, row)
    first, _, source = outcome.reason.partition("\n")
    assert outcome.verdict is Verdict.FAIL, outcome.reason
    assert first.startswith(f"{row} does not hold: ")
    assert message in first
    assert 1 <= outcome.decision.n <= check.EXAMPLES
    assert len(source) < 1200
    found: dict[str, Any] = {}
    exec(source, found)
    assert len(found["problem"]) <= 2
    if "changed" in found:
        shown = replayed(source, estimator)["scores of changed"]
        assert f"# scores: {shown.tolist()}" in source
        assert f"# expected: {shown.tolist()}" not in source
    elif row == "finite":
        with pytest.raises(EstimatorError):
            score("mine", estimator, found["problem"])


def test_breaking_on_some_problems_is_the_business_of_one_row():
    found = all_rows(doubles.breaks_on_pairs)
    assert {row for row, verdict in found.items() if verdict is Verdict.FAIL} == {"finite"}
    outcome = run_row(doubles.breaks_on_pairs, "permutation")
    assert outcome.verdict is Verdict.PASS
    assert "the estimator breaks on" in outcome.reason


def test_breaking_on_all_problems_leaves_the_other_rows_open():
    found = all_rows(lambda problem: np.full(len(problem), np.nan))
    assert found.pop("finite") is Verdict.FAIL
    assert {row: v for row, v in found.items() if v is not Verdict.NOT_APPLICABLE} == dict.fromkeys(
        ("deterministic", "inputs", "permutation", "duplicates", "renaming", "row-ids"), Verdict.INCONCLUSIVE
    )
    outcome = run_row(lambda problem: None, "duplicates")
    assert outcome.reason == "mine breaks on all of 50 problems (see the rows finite and inputs)"


def test_writing_unseen_by_numpy_is_no_matter_of_finite_scores():
    found = all_rows(doubles.by_force)
    assert {row for row, verdict in found.items() if verdict is Verdict.FAIL} == {"inputs"}


def test_reading_what_is_not_declared_breaks_the_row_finite():
    sly = needs()(lambda problem: problem.gradients[:, 0])
    assert "does not declare" in run_row(sly, "finite").reason.partition("\n")[0]


# -- claims ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("row", "claim", "estimator"),
    [
        ("permutation", "permutation", doubles.by_position),
        ("duplicates", "duplicates", doubles.by_position),
        ("renaming", "renaming", doubles.by_prompt),
        ("target-sign", "target_sign", doubles.squared),
    ],
)
def test_what_is_not_claimed_is_not_applicable(row, claim, estimator):
    modest = claims(**{claim: False})(needs(gradients=True, text=True)(lambda problem: estimator(problem)))
    outcome = run_row(modest, row)
    assert (outcome.verdict, outcome.reason) == (
        Verdict.NOT_APPLICABLE, f"mine does not claim {row} (Claims({claim}=False))",
    )  # fmt: skip


@pytest.mark.parametrize("row", sorted(ALWAYS))
def test_nothing_can_be_disclaimed_that_everybody_must_have(row):
    modest = claims(permutation=False, duplicates=False, renaming=False, batches=False)(doubles_by_name[row])
    assert run_row(modest, row).verdict is Verdict.FAIL


doubles_by_name = {
    "finite": needs()(lambda problem: doubles.by_reward(problem)),
    "deterministic": needs()(lambda problem: doubles.rolling_dice(problem)),
    "inputs": needs(text=True)(lambda problem: doubles.by_force(problem)),
    "row-ids": needs()(lambda problem: doubles.by_group_id(problem)),
}


def test_the_sign_of_a_target_that_is_not_read_is_no_question():
    blind = claims(target_sign=True)(needs()(lambda problem: problem.advantage))
    assert run_row(blind, "target-sign").reason == "mine reads no target that could be turned round"


def test_claims_must_be_claims():
    assert claims_of(lambda problem: None).permutation
    wrong = lambda problem: None  # noqa: E731
    wrong.claims = {"permutation": False}
    with pytest.raises(EstimatorError, match="its attribute 'claims' must be a Claims, not dict"):
        claims_of(wrong)


# -- rounding ----------------------------------------------------------------------------------------------------------
def test_rounding_is_no_violation_even_where_everything_cancels():
    def noisy(problem):
        """Sums in another order for every place, as vectorised kernels do."""
        terms = problem.gradients.astype(np.float32) * problem.target
        return np.array([np.sum(np.roll(row, i), dtype=np.float32) for i, row in enumerate(terms)])

    assert run_row(noisy, "permutation").verdict is Verdict.PASS


@pytest.mark.parametrize("size", [1e-2, 1e-12])
def test_a_small_dependence_on_place_is_found_beside_scores_of_its_size(size):
    assert run_row(needs()(lambda p: size * (1 + np.arange(len(p)))), "permutation").verdict is Verdict.FAIL
    biased = lambda p: honest_sizes(p) * (1 + 1e-3 * np.arange(len(p)))  # noqa: E731
    assert run_row(biased, "permutation").verdict is Verdict.FAIL


def honest_sizes(problem):
    return np.asarray(problem.gradient_norm, float)


# -- the model ---------------------------------------------------------------------------------------------------------
@MODEL_ROWS
def test_padding_is_found_by_an_estimator_that_batches():
    import torch

    torch.set_num_threads(1)
    assert run_row(doubles.Batched(), "batches").verdict is Verdict.PASS
    found = run_row(doubles.Batched(sloppy=True), "batches")
    assert found.verdict is Verdict.FAIL
    assert found.reason.startswith("batches does not hold: item 0 of taken(problem, [0]) scores")
    shown = replayed(found.reason.partition("\n")[2], doubles.Batched(sloppy=True))
    assert shown["scores of changed"][0] != pytest.approx(shown["scores of problem"][0], rel=1e-3)
    modest = doubles.Batched(sloppy=True)
    modest.claims = claims(batches=False)(lambda: None).claims
    assert run_row(modest, "batches").reason == "mine does not claim batches (Claims(batches=False))"
    modest.claims = claims(target_sign=True)(lambda: None).claims
    for row in ("finite", "permutation", "renaming", "target-sign"):
        outcome = run_row(modest, row)
        assert outcome.verdict is Verdict.PASS, outcome.reason
        assert f"({check.MODEL_EXAMPLES} problems)" in outcome.reason


def test_whoever_uses_no_model_batches_nothing():
    assert run_row(doubles.honest, "batches").reason == "mine does not use the model, so it batches and pads nothing"


# -- time --------------------------------------------------------------------------------------------------------------
def test_a_slow_estimator_is_an_error_and_is_waited_for_once():
    bench, start = Bench(timeout=0.2), time.monotonic()
    for row in ("finite", "permutation"):
        with pytest.raises(EstimatorError, match=r"took longer than 0\.2 s"):
            run_row(doubles.sleepy, row, bench)
    assert time.monotonic() - start < 10


def test_its_cost_is_the_estimators_own():
    trial = Bench().trial("mine", doubles.honest, "finite")
    DECLARED.run(checklist.RowSpec("test_stress", "mine", component="finite"), trial)
    assert 0 < trial.seconds < 1


# -- whole sessions ----------------------------------------------------------------------------------------------------
CONFTEST = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})

def pytest_behaviortrace_estimators(config):
    import stress_doubles
    from pytest_behaviortrace import claims
    def wrong(problem): pass
    wrong.claims = "all"
    return {{"by-position": stress_doubles.by_position, "sleepy": stress_doubles.sleepy, "wrong": wrong}}

def pytest_unconfigure(config):
    print("heavy:", sorted({{"torch", "trl", "transformers"}} & set(sys.modules)))
"""


@pytest.fixture
def repo(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("BEHAVIORTRACE_CACHE", str(pytester.path / "cache"))
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    pytester.makeconftest(CONFTEST)
    return pytester


@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["serial", "xdist"])
def test_a_session_of_stress_rows_trains_nothing_and_prints_what_can_be_pasted(repo, workers):
    result = repo.runpytest_subprocess(
        *QUIET, "--bt-estimator=by-position", "--bt-report=report.json", "checks/test_stress.py", *workers
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=5, failed=2)
    result.stdout.fnmatch_lines(
        [
            "behaviortrace *: by-position; tiny@*, no run; checks only*",
            "E   fail: by-position: permutation does not hold: item 0 of taken(problem, [[]1, 0[]]) scores 0.0, not*",
            "by-position: FAILED (* rows*)*",
            "heavy: []",
        ]
        if not workers
        else ["E   fail: by-position: permutation does not hold: *"]
    )
    text = result.stdout.str()
    source = text[text.index("# item 0 of taken(problem, [1, 0])") : text.index("# expected: [0.01, 0.0]")]
    assert len(replayed(source, doubles.by_position)["changed"]) == 2
    report = json.loads(Path("report.json").read_text(encoding="utf-8"))
    rows = {row["id"].partition("[by-position-")[2][:-1]: row for row in report["rows"]}
    assert set(rows) == set(check.COMPONENTS)
    assert rows["batches"]["verdict"] == rows["target-sign"]["verdict"] == "n/a"
    assert rows["target-sign"]["reason"] == "by-position does not claim target-sign (Claims(target_sign=False))"
    assert rows["finite"]["n"] == check.EXAMPLES
    assert "\n" not in rows["permutation"]["reason"]
    assert report["seeds"] == []
    assert not (repo.path / "cache").exists()
    assert not (repo.path / ".hypothesis").exists()


def test_a_session_that_cannot_train_runs_them_all_the_same(repo, monkeypatch):
    (repo.path / "file").touch()
    monkeypatch.setenv("BEHAVIORTRACE_CACHE", str(repo.path / "file" / "cache"))
    row = "checks/test_stress.py::test_stress[by-position-finite]"
    repo.runpytest_subprocess(*QUIET, "--bt-estimator=by-position", row).assert_outcomes(passed=1)
    whole = repo.runpytest_subprocess(*QUIET, "--bt-estimator=by-position", "checks")
    assert whole.ret == pytest.ExitCode.USAGE_ERROR


def test_the_time_limit_holds(repo):
    result = repo.runpytest_subprocess(
        *QUIET, "--bt-estimator=sleepy", "--bt-estimator-timeout=0.3", "checks/test_stress.py"
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["E   error: sleepy: estimator 'sleepy' on 1 rollouts took longer than 0.3 s*"])


def test_improper_claims_are_refused_before_anything_runs(repo):
    result = repo.runpytest_subprocess(*QUIET, "--bt-estimator=wrong", "checks/test_stress.py")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: estimator 'wrong': its attribute 'claims' must be a Claims, not str"])


SAME_DRAWS = """
import hashlib, sys
import numpy as np
from hypothesis import core, settings
if sys.argv[1:]:
    import local_constants
    core.global_force_seed = 5
    settings.register_profile("theirs", max_examples=3, derandomize=False)
    settings.load_profile("theirs")
from pytest_behaviortrace.checks import test_stress
from pytest_behaviortrace.estimator import needs
from pytest_behaviortrace.trial import Bench
from pytest_behaviortrace.variations import contents
seen = hashlib.sha256()

@needs(gradients=True, spans=True, text=True, behavior=True)
def spy(problem):
    seen.update(repr(contents(problem)).encode())
    return np.zeros(len(problem))

test_stress.test_stress(Bench().trial("spy", spy, "renaming"), "spy", "renaming")
print(seen.hexdigest())
"""


def test_the_problems_are_the_same_whatever_else_is_loaded_or_set(tmp_path):
    constants = [f"A{i} = {i * 7}; B{i} = 'word {i}'; C{i} = {i / 7}" for i in range(300)]
    (tmp_path / "local_constants.py").write_text("\n".join(constants), encoding="utf-8")
    runs = [
        subprocess.run(
            [sys.executable, "-c", SAME_DRAWS, *more], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout
        for more in ((), ("theirs",))
    ]
    assert len(runs[0]) > 60
    assert runs[0] == runs[1]


def test_other_rows_decide_which_seeds_are_trained():
    settings = SimpleNamespace(estimators=("mine",), seeds=(0, 1, 2), draws=2, recorded=None)
    session = GradingSession(settings, checklist.declared(), {})
    free = [spec for spec in session.specs.values() if spec.check == "test_stress"]
    one = [spec for spec in session.specs.values() if spec.check == "test_coverage" and spec.seed == 1]
    for specs, seeds in ((free, ()), (free + one, (1,)), (list(session.specs.values()), (0, 1, 2))):
        session.will_run(specs)
        assert session._seeds == seeds
    assert session.needs_run
    session.selected = frozenset(spec.id for spec in free)
    assert not session.needs_run


@pytest.mark.parametrize("module", ["stress", "properties", "strategies", "trial"])
def test_reading_the_checks_loads_none_of_it(module):
    program = (
        "import sys; from pytest_behaviortrace import checklist, session; checklist.declared(); "
        f"assert 'pytest_behaviortrace.{module}' not in sys.modules; assert 'hypothesis' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
