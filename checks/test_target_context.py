"""Claim: the estimator answers for the behaviour asked.

AUC of ground truth against decoys with the graded behaviour asked, minus the same with the decoy's asked. Target,
behaviour, mask, spans and target loss all switch; items, order and random stream stay. An estimator that ignores its
question gets 0. Constructed and minimal-pair targets, and how many of the top k the two questions share, are reported.

A recorded run has no decoy. There siblings that show the behaviour are to score above the others of their group by more
when the behaviour's spans are asked about than when the control spans of the same completions are.
"""

from dataclasses import replace

import numpy as np
from pytest_behaviortrace.checks.test_gradient_magnitude import pooled
from pytest_behaviortrace.checks.test_reward_control import LEAST_PAIRS, against_decoys, layout, topic_scores
from pytest_behaviortrace.checks.test_trigger_alignment import LEAST_SPANS

from pytest_behaviortrace import statistics
from pytest_behaviortrace.estimator import needs_of
from pytest_behaviortrace.evidence import CONTROL
from pytest_behaviortrace.evidence.recorded import RecordedEvidence
from pytest_behaviortrace.gates import Replicated, contest
from pytest_behaviortrace.grading import Case
from pytest_behaviortrace.verdict import Floor, decide

CONTROLS = ("topic",)
LEAST_DIFFERENCE = 0.10
"""Least change of the AUC that counts as an answer: DESIGN, test_target_context."""


def test_target_context(bt_case: Case, bt_estimator: str, bt_seed: int) -> None:
    if bt_case.recorded is not None:
        return without_decoy(bt_case, bt_case.recorded, bt_seed)
    evidence = bt_case.evidence
    graded, decoy = evidence.rollouts(bt_seed), evidence.rollouts(bt_seed, evidence.decoy.name)
    asked, other = (bt_case.scores(r.key, r.problem) for r in (graded, decoy))
    switched = against_decoys(bt_case, graded, asked).minus(against_decoys(bt_case, graded, other))
    topic = bt_case.grader.memo(
        ("switched topic", bt_seed),
        lambda: against_decoys(bt_case, graded, topic_scores(bt_case, graded)).minus(
            against_decoys(bt_case, graded, topic_scores(bt_case, decoy))
        ),
    )
    both = {"topic": topic, "-topic": topic.flipped(0.0)}
    gates = contest("AUC asked minus AUC with the decoy asked", switched, 0.0, both)
    gates[0] = replace(gates[0], least=LEAST_DIFFERENCE)
    pairs, _ = layout(bt_case, graded)
    decision = decide(gates, [Floor("ground-truth x decoy pairs", len(pairs), LEAST_PAIRS)], chance=0.0, n=len(pairs))
    bt_case.conclude(decision, remark="; ".join([f"top-k overlap {overlap(asked, other, graded.truth):.2f}",
                                                 *other_targets(bt_case, bt_seed)]))  # fmt: skip


def without_decoy(case: Case, evidence: RecordedEvidence, seed: int) -> None:
    """The check on a recorded run, over the siblings of all draws."""
    pairs, _ = pooled(case, seed)
    asked, other = (sibling_auc(case, evidence, seed, kind) for kind in ("spans", "controls"))
    topic = case.grader.memo(
        ("switched topic", seed),
        lambda: topic_auc(case, evidence, seed, "spans").minus(topic_auc(case, evidence, seed, "controls")),
    )
    both = {"topic": topic, "-topic": topic.flipped(0.0)}
    gates = contest("AUC asked minus AUC with the control words asked", asked.minus(other), 0.0, both)
    gates[0] = replace(gates[0], least=LEAST_DIFFERENCE)
    controls = sum(int((evidence.spans(seed, draw).kind == CONTROL).sum()) for draw in range(evidence.draws))
    floors = [
        Floor("within-group sibling pairs", len(pairs), LEAST_PAIRS),
        Floor("control spans to ask about instead", controls, LEAST_SPANS),
    ]
    decision = decide(gates, floors, chance=0.0, n=len(pairs))
    case.conclude(decision, remark=f"AUC asked {asked.estimate:.3f}, control words {other.estimate:.3f}")


def sibling_auc(case: Case, evidence: RecordedEvidence, seed: int, kind: str) -> Replicated:
    """AUC of the estimator on the siblings of all draws, asked about other draws' spans of that kind."""
    parts = []
    for draw in range(evidence.draws):
        siblings = evidence.siblings(seed, draw) if kind == "spans" else evidence.siblings_about(seed, draw, kind)
        parts.append(case.fold_scores(siblings.key, siblings.problems, len(siblings.shown)))
    return Replicated.auc(np.concatenate(parts), *pooled(case, seed))


def topic_auc(case: Case, evidence: RecordedEvidence, seed: int, kind: str) -> Replicated:
    """The same of the cosine with what behaviour-free siblings are about, less the projection on those spans."""
    parts = []
    for draw in range(evidence.draws):
        siblings = evidence.siblings_about(seed, draw, kind, topic=True)
        found = np.full(len(siblings.shown), np.nan)
        for number, (problem, items) in enumerate(siblings.problems):
            found[items] = case.control("gas", (*siblings.key, number), problem)
        parts.append(found)
    return Replicated.auc(np.concatenate(parts), *pooled(case, seed))


def overlap(asked: np.ndarray, other: np.ndarray, truth: np.ndarray) -> float:
    """Share of the k top rollouts that both questions have in common, k = ground-truth count."""
    k = max(int(truth.sum()), 1)
    top = [set(np.argsort(-scores, kind="stable")[:k].tolist()) for scores in (asked, other)]
    return len(top[0] & top[1]) / k


def other_targets(case: Case, seed: int) -> list[str]:
    """The AUC against decoys with the constructed and the minimal-pair target, for estimators that read targets."""
    assert case.estimator is not None
    if not needs_of(case.estimator).gradients:
        return []
    rollouts, plant, found = case.evidence.rollouts(seed), case.evidence.plant.name, []
    pairs, _ = layout(case, rollouts)
    for kind in ("constructed", "minimal_pair"):
        problem = rollouts.problem.replacing(target=case.evidence.fixed_target(seed, kind, plant))
        found.append(f"AUC {kind} {statistics.auc(case.scores((kind, *rollouts.key), problem), pairs):.3f}")
    return found
