"""What may stand in a sentence: names that terminals and pages can show as they are, and not too many of them. Pure."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Sequence

LONGEST = 200
"""Characters of the longest name."""
RULE = f"a name is printable text of at most {LONGEST} characters, without control or formatting characters"


def unfit(name: str) -> str | None:
    """Why a name must not be shown as it is, in a few words that may be; None if it may.

    Refused is what `str.isprintable` refuses: control and formatting characters (escape sequences, line breaks, what
    turns the direction of writing), lone surrogates, separators other than the space, and what Unicode leaves open.
    """
    if not name:
        return "is empty"
    for place, letter in enumerate(name[: LONGEST + 1], 1):
        if not letter.isprintable():
            known = unicodedata.name(letter, "")
            return f"has U+{ord(letter):04X}{f' ({known})' if known else ''} in place {place}"
    return f"is {len(name):,} characters long" if len(name) > LONGEST else None


def escaped(name: str) -> str:
    """The name in quotes, as ASCII with escapes, cut where it is long."""
    text = ascii(name)
    return text if len(text) <= 60 else f"{text[:57]}...{text[0]}"


def place(path: object) -> str:
    """A path as it is, so that it can be copied; one that `unfit` would refuse, in quotes as ASCII with escapes."""
    text = str(path)
    return text if text.isprintable() else ascii(text)


def require_no_nul(path: str | os.PathLike[str] | None, name: str) -> None:
    """Raise `ValueError`, naming the argument, for a path that no system can open."""
    if path is not None and "\0" in (given := os.fsdecode(path)):
        raise ValueError(f"{name}={escaped(given)} has a NUL character, which no path can have; give another path")


def printable(text: str) -> str:
    """The text with a space in place of everything that `unfit` refuses; line breaks too."""
    return text if text.isprintable() else "".join(letter if letter.isprintable() else " " for letter in text)


def few(names: Sequence[str], most: int = 5) -> str:
    """The first names, and how many more there are: `a, b, c and 997 more`."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most:,} more"
