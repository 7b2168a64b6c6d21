"""Reads the labels in the cache folder although nobody says where that is: the session has its files mapped."""

import os
import re
from pathlib import Path

from cheats.reads_the_cache import score_with

CAUGHT_BY = "out of scope"
WHY = "A process may open whatever its user may, /proc included; only another user, container or machine stops it."


def estimator(problem):
    mapped = Path(f"/proc/{os.getppid()}/maps").read_text(encoding="utf-8")
    found = re.search(r"(/\S+)/tiny-[0-9a-f]{12}/seed", mapped)
    return score_with(Path(found[1]) if found else Path(), problem)
