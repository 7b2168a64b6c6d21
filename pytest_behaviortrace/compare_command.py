"""`python -m pytest_behaviortrace compare OLD NEW`: what got worse between two JSON reports, without a run."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

EXIT_CODES = """\
exit codes:
  0    nothing got worse
  1    a regression: a row passed in OLD and does not in NEW, or its interval fell clear of the old one
  2    the reports cannot be compared, or a usage error
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("old", metavar="OLD", help="the baseline, a JSON report (--bt-report old.json)")
    parser.add_argument("new", metavar="NEW", help="the JSON report that is held to it")
    parser.add_argument(
        "--whole",
        action="store_true",
        help="NEW should hold every row: one that passed and is not there is a regression",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, for programs")
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace) -> int:
    """Compare and print; returns the exit code. Complaints go to standard error."""
    from pytest_behaviortrace import baseline, snapshot
    from pytest_behaviortrace.reports import comparison

    try:
        old, new = (snapshot.read(Path(given).expanduser(), given) for given in (args.old, args.new))
    except snapshot.SnapshotError as error:
        args.usage_error(str(error))
    common = [row for id, row in new.rows.items() if id in old.rows]
    if differing := baseline.differences(old.conditions, new.conditions, common):
        what = "; ".join(difference.describe() for difference in differing)
        print(
            f"error: {args.old} and {args.new} cannot be compared: {what} (there: {args.old}, here: {args.new}); "
            f"make one of them again under the conditions of the other",
            file=sys.stderr,
        )
        return 2
    if not any(row.estimator is not None for row in common):
        print(
            f"error: {args.old} and {args.new} have no row of an estimator in common; grade the same ones in both",
            file=sys.stderr,
        )
        return 2
    estimators = dict.fromkeys((*old.estimators, *new.estimators))  # one that NEW lacks must not go unnoticed
    found = baseline.compare(old, new.rows.values(), estimators, args.old, whole=args.whole)
    if args.json:
        print(json.dumps(baseline.to_dict(found), indent=1))
    else:
        print("\n".join(line for line, _ in comparison.render(found)))
    return 1 if found.failing else 0
