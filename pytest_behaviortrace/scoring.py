"""Calls an estimator on a problem and vouches for what comes back: shape, finiteness, untouched inputs, cost."""

from __future__ import annotations

import contextlib
import mmap
import random
import signal
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_behaviortrace.estimator import (
    Estimator,
    EstimatorError,
    InputsChanged,
    TooSlow,
    UndeclaredAccess,
    needs_of,
)
from pytest_behaviortrace.isolation import Isolated
from pytest_behaviortrace.problem import COLUMNS, AttributionProblem
from pytest_behaviortrace.rows import sealed

SAMPLING_INTERVAL = 0.02
"""Seconds between two looks at the process's memory while an estimator runs."""


@dataclass(frozen=True, slots=True)
class Scored:
    """Scores of one problem, (n,) float64, with what they cost: wall seconds and growth of memory in bytes.

    Mapped pages of files do not count: the system takes them back when it needs them.
    """

    scores: NDArray[np.float64]
    seconds: float
    peak_bytes: int


def score(
    name: str,
    estimator: Estimator,
    problem: AttributionProblem,
    timeout: float | None = None,
    *,
    watch_memory: bool = True,
    compare_inputs: bool = True,
) -> Scored:
    """Scores of `estimator` on `problem`; `watch_memory=False` leaves out what takes a thread per call, and
    `compare_inputs=False` what takes a checksum of every array before and after it (for callables of our own).

    Raises `EstimatorError`, naming the estimator and the kind of items, when it raises, takes longer than `timeout`
    seconds (`TooSlow`), returns anything but n finite numbers, or changes what it was given (`InputsChanged`).
    """
    where = f"estimator {name!r} on {len(problem)} {problem.kind}"
    if isinstance(estimator, Isolated):
        answer = estimator.answer(problem, where, timeout)
        return Scored(vouched(answer.scores, len(problem), where), answer.seconds, answer.peak_bytes)
    raw, seconds, grown = called(
        estimator,
        lambda scoped: arrayed(estimator(scoped)),
        problem,
        where,
        timeout,
        watch_memory=watch_memory,
        compare_inputs=compare_inputs,
    )
    return Scored(vouched(raw, len(problem), where), seconds, grown)


def called(
    estimator: Estimator,
    function: Callable[[AttributionProblem], Any],
    problem: AttributionProblem,
    where: str,
    timeout: float | None = None,
    *,
    watch_memory: bool = True,
    compare_inputs: bool = True,
) -> tuple[Any, float, int]:
    """What a function of the estimator returns for what it declared of the problem, and what that cost, as in `Scored`.

    Raises `EstimatorError`, starting with `where`, as `score` does; what comes back has not been looked at.
    """
    try:
        scoped = problem.scoped(needs_of(estimator))
    except EstimatorError as error:
        raise EstimatorError(f"{where}: {error}") from None
    before = _digest(scoped) if compare_inputs else {}
    with _memory() if watch_memory else contextlib.nullcontext([0]) as grown:
        start = time.perf_counter()
        try:
            with _global_state_kept(), _deadline(timeout):
                raw = function(scoped)
        except _TooSlow:
            raise TooSlow(f"{where} took longer than {timeout:g} s (--bt-estimator-timeout)") from None
        except UndeclaredAccess as error:
            raise EstimatorError(f"{where} read something it does not declare: {error}") from error
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            # SystemExit and pytest outcomes raised inside an estimator must not pass for a verdict.
            kind = InputsChanged if _is_refused_write(error) else EstimatorError
            raise kind(f"{where} raised {type(error).__name__}: {_first_line(error)}") from error
        seconds = time.perf_counter() - start
    if timeout is not None and seconds > timeout:  # it swallowed the deadline
        raise TooSlow(f"{where} took {seconds:.1f} s, longer than {timeout:g} s (--bt-estimator-timeout)")
    if scoped.undeclared:
        raise EstimatorError(f"{where} read something it does not declare: problem.{scoped.undeclared[0]}")
    if compare_inputs and _digest(scoped) != before:
        raise InputsChanged(f"{where} changed the arrays it was given; copy before writing")
    return raw, seconds, grown[0]


def arrayed(raw: Any) -> Any:
    """An array in place of what only turns into one, while the estimator's time is still counted."""
    if hasattr(raw, "detach"):
        return raw.detach().cpu().numpy()
    return np.asarray(raw) if hasattr(raw, "__array__") and not isinstance(raw, np.ndarray | np.generic) else raw


def vouched(raw: Any, n: int, where: str) -> NDArray[np.float64]:
    """What an estimator returned as (n,) float64 of its own. Raises `EstimatorError` for anything else."""
    if hasattr(raw, "detach"):
        raw = raw.detach().cpu().numpy()
    try:
        if np.ma.isMaskedArray(raw):
            raise TypeError("a masked array")
        scores = np.asarray(raw)
        if scores.dtype.kind not in "biuf":
            raise TypeError(f"dtype {scores.dtype}")
        scores = scores.astype(np.float64)
    except (TypeError, ValueError) as error:
        factory = "; if it makes the estimator, give its arguments defaults, or give what it makes" * callable(raw)
        what = f"{type(raw).__name__}, not {n} real numbers ({error})"
        raise EstimatorError(f"{where} returned {what}{factory}") from error
    if scores.shape != (n,):
        raise EstimatorError(f"{where} returned shape {scores.shape}, expected ({n},): one score per item")
    bad = int(np.count_nonzero(~np.isfinite(scores)))
    if bad:
        first = int(np.flatnonzero(~np.isfinite(scores))[0])
        raise EstimatorError(f"{where} returned {bad} scores that are NaN or infinite (first: item {first})")
    return scores.copy()


def _is_refused_write(error: BaseException) -> bool:
    """Whether this is numpy's refusal to write to a read-only array, or to make one writeable."""
    return isinstance(error, ValueError) and any(word in str(error) for word in ("read-only", "WRITEABLE"))


def _first_line(error: BaseException) -> str:
    line = (str(error).splitlines() or ["no message"])[0][:300]
    return "".join(c if c.isprintable() else "?" for c in line)  # no escape codes in terminals and logs


def _digest(problem: AttributionProblem) -> dict[str, int]:
    """A checksum of every array the estimator could have reached and changed (already made ones; the rest is made
    fresh, and what lies in a file opened for reading only cannot be changed through any pointer)."""
    arrays: dict[str, Any] = {n: getattr(problem, n) for n in COLUMNS}
    arrays |= {n: v for n, v in problem.lazy.items() if isinstance(v, np.ndarray) and not sealed(v)}
    return {n: zlib.crc32(np.ascontiguousarray(v).reshape(-1).view(np.uint8).data) for n, v in arrays.items()}


@contextlib.contextmanager
def _global_state_kept() -> Iterator[None]:
    """Put random numbers and numpy's handling of floating-point errors back as they were, whatever was done to them."""
    python, legacy = random.getstate(), np.random.get_state()
    try:
        with np.errstate():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)


class _TooSlow(BaseException):
    """Raised inside an estimator by the deadline; not an Exception, so that `except Exception` cannot swallow it."""


@contextlib.contextmanager
def _deadline(timeout: float | None) -> Iterator[None]:
    """Raise `_TooSlow` in the main thread after `timeout` seconds (POSIX; elsewhere checked afterwards)."""
    if timeout is None:
        yield
        return
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        start = time.monotonic()
        yield
        if time.monotonic() - start > timeout:
            raise _TooSlow
        return

    def ring(signum: int, frame: Any) -> None:
        raise _TooSlow

    previous = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, timeout)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, previous)


@contextlib.contextmanager
def _memory() -> Iterator[list[int]]:
    """Largest growth of this process's own memory inside the block, in bytes, as the yielded list's one item."""
    grown, stop, start = [0], threading.Event(), _own_bytes()

    def watch() -> None:
        while not stop.wait(SAMPLING_INTERVAL):
            grown[0] = max(grown[0], _own_bytes() - start)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield grown
    finally:
        stop.set()
        watcher.join()
        grown[0] = max(grown[0], _own_bytes() - start)


def _own_bytes() -> int:
    """Resident memory of this process without pages of files; the whole peak so far where that is not to be had."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            _, resident, of_files = statm.read().split()[:3]
            return (int(resident) - int(of_files)) * mmap.PAGESIZE
    except OSError:
        try:
            import resource
        except ImportError:  # Windows: unknown, shown as 0
            return 0
        usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return usage if sys.platform == "darwin" else usage * 1024
