"""matplotlib for figures inside a page: loaded late, never through pyplot, its settings and caches left alone."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_behaviortrace.reports import svg
from pytest_behaviortrace.reports.svg import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PIXEL = 1 / 72
"""Inches of one CSS pixel: matplotlib's SVG has 72 units an inch, and a unit becomes a pixel."""

TEXT, SMALL = 11.5, 10.5
"""Font sizes in pixels."""

SETTINGS: dict[str, Any] = {
    "svg.fonttype": "none",  # text stays text, in the page's font
    "svg.hashsalt": "pytest-behaviortrace",  # the same ids every time
    "path.simplify": False,  # dots are segments of no length
    "text.parse_math": False,  # a name with dollars is a name
    "font.size": TEXT,
    "axes.unicode_minus": True,
}


@contextlib.contextmanager
def matplotlib_at_hand() -> Iterator[None]:
    """Settings under which all figures are drawn, whatever the user's matplotlibrc says; his are restored.

    A first import of matplotlib writes a font list into the user's cache folder and makes a configuration folder; here
    both go to a temporary folder, unless `MPLCONFIGDIR` names one. Warnings of the library are none of the reader's
    business, and must not lose a report in a session that turns warnings into errors.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if "matplotlib.font_manager" in sys.modules or "MPLCONFIGDIR" in os.environ:
            import matplotlib
        else:
            _import_aside()
            import matplotlib
        with matplotlib.rc_context():
            matplotlib.rcdefaults()
            settings: Any = matplotlib.rcParams
            settings.update(SETTINGS)
            yield


def _import_aside() -> None:
    with tempfile.TemporaryDirectory(prefix="behaviortrace-") as folder:
        aside = {"MPLCONFIGDIR": folder}
        if "MATPLOTLIBRC" not in os.environ and (rc := _users_matplotlibrc()).is_file():
            aside["MATPLOTLIBRC"] = str(rc)
        os.environ.update(aside)
        try:
            import matplotlib
            import matplotlib.font_manager
        finally:
            for name in aside:
                del os.environ[name]
        for remembered in (matplotlib.get_configdir, matplotlib.get_cachedir):
            if hasattr(remembered, "cache_clear"):
                remembered.cache_clear()  # or it would go on naming a folder that is gone


def _users_matplotlibrc() -> Path:
    if sys.platform.startswith(("linux", "freebsd")):
        return Path(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"), "matplotlib", "matplotlibrc")
    return Path(os.path.expanduser("~/.matplotlib"), "matplotlibrc")


class Sheet:
    """Makes figures with ids of their own; use it under `matplotlib_at_hand`."""

    def __init__(self) -> None:
        self._embedder = svg.Embedder()

    def css(self) -> str:
        """What the page's style sheet needs for the figures finished so far."""
        return self._embedder.css()

    def figure(
        self, width: float, height: float, panels: int = 1, *, left: float, right: float, top: float, bottom: float
    ) -> tuple[Figure, list[Axes]]:
        """An empty figure of so many CSS pixels with `panels` axes side by side; margins in pixels."""
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure

        figure = Figure(figsize=(width * PIXEL, height * PIXEL), dpi=72)
        FigureCanvasSVG(figure)
        figure.patch.set_visible(False)
        each = (width - panels * left - panels * right) / panels
        axes = [
            figure.add_axes(
                (
                    (left + number * (left + right + each)) / width,
                    bottom / height,
                    each / width,
                    1 - (top + bottom) / height,
                )
            )
            for number in range(panels)
        ]
        for ax in axes:
            bare(ax)
        return figure, axes

    def finish(self, figure: Figure, label: str) -> str:
        """The figure as an element of the page; `label` says what is to be seen."""
        stream = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(stream, format="svg", metadata=nothing)
        return self._embedder.embed(stream.getvalue(), plain(label))


def bare(ax: Axes) -> None:
    """No frame, no tick marks, quiet numbers, faint vertical lines."""
    ax.patch.set_visible(False)
    for spine in ax.spines.values():
        spine.set_visible(False)
    ax.tick_params(bottom=False, left=False, labelcolor=COLOURS["muted"], labelsize=SMALL, pad=3)
    ax.grid(axis="x", color=COLOURS["rule"], linewidth=0.8, clip_on=False)
    ax.set_axisbelow(True)


def dots(ax: Axes, points: Sequence[tuple[float, float]], colour: str, size: float) -> None:
    """Round dots in one path: a hundredth of the bytes of as many markers."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Outline

    if not points:
        return
    vertices = [point for point in points for _ in range(2)]
    codes = [Outline.MOVETO, Outline.LINETO] * len(points)
    patch = PathPatch(
        Outline(vertices, codes), fill=False, capstyle="round", linewidth=size, edgecolor=COLOURS[colour], clip_on=False
    )
    ax.add_artist(patch)
    patch.set_clip_path(None)


def line(
    ax: Axes, x: Sequence[float], y: Sequence[float], colour: str, width: float = 1.5, style: Any = "solid"
) -> None:
    """A line that may leave the axes."""
    ax.plot(
        x, y, color=COLOURS[colour], linewidth=width, linestyle=style, clip_on=False, solid_capstyle="butt",
        scalex=False, scaley=False,
    )  # fmt: skip


def say(
    ax: Axes, x: float, y: float, text: str, colour: str = "ink", *, ha: str = "left", va: str = "center", **more: Any
) -> None:
    """Text at a place in data coordinates, or where `transform` says."""
    more.setdefault("fontsize", TEXT)
    ax.text(x, y, plain(text), color=COLOURS[colour], ha=ha, va=va, clip_on=False, **more)


def beside(
    ax: Axes, pixels: float, y: float, text: str, colour: str = "ink", *, ha: str = "right", **more: Any
) -> None:
    """Text at a height in data coordinates, so many pixels from the left edge of the axes."""
    ax.annotate(
        plain(text), (0, y), (pixels, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
        color=COLOURS[colour], ha=ha, va="center", annotation_clip=False, **{"fontsize": TEXT, **more},
    )  # fmt: skip


def plain(text: str) -> str:
    """Without control characters, which XML does not know."""
    return "".join(c if c.isprintable() else " " for c in text)


def shortened(text: str, length: int) -> str:
    """At most so many characters."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def limits(numbers: Sequence[float], pad: float = 0.06) -> tuple[float, float]:
    """The range of the numbers with some room to either side."""
    low, high = min(numbers), max(numbers)
    room = (high - low) * pad or abs(high) * pad or 0.1
    return low - room, high + room
