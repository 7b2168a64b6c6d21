"""Claim: scores follow from the items, whatever else about a problem changes.

Nine properties, one row each, tried on drawn problems; no training run is needed. Scores are finite (also on one item,
on ties, zero gradients, constant rewards, huge and tiny scales); the same on every call; the inputs stay unmodified;
items may be reordered; copies of an item are worth the same; with gradients of one's own, batch mates and padding do
not matter; neither do names of groups and prompts, nor where the rows stand in a table; the opposite target gives the
opposite scores. `Claims` on the estimator says which of the middle ones it has; the others are n/a. A problem on which
the estimator breaks counts in the row `finite` (writing to inputs: `inputs`). A violation is printed as source.
"""

from pytest_behaviortrace import stress
from pytest_behaviortrace.properties import Bars
from pytest_behaviortrace.trial import Trial

RUN = False
COMPONENTS = (
    "finite", "deterministic", "inputs", "permutation", "duplicates", "batches", "renaming", "row-ids", "target-sign",
)  # fmt: skip

EXAMPLES = 50
"""Problems per row, the same on every machine: about a fifth of a second a row. Ours."""
MODEL_EXAMPLES = 8
"""Problems per row for estimators that take gradients of a policy, each many times as dear. Ours."""
RELATIVE = 1e-4
"""Two scores further apart than this share of the problem's largest score are different. Sums in single precision over
at most nine items are good to 1e-6; gradients of the shipped policy, batched otherwise, gave scores within 5e-7.
`trak` needs no more: its matrix is built in double precision from the reference set, which no property touches, with a
ridge that keeps the condition number below 10 x rows + 1."""
ROUNDING = 1e-6
"""Where the terms of all sums cancel, the largest score is rounding itself: single precision (6e-8 a term) over at most
a dozen terms, as a share of what the same terms give when they add up."""


def test_stress(bt_case: Trial, bt_estimator: str, bt_component: str) -> None:
    bt_case.conclude(stress.examine(bt_case, bt_component, Bars(RELATIVE, ROUNDING), EXAMPLES, MODEL_EXAMPLES))
