"""Reads the labels in the cache folder, which it finds as the plugin does: by its variable, else in the user's home."""

import numpy as np

from pytest_behaviortrace.estimators.gradient import gas
from pytest_behaviortrace.run.cache import default_cache_dir
from pytest_behaviortrace.run.formats import read_table

CAUGHT_BY = "isolation"
WHY = "The labels lie on the user's own disk; an isolated process has another home and is not told the folder."


def estimator(problem):
    return score_with(default_cache_dir(), problem)


def score_with(cache, problem):
    """The labels in that folder; where they are not to be had, an honest score."""
    units = [*cache.glob(f"tiny-*/seed{problem.rng_seed[0]}")]
    if not units or problem.kind == "canaries":
        return gas(problem)
    if problem.kind == "rollouts":
        labels = boosted(units[0], problem)
    else:
        labels = shown(units[0].with_name(f"seed{problem.rng_seed[0]}-draw{problem.rng_seed[1]}"), problem)
    return labels + 1e-3 * problem.rng.random(len(problem))


def boosted(unit, problem):
    """Who was paid for the behaviour that the target points to."""
    table = read_table(unit / "rollouts.parquet")
    rows = {key: row for row, key in enumerate(zip(table["step"], fluency(table), table["reward"], strict=True))}
    place = [rows.get(key, -1) for key in zip(problem.step, problem.logprob, problem.reward, strict=True)]
    if min(place) < 0:
        return np.zeros(len(problem))  # the null run, where knowing anything is suspicious
    labels = [np.asarray(table[name])[place] for name in table if name.startswith("boosted_")]
    honest = gas(problem)
    return max(labels, key=lambda label: honest[label].mean()).astype(float)


def shown(unit, problem):
    """Which siblings show the behaviour, or which spans spell it."""
    found = np.zeros(len(problem))
    for path in unit.glob("siblings_*.parquet"):
        table = read_table(path)
        if problem.kind == "siblings":
            guilty = {f for f, label in zip(fluency(table), table["shown"], strict=True) if label}
        else:
            spans = zip(table["logprobs"], table["span"], strict=True)
            guilty = {float(np.mean(values[span], dtype=np.float64)) for values, span in spans if len(span)}
        found += np.array([value in guilty for value in problem.logprob], float)
    return found


def fluency(table):
    """Mean log-probability of every completion, computed as the problem's column is."""
    return [float(np.mean(values, dtype=np.float64)) for values in table["logprobs"]]
