"""Scorecard -> JSON, schema 2: the same bytes for the same cache, however the rows were spread over processes.

Schema 2 added `plant`, `draws`, `checklist` and `summary`; everything else is as in schema 1. `baseline` is there only
where the session was held to one. Checks are spelt with `test_`, as in the ids of rows (`Row.check`).
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Any

from pytest_behaviortrace import baseline
from pytest_behaviortrace.scorecard import SCHEMA, Row, Scorecard
from pytest_behaviortrace.summary import summary

_ROW_FIELDS = tuple(f.name for f in fields(Row))


def to_dict(scorecard: Scorecard) -> dict[str, Any]:
    """The report as plain data, in its documented order.

    Of a recorded run, `run` says which, and `recipe` and `plant` are null.
    """
    run = scorecard.run
    about: dict[str, Any] = {"recipe": {"name": scorecard.recipe, "hash": scorecard.recipe_hash}}
    if run is not None:
        about = {"recipe": None, "run": {**asdict(run), "versions": dict(sorted(run.versions.items()))}}
    report: dict[str, Any] = {
        "schema": SCHEMA,
        "suite": scorecard.suite,
        **about,
        "plant": scorecard.plant if run is None else None,
        "draws": scorecard.draws,
        "versions": dict(sorted(scorecard.versions.items())),
        "seeds": [asdict(facts) for facts in sorted(scorecard.seeds, key=lambda facts: facts.seed)],
        "checklist": {name: scorecard.checklist_verdict(name) for name in scorecard.estimators},
        "summary": {name: summary(scorecard, name) for name in scorecard.estimators},
    }
    if scorecard.comparison is not None:
        compared = baseline.to_dict(scorecard.comparison)
        report["baseline"] = {"path": compared.pop("baseline"), **compared}
    return report | {"rows": [{name: getattr(row, name) for name in _ROW_FIELDS} for row in scorecard.rows]}


def render(scorecard: Scorecard) -> str:
    """The report as text, one row a line."""
    report = to_dict(scorecard)
    rows = [_dump(row) for row in report.pop("rows")]
    body = "\n" + ",\n".join(rows) + "\n" if rows else ""
    return f'{_dump(report)[:-1]}, "rows": [{body}]}}\n'


def _dump(value: dict[str, Any]) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)
