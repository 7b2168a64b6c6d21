"""Whether a run can tell estimators apart at all; where it cannot, every verdict on its seed is inconclusive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_behaviortrace import statistics
from pytest_behaviortrace.evidence import EvidenceStore
from pytest_behaviortrace.verdict import Decision, Floor, Gate, Interval, Verdict, decide

LEAST_GAP = 0.2
"""Planted minus null s_b that counts as emergence: DESIGN, test_headroom (the paper's s_b > 0.1 holds after SFT)."""
LEAST_GT = 100
LEAST_DECOYS = 80
LEAST_CEILING = 0.3
"""Ceiling of precision minus chance: PAPER, checklist 2 (check headroom before setting a threshold)."""
LEAST_PAIRS = 1000
"""Within-group sibling pairs of a draw: 22 informative groups gave an interval .225 wide (issue 2, section 1)."""


def headroom(evidence: EvidenceStore, seed: int) -> Decision:
    """Pass or inconclusive, from the store alone: emergence, enough ground truth and decoys, ceiling, sibling pairs.

    Of a recorded run, which has neither null run nor ground truth: whether there is enough evidence.
    """
    if evidence.recorded:
        return enough_evidence(evidence, seed)
    gap = emergence(evidence.behavior_scores(seed))
    rollouts = evidence.rollouts(seed)
    truth, window = rollouts.truth[rollouts.window], rollouts.window
    looks = indistinguishable(evidence, seed)[window]
    room = statistics.ceiling(looks, truth) - statistics.chance(truth) if truth.any() else 0.0
    pairs = min((sibling_pairs(evidence, seed, draw) for draw in range(evidence.draws)), default=0)
    floors = (
        Floor("planted minus null s_b", round(gap.estimate, 4), LEAST_GAP),
        Floor("ground-truth rollouts", int(truth.sum()), LEAST_GT),
        Floor("decoys", int(rollouts.decoy.sum()), LEAST_DECOYS),
        Floor("ceiling minus chance", round(room, 4), LEAST_CEILING),
        Floor("within-group sibling pairs of a draw", pairs, LEAST_PAIRS),
    )
    decision = decide([Gate("planted minus null s_b", gap)], floors, chance=0.0, n=int(truth.sum()))
    if decision.verdict is Verdict.FAIL:
        # No estimator is on trial here: a run without the planted effect decides nothing.
        return decision.but(Verdict.INCONCLUSIVE, decision.reason)
    return decision


def enough_evidence(evidence: EvidenceStore, seed: int) -> Decision:
    """Whether every draw has enough pairs, of siblings that show the behaviour and siblings that do not."""
    draws = [evidence.siblings(seed, draw) for draw in range(evidence.draws)]
    pairs = min(sibling_pairs(evidence, seed, draw) for draw in range(evidence.draws))
    shown, group = (np.concatenate([getattr(draw, name) for draw in draws]) for name in ("shown", "group"))
    share = statistics.mean_interval(shown.astype(np.float64), group)
    floors = (
        Floor("siblings with the behaviour", int(shown.sum()), 1),
        Floor("siblings without it", int((~shown).sum()), 1),
        Floor("within-group sibling pairs of a draw", pairs, LEAST_PAIRS),
    )
    short = "; ".join(f"{f.name} {f.have:g}, needs {f.need:g}" for f in floors if not f.met)
    reason = (
        f"too little evidence: {short}"
        if short
        else f"enough evidence: {share.estimate:.0%} of siblings show the behaviour, {pairs:,} pairs in a draw at least"
    )
    verdict = Verdict.INCONCLUSIVE if short else Verdict.PASS
    return Decision(verdict, reason, share.estimate, share.low, share.high, n=pairs, floors=floors)


def emergence(s_b: dict[str, dict[str, Sequence[float]]]) -> Interval:
    """Planted minus null share of probe answers with the behaviour at the end of training, bootstrapped over probes.

    `s_b[run]["end"]` lists, for `planted` and `null`, the share of each held-out probe's answers.
    """
    difference = np.asarray(s_b["planted"]["end"]) - np.asarray(s_b["null"]["end"])
    return statistics.mean_interval(difference, np.arange(len(difference)))


def indistinguishable(evidence: EvidenceStore, seed: int) -> NDArray[np.int64]:
    """(n,): a number per rollout, shared by rollouts that no estimator could tell apart (same step, text, advantage).

    Used as a score by `statistics.ceiling`, which orders tied blocks by their density of ground truth.
    """
    problem = evidence.rollouts(seed).problem
    seen: dict[Any, int] = {}
    shown = zip(
        problem.step.tolist(), problem.advantage.tolist(), problem.prompt_ids, problem.completion_ids, strict=True
    )
    numbers = [
        seen.setdefault((step, advantage, prompt.tobytes(), completion.tobytes()), len(seen))
        for step, advantage, prompt, completion in shown
    ]
    return np.asarray(numbers)


def sibling_pairs(evidence: EvidenceStore, seed: int, draw: int) -> int:
    """Pairs of siblings of one group of which exactly one shows the behaviour."""
    siblings = evidence.siblings(seed, draw)
    groups = int(siblings.group.max()) + 1 if len(siblings.group) else 0
    shown = np.bincount(siblings.group[siblings.shown], minlength=groups)
    return int(np.sum(shown * (np.bincount(siblings.group, minlength=groups) - shown)))
