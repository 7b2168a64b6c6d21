"""Ctrl-C at bad moments, each made to happen: a library half imported, code without lines, exceptions swallowed."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_behaviortrace import interrupts
from pytest_behaviortrace.interrupts import imported_whole, never_swallowed

INTERRUPTED = int(pytest.ExitCode.INTERRUPTED)

# Ctrl-C when a module is looked for, the first time; what its package had imported by then is there already.
AT_IMPORT = """
import signal, sys

class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            sys.meta_path.remove(self)
            signal.raise_signal(signal.SIGINT)
        return None

sys.meta_path.insert(0, CtrlC())
"""
NO_LINES = """
def interrupted():
    raise KeyboardInterrupt

interrupted.__code__ = interrupted.__code__.replace(co_linetable=b"")

def slow(problem):
    interrupted()
"""
SWALLOWS = """
import signal

def whatever(problem):
    try:
        signal.raise_signal(signal.SIGINT)
    except BaseException:
        pass
    return problem.advantage

def its_own(problem):
    try:
        signal.raise_signal(signal.SIGINT)
    except BaseException:
        raise ValueError("no weights") from None
"""


def session(pytester: pytest.Pytester, *flags: str) -> subprocess.CompletedProcess[str]:
    """Rows that need no run, in a process of their own, with Hypothesis' plugin."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:anyio", *flags]
    return subprocess.run(command, cwd=pytester.path, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("name", ["hypothesis.internal.conjecture.providers", "hypothesis.configuration"])
@pytest.mark.parametrize("rows", ["stress", "nothing"], ids=["in-a-row", "at-the-end"])
def test_ctrl_c_while_hypothesis_is_imported_ends_with_2(pytester: pytest.Pytester, name: str, rows: str) -> None:
    """Its plugin imports it for the summary, and broke on what was half imported (exit code 1), or died of Ctrl-C."""
    pytester.makeconftest(AT_IMPORT.format(name=name))
    done = session(pytester, "--bt-estimator=advantage", "-k", rows)
    assert done.returncode == INTERRUPTED, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert ("! KeyboardInterrupt !" in done.stdout) == (rows == "stress")


def test_half_of_hypothesis_breaks_what_its_plugin_imports() -> None:
    """The reason of all this; where it no longer does, `imported_whole` can go."""
    program = AT_IMPORT.format(name="hypothesis.configuration") + (
        "try:\n    import hypothesis\nexcept KeyboardInterrupt:\n    pass\n"
        "try:\n    from hypothesis.internal.observability import _WROTE_TO\nexcept ImportError:\n    print('broken')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "broken\n"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="a line table of another form")
def test_ctrl_c_in_code_without_lines_ends_with_2(pytester: pytest.Pytester) -> None:
    """pytest rewrites modules to such code, and subtracts 1 from None where it meets it in a traceback."""
    pytester.makepyfile(mine=NO_LINES)
    done = session(pytester, "--bt-estimator=mine:slow", "-k", "stress and finite")
    assert done.returncode == INTERRUPTED, done.stdout + done.stderr
    assert "TypeError" not in done.stdout + done.stderr
    assert "mine.py:7: KeyboardInterrupt" in done.stdout


@pytest.mark.parametrize("name", ["whatever", "its_own"])
def test_ctrl_c_that_an_estimator_swallows_ends_the_session(pytester: pytest.Pytester, name: str) -> None:
    pytester.makepyfile(swallows=SWALLOWS)
    done = session(pytester, f"--bt-estimator=swallows:{name}", "-k", "stress and finite")
    assert done.returncode == INTERRUPTED, done.stdout + done.stderr
    assert "! KeyboardInterrupt !" in done.stdout


def test_it_is_told_where_ctrl_c_met_the_estimator(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(mine="import signal\ndef slow(problem):\n    signal.raise_signal(signal.SIGINT)\n")
    done = session(pytester, "--bt-estimator=mine:slow", "-k", "stress and finite")
    assert done.returncode == INTERRUPTED
    assert "mine.py:3: KeyboardInterrupt" in done.stdout


# -- the pieces --------------------------------------------------------------------------------------------------------
@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    room = tmp_path / "halved"
    room.mkdir()
    (room / "__init__.py").write_text("from halved import done, broken\n")
    (room / "done.py").write_text("")
    (room / "broken.py").write_text("raise KeyboardInterrupt\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield room
    for name in [name for name in sys.modules if name.partition(".")[0] == "halved"]:
        del sys.modules[name]


def imported() -> list[str]:
    return sorted(name for name in sys.modules if name.partition(".")[0] == "halved")


def test_what_was_half_imported_is_forgotten(package: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        importlib.import_module("halved")
    assert imported() == ["halved.done"]
    with pytest.raises(KeyboardInterrupt), imported_whole("halved"):
        importlib.import_module("halved")
    assert imported() == []


def test_what_was_imported_whole_stays(package: Path) -> None:
    (package / "__init__.py").write_text("from halved import done\n")
    with imported_whole("halved"):
        importlib.import_module("halved")
    with pytest.raises(KeyboardInterrupt), imported_whole("halved"):
        importlib.import_module("halved.broken")
    assert imported() == ["halved", "halved.done"]


@pytest.fixture
def python_s_own() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("python_s_own")
class TestNeverSwallowed:
    def test_a_callback_of_the_garbage_collector_swallows_it(self) -> None:
        reached = []

        def callback(phase: str, info: Any) -> None:
            if phase == "start" and not reached:
                reached.append(phase)
                signal.raise_signal(signal.SIGINT)

        hook, sys.unraisablehook = sys.unraisablehook, lambda unraisable: None
        gc.callbacks.append(callback)
        try:
            gc.collect()  # without the block: swallowed
            assert reached.pop() == "start"

            def block() -> None:
                with never_swallowed():
                    gc.collect()
                    reached.append("went on")

            with pytest.raises(KeyboardInterrupt):
                block()
        finally:
            gc.callbacks.remove(callback)
            sys.unraisablehook = hook
        assert reached == ["start", "went on"]

    @pytest.mark.parametrize("other", [ValueError("no weights"), SystemExit(3)])
    def test_it_goes_before_what_came_of_it(self, other: BaseException) -> None:
        def block() -> None:
            with never_swallowed():
                try:
                    signal.raise_signal(signal.SIGINT)
                except KeyboardInterrupt:
                    raise other from None

        with pytest.raises(KeyboardInterrupt):
            block()

    def test_where_none_came_nothing_is_raised(self) -> None:
        with never_swallowed():
            pass
        with pytest.raises(ValueError, match="no weights"), never_swallowed():
            raise ValueError("no weights")

    def test_other_handlers_are_left_alone(self) -> None:
        heard = []
        signal.signal(signal.SIGINT, lambda *_: heard.append(1))
        try:
            with never_swallowed():
                signal.raise_signal(signal.SIGINT)
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        assert heard == [1]

    def test_a_thread_is_no_place_for_signals(self) -> None:
        done = []

        def work() -> None:
            with never_swallowed():
                done.append(threading.current_thread())

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert done == [thread]


def test_an_entry_without_a_line_is_known() -> None:
    def lined() -> None:
        raise KeyboardInterrupt

    def bare() -> None:
        lined()

    bare.__code__ = bare.__code__.replace(co_linetable=b"")
    with pytest.raises(KeyboardInterrupt) as caught:
        bare()
    assert [interrupts.has_line(entry) for entry in caught.traceback] == [True, False, True]
    assert os.path.samefile(caught.traceback.filter(interrupts.has_line)[-1].path, __file__)
