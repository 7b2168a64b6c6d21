"""Grade training-data-attribution estimators on a planted-behaviour GRPO run, as pytest checks.

The public names are imported on first use: pytest imports this package in every run of every project it is installed
next to, and must not pay for numpy there.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_behaviortrace.api import grade as grade
    from pytest_behaviortrace.dumping import dump as dump
    from pytest_behaviortrace.estimator import Claims as Claims
    from pytest_behaviortrace.estimator import Estimator as Estimator
    from pytest_behaviortrace.estimator import EstimatorError as EstimatorError
    from pytest_behaviortrace.estimator import Needs as Needs
    from pytest_behaviortrace.estimator import UndeclaredAccess as UndeclaredAccess
    from pytest_behaviortrace.estimator import claims as claims
    from pytest_behaviortrace.estimator import needs as needs
    from pytest_behaviortrace.loading import load_problem as load_problem
    from pytest_behaviortrace.parametrize import parametrize_with_checks as parametrize_with_checks
    from pytest_behaviortrace.problem import AttributionProblem as AttributionProblem
    from pytest_behaviortrace.problem import ModelAccess as ModelAccess
    from pytest_behaviortrace.run.recording import Recording as Recording
    from pytest_behaviortrace.run.recording import record as record
    from pytest_behaviortrace.scorecard import Scorecard as Scorecard

_HOME = {
    "AttributionProblem": "problem",
    "Claims": "estimator",
    "Estimator": "estimator",
    "EstimatorError": "estimator",
    "ModelAccess": "problem",
    "Needs": "estimator",
    "Recording": "run.recording",
    "Scorecard": "scorecard",
    "UndeclaredAccess": "estimator",
    "claims": "estimator",
    "dump": "dumping",
    "grade": "api",
    "load_problem": "loading",
    "needs": "estimator",
    "parametrize_with_checks": "parametrize",
    "record": "run.recording",
}

__all__ = [
    "AttributionProblem",
    "Claims",
    "Estimator",
    "EstimatorError",
    "ModelAccess",
    "Needs",
    "Recording",
    "Scorecard",
    "UndeclaredAccess",
    "claims",
    "dump",
    "grade",
    "load_problem",
    "needs",
    "parametrize_with_checks",
    "record",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
