"""Estimators called in processes of their own, which get files of a problem and nothing else: the parent's side.

Out of their reach: the labels a stack frame away, the plugin's functions, the session's life and global state, and
whatever an earlier call left in memory. They are told neither where runs are kept, nor where home is, nor which check
is running. It is a fence and no sandbox: a process of the same user can still open every file it finds, the cache and
this process's entry in /proc included. Against that only another user, a container or another machine helps.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from pytest_behaviortrace.attributes import Unreadable, attribute
from pytest_behaviortrace.estimator import EVERYTHING, Claims, EstimatorError, Needs, NotServed, TooSlow
from pytest_behaviortrace.problem import AttributionProblem
from pytest_behaviortrace.problem_files import write_problem
from pytest_behaviortrace.registry import HOOK, Registered, RegistryError

CHILD = "pytest_behaviortrace.isolated"
PREFIX = "behaviortrace-isolated-"
"""Start of the name of a call's folder."""
NO_MODEL = "an isolated estimator gets files, not policies"
TAIL_LINES, LINE_LENGTH = 20, 300
"""What is kept of an estimator's output, and of what its process says about an error."""
_LARGEST_ANSWER = 1 << 20
_KEPT = (
    "PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "LANG", "LC_ALL", "LC_CTYPE", "TZ",
    "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS",
)  # fmt: skip
_MOVED = ("HOME", "USERPROFILE", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "TMPDIR", "TEMP", "TMP")


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back from a call; nothing in it has been vouched for but that it is one array and two numbers."""

    scores: NDArray[Any]
    seconds: float
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class Isolated:
    """Stands in for an estimator that only processes of its own import."""

    entry: Registered
    folder: Path
    """Where `package.module:name` is looked for if it is not installed."""
    needs: Needs
    claims: Claims

    def __call__(self, problem: AttributionProblem, /) -> NDArray[Any]:
        """Raw scores; see `answer`."""
        return self.answer(problem, self.entry.described).scores

    def answer(self, problem: AttributionProblem, where: str, timeout: float | None = None) -> Answer:
        """Call the estimator on files of what it declared, in a new process.

        Raises `EstimatorError`, starting with `where`, when the estimator broke, died or took longer than `timeout`
        seconds, the start of its process included; `NotServed` when it said that the run does not serve what it reads.
        """
        with _room(self.entry, self.folder) as room:
            try:
                write_problem(problem.scoped(self.needs), room)
            except OSError as error:
                raise EstimatorError(f"{where} got no files of its problem: {room}: {error}; TMPDIR moves it") from None
            start = time.perf_counter()
            said, tail = _run(room, where, timeout)
            wall = time.perf_counter() - start
            if "not_served" in said:
                raise NotServed(_clean(str(said["not_served"])))
            if "error" in said:
                raise EstimatorError("\n".join([_clean(str(said["error"])), *_lines(said.get("frames")), *tail]))
            print("\n".join(tail), end="\n" if tail else "")  # for pytest's capture, like the output of anything else
            scores = _scores(room / "scores.npy", len(problem), where)
            return Answer(scores, _number(said.get("seconds"), wall), int(_number(said.get("peak_bytes"), 0.0, 1e15)))


def isolate(entry: Registered, folder: Path, timeout: float | None = None) -> Isolated:
    """The isolated estimator of an entry, once a process of its own has imported it and told its needs.

    Raises `RegistryError` when it cannot be imported, or exists only in this process.
    """
    entry = replace(entry, target=reference(entry))
    with _room(entry, folder) as room:
        try:
            said, _ = _run(room, entry.described, timeout)
        except EstimatorError as error:
            raise RegistryError(str(error).partition("\n")[0]) from None
    if "error" in said:
        raise RegistryError(_clean(str(said["error"])))
    told, claimed = said.get("needs"), said.get("claims")
    needs = Needs(**{name: isinstance(told, list) and name in told for name in EVERYTHING.names()})
    claims = {f.name: isinstance(claimed, list) and f.name in claimed for f in fields(Claims)}
    return Isolated(entry, folder, needs, Claims(**claims))


def reference(entry: Registered) -> str:
    """`module:name` of an entry, from which another process can import it.

    Raises `RegistryError` for an object that no module but a conftest.py holds under its own name.
    """
    target: Any = entry.target
    if entry.path is not None:
        return entry.path
    try:
        module, name = attribute(target, "__module__"), attribute(target, "__qualname__")
    except Unreadable as error:
        raise RegistryError(f"{entry.described}: {error}") from error
    found: Any = sys.modules.get(str(module))
    for part in str(name).split("."):
        found = getattr(found, part, None)
    if found is not target or str(module).rpartition(".")[2] in ("conftest", "__main__"):
        raise RegistryError(
            f"--bt-isolate: {entry.described} is an object that another process cannot import; put it into a module "
            f"and let {HOOK} return 'package.module:name'"
        )
    return f"{module}:{name}"


@contextlib.contextmanager
def _room(entry: Registered, folder: Path) -> Iterator[Path]:
    """A temporary folder with a request in it, removed with everything that was written there."""
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as room:
        asked = {"name": entry.name, "origin": entry.origin, "target": entry.target}
        Path(room, "request.json").write_text(json.dumps({"entry": asked, "folder": str(folder)}), encoding="utf-8")
        yield Path(room)


def _run(room: Path, where: str, timeout: float | None) -> tuple[dict[str, Any], list[str]]:
    """What a new process in the folder answered, and the last lines it printed."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-X", "faulthandler", "-m", CHILD],
        cwd=room,
        env=_environment(room),
        stdin=subprocess.PIPE,  # its end tells the child that this process is gone
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout is not None
    kept = bytearray()
    reader = threading.Thread(target=_keep_tail, args=(process.stdout, kept), daemon=True)
    reader.start()
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        raise TooSlow(f"{where} took longer than {timeout:g} s (--bt-estimator-timeout)") from None
    finally:
        _end(process)
        reader.join(1.0)  # a process that left its group may hold the pipe open
    tail = _lines(kept.decode("utf-8", errors="replace").splitlines())
    said = _said(room / "answer.json")
    if process.returncode != 0 or said is None:
        ending = _ending(process.returncode)
        raise EstimatorError("\n".join([f"{where}: {ending} before it answered", *tail]))
    return said, tail


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and whatever it left running in its group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def _keep_tail(stream: BinaryIO, kept: bytearray) -> None:
    """Read a stream to its end; megabytes of output cost neither memory nor disk."""
    with stream:
        while block := stream.read1(1 << 16):  # type: ignore[attr-defined]
            kept += block
            del kept[: -TAIL_LINES * LINE_LENGTH]


def _environment(room: Path) -> dict[str, str]:
    paths = [str(Path(entry).absolute()) for entry in sys.path if os.path.exists(entry or ".")]
    return {
        **{name: os.environ[name] for name in _KEPT if name in os.environ},
        **dict.fromkeys(_MOVED, str(room)),
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONHASHSEED": "0",
    }


def _ending(code: int) -> str:
    if code >= 0:
        return f"its process ended with exit code {code}"
    try:
        return f"its process was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"its process was killed by signal {-code}"


def _said(path: Path) -> dict[str, Any] | None:
    if not _is_file_of(path, _LARGEST_ANSWER):
        return None
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return None
    return said if isinstance(said, dict) else None


def _scores(path: Path, n: int, where: str) -> NDArray[Any]:
    try:
        if not _is_file_of(path, 8 * n + 4096):
            raise ValueError(f"no file of {n} numbers")
        return np.asarray(np.load(path, allow_pickle=False))
    except (OSError, ValueError) as error:
        raise EstimatorError(f"{where}: its scores cannot be read: {_clean(str(error))}") from None


def _is_file_of(path: Path, most: int) -> bool:
    """Whether it is an ordinary file of at most so many bytes: a pipe would never end, a link lead elsewhere."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size <= most


def _number(value: Any, otherwise: float, most: float | None = None) -> float:
    """What the child said it cost, if that is possible at all."""
    possible = isinstance(value, int | float) and 0 <= value <= (otherwise if most is None else most)
    return float(value) if possible else otherwise


def _lines(lines: Any) -> list[str]:
    found = [_clean(str(line)) for line in lines] if isinstance(lines, list) else []
    return found[-TAIL_LINES:]


def _clean(text: str) -> str:
    """One line that a terminal and a log can bear."""
    return "".join(c if c.isprintable() else " " for c in text[:LINE_LENGTH])
