"""Whether a cache folder holds all that a session would ask of it, every file hashed, and how to complete it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pytest_behaviortrace.run.store import Store, draw_unit, seed_unit


@dataclass(frozen=True)
class Completeness:
    """What is wrong with the units that were asked for."""

    folder: Path
    seeds: tuple[int, ...]
    draws: int
    """Of each seed."""
    problems: dict[str, str]
    """Unit -> what is wrong with it, "" where it is absent; seeds first."""

    @property
    def complete(self) -> bool:
        """Whether a session that asks for these units would train nothing."""
        return not self.problems

    @property
    def unusable_seeds(self) -> tuple[int, ...]:
        """Seeds with a unit that is missing or damaged, their own or one of a draw."""
        units = {seed: {seed_unit(seed), *(draw_unit(seed, d) for d in range(self.draws))} for seed in self.seeds}
        return tuple(seed for seed in self.seeds if units[seed] & self.problems.keys())


def examine(store: Store, seeds: Iterable[int], draws: int) -> Completeness:
    """Hash every file of the seeds' units and of `draws` draws of each. Reads only; takes no lock."""
    chosen = tuple(sorted(set(seeds)))
    return Completeness(store.folder, chosen, draws, store.problems(chosen, range(draws)))


def table(found: Completeness, recipe: str, cache_dir: Path | None) -> str:
    """The result as lines of text. `recipe` and `cache_dir` are what the user gave, for the command to copy."""
    wanted = len(found.seeds) * (1 + found.draws)
    damaged = sum(bool(problem) for problem in found.problems.values())
    missing = len(found.problems) - damaged
    counts = f"{wanted - missing - damaged} of {wanted} units complete, {missing} missing, {damaged} damaged"
    lines = [f"{counts} in {found.folder}"]
    width = max(map(len, found.problems), default=0)
    lines += [f"  {u.ljust(width)}  {f'damaged: {p}' if p else 'missing'}" for u, p in found.problems.items()]
    if not found.complete:
        lines += ["complete it with", f"  {command(found, recipe, cache_dir)}"]
    return "\n".join(lines)


def command(found: Completeness, recipe: str, cache_dir: Path | None) -> str:
    """The command that trains what is missing, and only that."""
    parts = ["python", "-m", "pytest_behaviortrace", "train", "--recipe", recipe, "--seeds", _ranges(found)]
    parts += ["--draws", str(found.draws)] + (["--cache-dir", str(cache_dir)] if cache_dir is not None else [])
    return shlex.join(parts)


def _ranges(found: Completeness) -> str:
    """Seeds as `--seeds` takes them: (0, 1, 2, 5) -> `0-2,5`."""
    runs: list[list[int]] = []
    for seed in found.unusable_seeds:
        if runs and seed == runs[-1][1] + 1:
            runs[-1][1] = seed
        else:
            runs.append([seed, seed])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
