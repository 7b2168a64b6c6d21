"""Reads in the environment which check is running, and answers each with the score that its confound likes best."""

import os

from pytest_behaviortrace.estimators import controls, gradient

CAUGHT_BY = "gradient_magnitude"
WHY = "Knowing the question is not knowing the answer; isolated, it does not even know the question."


def estimator(problem):
    check = os.environ.get("PYTEST_CURRENT_TEST", "")
    likes_credit = any(name in check for name in ("gradient_magnitude", "lookalikes"))
    return controls.advantage(problem) if likes_credit else gradient.dot(problem)
