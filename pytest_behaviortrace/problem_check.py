"""Whether a folder holds the whole of a problem: its description, the files that it names, and shapes that fit.

Of arrays only headers and the ends of ragged ones are read: a problem of 100 MB is checked in milliseconds. Whether
their numbers are numbers at all is a question of its own (`require_finite`), which reads them once. What else was
changed inside an array without changing its size is not seen.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from pytest_behaviortrace.estimator import EVERYTHING, Needs, NotServed
from pytest_behaviortrace.problem import COLUMNS, NEED_OF, AttributionProblem, Kind
from pytest_behaviortrace.rows import in_stretches

SCHEMA = 1
"""Of a problem's description."""

SHAPES: Mapping[str, str] = {
    **dict.fromkeys(COLUMNS, "n"), "learning_rate": "S", "gradients": "nK", "gradient_norm": "n", "target": "K",
    "targets_by_step": "SK", "reference": "mK", "span_gradients": "nK",
}  # fmt: skip
"""Dimensions of each array: n items, S steps, K buckets, m reference rows; the same letter, the same number."""
RAGGED: Mapping[str, str] = {"prompt_ids": "iu", "completion_ids": "iu", "behavior_mask": "b"}
"""What is an array for each item, and of which kinds (`numpy.dtype.kind`) its numbers are."""
TEXTS = ("prompt_text", "completion_text")
KINDS: Mapping[str, str] = {
    **dict.fromkeys(SHAPES, "f"), **dict.fromkeys(("step", "group", "length"), "iu"), **RAGGED,
    **{f"{name}.ends": "iu" for name in RAGGED},
}  # fmt: skip
"""Of which kinds the numbers of each array are, as `AttributionProblem` documents them."""
WORDS = {"f": "floating-point numbers", "iu": "whole numbers", "b": "truth values"}
GRADIENTS = tuple(name for name in (*SHAPES, "blocks") if name not in COLUMNS and name not in NEED_OF)
PARTS = {"facts": dict, "plain": dict, "ragged": list, "arrays": list, "absent": dict, "files": dict}


class NotWhole(ValueError):
    """A folder that does not hold the whole of a problem; the message says which file, and what is wrong with it."""


def described(room: Path, name: str, schema: int) -> dict[str, Any]:
    """What a JSON file of a dump says. Raises `NotWhole`: it is missing, no such file, or of another schema."""
    _require_regular(room / name)
    try:
        said = json.loads((room / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise NotWhole(f"{name} is missing") from None
    except OSError as error:
        raise NotWhole(f"{name} cannot be read ({error.strerror or error})") from None
    except (ValueError, RecursionError):
        raise NotWhole(f"{name} is not JSON, or cut short") from None
    if not isinstance(said, dict) or "schema" not in said:
        raise NotWhole(f"{name} is not what a dump of this version writes: it states no schema")
    if type(said["schema"]) is not int or said["schema"] != schema:  # in Python True is 1, and 1.0 is
        raise NotWhole(f"{name} has schema {said['schema']!r:.20}, and this version reads {schema}")
    return said


def checked(room: Path, name: str) -> dict[str, Any]:
    """The description of a problem, every file of which is there and as described. Raises `NotWhole`."""
    said = described(room, name, SCHEMA)
    for part, kind in PARTS.items():
        if not isinstance(said.get(part), kind):
            raise NotWhole(f"{name} is not what a dump writes: it has no {part!r}")
    try:
        _check_facts(said["facts"])
        shapes = _check_files(room, said)
        sizes = _sizes(shapes)
        _check_ragged(room, said["ragged"], shapes, sizes["n"])
        _check_plain(said["plain"], sizes)
        _check_absent(said["absent"])
    except NotWhole:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise NotWhole(f"{name} is not what a dump writes ({type(error).__name__}: {error})") from None
    return said


def absent_of(needs: Needs, problem: AttributionProblem) -> str | None:
    """The first thing that these needs serve, that the problem carries, and that is not there; None if all is."""
    for need in needs.names():
        if not getattr(problem.carried, need):
            continue
        names = GRADIENTS if need == "gradients" else [name for name, of in NEED_OF.items() if of == need]
        for name in names:
            if problem.lazy.get(name) is None:
                return name
    return None


def require_finite(problem: AttributionProblem) -> None:
    """Raise `NotWhole`, naming the file and the place, where a problem that was read has NaN or infinity among numbers.

    None is ever dumped but for rewards of items that were never trained on, which are NaN. Reads every array of
    floating-point numbers once, a stretch at a time: some 20 ms for 100 MB.
    """
    for name in (name for name in SHAPES if KINDS[name] == "f"):
        array = _read(problem, name)
        unrewarded = name == "reward" and problem.kind != "rollouts"
        if array is not None and (place := _first_bad(array, np.isinf if unrewarded else _no_number)) is not None:
            at = ", ".join(map(str, place))
            raise NotWhole(f"{name}.npy has {array[place]} at [{at}], where only finite numbers are written")


def _read(problem: AttributionProblem, name: str) -> NDArray[Any] | None:
    """An array of the problem, declared or not; None where there is none."""
    if name in COLUMNS:
        return getattr(problem, name)  # type: ignore[no-any-return]
    try:
        value = problem.lazy.get(name)
        return value() if callable(value) else value
    except NotServed:
        return None


def _no_number(rows: NDArray[Any]) -> NDArray[np.bool_]:
    finite: NDArray[np.bool_] = np.isfinite(rows)
    return ~finite


def _first_bad(array: NDArray[Any], bad: Callable[[NDArray[Any]], NDArray[np.bool_]]) -> tuple[int, ...] | None:
    """Index of the first number that is bad, or None."""
    rows = array.reshape(len(array), int(np.prod(array.shape[1:])))
    for part, block in in_stretches(rows):
        if (found := bad(block)).any():
            row, column = divmod(int(found.argmax()), rows.shape[1])
            return (part.start + row, column)[: array.ndim]
    return None


def _check_facts(facts: Mapping[str, Any]) -> None:
    if facts["kind"] not in get_args(Kind) or not isinstance(facts["loss_type"], str):
        raise NotWhole(f"problem.json names unknown items, {facts['kind']!r:.40}")
    words = facts["rng_seed"]
    if not isinstance(words, list) or not all(type(word) is int and word >= 0 for word in words):
        raise NotWhole(f"problem.json has a seed of random numbers that is none, {facts['rng_seed']!r:.40}")
    if unknown := [need for need in facts["carried"] if need not in EVERYTHING.names()]:
        raise NotWhole(f"problem.json carries an unknown need, {unknown[0]!r:.40}")


def _check_files(room: Path, said: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shape of every array, by name."""
    ragged = [part for name in said["ragged"] for part in (name, f"{name}.ends")]
    shapes = {}
    for name in (*COLUMNS, *said["arrays"], *ragged):
        if name not in said["files"]:
            raise NotWhole(f"problem.json does not say what {name}.npy holds")
        if name not in KINDS:
            raise NotWhole(f"problem.json names an unknown array, {name!r:.40}")
        if name not in COLUMNS and (name in said["arrays"]) != (name in SHAPES):
            raise NotWhole(f"problem.json has {name!r} in another form than a dump writes")
        dtype, shape = said["files"][name]
        if not all(type(size) is int for size in shape):
            raise NotWhole(f"problem.json says of {name}.npy a shape that is none, {shape!r:.40}")
        shapes[name] = tuple(shape)
        _check_file(room / f"{name}.npy", np.dtype(dtype), shapes[name])
        if np.dtype(dtype).kind not in KINDS[name]:
            raise NotWhole(f"{name}.npy holds {np.dtype(dtype)} where {WORDS[KINDS[name]]} belong")
    return shapes


def _check_file(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    _require_regular(path)
    try:
        with path.open("rb") as stream:
            np.lib.format.read_magic(stream)
            found, fortran, kind = np.lib.format.read_array_header_1_0(stream)
            held = path.stat().st_size - stream.tell()
    except FileNotFoundError:
        raise NotWhole(f"{path.name} is missing") from None
    except OSError as error:
        raise NotWhole(f"{path.name} cannot be read ({error.strerror or error})") from None
    except ValueError:
        raise NotWhole(f"{path.name} is no array, or cut short") from None
    if found != shape or kind != dtype or fortran:
        raise NotWhole(f"{path.name} holds {_of(found, kind)} where {_of(shape, dtype)} were written")
    if held != (bytes_ := dtype.itemsize * int(np.prod(shape, dtype=np.int64))):
        raise NotWhole(f"{path.name} holds {held} bytes of numbers where {bytes_} were written")


def _require_regular(path: Path) -> None:
    """Raise `NotWhole` for what is there and no file: to open a pipe would wait for its writer, perhaps forever."""
    if path.exists() and not path.is_file():
        raise NotWhole(f"{path.name} cannot be read (it is no regular file)")


def _of(shape: tuple[int, ...], dtype: np.dtype[Any]) -> str:
    return f"{' x '.join(map(str, shape)) or 'one'} {dtype}"


def _sizes(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """What the letters of `SHAPES` stand for."""
    sizes: dict[str, int] = {}
    for name in (name for name in SHAPES if name in shapes):
        shape, letters = shapes[name], SHAPES[name]
        if len(shape) != len(letters) or any(
            sizes.setdefault(k, size) != size for k, size in zip(letters, shape, strict=True)
        ):
            wanted = ", ".join(str(sizes.get(letter, letter)) for letter in letters)
            raise NotWhole(f"{name}.npy has shape {shape}, which does not fit the other arrays ({wanted})")
    return sizes


def _check_ragged(room: Path, names: list[str], shapes: Mapping[str, tuple[int, ...]], n: int) -> None:
    """One part per item, and all of them together the whole array."""
    for name in names:
        ends = np.load(room / f"{name}.ends.npy", allow_pickle=False)
        flat = shapes[name]
        whole = len(flat) == 1 and ends.shape == (n,) and ends.dtype.kind in "iu"
        if not whole or (n and (ends[0] < 0 or (np.diff(ends) < 0).any() or ends[-1] != flat[0])):
            raise NotWhole(f"{name}.ends.npy does not divide {name}.npy among {n} items")


def _check_plain(plain: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    for name, value in plain.items():
        if name in ("blocks", "behavior"):
            continue
        if name not in (*RAGGED, *TEXTS) or not isinstance(value, list):
            raise NotWhole(f"problem.json has {name!r:.40} in another form than a dump writes")
        if len(value) != sizes["n"]:
            raise NotWhole(f"problem.json has {len(value)} of {name!r} for {sizes['n']} items")
        if name in TEXTS and not all(isinstance(text, str) for text in value):
            raise NotWhole(f"problem.json has a {name!r} that is no text")
    if not isinstance(plain["behavior"], str | None):
        raise NotWhole("problem.json has a behaviour that is no text")
    if not isinstance(plain["blocks"], dict | None):
        raise NotWhole("problem.json has blocks in another form than a dump writes")
    for name, (start, stop) in (plain["blocks"] or {}).items():
        if not (type(start) is type(stop) is int):
            raise NotWhole(f"problem.json has a block {name!r:.80} whose ends are no whole numbers")
        if not 0 <= start <= stop <= sizes.get("K", stop):
            raise NotWhole(f"problem.json has a block {name!r:.80} that lies outside the sketch")


def _check_absent(absent: Mapping[str, Any]) -> None:
    for name, reason in absent.items():
        if not (name in KINDS or name in TEXTS or name in NEED_OF or name == "blocks") or not isinstance(reason, str):
            raise NotWhole(f"problem.json says of {name!r:.40} that it is not served, without a reason")
