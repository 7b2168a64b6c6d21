"""Attributes of objects that somebody else wrote: a property may raise anything, which is their fault to tell."""

from __future__ import annotations

import importlib
import traceback
from pathlib import Path
from typing import Any

from pytest_behaviortrace.wording import printable


class Unreadable(Exception):
    """Reading an attribute raised something else than `AttributeError`; one sentence, the cause is `__cause__`."""


def attribute(owner: object, name: str, default: Any = None) -> Any:
    """The attribute, or the default where the object has none. Raises `Unreadable`; Ctrl-C is let through."""
    try:
        return getattr(owner, name, default)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # pytest.skip and sys.exit are not Exceptions
        raise Unreadable(
            f"its attribute {name!r} raised {cause(error)}; let it raise AttributeError for what it does not have"
        ) from error


def require_readable(owner: object) -> None:
    """Raise `Unreadable` for an object that cannot even be asked what it is: `isinstance` would raise."""
    attribute(owner, "__class__")


def cause(error: BaseException) -> str:
    """For example `ModuleNotFoundError: No module named 'x' (scores.py, line 3)`."""
    text = printable((str(error).splitlines() or [""])[0])
    own = str(Path(__file__).parent)
    frames = [
        f
        for f in traceback.extract_tb(error.__traceback__)
        if not f.filename.startswith(("<frozen", own, importlib.__file__ or own))
    ]
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {text}{where}"
