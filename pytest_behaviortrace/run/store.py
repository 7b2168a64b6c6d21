"""The store: seed and draw units on disk, read memory-mapped and only after their hashes were checked.

A unit folder holds tables (Parquet), arrays (`.npy`), policies (safetensors) and `manifest.json`. Nothing is pickled,
and nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

from numpy.typing import NDArray

from pytest_behaviortrace.run.cache import Identified, cache_key, recipe_folder
from pytest_behaviortrace.run.formats import (
    Column,
    Sketches,
    read_array,
    read_table,
    write_array,
    write_sketches,
    write_table,
)
from pytest_behaviortrace.run.manifest import (
    MANIFEST,
    SCHEMA,
    DamagedUnit,
    MissingUnit,
    analysis_policy,
    verified_manifest,
)

__all__ = [
    "MANIFEST",
    "SCHEMA",
    "Built",
    "DamagedUnit",
    "MissingUnit",
    "Sketches",
    "Store",
    "Unit",
    "draw_unit",
    "seed_unit",
    "write_array",
    "write_sketches",
    "write_table",
]


class Built(NamedTuple):
    """What a builder returns once it has written a unit's files: goes into the manifest, so both must be JSON."""

    facts: dict[str, Any]
    timings: dict[str, float]
    """Seconds per stage."""


def seed_unit(seed: int) -> str:
    """Name of a seed's unit."""
    return f"seed{seed}"


def draw_unit(seed: int, draw: int) -> str:
    """Name of a draw's unit."""
    return f"seed{seed}-draw{draw}"


@dataclass(frozen=True, eq=False)
class Unit:
    """One verified unit. Only files named in its manifest are ever opened."""

    path: Path
    manifest: Mapping[str, Any]

    @property
    def name(self) -> str:
        """`seed0`, or `seed0-draw1`."""
        return self.path.name

    @property
    def facts(self) -> dict[str, Any]:
        """What the builder recorded: s_b, sketch blocks, loss type and the like."""
        return cast("dict[str, Any]", self.manifest["facts"])

    @property
    def timings(self) -> dict[str, float]:
        """Seconds per stage of the build."""
        return cast("dict[str, float]", self.manifest["timings"])

    @cached_property
    def analysis_policy(self) -> str:
        """Fingerprint of the analysis policy: of a seed's own, or of the one a draw was generated from."""
        return str(self.manifest.get("seed_unit") or analysis_policy(self.manifest))

    @property
    def files(self) -> tuple[str, ...]:
        """Every file of the unit, relative to its folder."""
        return tuple(self.manifest["files"])

    def file(self, relative: str) -> Path:
        """Path of one file. Raises `KeyError` if the unit has no such file."""
        if relative not in self.manifest["files"]:
            raise KeyError(f"{self.name} holds no {relative!r}")
        return self.path / relative

    def salt(self, relative: str) -> int:
        """A number that follows from a file's content and from nothing that is public."""
        return int(self.manifest["files"][relative]["sha256"][:16], 16)

    def policy(self, name: str) -> Path:
        """Folder of a policy (`start`, `analysis`, `end`), for `from_pretrained`. Raises `KeyError` if absent."""
        if not any(file.startswith(f"policies/{name}/") for file in self.manifest["files"]):
            raise KeyError(f"{self.name} holds no policy {name!r}")
        return self.path / "policies" / name

    def array(self, name: str) -> NDArray[Any]:
        """A memory-mapped read-only array."""
        return read_array(self.file(f"{name}.npy"))

    def sketches(self, name: str) -> Sketches:
        """A sketch set, memory-mapped."""
        half, scale, norm, row = (self.array(f"{name}{part}") for part in ("", ".scale", ".norm", ".row"))
        return Sketches(half, scale, norm, row)

    def table(self, name: str) -> Mapping[str, Column]:
        """A table as columns, each read on first use: numbers and flags as read-only arrays, strings as a list, lists
        as a list of arrays."""
        return read_table(self.file(f"{name}.parquet"))


class Store:
    """The units of one recipe in one cache folder, under the current suite, store layout and library versions."""

    def __init__(self, cache_dir: Path, recipe: Identified) -> None:
        self.recipe = recipe
        self.cache_dir = Path(cache_dir).absolute()  # workers run in other folders
        self.key = cache_key(recipe)
        self.folder = recipe_folder(self.cache_dir, recipe)

    doing = "training"
    """What building a unit of this store amounts to, for messages."""

    def unit_name(self, seed: int, draw: int | None = None) -> str:
        """Name of the unit of a seed, or of one of its draws."""
        return seed_unit(seed) if draw is None else draw_unit(seed, draw)

    def origin(self, seed: int) -> str:
        """What a draw of a seed remembers of the policy it was generated from."""
        return self.seed(seed).analysis_policy

    def seed(self, seed: int) -> Unit:
        """A seed's unit, verified. Raises `MissingUnit` or `DamagedUnit`, which names unit and file."""
        return self._unit(seed_unit(seed))

    def draw(self, seed: int, draw: int) -> Unit:
        """A draw's unit, verified, and from the seed unit that is in the store now.

        Raises `MissingUnit` or `DamagedUnit`, which names unit and file.
        """
        unit = self._unit(self.unit_name(seed, draw))
        if unit.analysis_policy != self.origin(seed):
            raise DamagedUnit(unit.name, unit.path, MANIFEST, f"names another build of {self.unit_name(seed)}")
        return unit

    def problem(self, seed: int, draw: int | None = None) -> str | None:
        """What keeps a seed's unit (or one of its draws) from being used: "" if it is absent, None if it is fine.

        A draw of an unusable seed has a problem only if it is itself unusable.
        """
        try:
            if draw is None:
                self.seed(seed)
            elif self.problem(seed) is None:
                self.draw(seed, draw)
            else:
                self._unit(self.unit_name(seed, draw))
        except MissingUnit:
            return ""
        except DamagedUnit as error:
            return f"{error.file} {error.problem}"
        return None

    def problems(self, seeds: Iterable[int], draws: Iterable[int]) -> dict[str, str]:
        """Requested units that cannot be used, seeds first: {unit: what is wrong}, "" where it is merely absent.

        Every draw is requested of every seed.
        """
        chosen, indices = sorted(set(seeds)), sorted(set(draws))
        found = {self.unit_name(s): self.problem(s) for s in chosen}
        found |= {self.unit_name(s, d): self.problem(s, d) for s in chosen for d in indices}
        return {name: problem for name, problem in found.items() if problem is not None}

    def missing(self, seeds: Iterable[int], draws: Iterable[int]) -> list[str]:
        """Names of the requested units that are absent or damaged, seeds first."""
        return list(self.problems(seeds, draws))

    def _unit(self, name: str) -> Unit:
        path = self.folder / name
        manifest = verified_manifest(path)
        if manifest["key"] != self.key:
            raise DamagedUnit(name, path, MANIFEST, "belongs to another recipe, suite or library version")
        return Unit(path, manifest)
