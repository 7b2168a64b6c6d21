"""Exhibit -> figures: what each check saw, as small multiples with the numbers in the text alternative."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_behaviortrace.exhibit import Curve, FluencyCloud, PrecisionAtK, SpanScores
from pytest_behaviortrace.reports.drawing import SMALL, Sheet, dots, limits, line, say
from pytest_behaviortrace.reports.svg import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 352
"""CSS pixels of a figure: two beside each other on a page, one on a telephone."""

FAR = 3
"""Precision is drawn up to this many times the graded k: beyond, all rankings end at chance."""

DASHED, DOTTED = (0, (4, 3)), (0, (1, 2))


def learning(sheet: Sheet, curve: Curve, place: str) -> str:
    """Training curves of the planted and the null run; the window is shaded, the behaviour scores stand at the ends."""
    figure, (ax,) = sheet.figure(WIDTH, 220, left=44, right=84, top=24, bottom=34)
    steps = curve["step"] or [0]
    first, last = (curve["window"] or [steps[0], steps[-1]])[:2]
    ax.set_xlim(min(steps), max(max(steps), min(steps) + 1))
    ax.set_ylim(0, 1)
    ax.set_yticks([0, 0.5, 1])
    ax.axvspan(first, last, color=COLOURS["shade"], linewidth=0)
    say(ax, (first + last) / 2, 1.05, f"{place}: bonus paid in the shaded steps", "muted", ha="center", va="bottom")
    names = (("planted", "blue", "solid"), ("null", "orange", DASHED))
    ends = []
    for name, colour, style in names:
        values = curve["planted"] if name == "planted" else curve["null"]
        line(ax, curve["step"], values, colour, 1.8, style)
        start, end = curve["s_b"][name]
        dots(ax, [(ax.get_xlim()[0], start), (ax.get_xlim()[1], end)], colour, 8)
        ends.append((end, f"{name} {end:.2f}", colour))
    for y, (_, text, colour) in zip(_spread([end for end, *_ in ends], 0.09), ends, strict=True):
        say(ax, ax.get_xlim()[1] + 0.03 * (ax.get_xlim()[1] - ax.get_xlim()[0]), y, text, colour)
    _axes(ax, "training step", "share that shows the behaviour")
    s_b = curve["s_b"]
    return sheet.finish(
        figure,
        f"{place}. Lines: {curve['what']}. Dots: behaviour score of the first and of the last policy: planted "
        f"{s_b['planted'][0]:.3f} to {s_b['planted'][1]:.3f}, null {s_b['null'][0]:.3f} to {s_b['null'][1]:.3f}. "
        f"The bonus was paid from step {first} to {last}. Highest point of the planted line "
        f"{max(curve['planted'], default=0):.2f}, of the null line {max(curve['null'], default=0):.2f}.",
    )


def precision(sheet: Sheet, shown: PrecisionAtK, place: str) -> str:
    """Precision against k for the estimator, its controls and a perfect ranking, with chance and the graded k."""
    figure, (ax,) = sheet.figure(WIDTH, 240, left=44, right=116, top=24, bottom=34)
    k, at = shown["k"], shown["at"]
    within = [i for i, each in enumerate(k) if each <= FAR * at] or [0]
    right = float(k[within[-1]])
    ax.set_xlim(0, right)
    ax.locator_params(axis="x", nbins=4)
    ax.set_ylim(0, 1)
    ax.set_yticks([0, 0.5, 1])
    line(ax, [at, at], [0, 1], "muted", 1)
    say(ax, at, 1.04, f"{place}: graded at k = {at}", "muted", ha="center" if at > right / 4 else "left", va="bottom")
    curve = {"perfect": shown["ceiling"], **shown["controls"], "estimator": shown["precision"]}
    drawn = {name: [values[i] for i in within] for name, values in curve.items()}
    k_drawn = [k[i] for i in within]
    line(ax, k_drawn, drawn["perfect"], "muted", 1.2, DOTTED)
    line(ax, [0, right], [shown["chance"]] * 2, "muted", 1.2, DASHED)
    ends = [(shown["chance"], "chance", "muted")]
    colours = {"perfect": "muted", "estimator": "blue"}
    colours |= dict(zip(shown["controls"], ("orange", "purple", "green") * 4, strict=False))
    for name, values in drawn.items():
        if name != "perfect":
            line(ax, k_drawn, values, colours[name], 2.2 if name == "estimator" else 1.2)
        ends.append((values[-1], name, colours[name]))
    ends.sort(key=lambda end: end[1] == "perfect")  # where another ends on it, its label stands above
    dots(ax, [(at, _at(k, shown["precision"], at))], "blue", 8)
    for y, (_, text, colour) in zip(_spread([end for end, *_ in ends], 0.072), ends, strict=True):
        say(ax, right * 1.03, y, text, colour)
    _axes(ax, "k highest-ranked rollouts of the window", "precision (share that is paid)")
    controls = ", ".join(f"{name} {_at(k, values, at):.2f}" for name, values in shown["controls"].items())
    return sheet.finish(
        figure,
        f"{place}. Share of ground truth among the k highest-ranked rollouts. At the graded k of {at}: estimator "
        f"{_at(k, shown['precision'], at):.2f}, chance {shown['chance']:.2f}, perfect ranking "
        f"{_at(k, shown['ceiling'], at):.2f}{', ' if controls else ''}{controls}. At k = {k[0]}: estimator "
        f"{shown['precision'][0]:.2f}.",
    )


def fluency(sheet: Sheet, cloud: FluencyCloud, place: str, most: int) -> str:
    """Fluency against score of siblings, and beside it the same score with fluency taken out."""
    figure, axes = sheet.figure(WIDTH, 210, 2, left=18, right=15, top=38, bottom=32)
    chosen = _thinned(len(cloud["fluency"]), most)
    panels = (("score", "as scored", cloud["raw_auc"]), ("residual", "fluency taken out", cloud["residual_auc"]))
    for ax, (key, title, auc) in zip(axes, panels, strict=True):
        values = cloud["score"] if key == "score" else cloud["residual"]
        ax.set_xlim(*limits(cloud["fluency"]))
        ax.set_ylim(*limits(values))
        ax.set_yticks([])
        ax.grid(False)
        line(ax, ax.get_xlim(), [ax.get_ylim()[0]] * 2, "rule", 1)
        for shown, colour, size in ((False, "orange", 2.4), (True, "blue", 3.8)):
            mine = [i for i in chosen if cloud["shown"][i] is shown]
            dots(ax, [(cloud["fluency"][i], values[i]) for i in mine], colour, size)
            if of_kind := [v for v, s in zip(values, cloud["shown"], strict=True) if s is shown]:
                middle, (low, high) = statistics.median(of_kind), ax.get_xlim()
                line(ax, [high, high + 0.06 * (high - low)], [middle, middle], colour, 3)
        say(ax, 0, 1.04, f"{title}: AUC {_number(auc, 2)}", transform=ax.transAxes, va="bottom")
        _axes(ax, "fluency (nats a token)", "score" if key == "score" else "what is left of it")
    say(axes[0], 0, 1.16, place, "muted", transform=axes[0].transAxes, va="bottom")
    return sheet.finish(
        figure,
        f"{place}. Fluency against score for {len(cloud['fluency'])} siblings, {sum(cloud['shown'])} of which show the "
        f"behaviour (large dots). As scored, within-group AUC {_number(cloud['raw_auc'])}; after fluency is taken out "
        f"{_number(cloud['residual_auc'])}; chance 0.5. {_medians(cloud)}",
    )


def spans(sheet: Sheet, pairs: SpanScores, place: str, most: int) -> str:
    """Score of the trigger span against that of another span of the same completion; the diagonal is a tie."""
    figure, (ax,) = sheet.figure(164, 196, left=14, right=4, top=38, bottom=32)
    number = len(pairs["trigger"])
    low, high = limits([*pairs["trigger"], *pairs["other"]] or [0.0])
    ax.set_xlim(low, high)
    ax.set_ylim(low, high)
    ax.set_xticks([])
    ax.set_yticks([])
    line(ax, [low, high, high, low, low], [low, low, high, high, low], "rule", 1)
    line(ax, [low, high], [low, high], "muted", 1.2, DASHED)
    chosen = _thinned(number, most)
    for kind, colour, size in (("control", "orange", 2.6), ("matched", "blue", 3.4)):
        mine = [i for i in chosen if pairs["kind"][i] == kind]
        dots(ax, [(pairs["other"][i], pairs["trigger"][i]) for i in mine], colour, size)
    share = _share_above(pairs)
    say(ax, 0, 1.04, f"{share:.0%} above the line", transform=ax.transAxes, va="bottom")
    say(ax, 0, 1.16, place, "muted", transform=ax.transAxes, va="bottom")
    _axes(ax, "score of other span", "score of trigger span")
    kinds = "; ".join(
        f"{kind} spans {_share_above(pairs, kind):.0%} of {pairs['kind'].count(kind)}"
        for kind in ("matched", "control")
        if kind in pairs["kind"]
    )
    return sheet.finish(
        figure,
        f"{place}. Score of the trigger span against another span of the same completion, {number} pairs. The trigger "
        f"span scores higher in {share:.0%} of them ({kinds}); without a preference it would be half.",
    )


def _axes(ax: Axes, x: str, y: str) -> None:
    """What the axes are."""
    ax.set_xlabel(x, color=COLOURS["muted"], fontsize=SMALL, labelpad=2)
    ax.set_ylabel(y, color=COLOURS["muted"], fontsize=SMALL, labelpad=2)


def _share_above(pairs: SpanScores, kind: str | None = None) -> float:
    """Share of pairs whose trigger span scores higher; a tie counts half."""
    above = [
        1.0 if trigger > other else 0.5 if trigger == other else 0.0
        for trigger, other, its in zip(pairs["trigger"], pairs["other"], pairs["kind"], strict=True)
        if kind in (None, its)
    ]
    return sum(above) / len(above) if above else 0.0


def _medians(cloud: FluencyCloud) -> str:
    found = []
    for name, values in (("score", cloud["score"]), ("score with fluency taken out", cloud["residual"])):
        kinds = [[v for v, s in zip(values, cloud["shown"], strict=True) if s is kind] for kind in (True, False)]
        if all(kinds):
            found.append(f"Median {name}: {statistics.median(kinds[0]):.3g} with the behaviour, "
                         f"{statistics.median(kinds[1]):.3g} without.")  # fmt: skip
    return " ".join(found)


def _at(k: Sequence[int], values: Sequence[float], at: int) -> float:
    """The value at the k nearest to the one asked for."""
    return values[min(range(len(k)), key=lambda i: abs(k[i] - at))]


def _thinned(number: int, most: int) -> list[int]:
    """At most so many positions, evenly spaced."""
    return list(range(number)) if number <= most else [i * number // most for i in range(most)]


def _spread(positions: Sequence[float], gap: float) -> list[float]:
    """The positions moved apart just so far that labels do not lie on each other."""
    order = sorted(range(len(positions)), key=lambda i: positions[i])
    found = list(positions)
    for below, above in itertools.pairwise(order):
        found[above] = max(found[above], found[below] + gap)
    overshoot = max(0.0, max(found, default=0.0) - max([1.0, *positions]))
    if overshoot and order:
        found[order[-1]] -= overshoot
        for above, below in zip(order[::-1], order[-2::-1], strict=False):
            found[below] = min(found[below], found[above] - gap)
    return found


def _number(value: float | None, digits: int = 3) -> str:
    """Where no pair was there to compare, there is no number."""
    return "unknown" if value is None else f"{value:.{digits}f}"
