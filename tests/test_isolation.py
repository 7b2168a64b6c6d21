"""Estimators in processes of their own: the same scores, files of what they declared, and every way to die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from problems import make_problem
from surface import QUIET, Repo, magnitude

from pytest_behaviortrace import options
from pytest_behaviortrace.collection import OUTPUT_KEPT, bounded
from pytest_behaviortrace.estimator import EVERYTHING, EstimatorError, Needs
from pytest_behaviortrace.grading import Case
from pytest_behaviortrace.isolated import read_problem
from pytest_behaviortrace.isolation import LINE_LENGTH, TAIL_LINES, isolate, reference, write_problem
from pytest_behaviortrace.problem import COLUMNS
from pytest_behaviortrace.registry import Registered, Registry, RegistryError
from pytest_behaviortrace.scoring import score

SECRET = "/secret/cache"

DOUBLES = """
import os, signal, subprocess, sys, time
from pathlib import Path
import numpy as np
from pytest_behaviortrace import needs

CALLS = []
LOADED = set(sys.modules)

def flat(problem): return np.zeros(len(problem))

def killed(problem):
    print("last words", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

def crashed(problem):
    import ctypes
    ctypes.string_at(0)

def left(problem): os._exit(0)

def hangs(problem):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(__file__).with_name("pids").write_text(f"{os.getpid()} {child.pid}")
    while True:
        try:
            time.sleep(600)
        except BaseException:
            pass

def chatty(problem):
    for i in range(200_000):
        print("line", i, "of far too many")
    return flat(problem)

def chatty_and_broken(problem):
    chatty(problem)
    print("\\x1b[31mred")
    raise ValueError("after all that")

def spy(problem):
    here = os.getcwd()
    assert all(os.environ[name] == here for name in ("HOME", "XDG_CACHE_HOME", "TMPDIR"))
    assert not [name for name in os.environ if name.startswith(("BEHAVIORTRACE", "PYTEST", "FAKE_TOKEN"))]
    said = " ".join([*os.environ.values(), *sys.argv, *(p.read_text() for p in Path().glob("*.json"))])
    assert "secret" not in said
    assert "PATH" in os.environ and os.environ["OMP_NUM_THREADS"] == "1"
    assert sys.stdin.read() == ""
    return flat(problem)

def heavy(problem):
    loaded = {name.partition(".")[0] for name in LOADED}
    assert not loaded & {"torch", "pytest", "pyarrow", "scipy", "transformers"}, loaded
    return flat(problem)

@needs(text=True)
def lists(problem):
    print(*sorted(p.name for p in Path().iterdir()))
    return flat(problem)

def counts(problem):
    CALLS.append(1)
    return np.full(len(problem), len(CALLS))

def rewrites(problem):
    problem.gradients.flags.writeable = True

def rewrites_below(problem):
    problem.gradients.base.flags.writeable = True

def rewrites_the_file(problem):
    rows = np.load("gradients.npy", mmap_mode="r+")
    rows[:] = 0
    return flat(problem)

def undeclared(problem): return problem.completion_text
def wrong_shape(problem): return np.zeros(3)
def not_finite(problem): return np.full(len(problem), np.nan)
def raises(problem): return 1 / 0

def forged(problem):
    np.save("scores.npy", np.array([print] * len(problem), object), allow_pickle=True)
    Path("answer.json").write_text('{"seconds": -5, "peak_bytes": "x"}')
    os._exit(0)

def forged_pipe(problem):
    os.mkfifo("scores.npy")
    Path("answer.json").write_text("{}")
    os._exit(0)

def forged_cost(problem):
    np.save("scores.npy", np.zeros(len(problem)))
    Path("answer.json").write_text('{"seconds": 1e9, "peak_bytes": NaN}')
    os._exit(0)

@needs(model=True)
def with_model(problem): return problem.model

class Wrong:
    needs = "gradients"
    def __call__(self, problem): return flat(problem)
"""


@pytest.fixture
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Isolated estimators of the module above; this process never imports it."""
    (tmp_path / "apart_doubles.py").write_text(DOUBLES, encoding="utf-8")
    monkeypatch.setenv("BEHAVIORTRACE_CACHE", SECRET)
    monkeypatch.setenv("FAKE_TOKEN", SECRET)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def make(name: str) -> Any:
        made = isolate(Registered(name, "", f"apart_doubles:{name}"), tmp_path)
        assert "apart_doubles" not in sys.modules
        return made

    return make


def a_problem(**given: Any) -> Any:
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((40, 64)).astype(np.float32)
    texts = {"completion_text": tuple(f"QZXBT {i}" if i % 3 else "\u2028\ud800" for i in range(40))}
    ragged = {"behavior_mask": tuple(np.arange(i % 4) > 0 for i in range(40))}
    return make_problem(rows, span_gradients=rows[::-1].copy(), **texts, **ragged, **given)


# -- what goes in, what comes out --------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["dot", "token-gas", "trak", "random", "string-match"])
def test_the_same_scores_to_the_last_bit(name: str, tmp_path: Path) -> None:
    registry, problem = Registry(), a_problem()
    inside, outside = registry.load(name), isolate(registry.find(name), tmp_path)
    assert np.array_equal(score(name, inside, problem).scores, score(name, outside, problem).scores)


def test_a_problem_survives_its_files(tmp_path: Path) -> None:
    problem = a_problem(rng_seed=(3, 1, 4), carried=EVERYTHING.without("model"))
    write_problem(problem, tmp_path)
    found = read_problem(tmp_path)
    for name in (*COLUMNS, "gradients", "gradient_norm", "target", "targets_by_step", "reference", "span_gradients"):
        ours, theirs = getattr(problem, name), getattr(found, name)
        assert (ours.dtype, type(theirs)) == (theirs.dtype, np.ndarray)
        assert np.array_equal(ours, theirs)
        assert not theirs.flags.writeable
    for name in ("prompt_ids", "completion_ids", "behavior_mask"):
        pairs = list(zip(getattr(problem, name), getattr(found, name), strict=True))
        assert all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in pairs)
    for name in ("kind", "loss_type", "rng_seed", "carried", "blocks", "behavior", "prompt_text", "completion_text"):
        assert getattr(problem, name) == getattr(found, name)
    assert problem.rng.random() == found.rng.random()


def test_only_what_is_declared_is_written(apart: Any, capsys: pytest.CaptureFixture[str]) -> None:
    score("lists", apart("lists"), a_problem())
    columns = {f"{name}.npy" for name in COLUMNS}
    ids = {f"{name}{end}.npy" for name in ("prompt_ids", "completion_ids") for end in ("", ".ends")}
    assert set(capsys.readouterr().out.split()) == columns | ids | {"problem.json", "request.json"}


def test_the_environment_tells_nothing(apart: Any) -> None:
    scores = score("spy", apart("spy"), a_problem()).scores  # the spy asserts what it sees, and would be an error here
    assert scores.shape == (40,)


def test_numpy_is_all_that_is_imported_for_it(apart: Any) -> None:
    scores = score("heavy", apart("heavy"), a_problem()).scores  # asserts what its process has loaded
    assert scores.shape == (40,)


def test_nothing_is_remembered_between_calls(apart: Any) -> None:
    counting = apart("counts")
    assert [score("counts", counting, a_problem()).scores[0] for _ in range(2)] == [1.0, 1.0]


def test_inputs_are_copies(apart: Any) -> None:
    problem = a_problem()
    before = problem.gradients.copy()
    score("rewrites_the_file", apart("rewrites_the_file"), problem)
    assert np.array_equal(problem.gradients, before)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("raises", r"^estimator 'raises' on 40 rollouts raised ZeroDivisionError: division by zero\n"),
        ("undeclared", r"read something it does not declare: problem.completion_text needs Needs\(text=True\)"),
        ("wrong_shape", r"returned shape \(3,\), expected \(40,\)"),
        ("not_finite", "returned 40 scores that are NaN or infinite"),
        ("rewrites", "raised ValueError: cannot set WRITEABLE flag"),
        ("rewrites_below", "raised ValueError: cannot set WRITEABLE flag"),
        ("killed", r"^estimator 'killed' on 40 rollouts: its process was killed by SIGKILL before .*\nlast words$"),
        ("crashed", r"its process was killed by SIGSEGV(.|\n)*apart_doubles.py"),
        ("left", "its process ended with exit code 0 before it answered"),
        ("forged", "its scores cannot be read: Object arrays cannot be loaded when allow_pickle=False"),
        ("forged_pipe", "its scores cannot be read: no file of 40 numbers"),
    ],
)
def test_what_is_wrong_is_said_as_in_this_process(apart: Any, name: str, message: str) -> None:
    with pytest.raises(EstimatorError, match=message):
        score(name, apart(name), a_problem())


def test_an_error_shows_the_estimators_own_code(apart: Any) -> None:
    with pytest.raises(EstimatorError) as caught:
        score("raises", apart("raises"), a_problem())
    more = str(caught.value).splitlines()[1:]
    assert any("return 1 / 0" in line for line in more)
    assert not [line for line in more if "scoring.py" in line]


def test_impossible_costs_are_not_believed(apart: Any) -> None:
    scored = score("forged_cost", apart("forged_cost"), a_problem())
    assert scored.seconds < 60
    assert scored.peak_bytes == 0


def test_a_slow_one_is_ended_with_all_its_processes(apart: Any, tmp_path: Path) -> None:
    hanging = apart("hangs")
    start = time.monotonic()
    with pytest.raises(EstimatorError, match=r"on 40 rollouts took longer than 2 s \(--bt-estimator-timeout\)"):
        score("hangs", hanging, a_problem(), timeout=2.0)
    assert time.monotonic() - start < 20
    for pid in (tmp_path / "pids").read_text().split():
        assert gone(int(pid))


def gone(pid: int) -> bool:
    """Whether a process has ended, or does so within a few seconds."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.1)
    return False


def test_it_dies_with_the_session_and_leaves_nothing(apart: Any, tmp_path: Path) -> None:
    rooms = tmp_path / "rooms"
    rooms.mkdir()
    program = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[2]); from problems import make_problem\n"
        "from pytest_behaviortrace.isolation import isolate; from pytest_behaviortrace.registry import Registered\n"
        "made = isolate(Registered('hangs', '', 'apart_doubles:hangs'), Path(sys.argv[1]))\n"
        "made(make_problem([[1.0, 2.0]]))"
    )
    session = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path), str(Path(__file__).parent)],
        env={**os.environ, "TMPDIR": str(rooms)},
    )
    pids = tmp_path / "pids"
    for _ in range(300):
        if pids.exists() and pids.read_text():
            break
        time.sleep(0.1)
    session.send_signal(signal.SIGKILL)
    session.wait()
    assert all(gone(int(pid)) for pid in pids.read_text().split())
    assert list(rooms.iterdir()) == []


def test_megabytes_of_output_come_down_to_lines(apart: Any, capsys: pytest.CaptureFixture[str]) -> None:
    score("chatty", apart("chatty"), a_problem())
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == TAIL_LINES
    assert shown[-1] == "line 199999 of far too many"
    with pytest.raises(EstimatorError, match="raised ValueError: after all that") as caught:
        score("chatty", apart("chatty_and_broken"), a_problem())
    assert len(str(caught.value)) < 2 * TAIL_LINES * LINE_LENGTH
    assert "\x1b" not in str(caught.value)


def test_output_of_this_process_is_cut_to_its_end() -> None:
    ((name, text), short) = bounded([("Captured stdout call", "x" * 5_000_000 + "end"), ("Captured log call", "log")])
    assert name == "Captured stdout call"
    assert text.startswith(f"[{5_000_003 - OUTPUT_KEPT} characters]\n")
    assert text.endswith("end")
    assert len(text) < OUTPUT_KEPT + 50
    assert short == ("Captured log call", "log")


# -- which estimators can be isolated ----------------------------------------------------------------------------------
def somewhere(problem: Any) -> Any:
    return problem.advantage


def test_an_object_is_found_again_by_its_name() -> None:
    assert reference(Registered("mine", "hook", somewhere)) == f"{__name__}:somewhere"
    assert reference(Registered("mine", "hook", Needs)) == "pytest_behaviortrace.estimator:Needs"
    assert reference(Registered("mine", "hook", "a.b:c")) == "a.b:c"


@pytest.mark.parametrize("target", [lambda problem: 0, Needs(), SimpleNamespace(), len.__call__])
def test_an_object_that_only_this_process_has_is_refused(target: Any) -> None:
    with pytest.raises(RegistryError, match=r"^--bt-isolate: estimator 'mine' \(a hook\) is an object that another"):
        reference(Registered("mine", "a hook", target))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Wrong", "^estimator 'Wrong': its attribute 'needs' must be a Needs, not str$"),
        ("absent", r"^estimator 'absent' \(apart_doubles:absent\) cannot be imported: apart_doubles has no 'absent'$"),
    ],
)
def test_what_cannot_be_used_is_said_before_training(apart: Any, name: str, message: str) -> None:
    with pytest.raises(RegistryError, match=message):
        apart(name)


def test_a_module_that_ends_its_process(tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text("import os\nprint('bye', flush=True)\nos._exit(7)")
    with pytest.raises(RegistryError, match=r"^estimator 'e' \(ends:f\): its process ended with exit code 7 before it"):
        isolate(Registered("e", "", "ends:f"), tmp_path)


def test_policies_are_not_handed_out(apart: Any) -> None:
    grader: Any = SimpleNamespace(evidence=SimpleNamespace(recorded=False))
    case = Case(grader, "with_model", apart("with_model"), 0, None, None)
    with pytest.raises(pytest.skip.Exception, match="with_model needs model; an isolated estimator gets files, not po"):
        case.require(EVERYTHING, "rollouts")


# -- from the command line ---------------------------------------------------------------------------------------------
@pytest.fixture
def repo(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Repo:
    return Repo(pytester, monkeypatch)


def test_a_hooks_own_object_is_a_usage_error_before_training(repo: Repo) -> None:
    conftest = repo.path / "conftest.py"
    conftest.write_text(conftest.read_text().replace("return {name: ", "return {'flat': lambda p: 0} | {name: "))
    assert repo.run("--bt-estimator=flat", "--collect-only").ret == 0
    result = repo.run("--bt-estimator=flat", "--bt-isolate")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --bt-isolate: estimator 'flat' (hook *) is an object that another process*"])
    assert repo.trained() == []


def test_the_session_never_imports_the_estimator(repo: Repo) -> None:
    (repo.path / "shy.py").write_text(
        "import sys\nassert 'pytest' not in sys.modules, 'seen'\ndef score(problem): return problem.advantage"
    )
    seen = repo.run("--bt-estimator=shy:score", "-k", "magnitude and seed0")
    seen.stderr.fnmatch_lines(["ERROR: *AssertionError: seen*"])
    result = repo.grade("--bt-estimator=shy:score", "--bt-isolate", "-k", "magnitude and seed0")
    result.stdout.fnmatch_lines(["behaviortrace *: shy:score (isolated); *"])
    assert list(repo.verdicts()) == [magnitude("shy:score")]


def test_the_ini_file_may_ask_for_it(repo: Repo) -> None:
    repo.pytester.makeini("[pytest]\nbt_isolate = true")
    result = repo.run("--bt-estimator=good", "-k", "magnitude and seed0")
    result.stdout.fnmatch_lines(["behaviortrace *: good (isolated); *"])
    repo.pytester.makeini("[pytest]\nbt_isolate = perhaps")
    result = repo.run("--bt-estimator=good")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: bt_isolate in *tox.ini: write true or false"])


def test_a_rerun_repeats_the_flag(pytester: pytest.Pytester) -> None:
    config = pytester.parseconfig(*QUIET, "--bt-isolate", "--bt-seeds", "2", "--bt-estimator=gas")
    assert options.typed(config) == ["--bt-isolate", "--bt-seeds=2", "--bt-estimator=gas"]
