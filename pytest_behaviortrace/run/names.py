"""Names that become parts of files and folders, on every system: Windows refuses some, and knows no upper case."""

from __future__ import annotations

from collections.abc import Iterable

RESERVED = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))}
"""What Windows takes for a device, whatever stands behind a dot after it."""


def is_device(name: str) -> bool:
    """Whether Windows takes a file or folder of this name, or one that begins with it, for a device."""
    return name.partition(".")[0].lower() in RESERVED


def same_file(names: Iterable[str]) -> tuple[str, str] | None:
    """The first two names that are one where upper and lower case are alike; None if there are none."""
    found: dict[str, str] = {}
    for name in names:
        if (other := found.setdefault(name.lower(), name)) != name:
            return other, name
    return None
