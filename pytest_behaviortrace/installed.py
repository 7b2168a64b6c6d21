"""Whether Python and the libraries installed here are those this package declares; reads package metadata alone."""

from __future__ import annotations

import platform
from importlib import metadata

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

NAME = "pytest-behaviortrace"


class WrongVersions(RuntimeError):
    """Python or a library is out of range: the message says what is installed, what is needed, and what to do."""


def wrong_versions() -> str | None:
    """One sentence on everything that is missing or out of range here, or None. Imports none of it."""
    declared = metadata.metadata(NAME)
    python = platform.python_version()
    if not SpecifierSet(declared["Requires-Python"] or "").contains(python, prereleases=True):
        needed = declared["Requires-Python"]
        return f"this is Python {python}, and {NAME} needs Python {needed}; install it into an environment with that"
    found = [(asked, _version(asked.name)) for asked in map(Requirement, metadata.requires(NAME) or ()) if _now(asked)]
    wrong = [(asked, have) for asked, have in found if have is None or not _fits(asked, have)]
    if not wrong:
        return None
    have = ", ".join(f"{asked.name} {version or 'is not installed'}" for asked, version in wrong)
    needed = " ".join(f"'{asked.name}{asked.specifier}'" for asked, _ in wrong)
    return f"installed here: {have}; {NAME} works with other versions: pip install {needed}"


def require_versions() -> None:
    """Raise `WrongVersions` where anything is missing or out of range."""
    if (sentence := wrong_versions()) is not None:
        raise WrongVersions(sentence)


def _now(asked: Requirement) -> bool:
    """Whether it is needed on this machine and without any extra."""
    return asked.marker is None or asked.marker.evaluate({"extra": ""})


def _fits(asked: Requirement, have: str) -> bool:
    return asked.specifier.contains(have, prereleases=True)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
