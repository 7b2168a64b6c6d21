"""How much may be asked for at once, by flags, commands and Python alike: beyond, planning alone takes time and memory.

Nobody asks for so much on purpose; whoever mistypes a number is told at once.
"""

from __future__ import annotations

MOST_SEEDS, MOST_DRAWS = 3_000, 1_000
LARGEST_SEED = 10**9
MOST_UNITS = 10_000
"""Seeds and their draws together: each is a folder in the cache, trained for 20 s or more; planning them takes 10."""
MOST_ROWS = 250_000
"""Rows of one session: 6,000 estimators on three seeds and two draws."""
MOST = 1_000_000
"""Of anything else that is counted."""


def number(text: str, most: int) -> int | None:
    """The whole number that a text of ASCII digits is, `most` + 1 where it is larger than that; None for other text."""
    text = text.strip()
    if not (text.isascii() and text.isdecimal()):
        return None
    digits = text.lstrip("0") or "0"
    return most + 1 if len(digits) > len(str(most)) else min(int(digits), most + 1)


def too_much(seeds: int, draws: int, rows: int = 0) -> str | None:
    """What is too much of so many seeds with so many draws each, and of a session of so many rows; None if nothing."""
    for many, most, what in ((seeds, MOST_SEEDS, "seeds"), (draws, MOST_DRAWS, "draws")):
        if many > most:
            return f"more than {most:,} {what}"
    if (units := seeds * (1 + draws)) > MOST_UNITS:
        return f"{seeds:,} seeds with {draws:,} draws each are {units:,} runs and draws, more than {MOST_UNITS:,}"
    return f"{rows:,} rows, more than {MOST_ROWS:,} in one session" if rows > MOST_ROWS else None
