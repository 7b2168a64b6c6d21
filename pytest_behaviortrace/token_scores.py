"""The optional method `token_scores(problem)` of an estimator, called on the few rollouts that a report shows."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_behaviortrace.estimator import Estimator, EstimatorError
from pytest_behaviortrace.isolation import Isolated
from pytest_behaviortrace.problem import AttributionProblem, IntArray
from pytest_behaviortrace.scoring import arrayed, called
from pytest_behaviortrace.variations import COLUMNS, SERVED

METHOD = "token_scores"
ISOLATED = (
    f"no scores of single tokens: an isolated estimator (--bt-isolate) is not asked for {METHOD}(problem); "
    f"grade without isolation to see them"
)


def token_scores(
    name: str, estimator: Estimator, problem: AttributionProblem, timeout: float | None = None
) -> tuple[list[NDArray[np.float64]] | None, str]:
    """One array per item, a number per completion token; None, and why, where there are none.

    Whatever goes wrong is said and not raised: nothing is decided from these numbers.
    """
    if isinstance(estimator, Isolated):
        return None, ISOLATED
    try:
        method = getattr(estimator, METHOD, None)
    except Exception as error:
        return None, f"{METHOD} failed: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    if not callable(method):
        return None, f"no scores of single tokens: {name} has no method {METHOD}(problem)"
    where = f"estimator {name!r} on {len(problem)} {problem.kind}"
    try:
        raw, _, _ = called(
            estimator, lambda scoped: _rows(method(scoped), len(problem)), problem, where, timeout, watch_memory=False
        )
        return _vouched(raw, problem, where), ""
    except EstimatorError as error:
        return None, f"{METHOD} failed: {(str(error).splitlines() or [where])[0]}"


def among(problem: AttributionProblem, items: IntArray) -> AttributionProblem:
    """The problem of these items alone, in this order; target and reference set stay. Made when read."""
    columns = {name: getattr(problem, name)[items] for name in COLUMNS}
    served = {name: _of(value, items) for name, value in problem.lazy.items() if name in SERVED}
    return problem.replacing(**columns, **served)


def _of(value: Any, items: IntArray) -> Callable[[], Any]:
    def make() -> Any:
        every = value() if callable(value) else value
        return every[items] if isinstance(every, np.ndarray) else tuple(every[i] for i in items)

    return make


def _rows(raw: Any, n: int) -> Any:
    """The arrays of what was returned, one too many at most: a generator's body runs here, under the time limit."""
    return [arrayed(row) for row in itertools.islice(raw, n + 1)] if hasattr(raw, "__iter__") else raw


def _vouched(raw: Any, problem: AttributionProblem, where: str) -> list[NDArray[np.float64]]:
    try:
        rows = [np.asarray(row) for row in raw]
    except (TypeError, ValueError) as error:
        raise EstimatorError(f"{where} returned {type(raw).__name__}, not one array per item ({error})") from error
    if len(rows) != len(problem):
        many = len(rows) if len(rows) <= len(problem) else f"more than {len(problem)}"
        raise EstimatorError(f"{where} returned {many} arrays, expected {len(problem)}: one per item")
    for item, (row, length) in enumerate(zip(rows, problem.length, strict=True)):
        if row.dtype.kind not in "biuf" or row.shape != (length,):
            raise EstimatorError(
                f"{where} returned shape {row.shape} of {row.dtype} for item {item}, "
                f"expected ({length},): one number per completion token"
            )
        if not np.isfinite(row).all():
            raise EstimatorError(f"{where} returned token scores that are NaN or infinite (item {item})")
    return [row.astype(np.float64) for row in rows]
