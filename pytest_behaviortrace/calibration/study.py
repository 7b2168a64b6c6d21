"""Many repetitions on all cores, counted; and what the counts say about the checks."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from pytest_behaviortrace.calibration.marginals import Marginals
from pytest_behaviortrace.calibration.repetition import Counts, Plan, repetition
from pytest_behaviortrace.run.progress import Display

TASK = "calibrating"
MOST_PASSES = 0.05
"""A worthless estimator passes a check, all its seeds and draws, at most this often."""
MOST_UPPER = 0.07
"""The same for the upper end of the interval."""
MOST_WHOLE = 0.005
"""A worthless estimator passes the whole checklist at most this often."""
LEAST_POWER = 0.90
"""A strong true signal passes a check at least this often."""
LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Rate:
    """How often something happened, with its exact binomial interval (Clopper and Pearson 1934)."""

    happened: int
    n: int

    @property
    def rate(self) -> float:
        """Share."""
        return self.happened / self.n if self.n else float("nan")

    @property
    def low(self) -> float:
        """Lower end of the 95 % interval."""
        from scipy.special import betaincinv

        tail, k = (1 - LEVEL) / 2, self.happened
        return float(betaincinv(k, self.n - k + 1, tail)) if k else 0.0

    @property
    def high(self) -> float:
        """Upper end of the 95 % interval."""
        from scipy.special import betaincinv

        tail, k = (1 - LEVEL) / 2, self.happened
        return float(betaincinv(k + 1, self.n - k, 1 - tail)) if k < self.n else 1.0

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for a report."""
        return {"happened": self.happened, "n": self.n, "rate": self.rate, "low": self.low, "high": self.high}


@dataclass(frozen=True)
class Study:
    """The counts of all repetitions so far."""

    plan: Plan
    repetitions: int
    counts: Counter[str]

    def outcomes(self, kind: str, contender: str, check: str) -> Counter[str]:
        """Outcome -> how often."""
        prefix = f"{kind}|{contender}|{check}|"
        return Counter({k.removeprefix(prefix): v for k, v in self.counts.items() if k.startswith(prefix)})

    def rate(self, kind: str, contender: str, check: str, outcome: str = "pass") -> Rate:
        """How often one outcome came."""
        found = self.outcomes(kind, contender, check)
        return Rate(found[outcome], found.total())

    def cells(self, kind: str) -> list[tuple[str, str]]:
        """Every contender (or signal) and check counted under a kind, in the order they first came."""
        keys = (key.split("|") for key in self.counts)
        return list(dict.fromkeys((parts[1], parts[2]) for parts in keys if parts[0] == kind))

    def misses(self) -> list[str]:
        """The targets that were missed, a sentence each."""
        found = []
        for contender, check in self.cells("worthless"):
            passes = self.rate("worthless", contender, check)
            whole = check == "whole checklist"
            if passes.rate > (MOST_WHOLE if whole else MOST_PASSES):
                found.append(f"{contender} passes {check} {passes.happened} of {passes.n} times")
        for auc, check in self.cells("power"):
            passes = self.rate("power", auc, check)
            if auc == "0.80" and check != "whole checklist" and passes.rate < LEAST_POWER:
                found.append(f"a true signal of AUC {auc} passes {check} only {passes.happened} of {passes.n} times")
        return found

    def undecided(self) -> int:
        """How many rates lie below their target with an interval that does not."""
        rates = (self.rate("worthless", c, k) for c, k in self.cells("worthless") if k != "whole checklist")
        return sum(rate.rate <= MOST_PASSES and rate.high > MOST_UPPER for rate in rates)

    def as_dict(self) -> dict[str, Any]:
        """Everything, as plain data."""
        return {
            "plan": asdict(self.plan),
            "repetitions": self.repetitions,
            "worthless": [
                {"contender": c, "check": k, "outcomes": dict(self.outcomes("worthless", c, k)),
                 **self.rate("worthless", c, k).as_dict()}
                for c, k in self.cells("worthless")
            ],
            "power": [
                {"auc": float(a), "check": k, **self.rate("power", a, k).as_dict()} for a, k in self.cells("power")
            ],
            "rows": [
                {"auc": float(a), "check": k, "outcomes": dict(self.outcomes("row", a, k)),
                 "inconclusive_with_more_data": dict(self.outcomes("more", a, k))}
                for a, k in self.cells("row")
            ],
            "resamples": [
                {"auc": float(a), "check": k, "alike": self.rate("alike", a, k, "yes").as_dict()}
                for a, k in self.cells("alike")
            ],
            "missed": self.misses(),
            "undecided": self.undecided(),
        }  # fmt: skip


_SHARED: list[Any] = []


def _receive(marginals: Marginals, plan: Plan) -> None:
    _SHARED[:] = [marginals, plan]


def _one(number: int) -> Counts:
    marginals, plan = _SHARED
    return repetition(marginals, plan, number)


def run(marginals: Marginals, plan: Plan, repetitions: int, display: Display, workers: int | None = None) -> Study:
    """The study; on Ctrl-C, what has been counted by then."""
    counts: Counter[str] = Counter()
    done, workers = 0, workers or max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
    display.start({TASK: 1.0})
    try:
        with _pool(workers, marginals, plan) as results:
            for found in results(range(repetitions)):
                counts.update(found)
                done += 1
                display.update(TASK, f"repetition {done} of {repetitions}", done / repetitions)
        display.finish(TASK)
    except KeyboardInterrupt:
        display.message(f"interrupted after {done} repetitions; the tables are those of these, and none is written")
    except BrokenProcessPool:
        display.message(f"a worker died after {done} repetitions; the tables are those of these, and none is written")
    finally:
        display.stop()
    return Study(plan, done, counts)


@contextmanager
def _pool(workers: int, marginals: Marginals, plan: Plan) -> Iterator[Any]:
    """A function that maps repetition numbers to their counts, in order."""
    if workers == 1:
        _receive(marginals, plan)
        yield lambda numbers: map(_one, numbers)
        return
    context = multiprocessing.get_context("spawn" if os.name == "nt" else "fork")
    pool = ProcessPoolExecutor(workers, context, initializer=_receive, initargs=(marginals, plan))
    try:
        yield lambda numbers: pool.map(_one, numbers)
    finally:
        pool.shutdown(cancel_futures=True)


def table(rows: Iterable[Sequence[str]]) -> list[str]:
    """Rows of cells as aligned lines, the first column left."""
    cells = [list(row) for row in rows]
    widths = [max(len(row[c]) for row in cells) for c in range(len(cells[0]))]
    return [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in cells
    ]


def render(study: Study) -> list[str]:
    """The study as text."""
    lines = [f"{study.repetitions} repetitions, {study.plan.seeds} seeds x {study.plan.draws} draws, "
             f"{study.plan.resamples} resamples", ""]  # fmt: skip
    lines += ["Worthless estimators: % of repetitions in which every row passes (upper end of the 95 % interval)"]
    lines += _matrix(study, "worthless", lambda r: f"{100 * r.rate:.1f} ({100 * r.high:.1f})")
    lines += ["", "True signal, by the AUC of its content: % of repetitions in which every row passes"]
    lines += _matrix(study, "power", lambda r: f"{100 * r.rate:.1f}")
    lines += ["", "Rows of the true signal: % inconclusive, and of these % that four times the data decides"]
    lines += _undecided(study)
    lines += ["", "The same rows under the checks' own number of resamples: % passed with fewer, with all; % alike"]
    lines += _agreement(study)
    missed = study.misses()
    lines += ["", *(f"MISSED: {miss}" for miss in missed)]
    if undecided := study.undecided():
        upper = f"{100 * MOST_UPPER:g} %"
        lines.append(f"undecided: {undecided} rates of false passes have an upper end above {upper}; more repetitions")
    elif not missed and study.repetitions:
        lines.append("every target is met")
    return lines


def _matrix(study: Study, kind: str, show: Any) -> list[str]:
    cells = study.cells(kind)
    if not cells:
        return ["(nothing counted)"]
    checks, names = list(dict.fromkeys(k for _, k in cells)), list(dict.fromkeys(c for c, _ in cells))
    rows = [[name, *(show(study.rate(kind, name, k)) if (name, k) in cells else "" for k in checks)] for name in names]
    return table([["", *checks], *rows])


def _undecided(study: Study) -> list[str]:
    cells = study.cells("row")
    if not cells:
        return ["(nothing counted)"]
    checks, names = list(dict.fromkeys(k for _, k in cells)), list(dict.fromkeys(a for a, _ in cells))

    def show(auc: str, check: str) -> str:
        open_rows, more = study.rate("row", auc, check, "inconclusive"), study.outcomes("more", auc, check)
        decided = more["pass"] + more["fail"]
        return f"{100 * open_rows.rate:.0f}" + (f" ({100 * decided / more.total():.0f})" if more.total() else "")

    return table([["", *checks], *([name, *(show(name, check) for check in checks)] for name in names)])


def _agreement(study: Study) -> list[str]:
    checks = list(dict.fromkeys(check for _, check in study.cells("alike")))
    if not checks:
        return ["(nothing compared)"]
    rows = []
    for check in checks:
        fewer, full = (study.rate("resamples", size, check) for size in ("fewer", "full"))
        yes = sum(study.outcomes("alike", auc, check)["yes"] for auc, k in study.cells("alike") if k == check)
        rows.append(
            [check, f"{100 * fewer.rate:.1f}", f"{100 * full.rate:.1f}", f"{100 * yes / full.n:.1f}", f"{full.n}"]
        )
    return table([["", "fewer", "all", "alike", "rows"], *rows])
