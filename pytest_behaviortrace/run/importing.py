"""Importing what training needs: TRL and torch make a million objects, and they stay."""

from __future__ import annotations

import gc
import importlib
import sys
from types import ModuleType


def imported(name: str) -> ModuleType:
    """A module, for the rest of the process: the garbage collector looks for nothing in it, neither now nor later.

    Looking takes a sixth of the time that TRL's imports take, and a third of a second now and then afterwards. Raises
    what the import raises.
    """
    if name in sys.modules:  # what was made since may well be garbage
        return importlib.import_module(name)
    was = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        gc.freeze()
        if was:
            gc.enable()
