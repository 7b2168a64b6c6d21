"""How a build is shown: bars on a terminal, one line per stage elsewhere, or nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

LINE_EVERY = 60.0
"""Seconds between two lines of a stage that goes on, in logs."""


class Display(Protocol):
    """What a build tells its user. `start` and `stop` enclose the rest; `message` may come at any time."""

    def message(self, text: str) -> None:
        """A sentence the user should see."""

    def start(self, weights: Mapping[str, float]) -> None:
        """A build begins (or grows): all units to be built with their expected cost, in any unit of time."""

    def update(self, unit: str, stage: str, fraction: float, note: str = "") -> None:
        """A unit is in `stage`; `fraction` (0 to 1) of the whole unit is done. `note`: what there is to see of it."""

    def finish(self, unit: str) -> None:
        """A unit was published."""

    def stop(self) -> None:
        """The build is over, however it ended."""


class Silent:
    """Shows nothing."""

    def message(self, text: str) -> None:
        """Dropped."""

    def start(self, weights: Mapping[str, float]) -> None:
        """Dropped."""

    def update(self, unit: str, stage: str, fraction: float, note: str = "") -> None:
        """Dropped."""

    def finish(self, unit: str) -> None:
        """Dropped."""

    def stop(self) -> None:
        """Dropped."""


class _Clock:
    """Counts what is done of a build and estimates what is left."""

    def __init__(self) -> None:
        self.began: dict[str, float] = {}
        self._weights: dict[str, float] = {}
        self._done: dict[str, float] = {}
        self._start = time.monotonic()

    def expect(self, weights: Mapping[str, float]) -> None:
        if not self._weights:
            self._start = time.monotonic()
        self._weights = dict(weights)

    def note(self, unit: str, fraction: float) -> None:
        self.began.setdefault(unit, time.monotonic())
        self._done[unit] = min(max(fraction, 0.0), 1.0)

    def elapsed(self, unit: str) -> float:
        return time.monotonic() - self.began.get(unit, time.monotonic())

    @property
    def share(self) -> float:
        """Part of the whole build that is done, 0 to 1."""
        total = sum(self._weights.values())
        return sum(w * self._done.get(unit, 0.0) for unit, w in self._weights.items()) / total if total else 0.0

    @property
    def left(self) -> str:
        """Time left, as far as the pace so far tells."""
        if self.share < 0.03:
            return ""
        seconds = (time.monotonic() - self._start) * (1.0 - self.share) / self.share
        return f"about {_clock(seconds)} left" if self.share < 1.0 else ""


class Lines:
    """One plain line per stage, and one a minute in between, for logs: no bars, no control characters."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._clock = _Clock()
        self._stage: dict[str, str] = {}
        self._note: dict[str, str] = {}
        self._told: dict[str, float] = {}
        self._units = 0
        self._finished = 0

    def message(self, text: str) -> None:
        """Printed on one line."""
        self._stream.write(f"behaviortrace: {''.join(c if c.isprintable() else ' ' for c in text)}\n")
        self._stream.flush()

    def start(self, weights: Mapping[str, float]) -> None:
        """Printed once per growth of the plan."""
        self._clock.expect(weights)
        if len(weights) > self._units:
            self.message(f"to do: {', '.join(weights)}")
        self._units = len(weights)

    def update(self, unit: str, stage: str, fraction: float, note: str = "") -> None:
        """Printed when the stage changes, with what was seen of the last one; later once a minute."""
        self._clock.note(unit, fraction)
        before, now = self._stage.get(unit), time.monotonic()
        if before != stage:
            seen = self._note.pop(unit, "")
            behind = f"; {before}: {seen}" if seen else ""
            self.message(f"{unit}: {stage} ({_clock(self._clock.elapsed(unit))}{behind})")
        elif note and now - self._told[unit] >= LINE_EVERY:
            rest = f", {self._clock.left}" if self._clock.left else ""
            self.message(f"{unit}: {stage}, {note} ({_clock(self._clock.elapsed(unit))}{rest})")
        else:
            now = self._told[unit]
        self._stage[unit], self._told[unit] = stage, now
        if note:
            self._note[unit] = note

    def finish(self, unit: str) -> None:
        """Printed with the time it took and the time left."""
        self._clock.note(unit, 1.0)
        self._finished += 1
        took, left = _clock(self._clock.elapsed(unit)), self._clock.left
        rest = f", {left}" if left else ""
        self.message(f"{unit}: finished in {took} ({self._finished} of {self._units}{rest})")

    def stop(self) -> None:
        """Nothing to close."""


class Bars:
    """One bar per running unit and one for the whole, on a terminal."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console

        self._console = Console(file=stream)
        self._clock = _Clock()
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._finished = 0
        self._units = 0

    def message(self, text: str) -> None:
        """Printed above the bars."""
        self._console.print(f"behaviortrace: {text}", markup=False, highlight=False, soft_wrap=True)

    def start(self, weights: Mapping[str, float]) -> None:
        """Opens the bars, once."""
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

        self._clock.expect(weights)
        self._units = len(weights)
        if self._bars is None:
            columns: tuple[Any, ...] = (
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                TaskProgressColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[note]}", markup=False),
            )
            self._bars = Progress(*columns, console=self._console, transient=True, refresh_per_second=4)
            self._tasks[""] = self._bars.add_task("in all", total=1.0, note="")
            self._bars.start()
        self._total()

    def update(self, unit: str, stage: str, fraction: float, note: str = "") -> None:
        """Moves the unit's bar."""
        self._clock.note(unit, fraction)
        shown = f"{stage}  {note}" if note else stage
        if self._bars is not None:
            if unit not in self._tasks:
                self._tasks[unit] = self._bars.add_task(unit, total=1.0, note=shown)
            self._bars.update(self._tasks[unit], completed=fraction, note=shown)
        self._total()

    def finish(self, unit: str) -> None:
        """Takes the unit's bar away and says how long it took."""
        self._clock.note(unit, 1.0)
        self._finished += 1
        if self._bars is not None and unit in self._tasks:
            self._bars.remove_task(self._tasks.pop(unit))
        self.message(f"{unit}: finished in {_clock(self._clock.elapsed(unit))}")
        self._total()

    def stop(self) -> None:
        """Closes the bars."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None
            self._tasks.clear()

    def _total(self) -> None:
        if self._bars is not None:
            note = f"{self._finished} of {self._units} units  {self._clock.left}"
            self._bars.update(self._tasks[""], completed=self._clock.share, note=note)


def display_for(stream: TextIO | None) -> Display:
    """Bars on a terminal, lines on anything else (and in a CI or a terminal that cannot move), nothing for None."""
    if stream is None:
        return Silent()
    plain = os.environ.get("CI", "").lower() not in ("", "0", "false") or os.environ.get("TERM") == "dumb"
    return Bars(stream) if stream.isatty() and not plain else Lines(stream)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
