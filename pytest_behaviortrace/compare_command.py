"""`python -m pytest_behaviortrace compare OLD NEW`: what got worse between two JSON reports, without a run."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

AGAIN = "make one of them again under the conditions of the other"
EXIT_CODES = """\
exit codes:
  0    nothing got worse
  1    a regression: a row passed in OLD and does not in NEW, or its interval fell clear of the old one
  2    the reports cannot be compared, a usage error, or the result could not be written (a full disk)
  130  interrupted (Ctrl-C)
  141  whoever read the result left before the end (a pipe to head); never 1, whatever the result
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
    if differing := baseline.differences(old.conditions, new.conditions):
        what = "; ".join(difference.describe() for difference in differing)
        return _cannot(args, f"cannot be compared: {what} (there: {args.old}, here: {args.new})", AGAIN)
    common = [row for id, row in old.rows.items() if id in new.rows and row.estimator is not None]
    if not common:
        return _cannot(args, "have no row of an estimator in common", "grade the same ones in both")
    seeds = new.conditions.seeds
    if args.whole and (lacking := sorted(set(old.conditions.seeds).difference(seeds))):
        return _cannot(args, f"cannot be compared as a whole: {args.new} lacks seed {lacking[0]}", AGAIN)
    if all(baseline.other_seeds(row, old.conditions, seeds) for row in common):
        what = baseline.seeds_differ(old.conditions, seeds).describe()
        return _cannot(args, f"have only rows over other seeds in common: {what}", AGAIN)
    estimators = dict.fromkeys((*old.estimators, *new.estimators))  # one that NEW lacks must not go unnoticed
    found = baseline.compare(old, new.rows.values(), estimators, args.old, seeds, whole=args.whole)
    if args.json:
        print(json.dumps(baseline.to_dict(found), indent=1))
    else:
        print("\n".join(line for line, _ in comparison.render(found)))
    return 1 if found.failing else 0


def _cannot(args: argparse.Namespace, what: str, remedy: str) -> int:
    """Say why there is nothing to compare, and what to do."""
    print(f"error: {args.old} and {args.new} {what}; {remedy}", file=sys.stderr)
    return 2
