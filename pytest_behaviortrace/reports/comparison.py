"""Comparison -> lines: what got worse and better since a baseline, for terminals and for `compare`."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_behaviortrace.baseline import Comparison
from pytest_behaviortrace.wording import few

NAMED = 3
"""Rows that did not run are named up to this number; the JSON report has them all."""


def render(found: Comparison) -> Iterator[tuple[str, str | None]]:
    """Lines, and the colour a terminal may give them."""
    yield headline(found), "red" if found.failing else "green" if found.compared else "yellow"
    for change in found.regressions:
        yield f"  regression: {change.describe()}", "red" if change.expected is None else "yellow"
    for change in found.improvements:
        yield f"  improvement: {change.describe()}", "green"
    for name in found.unknown:
        yield f"  not in the baseline: {name}; nothing of it can get worse until the baseline is made again", "yellow"
    for what, ids, whose in (
        ("not run", found.not_run, "of the baseline"),
        ("set aside", found.set_aside, f"of the baseline cannot be compared ({found.seeds})"),
        ("new", found.fresh, "not in the baseline, so no failure of them is known there"),
    ):
        if ids:
            named = few([id.partition("::")[2] or id for id in ids], NAMED)
            yield f"  {what}: {len(ids)} row{'s' * (len(ids) != 1)} {whose}: {named}", "yellow"


def headline(found: Comparison) -> str:
    """For example `against old.json: 1 regression, 2 improvements in 39 rows`."""
    worse, better = len(found.failing), len(found.improvements)
    expected = len(found.regressions) - worse
    known = f" ({expected} more expected)" if expected else ""
    return (
        f"against {found.shown}: {worse} regression{'s' * (worse != 1)}{known}, "
        f"{better} improvement{'s' * (better != 1)} in {found.compared} row{'s' * (found.compared != 1)}"
    )
