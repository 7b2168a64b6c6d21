"""The rollouts at the top of a ranking, token by token, as a report shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

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
LONGEST = 400
"""Tokens of a completion: of a longer one the part around the behaviour is shown."""
LONGEST_PROMPT = 1000
"""Characters of a prompt: of a longer one the end is shown, which is what was asked last."""
UNTOLD = "tokens cannot be told apart: beside the run's policy lies no tokenizer.json"


class Text(NamedTuple):
    """A rollout as text."""

    prompt: str
    tokens: list[str]
    behavior: list[bool]


def top_rollouts(case: Case, labelled: Rollouts | Training, scores: NDArray[np.float64]) -> Exhibit:
    """The highest-ranked rollouts of the whole run; ties in the order of the run's table."""
    assert case.estimator is not None
    problem = labelled.problem
    top = np.lexsort((labelled.row, -scores))[:SHOWN]
    texts = texts_of(case.evidence, case.seed, labelled.row[top])
    each, note = None, UNTOLD
    if texts.told_apart:
        each, note = token_scores(str(case.name), case.estimator, among(problem, top), case.grader.timeout)
    if any(len(text.tokens) > LONGEST for text in texts.rows):
        note = "; ".join(filter(None, [note, f"of completions longer than {LONGEST} tokens a part is shown"]))
    marks = {name: getattr(labelled, name, None) for name in ("truth", "decoy", "lookalike")}
    shown = []
    for place, (item, text) in enumerate(zip(top, texts.rows, strict=True)):
        part = around(text.behavior)
        known = {name: None if mark is None else bool(mark[item]) for name, mark in marks.items()}
        shown.append(
            Viewed(
                rank=place + 1,
                score=cast(float, plain(scores[item])),
                step=int(problem.step[item]),
                advantage=cast(float, plain(problem.advantage[item])),
                reward=plain(problem.reward[item]),
                fluency=cast(float, plain(problem.logprob[item])),
                prompt=text.prompt if len(text.prompt) <= LONGEST_PROMPT else f"… {text.prompt[-LONGEST_PROMPT:]}",
                tokens=text.tokens[part],
                behavior=text.behavior[part],
                token_scores=None if each is None else numbers(each[place][part]),
                truth=known["truth"],
                decoy=known["decoy"],
                lookalike=known["lookalike"],
            )
        )
    return Exhibit(rollouts=shown, rollouts_note=note) if note else Exhibit(rollouts=shown)


def around(behavior: Sequence[bool]) -> slice:
    """The tokens that are shown: all, or as many as are shown at most, with the behaviour's first one in the middle."""
    if len(behavior) <= LONGEST:
        return slice(0, len(behavior))
    first = behavior.index(True) if any(behavior) else 0
    start = min(max(0, first - LONGEST // 2), len(behavior) - LONGEST)
    return slice(start, start + LONGEST)


class Texts(NamedTuple):
    """Rollouts as text, and whether their tokens are those of the policy; else each has one piece, its whole text."""

    rows: list[Text]
    told_apart: bool


def texts_of(evidence: EvidenceStore, seed: int, rows: NDArray[np.integer[Any]]) -> Texts:
    """Some rows of the run's table as text."""
    table, tokenizer = evidence.table(seed, "rollouts"), tokenizer_of(evidence.store.seed(seed))
    marked = _recorded_masks(evidence, table, rows)
    pattern = compiled(cast("RecordedEvidence", evidence).behavior) if evidence.recorded else evidence.plant.behavior
    found = []
    for place, row in enumerate(rows):
        prompt, said = str(table["prompt_text"][row]), str(table["completion_text"][row])
        if tokenizer is None:
            found.append(Text(prompt, [said], [bool(occurrences(said, pattern))]))
            continue
        spelling, tokens = spelled(tokenizer, table["completion_ids"][row])
        places = [spelling.covering(*span) for span in occurrences(spelling.text, pattern)]
        behavior = [any(a <= token < b for a, b in places) for token in range(len(tokens))]
        found.append(Text(prompt, tokens, behavior if marked is None else marked[place].tolist()))
    return Texts(found, tokenizer is not None)


def _recorded_masks(evidence: EvidenceStore, table: Mapping[str, Any], rows: NDArray[np.integer[Any]]) -> Any:
    """Per row, the tokens that were recorded as the behaviour; None where it was not recorded."""
    name = cast("RecordedEvidence", evidence).name if evidence.recorded else evidence.plant.name
    return None if name is None else masks(table, rows, f"span_{name}")
