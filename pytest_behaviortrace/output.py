"""Standard output that is not there any more: a pipe whose reader has left (`| head`), a disk that is full.

One place for every command. What a command prints goes through `guarded`, which ends it at the first line that cannot
be written: without a word where nobody reads any more, with one sentence where the disk is full.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any, TextIO

CLOSED = 141
"""Exit code where the reader left: what a shell says of programs that SIGPIPE ends, and no verdict of any command."""
UNWRITTEN = 2
"""Exit code where output could not be written."""


class OutputLost(Exception):
    """A standard stream refused what was written. No `OSError`, which commands take for trouble with their files."""

    def __init__(self, stream: TextIO, error: OSError) -> None:
        super().__init__(str(error))
        self.stream, self.error = stream, error

    @property
    def unread(self) -> bool:
        """Whether it is a pipe that nobody reads any more (Windows says EINVAL)."""
        return isinstance(self.error, BrokenPipeError) or (os.name == "nt" and self.error.errno == errno.EINVAL)


class _Watched:
    """A stream whose errors are `OutputLost`; everything else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            raise OutputLost(self._stream, error) from error

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            raise OutputLost(self._stream, error) from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def guarded(command: Callable[[], int]) -> int:
    """Call a command that prints and returns its exit code, and return that; or `CLOSED` or `UNWRITTEN`.

    What the command raises is raised. Whatever it printed has been written when this returns.
    """
    try:
        with contextlib.ExitStack() as streams:
            if sys.stdout is not None:  # None: it was closed before Python began, and nothing is ever written
                streams.enter_context(contextlib.redirect_stdout(_watched(sys.stdout)))
            if sys.stderr is not None:
                streams.enter_context(contextlib.redirect_stderr(_watched(sys.stderr)))
            try:
                code = command()
            except SystemExit:
                _flush()
                raise
            _flush()
            return code
    except OutputLost as lost:
        _let_go(lost.stream)
        if lost.unread:
            return CLOSED
        with contextlib.suppress(OSError, AttributeError):
            why = lost.error.strerror or lost.error
            print(f"error: the output could not be written: {why}; free the disk, or write elsewhere", file=sys.stderr)
        return UNWRITTEN


def _watched(stream: TextIO) -> Any:
    return _Watched(stream)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def _let_go(stream: TextIO) -> None:
    """Lead a stream's descriptor nowhere, or Python would complain once more of what is left in its buffer."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, stream.fileno())
        finally:
            os.close(nowhere)
