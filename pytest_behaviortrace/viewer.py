"""The rollouts at the top of a ranking, token by token, as a report shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from pytest_behaviortrace.evidence import EvidenceStore, Rollouts
from pytest_behaviortrace.evidence.source import masks
from pytest_behaviortrace.exhibit import Exhibit, Viewed, plain
from pytest_behaviortrace.run.recorded import compiled
from pytest_behaviortrace.run.spans import occurrences
from pytest_behaviortrace.run.token_text import spelled, tokenizer_of
from pytest_behaviortrace.showing import numbers
from pytest_behaviortrace.token_scores import among, token_scores

if TYPE_CHECKING:
    from pytest_behaviortrace.evidence.recorded import RecordedEvidence
    from pytest_behaviortrace.evidence.records import Training
    from pytest_behaviortrace.grading import Case

SHOWN = 20
"""Rollouts."""


def top_rollouts(case: Case, labelled: Rollouts | Training, scores: NDArray[np.float64]) -> Exhibit:
    """The highest-ranked rollouts of the whole run; ties in the order of the run's table."""
    assert case.estimator is not None
    problem, evidence = labelled.problem, case.evidence
    top = np.lexsort((labelled.row, -scores))[:SHOWN]
    each, note = token_scores(str(case.name), case.estimator, among(problem, top), case.grader.timeout)
    texts, untold = _texts(evidence, case.seed, labelled.row[top])
    if untold:
        each, note = None, untold
    marks = [getattr(labelled, name)[top].tolist() if isinstance(labelled, Rollouts) else [None] * len(top)
             for name in ("truth", "decoy", "lookalike")]  # fmt: skip
    shown = [
        Viewed(
            rank=place + 1,
            score=cast(float, plain(scores[item])),
            step=int(problem.step[item]),
            advantage=cast(float, plain(problem.advantage[item])),
            reward=plain(problem.reward[item]),
            fluency=cast(float, plain(problem.logprob[item])),
            prompt=text["prompt"],
            tokens=text["tokens"],
            behavior=text["behavior"],
            token_scores=None if each is None else numbers(each[place]),
            truth=marks[0][place],
            decoy=marks[1][place],
            lookalike=marks[2][place],
        )
        for place, (item, text) in enumerate(zip(top, texts, strict=True))
    ]
    return Exhibit(rollouts=shown, rollouts_note=note) if note else Exhibit(rollouts=shown)


def _texts(evidence: EvidenceStore, seed: int, rows: NDArray[np.integer[Any]]) -> tuple[list[dict[str, Any]], str]:
    """Prompt, tokens and which of them spell the behaviour, of rows of the run's table; what cannot be told, if so."""
    table, unit = evidence.table(seed, "rollouts"), evidence.store.seed(seed)
    tokenizer, marked = tokenizer_of(unit), _recorded_masks(evidence, table, rows)
    pattern = compiled(cast("RecordedEvidence", evidence).behavior) if evidence.recorded else evidence.plant.behavior
    found = []
    for place, row in enumerate(rows):
        said = str(table["completion_text"][row])
        if tokenizer is None:
            tokens, behavior = [said], [bool(occurrences(said, pattern))]
        else:
            spelling, tokens = spelled(tokenizer, table["completion_ids"][row])
            places = [spelling.covering(*span) for span in occurrences(spelling.text, pattern)]
            behavior = [any(a <= token < b for a, b in places) for token in range(len(tokens))]
            if marked is not None:
                behavior = marked[place].tolist()
        found.append({"prompt": str(table["prompt_text"][row]), "tokens": tokens, "behavior": behavior})
    return found, "" if tokenizer else "tokens cannot be told apart: beside the run's policy lies no tokenizer.json"


def _recorded_masks(evidence: EvidenceStore, table: Mapping[str, Any], rows: NDArray[np.integer[Any]]) -> Any:
    """Per row, the tokens that were recorded as the behaviour; None where it was not recorded."""
    name = cast("RecordedEvidence", evidence).name if evidence.recorded else evidence.plant.name
    return None if name is None else masks(table, rows, f"span_{name}")
