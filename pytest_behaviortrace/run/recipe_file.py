"""Reads TOML values with one clear sentence for everything that is wrong with them."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class RecipeError(ValueError):
    """A recipe that cannot be used: the file, the key, what is wrong with it, and what to write instead."""

    def __init__(self, file: str, key: str, problem: str, remedy: str) -> None:
        super().__init__(f"{file}: {key} {problem}; {remedy}")


def read_toml(path: Path) -> dict[str, Any]:
    """The file's content; raises `RecipeError` when it cannot be read or is no TOML."""
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise RecipeError(str(path), "the file", f"cannot be read ({error.strerror})", "check its path") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(str(path), "the file", f"is not valid TOML ({error})", "correct that line") from None


def merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with `changes` on top; tables merge key by key, anything else is replaced whole."""
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


class Table:
    """One table of a recipe file. Each getter takes a key out and vouches for its type and range."""

    def __init__(self, file: str, values: dict[str, Any], prefix: str = "") -> None:
        self.file, self._left, self._prefix = file, dict(values), prefix

    def error(self, key: str, problem: str, remedy: str) -> RecipeError:
        """The error to raise about a key of this table."""
        return RecipeError(self.file, self._prefix + key, problem, remedy)

    def _take(self, key: str, kind: str) -> Any:
        if key not in self._left:
            raise self.error(key, "is missing", f"add {kind}")
        return self._left.pop(key)

    def has(self, key: str) -> bool:
        """Whether the key is there and was not taken yet."""
        return key in self._left

    def string(self, key: str, choices: Sequence[str] | None = None) -> str:
        """A non-empty string, one of `choices` where given."""
        value = self._take(key, "a string")
        if not isinstance(value, str) or not value.strip():
            raise self.error(key, f"is {value!r}", "write a string that is not empty")
        if choices is not None and value not in choices:
            raise self.error(key, f"is {value!r}", "write one of " + ", ".join(choices))
        return value

    def integer(self, key: str, least: int, most: int | None = None) -> int:
        """An integer of [least, most]."""
        value = self._take(key, "an integer")
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(key, f"is {value!r}", "write an integer")
        self._ranged(key, value, least, most)
        return value

    def number(self, key: str, least: float, most: float | None = None) -> float:
        """A number of [least, most]."""
        value = self._take(key, "a number")
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            raise self.error(key, f"is {value!r}", "write a number")
        self._ranged(key, value, least, most)
        return float(value)

    def _ranged(self, key: str, value: float, least: float, most: float | None) -> None:
        if value < least or (most is not None and value > most):
            bound = f"at least {least}" if most is None else f"from {least} to {most}"
            raise self.error(key, f"is {value}", f"write a value {bound}")

    def boolean(self, key: str) -> bool:
        """True or false."""
        value = self._take(key, "true or false")
        if not isinstance(value, bool):
            raise self.error(key, f"is {value!r}", "write true or false")
        return value

    def strings(self, key: str, least: int, placeholder: str = "") -> tuple[str, ...]:
        """At least `least` different strings, each containing `placeholder`."""
        value = self._take(key, "a list of strings")
        if not isinstance(value, list) or not all(isinstance(x, str) and x.strip() for x in value):
            raise self.error(key, "is not a list of strings", "write a list of strings that are not empty")
        if len(set(value)) != len(value):
            twice = next(x for x in value if value.count(x) > 1)
            raise self.error(key, f"has {twice!r} twice", "leave one of them out")
        if len(value) < least:
            raise self.error(key, f"has {len(value)} entries", f"write at least {least}")
        for text in value:
            if placeholder not in text:
                raise self.error(key, f"has {text!r} without {placeholder}", f"put {placeholder} into it")
        return tuple(value)

    def pairs(self, key: str, least: int) -> tuple[tuple[str, str], ...]:
        """At least `least` pairs [prompt, answer]."""
        value = self._take(key, "a list of [prompt, answer] pairs")
        good = isinstance(value, list) and all(
            isinstance(x, list) and len(x) == 2 and all(isinstance(y, str) and y.strip() for y in x) for x in value
        )
        if not good:
            raise self.error(key, "is not a list of [prompt, answer] pairs", "write pairs of non-empty strings")
        if len(value) < least:
            raise self.error(key, f"has {len(value)} entries", f"write at least {least}")
        return tuple((x[0], x[1]) for x in value)

    def table(self, key: str) -> Table:
        """A nested table."""
        value = self._take(key, "a table")
        if not isinstance(value, dict):
            raise self.error(key, f"is {value!r}", f"write a table [{self._prefix}{key}]")
        return Table(self.file, value, f"{self._prefix}{key}.")

    def tables(self, key: str, count: int) -> list[Table]:
        """An array of exactly `count` tables."""
        value = self._take(key, "an array of tables")
        if not isinstance(value, list) or not all(isinstance(x, dict) for x in value):
            raise self.error(key, f"is {value!r}", f"write an array of tables [[{self._prefix}{key}]]")
        if len(value) != count:
            raise self.error(key, f"has {len(value)} tables", f"write exactly {count}")
        return [Table(self.file, x, f"{self._prefix}{key}[{i}].") for i, x in enumerate(value)]

    def finish(self) -> None:
        """Raises when a key is left that nothing asked for."""
        for key in self._left:
            raise self.error(key, "is not a key of a recipe", "remove it or correct its spelling")
