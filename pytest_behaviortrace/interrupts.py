"""Ctrl-C at a bad moment: while a library is half imported, and where whatever it meets goes on as if nothing came."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any


@contextlib.contextmanager
def imported_whole(package: str) -> Iterator[None]:
    """Leave nothing of a package whose import in the block broke off: whoever imports it next would find half of it.

    Python itself forgets the modules that were being made, and keeps those below them that were done.
    """
    try:
        yield
    except BaseException:
        if package not in sys.modules:
            for name in [name for name in sys.modules if name.startswith(f"{package}.")]:
                del sys.modules[name]
        raise


@contextlib.contextmanager
def never_swallowed() -> Iterator[None]:
    """Raise `KeyboardInterrupt` at the end of the block, if Ctrl-C came in it and the block went on or raised another.

    Callbacks of the garbage collector swallow exceptions (Hypothesis has one), and so do some estimators. Handlers
    other than Python's own are left alone, and so are threads, which no signal reaches.
    """
    own = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or own is not signal.default_int_handler:
        yield
        return
    came = False

    def note(signum: int, frame: FrameType | None) -> None:
        __tracebackhide__ = True  # pytest says where Ctrl-C met the program
        nonlocal came
        came = True
        signal.default_int_handler(signum, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException:
        if came:
            raise KeyboardInterrupt from None
        raise
    finally:
        if signal.getsignal(signal.SIGINT) is note:
            signal.signal(signal.SIGINT, own)
    if came:
        raise KeyboardInterrupt


def has_line(entry: Any) -> bool:
    """Whether an entry of a traceback (pytest's) is about a line: code that was compiled from no source has none."""
    try:
        return entry.lineno is not None
    except TypeError:  # what pytest itself ends in
        return False
