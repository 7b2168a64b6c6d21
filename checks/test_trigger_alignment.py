"""Claim: the score sits on the trigger tokens.

Of two spans of equal token length in the same completion, the one that spells the behaviour scores higher: than another
code word (else the same place in another sentence), and than the stretch of nearest fluency, there also beyond what
gradient size and fluency explain. At a saturated policy every other code word is less fluent than the behaviour and has
a larger gradient (both controls reach .97 or more there), so they are put on trial where they can lose (P5). Targets
come from other draws (with one draw, from the other half of the probes). The paper's token-level bars (mean cosine with
the in-context target above 0.05, with the constructed one below) are reported: P4, a target built in the wrong context.
"""

import numpy as np
from numpy.typing import NDArray

from pytest_behaviortrace import showing, statistics
from pytest_behaviortrace.estimator import Needs
from pytest_behaviortrace.evidence import CONTROL, MATCHED, TRIGGER, Spans
from pytest_behaviortrace.gates import Replicated, both_ways, contest
from pytest_behaviortrace.grading import Case
from pytest_behaviortrace.statistics import Pairs
from pytest_behaviortrace.verdict import Decision, Floor, Gate, Verdict, decide

CHANCE = 0.5
CONTROLS = ("norm-only", "fluency")
"""Of the fluency-matched spans; beside other spans both cannot lose."""
LEAST_SPANS = 100
"""Completions with both spans that decide anything; the paper's floor for matched pairs (PAPER.md, "Metrics")."""
PAPER_BAR = 0.05
"""Token-level cosine bar of the paper's pre-registration (PAPER.md, "Metrics")."""


def test_trigger_alignment(bt_case: Case, bt_estimator: str, bt_seed: int, bt_draw: int) -> None:
    bt_case.require(Needs(gradients=True, spans=True), "spans")
    spans = bt_case.evidence.spans(bt_seed, bt_draw)
    if not len(spans.kind):
        bt_case.conclude(Decision(Verdict.INCONCLUSIVE, "no completion of this draw shows the behaviour", n=0))
    scores = bt_case.fold_scores(spans.key, spans.problems, len(spans.kind))
    gates, floors = [], []
    for kind, name, named in (
        (MATCHED, "AUC of trigger over fluency-matched span", CONTROLS),
        (CONTROL, "AUC of trigger over control span", ()),
    ):
        gates += contest(name, paired(bt_case, spans, scores, kind), CHANCE, controls(bt_case, spans, kind, named))
        floors.append(Floor(f"completions for {name}", len(pairs_of(bt_case, spans, kind)), LEAST_SPANS))
    gates.append(beyond_controls(bt_case, spans, scores))
    decision = decide(gates, floors, chance=CHANCE, n=len(pairs_of(bt_case, spans, MATCHED)))
    bt_case.show(lambda: showing.span_scores(scores, {k: pairs_of(bt_case, spans, k) for k in (MATCHED, CONTROL)}))
    cosines = f"target cosine in-context {spans.cosine_in_context:+.3f}"
    if spans.cosine_constructed is not None:
        cosines += f", constructed {spans.cosine_constructed:+.3f}"
    bt_case.conclude(decision, remark="; ".join([*strata(bt_case, spans, scores), f"{cosines} (bar {PAPER_BAR})"]))


def controls(case: Case, spans: Spans, kind: int, named: tuple[str, ...]) -> dict[str, Replicated]:
    """Gradient size and fluency of the same spans, each also flipped."""

    def make() -> dict[str, Replicated]:
        values = {"norm-only": spans.norm.astype(np.float64), "fluency": spans.logprob}
        found: dict[str, Replicated] = {}
        for name in named:
            found |= both_ways(name, paired(case, spans, values[name], kind))
        return found

    return case.grader.memo(("span controls", kind, spans.key), make)


def beyond_controls(case: Case, spans: Spans, scores: NDArray[np.float64]) -> Gate:
    """The AUC over trigger and matched spans of the same prompts once fluency and gradient size are taken out.

    The behaviour's tokens are alike everywhere, other stretches are not, so that how near a span comes to the usual
    fluency tells it from a matched one (AUC .87), as mixtures of both controls do. Neither survives when every
    twentieth of fluency and of gradient size has a level of its own.
    """
    pairs = statistics.within_group_pairs(spans.kind == TRIGGER, spans.group, spans.kind == MATCHED)
    bootstrap = case.bootstrap(("probes", spans.key), spans.probe)
    steps = case.grader.memo(
        ("span steps", spans.key),
        lambda: np.column_stack([statistics.quantile_steps(v) for v in (spans.logprob, spans.norm)]),
    )
    auc = Replicated.residual_auc(scores, pairs, steps, spans.group, bootstrap)
    return contest("AUC beyond fluency and gradient size", auc, CHANCE, {})[0]


def pairs_of(case: Case, spans: Spans, kind: int) -> Pairs:
    """The trigger span against the span of `kind`, per completion."""
    return case.grader.memo(("span pairs", kind, spans.key), lambda: Pairs(*spans.pairs(kind)))


def paired(case: Case, spans: Spans, scores: NDArray[np.float64], kind: int) -> Replicated:
    """Paired AUC of any score of the spans; clusters are probes."""
    pairs = pairs_of(case, spans, kind)
    return Replicated.auc(scores, pairs, case.bootstrap(("probes", spans.key), spans.probe))


def strata(case: Case, spans: Spans, scores: NDArray[np.float64]) -> list[str]:
    """AUC over control spans that are code words, and over those at the same place of another sentence."""
    pairs = pairs_of(case, spans, CONTROL)
    is_code = spans.code_word[pairs.negative]
    return [
        f"{name} {statistics.auc(scores, pairs.where(mask)):.3f} (n={int(mask.sum())})"
        for name, mask in (("code word", is_code), ("same place", ~is_code))
        if mask.any()
    ]
