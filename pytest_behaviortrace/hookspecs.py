"""The hooks that users may implement in a conftest.py or a plugin. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Mapping

import pytest


@pytest.hookspec
def pytest_behaviortrace_estimators(config: pytest.Config) -> Mapping[str, object]:  # type: ignore[empty-body]
    """Return estimators of this project by name, for projects that are not installed as a package.

    A value is an estimator, a class or function without arguments that gives one, or a string `package.module:name`
    that is imported only when its estimator is graded::

        # conftest.py
        def pytest_behaviortrace_estimators(config):
            return {"mymethod": "mymethod.scores:score", "flat": lambda problem: problem.advantage}

    Then `pytest --bt-estimator=mymethod`. A name that something else registers too is an error. Where
    pytest-behaviortrace may be missing, mark the function with `@pytest.hookimpl(optionalhook=True)`.
    """
