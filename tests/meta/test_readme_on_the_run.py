"""The README's snippets that need a trained run, executed as they stand there on the real one."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from test_readme import blocks

from pytest_behaviortrace import stress  # before pytester notes which modules are there
from pytest_behaviortrace.run.store import Store

assert stress  # Hypothesis cannot be imported twice, and pytester puts sys.modules back after a test


ONE_CHECK = """import functools
import pytest_behaviortrace
pytest_behaviortrace.grade = functools.partial(pytest_behaviortrace.grade, checks=["gradient_magnitude"])
"""
"""For the time it takes: `test_sessions` compares all rows of `grade` with a session's."""


@pytest.fixture
def mymethod(pytester: pytest.Pytester, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The README's package, importable, and the cache where commands look for it."""
    (source,) = [block for block in blocks("python") if "def mymethod" in block]
    pytester.mkpydir("mypackage").joinpath("attribution.py").write_text(source, encoding="utf-8")
    monkeypatch.setenv("BEHAVIORTRACE_CACHE", str(store.cache_dir))


@pytest.mark.usefixtures("mymethod")
def test_it_is_graded_in_a_script(pytester: pytest.Pytester) -> None:
    (source,) = [block for block in blocks("python") if "import grade" in block]
    result = pytester.runpython(pytester.makepyfile(script=ONE_CHECK + source))
    assert result.ret == 0
    result.stdout.fnmatch_lines(["failed"])  # the dot product times the advantage, which is what `dot` is


@pytest.mark.usefixtures("mymethod")
def test_rows_are_tests_of_ones_own(pytester: pytest.Pytester) -> None:
    (source,) = [block for block in blocks("python") if "import parametrize_with_checks" in block]
    pytester.makepyfile(test_own=source)
    result = pytester.runpytest_subprocess("-p", "no:hypothesispytest", "-k", "headroom or lookalikes", "-v")
    result.stdout.fnmatch_lines(["*test_attribution[[]lookalikes-mypackage.attribution:mymethod-seed2] PASSED*"])
    result.assert_outcomes(passed=6, deselected=36)


@pytest.mark.usefixtures("mymethod")
def test_a_failure_is_dumped_and_studied(pytester: pytest.Pytester) -> None:
    (command,) = [line for block in blocks("bash") for line in block.splitlines() if " dump " in line]
    (source,) = [block for block in blocks("python") if "load_problem(" in block]
    assert pytester.run(sys.executable, *shlex.split(command)[1:]).ret == 0
    compare = "import numpy as np\nnp.save('mine.npy', scores)\n"
    assert pytester.runpython(pytester.makepyfile(study=source + compare)).ret == 0
    graded, mine = np.load(next(Path("why").glob("**/scores.npy"))), np.load("mine.npy")
    assert graded.shape == mine.shape  # the command dumped the problem of `gas`
    assert np.isfinite(mine).all()
