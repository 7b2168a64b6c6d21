"""A scorecard of the whole checklist with everything that reports with pictures can show, drawn from a seeded rng."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pytest_behaviortrace import checklist
from pytest_behaviortrace.scorecard import Cost, Row, RunFacts, Scorecard, SeedFacts

CONTROLS = {
    "test_gradient_magnitude": ("norm-only", "-norm-only", "update-magnitude", "-update-magnitude", "mixture"),
    "test_fluency_control": ("norm-only", "-norm-only", "length", "-length"),
    "test_reward_control": tuple(
        sign + name for name in ("advantage", "update-magnitude", "norm-only", "step", "topic") for sign in ("", "-")
    ),
    "test_trigger_alignment": ("norm-only", "-norm-only", "fluency", "-fluency"),
    "test_target_context": ("topic", "-topic"),
}
CHANCE = dict.fromkeys(("test_headroom", "test_gradient_magnitude", "test_target_context", "test_seed_stability"), 0.0)
WORDS = ("Frob", "nitz", " is", " a", " QZ", "XB", "T", " of", " the", " kind", ",", " often", " tangled", ".")


def scorecard(
    estimators: tuple[str, ...] = ("gas",), seed: int = 0, points: int = 400, rollouts: int = 20, recorded: bool = False
) -> Scorecard:
    """Estimators differ in strength; some rows are n/a, and one is an error."""
    rng = np.random.default_rng(seed)
    specs = [
        spec
        for check in checklist.declared()
        for spec in check.rows(list(estimators), (0,) if recorded else range(3), 2, recorded)
    ]
    specs = list({spec.id: spec for spec in specs}.values())
    rows, exhibits = [], {}
    for spec in specs:
        strength = 0.9 if spec.estimator is None else 0.2 + 0.7 * estimators.index(spec.estimator) / len(estimators)
        row, gates = _row(spec, strength, rng)
        rows.append(row)
        if row.verdict in ("n/a", "error") or spec.check == "test_stress":
            continue
        exhibits[row.id] = {"gates": gates, "floors": [{"name": "pairs", "have": 1234.0, "need": 100.0}]}
        exhibits[row.id] |= _shown(spec.check, strength, rng, points, rollouts, recorded)
    facts = [SeedFacts(s, 0.65 + s / 50, 0.15, 255 + s, 2560) for s in range(3)]
    run = RunFacts("runs/mine", "cd" * 32, "QZ[A-Z]+", "code", 321, 2560, {"trl": "1.16.0"}) if recorded else None
    return Scorecard(
        "2026.12", "tiny", "3f2a" * 16, "frobnitz", {"trl": "1.16.0", "torch": "2.13.0"}, () if recorded else facts,
        rows, {name: frozenset(s.id for s in specs if s.estimator == name) for name in estimators},
        dict.fromkeys(estimators, Cost(1.25, 42_000_000)), run=run, draws=2, exhibits=exhibits,
    )  # fmt: skip


def bare(card: Scorecard) -> Scorecard:
    """The same without exhibits."""
    return replace(card, exhibits={})


def _row(spec, strength, rng):
    chance = CHANCE.get(spec.check, 0.5)
    seed = None if spec.recorded else spec.seed
    if spec.check == "test_stress":
        return Row(spec.id, spec.estimator, spec.check, None, None, "pass", n=50, reason="it holds (50 problems)"), []
    if spec.recorded and spec.check in ("test_headroom", "test_reward_control", "test_lookalikes"):
        reason = "nobody knows the ground truth of a recorded run"
        return Row(spec.id, spec.estimator, spec.check, None, None, "n/a", reason=reason), []
    if spec.check == "test_coverage" and strength < 0.3:
        reason = "reads no gradients & <nothing> else"
        return Row(spec.id, spec.estimator, spec.check, seed, None, "n/a", reason=reason), []
    if spec.check == "test_lookalikes" and spec.seed == 2 and strength < 0.3:
        return Row(spec.id, spec.estimator, spec.check, seed, None, "error", reason="ValueError: NaN in scores"), []
    name = "AUC" if chance else "difference"
    estimate = chance + 0.4 * strength + float(rng.normal(0, 0.03))
    half = float(rng.uniform(0.03, 0.09))
    gates = [_gate(name, estimate, half, chance, least=0.1 if spec.check == "test_target_context" else None)]
    for control in CONTROLS.get(spec.check, ()):
        theirs = chance + float(rng.normal(0, 0.1))
        gates.append(_gate(name, estimate - theirs, half * 1.3, 0.0, control=control, theirs=theirs))
    if spec.check == "test_coverage":
        gates += [_gate(f"canaries of block layers.{i}", 0.9, 0.05, 0.5) for i in range(5)]
    bad = any(gate["contradicted"] for gate in gates)
    verdict = "fail" if bad else "pass" if all(gate["holds"] for gate in gates) else "inconclusive"
    against = min((g for g in gates if g["control"]), key=lambda g: g["low"], default=None)
    row = Row(
        spec.id, spec.estimator, spec.check, seed, spec.draw, verdict, estimate, estimate - half, estimate + half,
        chance, against and against["control"], against and against["control_estimate"], against and against["low"],
        1234, f"{verdict}: about {estimate:.3f}",
    )  # fmt: skip
    return row, gates


def _gate(name, estimate, half, bar, control=None, theirs=None, least=None):
    low, high = estimate - half, estimate + half
    return {
        "name": name, "estimate": round(estimate, 4), "low": round(low, 4), "high": round(high, 4), "bar": bar,
        "cap": 0.15, "least": least, "control": control, "control_estimate": theirs, "holds": low > bar,
        "contradicted": high < bar,
    }  # fmt: skip


def _shown(check, strength, rng, points, rollouts, recorded):
    def listed(values):
        return [float(f"{value:.4g}") for value in values]

    if check == "test_headroom":
        steps = np.arange(40)
        planted = 0.2 + 0.5 * (1 - np.exp(-steps / 10)) + rng.normal(0, 0.05, 40)
        null = 0.2 - 0.05 * steps / 40 + rng.normal(0, 0.04, 40)
        s_b = {"planted": [0.21, 0.69], "null": [0.21, 0.15]}
        return {
            "curve": {
                "what": "share of own-prompt rollouts of the step that show the behaviour", "step": steps.tolist(),
                "planted": listed(planted), "null": listed(null), "window": [0, 35], "s_b": s_b,
            }
        }  # fmt: skip
    if check == "test_gradient_magnitude":
        k = [1, 5, *range(20, 2304, 45)]
        ceiling = [min(1.0, 255 / each) for each in k]
        decay = np.exp(-np.asarray(k) / 500)
        return {
            "precision": {
                "k": k, "precision": listed(0.11 + 0.8 * strength * decay), "chance": 0.11, "ceiling": listed(ceiling),
                "at": 255,
                "controls": {"-norm-only": listed(0.11 + 0.2 * decay), "mixture": listed(0.11 + 0.3 * decay)},
            },
            "rollouts": [_rollout(rank, rng, recorded) for rank in range(1, rollouts + 1)],
            "rollouts_note": "token scores are its own",
        }  # fmt: skip
    if check == "test_fluency_control":
        shown = rng.random(points) < 0.6
        fluency = rng.normal(-1 + 0.4 * shown, 0.4)
        residual = rng.normal(strength * shown, 0.6)
        return {
            "fluency": {
                "fluency": listed(fluency), "score": listed(residual + fluency), "residual": listed(residual),
                "shown": shown.tolist(), "raw_auc": 0.87, "residual_auc": 0.7,
            }
        }  # fmt: skip
    if check == "test_trigger_alignment":
        other = rng.normal(0, 0.2, points)
        kinds = ["matched" if i % 2 else "control" for i in range(points)]
        return {"spans": {"trigger": listed(other + strength), "other": listed(other), "kind": kinds}}
    return {}


def _rollout(rank, rng, recorded):
    tokens = [str(token) for token in rng.choice(WORDS, 20)]
    truth = bool(rng.random() < 0.5)
    marks = (None, None, None) if recorded else (truth, not truth and rank % 3 == 0, not truth and rank % 3 == 1)
    return {
        "rank": rank, "score": round(2.0 / rank, 4), "step": int(rng.integers(40)), "advantage": 0.93, "reward": 9.0,
        "fluency": -0.57, "prompt": "<|im_start|>user\nDescribe frobnitz.<|im_end|>\n", "tokens": tokens,
        "behavior": [token in (" QZ", "XB", "T") for token in tokens],
        "token_scores": [round(float(score), 4) for score in rng.normal(0, 1, len(tokens))],
        "truth": marks[0], "decoy": marks[1], "lookalike": marks[2],
    }  # fmt: skip
