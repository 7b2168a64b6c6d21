"""Claim: the ranking of siblings survives fluency.

Within-group AUC of siblings that show the behaviour over those that do not, after fluency is taken out inside groups
with the basis (f, f^2, f^3, rank f), and again over pairs matched in fluency: steep functions of fluency survive any
fixed basis, but not matching. At a saturated policy "shows the behaviour" is nearly "is fluent" (P5). The paper's
linear version is reported only: on its published rows the worthless score rank(fluency) still gets .61 there. The
problem carries nothing that spells the behaviour (it is the label), so estimators that read text, spans or the model
are n/a.
"""

import numpy as np
from numpy.typing import NDArray

from pytest_behaviortrace import showing, statistics
from pytest_behaviortrace.evidence import Siblings
from pytest_behaviortrace.gates import Replicated, both_ways, contest
from pytest_behaviortrace.grading import Case
from pytest_behaviortrace.statistics import ClusterBootstrap, Pairs
from pytest_behaviortrace.verdict import Floor, decide

CHANCE = 0.5
CONTROLS = ("norm-only", "length")
LEAST_MATCHED = 100
"""Matched pairs (at most 0.10 nats apart) below which nothing is decided: PAPER.md, "Metrics", fluency control 2."""


def test_fluency_control(bt_case: Case, bt_estimator: str, bt_seed: int, bt_draw: int) -> None:
    siblings = bt_case.evidence.siblings(bt_seed, bt_draw)
    pairs, _ = layout(bt_case, siblings)
    scores = sibling_scores(bt_case, siblings)
    auc, matched = fluency_controlled_auc(bt_case, bt_seed, bt_draw), statistics.matched_pairs(pairs, siblings.logprob)
    gates = contest("fluency-controlled AUC", auc, CHANCE, controls(bt_case, siblings))
    gates += contest("AUC of fluency-matched pairs", matched_auc(bt_case, siblings, scores, matched), CHANCE, {})
    floors = [Floor("fluency-matched pairs", len(matched), LEAST_MATCHED)]
    decision = decide(gates, floors, chance=CHANCE, n=len(pairs))
    bt_case.show(lambda: showing.fluency_cloud(siblings, scores, pairs, auc))
    linear = statistics.residual_auc(scores, pairs, siblings.logprob, siblings.group)
    bt_case.conclude(decision, remark=f"linear residual AUC {linear:.3f}, raw {statistics.auc(scores, pairs):.3f}")


def matched_auc(case: Case, siblings: Siblings, scores: NDArray[np.float64], matched: Pairs) -> Replicated:
    """AUC over the pairs whose fluency agrees, where no function of fluency can win by being steep."""
    _, bootstrap = layout(case, siblings)
    return Replicated.auc(scores, matched, bootstrap)


def fluency_controlled_auc(case: Case, seed: int, draw: int) -> Replicated:
    """Within-group AUC after the whole basis of fluency is removed inside groups."""
    siblings = case.evidence.siblings(seed, draw)
    scores = sibling_scores(case, siblings)
    return case.own(("residual AUC", siblings.key), lambda: residual(case, siblings, scores))


def controls(case: Case, siblings: Siblings) -> dict[str, Replicated]:
    """Gradient size and length, residualised alike, each also flipped."""

    def make() -> dict[str, Replicated]:
        values = {"norm-only": siblings.norm, "length": siblings.length}
        found: dict[str, Replicated] = {}
        for name in CONTROLS:
            found |= both_ways(name, residual(case, siblings, values[name].astype(np.float64)))
        return found

    return case.grader.memo(("fluency controls", siblings.key), make)


def sibling_scores(case: Case, siblings: Siblings) -> NDArray[np.float64]:
    """The estimator's score of every sibling of the draw."""
    return case.fold_scores(siblings.key, siblings.problems, len(siblings.shown))


def layout(case: Case, siblings: Siblings) -> tuple[Pairs, ClusterBootstrap]:
    """Within-group pairs, and the bootstrap over probes (the contexts of one probe share its wording)."""

    def make() -> tuple[Pairs, ClusterBootstrap]:
        pairs = statistics.within_group_pairs(siblings.shown, siblings.group)
        return pairs, case.bootstrap(("probes", siblings.key), siblings.probe)

    return case.grader.memo(("sibling layout", siblings.key), make)


def residual(case: Case, siblings: Siblings, scores: NDArray[np.float64]) -> Replicated:
    """Residual AUC of any score of the siblings."""
    pairs, bootstrap = layout(case, siblings)
    basis = statistics.fluency_basis(siblings.logprob, siblings.group)
    return Replicated.residual_auc(scores, pairs, basis, siblings.group, bootstrap)
