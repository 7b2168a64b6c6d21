"""Sleeps for hours; the stubborn one also swallows whatever would wake it."""

import contextlib
import time

CAUGHT_BY = "error"
WHY = "--bt-estimator-timeout ends it; without that the session waits. Only isolation ends the stubborn one."


def estimator(problem):
    time.sleep(10_000)


def stubborn(problem):
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(10_000)
