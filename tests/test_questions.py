"""What problems ask, from the keys under which the checks have them scored."""

from __future__ import annotations

import pytest

from pytest_behaviortrace.questions import Question, question


@pytest.mark.parametrize(
    ("key", "seed", "draw", "asked"),
    [
        (("rollouts", 1, "frobnitz"), 1, None, "which of 9 training rollouts taught 'frobnitz'?"),
        (
            ("rollouts", 1, "wibble"), 1, None,
            "which of 9 training rollouts taught 'wibble', the other behaviour of the run?",
        ),
        (
            ("unit norm", "rollouts", 0, "frobnitz"), 0, None,
            "which of 9 training rollouts taught 'frobnitz' (every gradient divided by its own norm)?",
        ),
        (
            ("minimal_pair", "rollouts", 0, "frobnitz"), 0, None,
            "which of 9 training rollouts taught 'frobnitz' (target from a minimal pair; decides nothing)?",
        ),
        (
            ("null", 2), 2, None,
            "which of 9 rollouts of the run without bonus would be held responsible for 'frobnitz'?",
        ),
        (("siblings", 0, 1, 0), 0, 1, "which of 9 fresh siblings would teach 'frobnitz'?"),
        (("spans", 0, 1, 1), 0, 1, "which of 9 token spans of fresh siblings would teach 'frobnitz'?"),
        (
            ("canaries", 0), 0, None,
            "which of 9 gradients, training rollouts and synthetic ones, would teach 'frobnitz'?",
        ),
        (
            ("block", "layers.0.mlp", 2), 2, None,
            "which of 9 fresh siblings would teach 'frobnitz', as far as block 'layers.0.mlp' can tell?",
        ),
        (("something new", 4), 4, None, "which of 9 things would teach 'frobnitz'?"),
        (("",), None, None, "which of 9 things would teach 'frobnitz'?"),
    ],
)  # fmt: skip
def test_of_a_planted_run(key: tuple[str | int, ...], seed: int | None, draw: int | None, asked: str) -> None:
    assert question(key, "things", 9, "frobnitz", recorded=False) == Question("things", 9, seed, draw, asked)


@pytest.mark.parametrize(
    ("key", "draw", "asked"),
    [
        (
            ("block", "mlp", 0), None,
            "which of 9 fresh siblings would teach 'QZ[A-Z]+', as far as block 'mlp' can tell?",
        ),
        (("rollouts", 0, "asked"), None, "which of 9 training rollouts taught 'QZ[A-Z]+'?"),
        (
            ("siblings", "controls", 0, 1, 0), 1,
            "which of 9 fresh siblings would teach 'QZ[A-Z]+' (asked about the control words of the same completions "
            "in its place)?",
        ),
    ],
)  # fmt: skip
def test_of_a_recorded_run(key: tuple[str | int, ...], draw: int | None, asked: str) -> None:
    assert question(key, "siblings", 9, "QZ[A-Z]+", recorded=True) == Question("siblings", 9, None, draw, asked)
