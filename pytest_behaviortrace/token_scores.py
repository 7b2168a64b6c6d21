"""The optional method `token_scores(problem)` of an estimator, called on the few rollouts that a report shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_behaviortrace.estimator import Estimator, EstimatorError
from pytest_behaviortrace.isolation import Isolated
from pytest_behaviortrace.problem import AttributionProblem, IntArray
from pytest_behaviortrace.scoring import called
from pytest_behaviortrace.variations import COLUMNS, SERVED

METHOD = "token_scores"


def token_scores(
    name: str, estimator: Estimator, problem: AttributionProblem, timeout: float | None = None
) -> tuple[list[NDArray[np.float64]] | None, str]:
    """One array per item, a number per completion token; None, and why, where there are none.

    Whatever goes wrong is said and not raised: nothing is decided from these numbers.
    """
    if isinstance(estimator, Isolated):
        return None, f"no scores of single tokens: an isolated estimator is not asked for {METHOD}(problem)"
    if not callable(getattr(estimator, METHOD, None)):
        return None, f"no scores of single tokens: {name} has no method {METHOD}(problem)"
    where = f"estimator {name!r} on {len(problem)} {problem.kind}"
    try:
        raw, _, _ = called(estimator, getattr(estimator, METHOD), problem, where, timeout, watch_memory=False)
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


def _vouched(raw: Any, problem: AttributionProblem, where: str) -> list[NDArray[np.float64]]:
    try:
        rows = [row.detach().cpu().numpy() if hasattr(row, "detach") else np.asarray(row) for row in raw]
    except (TypeError, ValueError) as error:
        raise EstimatorError(f"{where} returned {type(raw).__name__}, not one array per item ({error})") from error
    if len(rows) != len(problem):
        raise EstimatorError(f"{where} returned {len(rows)} arrays, expected {len(problem)}: one per item")
    for item, (row, length) in enumerate(zip(rows, problem.length, strict=True)):
        if row.dtype.kind not in "biuf" or row.shape != (length,):
            raise EstimatorError(
                f"{where} returned shape {row.shape} of {row.dtype} for item {item}, "
                f"expected ({length},): one number per completion token"
            )
        if not np.isfinite(row).all():
            raise EstimatorError(f"{where} returned token scores that are NaN or infinite (item {item})")
    return [row.astype(np.float64) for row in rows]
