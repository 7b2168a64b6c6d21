"""What `record` is given, checked before anything is written."""

from __future__ import annotations

import os
import re
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOTrainer  # type: ignore[attr-defined]

from pytest_behaviortrace.run.names import same_file
from pytest_behaviortrace.run.rows import RecordingError


def check_trainer(trainer: Any) -> None:
    """Raises `TypeError` for anything but a `GRPOTrainer` or one of its subclasses."""
    if not isinstance(trainer, GRPOTrainer):
        what = trainer.__name__ if isinstance(trainer, type) else f"an object of type {type(trainer).__name__}"
        raise TypeError(f"record takes a trl.GRPOTrainer, or an object of a subclass, not {what}")


def checked_width(width: Any) -> int:
    """Buckets of a sketch. Raises `TypeError` for anything but a whole number."""
    if isinstance(width, bool) or not isinstance(width, int):
        raise TypeError(f"width is a whole number of buckets, not {width!r}")
    return width


def checked_path(path: Any, output_dir: str) -> Path:
    """The folder of a record, absolute.

    Raises `TypeError` for what is no path, `RecordingError` for one that cannot be a folder of its own beside the
    checkpoints that the trainer writes into `output_dir`.
    """
    if not isinstance(path, str | os.PathLike) or isinstance(text := os.fspath(path), bytes):
        raise TypeError(f"record takes the path of a folder, a str or a Path, not {path!r}")
    if not text.strip() or "\0" in text:
        raise RecordingError(f"{text!r} names no folder; give the path of a new one")
    try:
        found, taken = Path(text).absolute(), Path(output_dir).resolve()
        real = found.resolve()
        if found.exists() and not found.is_dir():
            raise RecordingError(f"{found} is a file; give the path of a new folder")
    except (OSError, RuntimeError) as error:
        if isinstance(error, RecordingError):
            raise
        raise cannot_use(text, error) from None
    if real == taken or taken.is_relative_to(real):
        raise RecordingError(
            f"{found} is, or contains, the output_dir that the trainer writes its checkpoints into ({taken}); "
            f"give a folder of its own for the record"
        )
    if real.is_relative_to(taken) and any(
        re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-\d+", part) for part in real.relative_to(taken).parts
    ):
        raise RecordingError(f"{found} lies in a checkpoint, which the trainer may delete; give a folder outside it")
    return found


def cannot_use(path: str | Path, error: Exception) -> RecordingError:
    """What to say of a folder that the system refuses to make or to look at."""
    reason = getattr(error, "strerror", None) or str(error)
    shown = text if len(text := str(path)) <= 300 else f"{text[:100]}..."
    return RecordingError(f"{shown} cannot be used as the folder of a record: {reason}; give another one")


def checked_behaviors(behaviors: Any) -> dict[str, re.Pattern[str]]:
    """Name -> compiled pattern.

    Raises `TypeError` unless names and patterns are strings, `ValueError` for names that make no file and for a pattern
    that is none or matches whatever is written.
    """
    if behaviors is None:
        return {}
    if not isinstance(behaviors, Mapping):
        raise TypeError(
            f'behaviors is a dict of names and regular expressions, such as {{"hedging": "perhaps"}}, not {behaviors!r}'
        )
    patterns = {name: _compiled(name, pattern) for name, pattern in behaviors.items()}
    if (alike := same_file(patterns)) is not None:
        raise ValueError(f"the behaviours {alike[0]!r} and {alike[1]!r} would be one file on some systems; rename one")
    return patterns


def _compiled(name: Any, pattern: Any) -> re.Pattern[str]:
    if not isinstance(name, str):
        raise TypeError(f"the name of a behaviour is a str, not {name!r}")
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,80}", name):
        raise ValueError(f"{name!r} cannot name a behaviour: use letters, digits, - and _, at most 80")
    if not isinstance(pattern, str):
        raise TypeError(
            f"the behaviour {name!r} is a regular expression as a str (flags as (?i) in front), not {pattern!r}"
        )
    try:
        made = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"the behaviour {name!r} is no regular expression: {error} in {pattern!r}") from None
    if made.search("") is not None or all(
        made.search(letter) for letter in string.printable if letter not in "\n\r\t\v\f"
    ):
        raise ValueError(
            f"the behaviour {name!r}, {pattern!r}, matches the empty string or any letter, and so every completion; "
            f"ask for something written"
        )
    return made
