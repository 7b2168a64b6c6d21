"""Claim: the score sits on the trigger tokens.

Of two spans of equal token length in the same completion, the one that spells the behaviour scores higher. The control
span is another code word where there is one, else the same place in another sentence. Targets come from other draws
(with one draw, from the other half of the probes). The paper's token-level bars (mean cosine with the in-context target
above 0.05, with the constructed target below) are reported beside: pitfall P4, a target built in the wrong context.
"""

import numpy as np
from numpy.typing import NDArray

from pytest_behaviortrace import statistics
from pytest_behaviortrace.estimator import Needs
from pytest_behaviortrace.evidence import Spans
from pytest_behaviortrace.gates import Replicated, both_ways, contest
from pytest_behaviortrace.grading import Case
from pytest_behaviortrace.statistics import ClusterBootstrap, Pairs
from pytest_behaviortrace.verdict import Floor, decide

CHANCE = 0.5
LEAST_SPANS = 100
"""Completions with both spans that decide anything; the paper's floor for matched pairs (PAPER.md, "Metrics")."""
PAPER_BAR = 0.05
"""Token-level cosine bar of the paper's pre-registration (PAPER.md, "Metrics")."""


def test_trigger_alignment(bt_case: Case, bt_estimator: str, bt_seed: int, bt_draw: int) -> None:
    bt_case.require(Needs(gradients=True, spans=True), "spans")
    spans = bt_case.evidence.spans(bt_seed, bt_draw)
    scores = bt_case.fold_scores(spans.key, spans.problems, 2 * len(spans.probe))
    gates = contest(
        "AUC of trigger over control span", paired(bt_case, spans, scores), CHANCE, controls(bt_case, spans)
    )
    floors = [Floor("completions with both spans", len(spans.probe), LEAST_SPANS)]
    strata = [
        f"{name} {statistics.auc(scores, pairs_of(spans).where(mask)):.3f} (n={int(mask.sum())})"
        for name, mask in (("code word", spans.code_word), ("same place", ~spans.code_word))
        if mask.any()
    ]
    cosines = f"target cosine in-context {spans.cosine_in_context:+.3f}, constructed {spans.cosine_constructed:+.3f}"
    decision = decide(gates, floors, chance=CHANCE, n=len(spans.probe))
    bt_case.conclude(decision, remark="; ".join([*strata, f"{cosines} (bar {PAPER_BAR})"]))


def controls(case: Case, spans: Spans) -> dict[str, Replicated]:
    """Gradient size and fluency of the same spans, each also flipped."""

    def make() -> dict[str, Replicated]:
        norm = paired(case, spans, spans.norm.astype(np.float64))
        return both_ways("norm-only", norm) | both_ways("fluency", paired(case, spans, spans.logprob))

    return case.grader.memo(("span controls", spans.key), make)


def pairs_of(spans: Spans) -> Pairs:
    """Item 2c, the trigger span of completion c, against item 2c + 1, its control span."""
    trigger = 2 * np.arange(len(spans.probe))
    return Pairs(trigger, trigger + 1)


def paired(case: Case, spans: Spans, scores: NDArray[np.float64]) -> Replicated:
    """Paired AUC of any score of the spans; clusters are probes."""
    pairs = pairs_of(spans)
    if not len(pairs):
        return Replicated(CHANCE, np.full(statistics.RESAMPLES, np.nan))
    bootstrap = case.grader.memo(("span bootstrap", spans.key), lambda: ClusterBootstrap(np.repeat(spans.probe, 2)))
    return Replicated(statistics.auc(scores, pairs), statistics.auc_replicates(scores, pairs, bootstrap))
