"""Lives on gradient size, and hides it: when the same items come back at unit norm, it repeats its first answer."""

from pytest_behaviortrace.estimators.controls import norm_only

CAUGHT_BY = "gradient_magnitude"
WHY = "Gradient size is a named control of the first gate, so an answer repeated is no better; isolated, none is kept."

SEEN = {}


def estimator(problem):
    return SEEN.setdefault(problem.logprob.tobytes(), -norm_only(problem))
