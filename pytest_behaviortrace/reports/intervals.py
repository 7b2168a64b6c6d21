"""Gates -> dot-and-interval figures: the statistics against chance, and what separates them from each control."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pytest_behaviortrace.exhibit import Exhibit, GateShown
from pytest_behaviortrace.reports.drawing import SMALL, Sheet, beside, dots, limits, line, say, shortened
from pytest_behaviortrace.reports.figures import DASHED, DOTTED, WIDTH
from pytest_behaviortrace.reports.svg import COLOURS
from pytest_behaviortrace.reports.terminal import place
from pytest_behaviortrace.scorecard import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STEP, HEAD, DODGE = 17, 25, 8
"""Pixels of a row of its own, of the head of a block, and between intervals that share a row."""
LABEL, LONG = 20, 50
"""Characters of a name beside intervals, and above them."""
FEW = 3
"""Statistics that get a block each; more of them share one, a row each."""

STATES = {"holds": "pass", "open": "inconclusive", "contradicted": "fail"}
"""Colour by what the interval says; the mark differs too: filled, hollow, crossed."""


class Mark(NamedTuple):
    """An estimate with its interval."""

    place: str
    estimate: float
    low: float
    high: float
    state: str


class Group(NamedTuple):
    """Marks of one kind, against one bar."""

    block: str
    """What is measured: the head of the block."""
    name: str
    """Which control or part; empty where the block holds nothing else."""
    bar: float
    least: float | None
    marks: list[Mark]
    controls: list[tuple[str, str, float]]
    """Place, name and estimate of the controls measured by the same statistic."""


def where(row: Row) -> str:
    """`seed 0, draw 1`, `window precision`, `the run`: the row's place in words."""
    known = []
    if row.seed is not None:
        known.append(f"seed {row.seed}")
    if row.draw is not None:
        known.append(f"draw {row.draw}")
    if known:
        return ", ".join(known)
    text = place(row)
    return "the run" if text == "run" else text.removeprefix("run-").replace("-", " ").replace("auc", "AUC")


def gates_of(row: Row, exhibit: Exhibit | None) -> list[GateShown]:
    """The row's gates; without an exhibit, the one that the row's own numbers make."""
    if exhibit and (gates := exhibit.get("gates")):
        return gates
    if row.estimate is None or row.low is None or row.high is None:
        return []
    bar = row.chance or 0.0
    own = GateShown(
        name="estimate", estimate=row.estimate, low=row.low, high=row.high, bar=bar, cap=0.15, least=None, control=None,
        control_estimate=None, holds=row.low > bar, contradicted=row.high < bar,
    )  # fmt: skip
    return [own]


def statistics(rows: Sequence[Row], exhibits: Mapping[str, Exhibit]) -> list[Group]:
    """The gates without a control, each with the estimates of the controls that its statistic has.

    A control's estimate is the statistic's less their paired difference, which holds on every scale.
    """
    groups: dict[tuple[str, float], Group] = {}
    for row in rows:
        gates = gates_of(row, exhibits.get(row.id))
        own = {gate["name"]: gate for gate in gates if gate["control"] is None}
        for gate in own.values():
            if (mark := _mark(row, gate)) is not None:
                block, bar = (where(row) if _spans(row) else gate["name"]), gate["bar"]
                group = groups.setdefault((block, bar), Group(block, "", bar, gate["least"], [], []))
                group.marks.append(mark)
                group.controls.extend(_controls(mark, gate, gates))
                if not exhibits.get(row.id) and row.control and row.control_estimate is not None and not _spans(row):
                    group.controls.append((mark.place, row.control, row.control_estimate))
    return list(groups.values())


def margins(rows: Sequence[Row], exhibits: Mapping[str, Exhibit]) -> list[Group]:
    """The gates with a control: paired differences, by statistic and control."""
    groups: dict[tuple[str, str], Group] = {}
    for row in rows:
        for gate in gates_of(row, exhibits.get(row.id)):
            if gate["control"] is not None and (mark := _mark(row, gate)) is not None:
                block, name = gate["name"], gate["control"]
                if _spans(row):
                    block, name = where(row), f"{mark.place}: {name}"
                groups.setdefault((block, name), Group(block, name, 0.0, None, [], [])).marks.append(mark)
    return list(groups.values())


def _spans(row: Row) -> bool:
    """Whether the row is about several seeds, so that its gates stand for them."""
    return row.seed is None and row.draw is None and where(row) != "the run"


def _controls(mark: Mark, gate: GateShown, gates: Sequence[GateShown]) -> list[tuple[str, str, float]]:
    return [
        (mark.place, other["control"], mark.estimate - other["estimate"])
        for other in gates
        if other["control"] is not None and other["name"] == gate["name"] and other["estimate"] is not None
    ]


def _mark(row: Row, gate: GateShown) -> Mark | None:
    estimate, low, high = gate["estimate"], gate["low"], gate["high"]
    if estimate is None:
        return None
    state = "holds" if gate["holds"] else "contradicted" if gate["contradicted"] else "open"
    place = gate["name"].removesuffix(", above chance") if _spans(row) else where(row)
    return Mark(place, estimate, estimate if low is None else low, estimate if high is None else high, state)


def statistic_figure(sheet: Sheet, groups: Sequence[Group], subject: str) -> str:
    """Per statistic a block: a line of chance, and per seed and draw a dot, its interval and its controls."""
    if len({group.block for group in groups}) > FEW and len({group.bar for group in groups}) == 1:
        common = _common_words([group.block for group in groups])
        shared = [group._replace(block=common, name=group.block[len(common) :].strip()) for group in groups]
        return _compact(sheet, shared, subject, _chance(groups[0]), signed=False)
    height = sum(len(group.marks) * STEP + HEAD + _foot(group) for group in groups)
    one_bar = len({group.bar for group in groups}) == 1
    figure, (ax,) = sheet.figure(WIDTH, height + 60, left=108, right=16, top=16, bottom=44)
    ax.set_ylim(height, 0)
    numbers = [x for g in groups for m in g.marks for x in (m.low, m.high, m.estimate)]
    numbers += [x for g in groups for x in (g.bar, g.least or g.bar, *(value for *_, value in g.controls))]
    _scale(ax, numbers)
    if one_bar:
        say(ax, groups[0].bar, -7, _chance(groups[0]), "muted", ha="center", fontsize=SMALL)
    y = 0.0
    for group in groups:
        beside(ax, -106, y + HEAD / 2 - 1, shortened(_head(group, one_bar), LONG), ha="left", fontweight="bold")
        top, y = y + HEAD - 3, y + HEAD
        bottom = y + len(group.marks) * STEP
        line(ax, [group.bar] * 2, [top, bottom], "muted", 1.3, DASHED)
        if group.least is not None:
            line(ax, [group.least] * 2, [top, bottom], "ink", 1.3, DOTTED)
            say(ax, group.least, bottom + STEP / 2, f"must reach {group.least:g}", "muted", fontsize=SMALL)
        for mark in group.marks:
            middle = y + STEP / 2
            beside(ax, -8, middle, shortened(mark.place, LABEL), "muted", fontsize=SMALL)
            for at, _, value in group.controls:
                if at == mark.place:
                    line(ax, [value, value], [middle - 4, middle + 4], "orange", 1.6)
            _draw(ax, mark, middle)
            y += STEP
        y += _foot(group)
    _unit(ax, "estimate and 95 % interval")
    return sheet.finish(figure, f"{subject}. {' '.join(_sentence(group) for group in groups)}")


def _foot(group: Group) -> int:
    """Room under a block for what its dotted line is."""
    return 0 if group.least is None else STEP


def _chance(group: Group) -> str:
    return f"chance {group.bar:g}"


def _head(group: Group, one_bar: bool) -> str:
    """What is measured, and its bar where no label over the figure names it."""
    return group.block if one_bar else f"{group.block} ({_chance(group)})"


def _unit(ax: Axes, text: str) -> None:
    ax.set_xlabel(text, color=COLOURS["muted"], fontsize=SMALL, labelpad=3)


def _common_words(names: Sequence[str]) -> str:
    """The words that all names begin with."""
    first, *others = [name.split(" ") for name in names]
    same = itertools.takewhile(lambda words: len(set(words)) == 1, zip(first, *others, strict=False))
    return " ".join(words[0] for words in same)


def margin_figure(sheet: Sheet, groups: Sequence[Group], subject: str) -> str:
    """Per control the paired differences of all seeds and draws, against zero."""
    return _compact(sheet, groups, subject, "level with the control", signed=True)


def _compact(sheet: Sheet, groups: Sequence[Group], subject: str, level: str, signed: bool) -> str:
    """Blocks of rows, in which seeds and draws share a row, one below the other."""
    blocks = list(dict.fromkeys(group.block for group in groups))
    rooms = [max(len(group.marks) * DODGE, 14) + 6 for group in groups]
    height = sum(rooms) + len(blocks) * HEAD
    bar = groups[0].bar
    figure, (ax,) = sheet.figure(WIDTH, height + 60, left=140, right=16, top=16, bottom=44)
    ax.set_ylim(height, 0)
    _scale(ax, [bar, *(x for g in groups for m in g.marks for x in (m.low, m.high))])
    y = 0.0
    for block in blocks:
        beside(ax, -138, y + HEAD / 2 - 1, shortened(block, LONG), ha="left", fontweight="bold")
        top = y = y + HEAD
        for group, room in zip(groups, rooms, strict=True):
            if group.block == block:
                middle = y + room / 2
                beside(ax, -8, middle, shortened(group.name, LABEL + 6), fontsize=SMALL)
                for number, mark in enumerate(group.marks):
                    _draw(ax, mark, middle + (number - (len(group.marks) - 1) / 2) * DODGE, small=True)
                y += room
        line(ax, [bar, bar], [top - 3, y], "muted", 1.3, DASHED)
    say(ax, bar, -7, level, "muted", ha="center", fontsize=SMALL)
    _unit(ax, "estimator minus control, 95 % interval" if signed else "estimate and 95 % interval")
    return sheet.finish(figure, f"{subject}. {' '.join(_sentence(group, signed) for group in groups)}")


def _scale(ax: Axes, numbers: Sequence[float]) -> None:
    ax.set_yticks([])
    ax.set_xlim(*limits(numbers))
    ax.locator_params(axis="x", nbins=5)


def _draw(ax: Axes, mark: Mark, y: float, small: bool = False) -> None:
    colour = STATES[mark.state]
    line(ax, [mark.low, mark.high], [y, y], colour, 1.6)
    size = 6.5 if small else 9.0
    dots(ax, [(mark.estimate, y)], colour, size)
    if mark.state == "open":
        dots(ax, [(mark.estimate, y)], "panel", size - 2.8)
    elif mark.state == "contradicted":
        half = 5.0 if small else 7.0
        line(ax, [mark.estimate] * 2, [y - half, y + half], colour, 1.6)


def _sentence(group: Group, signed: bool = False) -> str:
    numbers = "; ".join(_numbers(mark, signed) for mark in group.marks)
    if signed:
        return f"{group.block}, ahead of {group.name}: {numbers}."
    least = f", at least {group.least:g}" if group.least is not None else ""
    return f"{f'{group.block} {group.name}'.strip()} (bar {group.bar:g}{least}): {numbers}.{_strongest(group)}"


def _numbers(mark: Mark, signed: bool) -> str:
    sign = "+" if signed else ""
    return f"{mark.place} {mark.estimate:{sign}.3f} [{mark.low:{sign}.3f}, {mark.high:{sign}.3f}] {mark.state}"


def _strongest(group: Group) -> str:
    said: Iterator[str] = (
        f"{at} {name} {value:.3f}"
        for at in dict.fromkeys(at for at, *_ in group.controls)
        for name, value in [max(((n, v) for a, n, v in group.controls if a == at), key=lambda pair: pair[1])]
    )
    return f" Strongest controls: {'; '.join(said)}." if group.controls else ""
