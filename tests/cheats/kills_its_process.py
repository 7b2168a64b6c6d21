"""Ends the process before anything is graded, with the exit code of a success."""

import os

CAUGHT_BY = "isolation"
WHY = "os._exit runs nothing of pytest: exit code 0 without scorecard and report. A child takes nobody with it."


def estimator(problem):
    os._exit(0)
