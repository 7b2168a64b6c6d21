"""Prints the README's results table from a JSON report: `python tests/benchmarks/results_table.py report.json`.

One line per estimator, one column per check: verdicts of its rows, and the mean of their estimates.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

MARKS = {"pass": "pass", "fail": "fail", "inconclusive": "inc.", "n/a": "n/a", "error": "error"}


def cell(rows: list[dict[str, Any]]) -> str:
    """For example `fail 2, pass 1 (.71)`."""
    verdicts = Counter(row["verdict"] for row in rows)
    text = ", ".join(f"{MARKS[v]} {n}" if len(verdicts) > 1 else MARKS[v] for v, n in verdicts.most_common())
    numbers = [row["estimate"] for row in rows if row["estimate"] is not None]
    return f"{text} ({sum(numbers) / len(numbers):.2f})" if numbers else text


def main() -> None:
    """Print the table."""
    report = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    rows = [row for row in report["rows"] if row["estimator"]]
    checks = list(dict.fromkeys(row["check"].removeprefix("test_") for row in rows))
    print(f"Suite {report['suite']}, recipe {report['recipe']['name']}@{report['recipe']['hash'][:8]}.\n")
    print("| estimator | " + " | ".join(checks) + " |\n|" + "---|" * (len(checks) + 1))
    for estimator in dict.fromkeys(row["estimator"] for row in rows):
        cells = []
        for check in checks:
            mine = [r for r in rows if r["estimator"] == estimator and r["check"].removeprefix("test_") == check]
            # Components of seed stability are on different scales: no mean over them.
            cells.append(cell([{**r, "estimate": None} for r in mine] if check == "seed_stability" else mine))
        print(f"| {estimator} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
