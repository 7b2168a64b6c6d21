"""Shows the training that a row waits for, past pytest's capture and its progress line."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pytest_behaviortrace.run.progress import Display, Silent, display_for

if TYPE_CHECKING:
    import pytest


@contextlib.contextmanager
def training_display(config: pytest.Config) -> Iterator[Display]:
    """A display on the real standard error; a silent one in an xdist worker, whose output nobody sees."""
    if hasattr(config, "workerinput"):
        yield Silent()
        return
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    terminal: Any = config.pluginmanager.getplugin("terminalreporter")
    with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
        yield OnItsOwnLine(display_for(sys.stderr), terminal.ensure_newline if terminal else lambda: None)


class OnItsOwnLine:
    """A display that ends pytest's line of dots before it says its first word, and only then."""

    def __init__(self, display: Display, end_line: Callable[[], object]) -> None:
        self._display, self._end_line, self._spoke = display, end_line, False

    def _speak(self) -> Display:
        if not self._spoke:
            self._spoke = True
            self._end_line()
        return self._display

    def message(self, text: str) -> None:
        """Passed on."""
        self._speak().message(text)

    def start(self, weights: Mapping[str, float]) -> None:
        """Passed on."""
        self._speak().start(weights)

    def update(self, unit: str, stage: str, fraction: float, note: str = "") -> None:
        """Passed on."""
        self._display.update(unit, stage, fraction, note)

    def finish(self, unit: str) -> None:
        """Passed on."""
        self._display.finish(unit)

    def stop(self) -> None:
        """Passed on."""
        self._display.stop()
