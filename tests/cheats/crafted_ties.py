"""Returns few distinct or enormous values, in the hope that ties or overflow are resolved in its favour."""

import numpy as np

CAUGHT_BY = "reward_control"
WHY = "Statistics count a tie as half and share out what a tied block holds, so a tie is worth what a coin would be."

LARGEST = np.finfo(float).max


def constant(problem):
    return np.zeros(len(problem))


def signed_zeros(problem):
    return np.where(problem.advantage > 0, 0.0, -0.0)


def one_block(problem):
    """Everything that was rewarded tied at the top."""
    return (problem.advantage > 0).astype(float)


def enormous(problem):
    return np.where(problem.advantage > 0, LARGEST, -LARGEST) * (1.0 if len(problem) % 2 else 0.999)


def tiny(problem):
    """Differences that vanish in any sum."""
    return 1e16 + np.sign(problem.advantage) * 1e-300


VARIANTS = {
    "constant": constant,
    "signed-zeros": signed_zeros,
    "one-block": one_block,
    "enormous": enormous,
    "tiny": tiny,
}
