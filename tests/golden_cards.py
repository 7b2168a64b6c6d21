"""Scorecards that hold a bit of everything, the same on every machine: what the golden files are rendered from."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_behaviortrace.baseline import Change, Comparison
from pytest_behaviortrace.scorecard import Row, RunFacts, Scorecard, SeedFacts

VERSIONS = {
    "numpy": "2.4.6",
    "pytest-behaviortrace": "2026.12",
    "torch": "2.13.0",
    "transformers": "5.1",
    "trl": "1.16.0",
}
PER_SEED = ("test_gradient_magnitude", "test_reward_control", "test_lookalikes")
NASTY = "undecided | wider than 0.15: `@someone` said <b>no</b> & #12\nsecond line \x1b[31mred"


def identity(check: str, place: str) -> str:
    """Id of a row."""
    return f"checks/{check}.py::{check}[{place}]"


def rows(estimator: str, seeds: int = 2) -> Iterator[Row]:
    """Rows of one estimator: numbers differ by seed, verdicts by check."""
    for check in PER_SEED:
        for seed in range(seeds):
            high = 0.7 + seed / 100
            verdict = "fail" if (check, seed) == ("test_lookalikes", 1) else "pass"
            yield Row(
                identity(check, f"{estimator}-seed{seed}"), estimator, check, seed, None, verdict, high - 0.1,
                high - 0.2, high, 0.5, "-norm-only", 0.4, 0.01, 100 + seed, "every gate holds",
            )  # fmt: skip
    for draw in range(2):
        check = "test_fluency_control"
        yield Row(identity(check, f"{estimator}-seed0-draw{draw}"), estimator, check, 0, draw, "n/a", reason="no text")
    check = "test_seed_stability"
    yield Row(identity(check, f"{estimator}-auc"), estimator, check, None, None, "inconclusive", 0.6, 0.4, 0.8,
              reason=NASTY)  # fmt: skip
    check = "test_stress"
    yield Row(
        identity(check, f"{estimator}-finite"), estimator, check, None, None, "error", reason="=cmd|' /C calc'!A0"
    )


def headroom(seed: int) -> Row:
    """A row that puts no estimator on trial."""
    check = "test_headroom"
    return Row(identity(check, f"seed{seed}"), None, check, seed, None, "pass", 0.5, 0.4, 0.6, 0.0, reason="room")


def planted(*names: str) -> Scorecard:
    """A scorecard of the embedded run, compared with a baseline."""
    names = names or ("gas", "my`odd|name")
    found = [row for name in names for row in rows(name)]
    expected = {name: frozenset(row.id for row in found if row.estimator == name) for name in names}
    expected[names[-1]] |= {identity("test_coverage", f"{names[-1]}-seed0")}
    failed = next(row for row in found if row.verdict == "fail")
    changes = Comparison(
        "old|.json",
        len(found),
        (Change(failed.id, failed.estimator, "passed before, fail now: 0.900 [0.800, 0.950] before, 0.610 now"),),
        (Change(found[0].id, found[0].estimator, "failed before, passes now"),),
        (identity("test_coverage", "gas-seed0"),),
        (names[-1],),
    )
    seeds = [SeedFacts(seed, 0.7, 0.1 + seed / 10, 250 + seed, 2560) for seed in (1, 0)]
    return Scorecard(
        "2026.12", "tiny", "ab" * 32, "rose", VERSIONS, seeds, [*found, headroom(0), headroom(1)], expected,
        draws=2, options=("--bt-seeds=2", "--bt-cache-dir=my cache"), comparison=changes,
    )  # fmt: skip


def recorded() -> Scorecard:
    """A scorecard of a user's own run."""
    found = [
        Row(identity("test_coverage", "gas-run"), "gas", "test_coverage", None, None, "pass", 0.9, 0.8, 1.0, 0.5),
        Row(identity("test_target_context", "gas-run"), "gas", "test_target_context", None, None, "fail", 0.1, 0.0, 0.2,
            reason="not above", expected_failure="known since May"),
    ]  # fmt: skip
    run = RunFacts("my run", "cd" * 32, "QZ[A-Z]+|x", "code", 5, 320, {"trl": "1.16.0"})
    return Scorecard(
        "2026.12", "tiny", "ab" * 32, "rose", VERSIONS, (), found, {"gas": frozenset(row.id for row in found)},
        run=run, draws=3, options=("--bt-run=my run",),
    )  # fmt: skip
