"""Claim: the estimator says more than reward, topic and time.

AUC of ground truth against decoys generated at most two steps apart. Decoys earned the same bonus for another
behaviour, so advantage cannot tell them apart for the right reason; topic (cosine with the mean gradient of
behaviour-free siblings of the same probes) could tell prompts apart without any cause. Prompt match is reported.
"""

import numpy as np
from numpy.typing import NDArray

from pytest_behaviortrace import statistics
from pytest_behaviortrace.evidence import Rollouts
from pytest_behaviortrace.gates import Replicated, both_ways, contest
from pytest_behaviortrace.grading import Case
from pytest_behaviortrace.statistics import ClusterBootstrap, Pairs
from pytest_behaviortrace.verdict import Floor, decide

CHANCE = 0.5
LEAST_PAIRS = 500
"""Pairs of ground truth and decoy that decide anything: DESIGN, test_reward_control."""
CONTROLS = ("advantage", "update-magnitude", "norm-only", "step", "topic")


def test_reward_control(bt_case: Case, bt_estimator: str, bt_seed: int) -> None:
    rollouts = bt_case.evidence.rollouts(bt_seed)
    pairs, _ = layout(bt_case, rollouts)
    gates = contest("AUC against decoys", decoy_auc(bt_case, bt_seed), CHANCE, controls(bt_case, bt_seed))
    prompt = statistics.auc(rollouts.own_prompt.astype(np.float64), pairs)
    decision = decide(
        gates, [Floor("ground-truth x decoy pairs", len(pairs), LEAST_PAIRS)], chance=CHANCE, n=len(pairs)
    )
    bt_case.conclude(decision, remark=f"prompt match alone {prompt:.3f}")


def decoy_auc(case: Case, seed: int) -> Replicated:
    """AUC of ground truth against decoys of nearby steps."""
    rollouts = case.evidence.rollouts(seed)
    scores = case.scores(rollouts.key, rollouts.problem)
    return case.own(("decoy AUC", seed), lambda: against_decoys(case, rollouts, scores))


def controls(case: Case, seed: int) -> dict[str, Replicated]:
    """The same AUC of every named control, as it is and flipped."""

    def make() -> dict[str, Replicated]:
        rollouts = case.evidence.rollouts(seed)
        found: dict[str, Replicated] = {}
        for name in CONTROLS:
            found |= both_ways(name, against_decoys(case, rollouts, control_scores(case, rollouts, name)))
        return found

    return case.grader.memo(("reward controls", seed), make)


def control_scores(case: Case, rollouts: Rollouts, name: str) -> NDArray[np.float64]:
    """Score of every rollout by a named control."""
    if name == "step":
        return rollouts.problem.step.astype(np.float64)
    if name == "topic":
        return topic_scores(case, rollouts)
    return case.control(name, rollouts.key, rollouts.problem)


def topic_scores(case: Case, rollouts: Rollouts) -> NDArray[np.float64]:
    """Cosine of every rollout's gradient with the mean gradient of behaviour-free siblings."""
    return case.control("gas", ("topic", *rollouts.key), rollouts.problem.replacing(target=rollouts.topic))


def layout(case: Case, rollouts: Rollouts) -> tuple[Pairs, ClusterBootstrap]:
    """Pairs of ground truth and decoy, and the bootstrap over prompt groups; the same whichever behaviour is asked."""

    def make() -> tuple[Pairs, ClusterBootstrap]:
        problem = rollouts.problem
        return (
            statistics.cross_pairs(rollouts.truth, rollouts.decoy, problem.step),
            case.bootstrap(("prompt groups", rollouts.key[1]), problem.group),
        )

    return case.grader.memo(("decoy layout", rollouts.key[1]), make)


def against_decoys(case: Case, rollouts: Rollouts, scores: NDArray[np.float64]) -> Replicated:
    """AUC of any score of the training rollouts against decoys."""
    pairs, bootstrap = layout(case, rollouts)
    return Replicated.auc(scores, pairs, bootstrap)
