"""Words of the HTML report for somebody who never saw the project: what verdicts mean, what checks ask, how to look."""

from __future__ import annotations

from typing import NamedTuple

LEAD = (
    "Can the score of an estimator be trusted to find which training examples taught a language model a behaviour? "
    "Each one below was asked the same questions; its verdict says whether it answered all of them."
)
"""The first sentences of a page, before any verdict."""

ABOUT = (
    "Attribution methods claim to find which training examples taught a language model a behaviour. This report grades "
    "such methods (estimators) where the answer is known: a small model was trained by reinforcement learning (GRPO), "
    "a behaviour was planted by paying a bonus for certain rollouts, and every rollout was recorded with its gradient. "
    "An estimator gives each rollout a score without seeing which were paid; each check then asks one question about "
    "these scores, and compares them with chance and with simple rivals such as gradient size, fluency or reward."
)

ABOUT_RECORDED = (
    "Attribution methods claim to find which training examples taught a language model a behaviour. This report says "
    "how far such methods (estimators) can be trusted on one recorded training run. Nobody knows which of its rollouts "
    "taught the behaviour, so what needs that knowledge is not applicable here; the checks that remain ask whether the "
    "scores say more than fluency or gradient size, sit on the right tokens and do not hang on luck."
)

MEANING = {
    "passed": "Every check that applies to it was passed: its ranking is not explained by chance or by any of the "
    "simple rivals tried here.",
    "passed on this run": "Every check that applies was passed. On a recorded run nobody knows the cause, so this does "
    "not say that it finds causes; only the embedded run, where the cause is known, can.",
    "failed": "At least one claim does not hold for it, or it broke: its ranking may be chance, or one of the simple "
    "rivals in disguise. Each check that failed says why.",
    "inconclusive": "Nothing was refuted, but at least one check had too little evidence to decide. More seeds or "
    "draws may decide it.",
    "not shown": "Nothing was refuted, but a core check could not be applied to it, because it reads what that check "
    "must withhold. So it is not shown to work: declaring less never wins.",
    "partial": "Only some of its rows were run, so there is no verdict on the whole checklist.",
}
"""By checklist verdict."""
NOTHING_RUN = "None of its rows was run, so there is no verdict."

ROW_MEANING = {
    "pass": "the whole 95 % interval lies above chance, and it is ahead of every named rival: every gate holds",
    "fail": "an interval lies on the wrong side, or the evidence was precise and the claim still does not hold",
    "inconclusive": "the interval is too wide, or there was too little evidence, to say either",
    "n/a": "the check does not apply to this estimator or run",
    "error": "the estimator or the check broke; this is no verdict on the claim",
}
"""By verdict of a row."""


class About(NamedTuple):
    """A check in words."""

    title: str
    question: str
    picture: str = ""
    """How to read its own picture, where it has one beside the intervals."""


CHECKS = {
    "test_headroom": About(
        "Headroom",
        "Can this run tell estimators apart at all? The planted behaviour must be learned with the bonus and not "
        "without it. No estimator is on trial here.",
        "Share of rollouts on the behaviour's own prompts that show it, by training step: with the bonus (planted, "
        "solid blue) and without (null, dashed orange). Dots: the behaviour score of the first and of the last policy. "
        "The bonus was paid in the shaded steps.",
    ),
    "test_gradient_magnitude": About(
        "Gradient magnitude",
        "Does it find the paid rollouts better than the size of the gradient or of the update does?",
        "Precision: the share of paid rollouts among the k that a score ranks highest. The thick line is the "
        "estimator, dotted a perfect ranking, dashed chance; thin lines are its rivals. It is graded at the vertical "
        "line.",
    ),
    "test_fluency_control": About(
        "Fluency control",
        "Does it still rank fresh completions that show the behaviour above those that do not, once fluency (how "
        "likely the model finds a text) is taken out?",
        "Each dot is one answer: its fluency (right) against its score (up, in the estimator's own unit). In each pair "
        "left the scores as they came, right with fluency taken out. Large blue dots show the behaviour, "
        "small orange ones do not; the ticks at the right edge are their medians. If only fluency carried the score, "
        "the colours would mix on the right.",
    ),
    "test_reward_control": About(
        "Reward control",
        "Does it tell the paid rollouts from equally rewarded ones of another behaviour (decoys) at the same time of "
        "training, better than reward, topic and step do?",
    ),
    "test_trigger_alignment": About(
        "Trigger alignment",
        "Does its score sit on the tokens that spell the behaviour rather than on others of the same completion?",
        "Each dot is one completion: score of the tokens that spell the behaviour, the trigger span (up), against that "
        "of other tokens (right), both in the estimator's own unit and on one scale. "
        "Above the dashed line the right tokens won. Blue: the other tokens are as fluent; orange: another code word, "
        "or the same place elsewhere.",
    ),
    "test_target_context": About(
        "Target context",
        "Does it answer for the behaviour it was asked about, so that asking for the other one changes the ranking?",
    ),
    "test_coverage": About(
        "Coverage",
        "Does it see every part of the model that carries the behaviour?",
    ),
    "test_lookalikes": About(
        "Look-alikes",
        "Does it tell rollouts that were paid from ones that show the same behaviour but were never eligible?",
    ),
    "test_seed_stability": About(
        "Seed stability",
        "Is it above chance and above its rivals on every seed and draw, or was one of them lucky?",
    ),
    "test_stress": About(
        "Stress",
        "Do scores follow from the items alone: the same twice, finite, independent of order, names and batches?",
    ),
}
"""By check, in the words of the reader."""

WORDS = {
    "rollout": "one answer that the model gave during training, with its reward",
    "advantage": "how much better a rollout was rewarded than the others to the same prompt; it scales the update",
    "fluency": "mean log-probability of a text's tokens: how likely the model finds it",
    "seed": "one training run with the bonus and its twin without",
    "draw": "a set of fresh answers (siblings) of the trained model, on which nothing was trained",
    "AUC": "share of pairs, one that should rank higher and one that should not, in the right order; chance is 0.5",
    "precision": "share of paid rollouts among the k highest-ranked",
    "control": "a score that looks at no cause; an estimator must beat it: norm-only (size of the gradient), "
    "update-magnitude (size of the gradient times the advantage), advantage, fluency, length, step, topic, and their "
    "mixture in the weights that serve them best",
    "n": "how many things the estimate of a row was taken over: pairs for an AUC, rollouts of the window for "
    "precision, parts of the model for coverage, seeds and draws for seed stability, problems for stress, paid "
    "rollouts for headroom",
}
"""The words that figures and tables use."""

TOO_MANY = "Pictures are drawn for the first {} estimators; a report of this one alone has its pictures."

NO_PICTURE = {
    "test_stress": "These rows test properties on drawn problems; a property holds or is violated, so there is no "
    "number to draw. The table has them all.",
}


def about(check: str) -> About:
    """What a check asks; one that this module does not know goes by its name."""
    return CHECKS.get(check) or About(check.removeprefix("test_").replace("_", " ").capitalize(), "")
