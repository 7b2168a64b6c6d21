"""A user's own recorded run: a sealed unit folder anywhere on disk, read and never written to; imports no torch.

A question about it is a regular expression. The fresh siblings that answer it (draws) are kept in the cache folder.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pytest_behaviortrace.run.manifest import MANIFEST, SCHEMA, DamagedUnit, MissingUnit, verified_manifest
from pytest_behaviortrace.run.shard_files import SHARDS, UNFINISHED, steps_on_record
from pytest_behaviortrace.run.spans import occurrences
from pytest_behaviortrace.run.store import Store, Unit

if TYPE_CHECKING:
    from pytest_behaviortrace.run.recipe import Recipe

KIND = "recorded"
RUN = 0
"""The run's number in its store, where a planted run's seed stands."""
SKETCH_SEED = 0
"""Seed of the sketch this version reads: `run.sketch` has the same, but imports torch."""
ASKED = "asked"
"""Stands where a plant's name stands in the names of a draw's files."""
MOST_PROMPTS = 96
"""Prompts of the run that a draw asks again: as many as the embedded run has probe prompts."""
SIBLINGS = 864
"""Siblings of a draw, shared out among its prompts: as many as a draw of the embedded run has."""
LEAST_SIBLINGS = 9
"""Siblings of each prompt at least, as in the embedded run."""
TINY = 20_000_000
"""Parameters up to which a policy uses one core at a time."""
_METACHARACTERS = set(".^$*+?{}[]\\|()")
_FACTS = {
    "sketch", "blocks", "loss_type", "steps", "behaviors", "temperature", "top_p", "top_k", "max_completion_length",
    "peft",
}  # fmt: skip
_NEEDED = ("rollouts.parquet", "gradients.npy", "loss_scale.npy", "learning_rate.npy")


class RecordedRunError(ValueError):
    """A recorded run, or a question about it, that cannot be used: one sentence on what, where, and what to do."""


@dataclass(frozen=True)
class RunQuestion:
    """A recorded run and the regular expression asked about: what its draws depend on, beside the versions."""

    path: str
    """Absolute; where the run lies does not matter for the key of its draws."""
    run_sha256: str
    """Of its manifest, and so of everything in it."""
    behavior: str
    """The regular expression."""

    @property
    def name(self) -> str:
        """First part of the name of the cache folder."""
        return KIND

    @property
    def why(self) -> str:
        """What its draws are, for whoever waits for them."""
        return f"sampling fresh completions of the run's last policy for behaviour {self.behavior!r}"

    @property
    def trained_adapter(self) -> bool:
        """Whether its policies are PEFT adapters. Raises `RecordedRunError` for a run that is damaged."""
        return bool(open_run(Path(self.path)).facts["peft"])

    @property
    def large_policy(self) -> bool:
        """Whether sampling from it takes a whole machine; an adapter's base may be of any size.

        Raises `RecordedRunError` for a run that is damaged.
        """
        files = open_run(Path(self.path)).unit.manifest["files"].items()
        size = sum(e["bytes"] for name, e in files if re.match(r"policies/end/.*\.(safetensors|bin)$", name))
        return self.trained_adapter or size > 4 * TINY

    @property
    def hash(self) -> str:
        """Hex sha256 of everything that determines a draw."""
        sizes = (MOST_PROMPTS, SIBLINGS, LEAST_SIBLINGS)
        return hashlib.sha256(json.dumps([self.run_sha256, self.behavior, *sizes]).encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class RecordedRun:
    """A recorded run whose every file has been checked against its sha256."""

    path: Path
    """As it was given."""
    unit: Unit

    @property
    def sha256(self) -> str:
        """Of the manifest."""
        return str(self.unit.manifest["sha256"])

    @property
    def facts(self) -> dict[str, Any]:
        """What was recorded of the trainer and the sketch."""
        return self.unit.facts

    @functools.cached_property
    def table(self) -> Mapping[str, Any]:
        """Columns of the rollouts."""
        return self.unit.table("rollouts")

    def recorded_as(self, behavior: str) -> str | None:
        """The name under which this regular expression was recorded with the run; None if it was not."""
        return next((name for name, regex in self.facts["behaviors"].items() if regex == behavior), None)

    def shown(self, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
        """(n,): whether each rollout's completion shows the behaviour."""
        return np.array([bool(occurrences(text, pattern)) for text in self.table["completion_text"]], np.bool_)

    def ask(self, behavior: str) -> RunQuestion:
        """A question about this run.

        Raises `RecordedRunError` for a regular expression that is none, that matches the empty string, or that matches
        no rollout or every one.
        """
        shown = self.shown(compiled(behavior))
        if not shown.any():
            raise RecordedRunError(f"{behavior!r} matches no completion of the {len(shown)} rollouts of {self.path}")
        if shown.all():
            raise RecordedRunError(
                f"{behavior!r} matches every one of the {len(shown)} rollouts of {self.path}; "
                f"ask for something that not all of them show"
            )
        return RunQuestion(str(self.path.absolute()), self.sha256, behavior)


@dataclass(frozen=True, eq=False)
class AskedRun:
    """A recorded run and what is asked about it."""

    given: str
    """The path as it was written."""
    run: RecordedRun
    question: RunQuestion

    @classmethod
    def at(cls, given: str, path: Path, behavior: str) -> AskedRun:
        """The run in a folder, asked about a regular expression. Raises `RecordedRunError`."""
        run = open_run(path)
        return cls(given, run, run.ask(behavior))

    def require_outside(self, cache_dir: Path) -> None:
        """Raise `RecordedRunError` for a cache folder in the run's own folder, which nothing is written into."""
        if cache_dir.resolve().is_relative_to(self.run.path.resolve()):
            raise RecordedRunError(
                f"the cache folder {cache_dir} lies inside the recorded run {self.given}, which nothing is written into"
            )


def compiled(behavior: str) -> re.Pattern[str]:
    """The regular expression. Raises `RecordedRunError` if it is none, or matches the empty string."""
    try:
        pattern = re.compile(behavior)
    except re.error as error:
        raise RecordedRunError(f"{behavior!r} is not a regular expression: {error}") from None
    if pattern.search("") is not None:
        raise RecordedRunError(f"{behavior!r} matches the empty string, and so everything; ask for something written")
    return pattern


def literal(behavior: str) -> str | None:
    """The one string that a regular expression matches, if it has no special characters; else None."""
    unescaped = re.sub(r"\\([^A-Za-z0-9])", "", behavior)
    return None if _METACHARACTERS & set(unescaped) else re.sub(r"\\(.)", r"\1", behavior)


def open_run(path: Path) -> RecordedRun:
    """The recorded run in a folder, every file checked. Raises `RecordedRunError`."""
    try:
        return _opened(path)
    except PermissionError as error:
        raise RecordedRunError(
            f"the recorded run {path} cannot be read ({error.strerror}: {error.filename}); make it readable, or copy it"
        ) from None


def _opened(path: Path) -> RecordedRun:
    if not path.is_dir():
        raise RecordedRunError(f"{path} is no folder; give the folder that record(trainer, path) wrote")
    if not (path / MANIFEST).is_file():
        if (path / UNFINISHED).is_file():
            raise RecordedRunError(
                f"{path} holds no {MANIFEST}: the run is still being recorded, or its recording was broken off; "
                f"{steps_on_record(path / SHARDS)}, not sealed: resume the training to its end"
            )
        raise RecordedRunError(
            f"{path} holds no {MANIFEST}: the run is still being recorded, its recording was broken off, "
            f"or this is no recorded run"
        )
    try:
        manifest = verified_manifest(path, renamed=True)
    except MissingUnit:
        raise RecordedRunError(f"{path} is no folder; give the folder that record(trainer, path) wrote") from None
    except DamagedUnit as error:
        raise RecordedRunError(
            f"the recorded run {path} is damaged: {error.file} {error.problem}; restore it from a copy, or record again"
        ) from None
    _require_known(path, manifest)
    return RecordedRun(path, Unit(path.absolute(), manifest))


def _require_known(path: Path, manifest: Mapping[str, Any]) -> None:
    facts = manifest["facts"]
    if not isinstance(facts, dict) or facts.get("kind") != KIND:
        raise RecordedRunError(f"{path} is no recorded run but {manifest['unit']!r} of a cache of planted runs")
    if manifest["schema"] != SCHEMA:
        raise RecordedRunError(
            f"{path} has layout {manifest['schema']}, this version reads layout {SCHEMA}: record the run again"
        )
    if lacking := sorted(_FACTS - facts.keys()):
        raise RecordedRunError(f"the manifest of {path} lacks the fact {lacking[0]!r}; record the run again")
    if facts["sketch"]["seed"] != SKETCH_SEED:
        raise RecordedRunError(
            f"the gradients of {path} were sketched with seed {facts['sketch']['seed']}, this version sketches with "
            f"{SKETCH_SEED}: they cannot be compared with fresh ones; record the run again"
        )
    absent = [name for name in _NEEDED if name not in manifest["files"]]
    if not any(name.startswith("policies/end/") for name in manifest["files"]):
        absent.append("policies/end")
    if absent:
        raise RecordedRunError(f"{path} lacks {absent[0]}; record the run again")


class RecordedStore(Store):
    """Draws of one recorded run for one question; the run itself takes the place of a seed's unit."""

    doing = "sampling"

    def __init__(self, cache_dir: Path, question: RunQuestion) -> None:
        super().__init__(cache_dir, question)
        self.question = question

    def seed(self, seed: int) -> Unit:
        """The recorded run. Raises `RecordedRunError` when it is damaged, or not the one that was asked about."""
        run = open_run(Path(self.question.path))
        if run.sha256 != self.question.run_sha256:
            raise RecordedRunError(f"{run.path} holds another run than when this session began; start it again")
        return run.unit

    def unit_name(self, seed: int, draw: int | None = None) -> str:
        """`run`, or `draw0`."""
        return "run" if draw is None else f"draw{draw}"

    def origin(self, seed: int) -> str:
        """The run itself."""
        return self.question.run_sha256


def store_of(cache_dir: Path, subject: Recipe | RunQuestion) -> Store:
    """The store of a recipe's runs, or of a recorded run's draws."""
    return RecordedStore(cache_dir, subject) if isinstance(subject, RunQuestion) else Store(cache_dir, subject)
