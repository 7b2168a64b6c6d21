"""The name of a check with `test_` (in data and ids of rows) and without (where people read): both find it. Pure."""

from __future__ import annotations

from typing import Any, TypeVar

from pytest_behaviortrace.wording import few

_T = TypeVar("_T")


class ByCheck(dict[str, _T]):
    """Something by check. Keys begin with `test_`; `[]`, `in` and `get` take the rest alone too."""

    def __missing__(self, name: str) -> _T:
        """Raises `KeyError`, a sentence, for a check that is not there."""
        if (full := f"test_{name}") not in self.keys():
            raise KeyError(f"no check {name!r} here; there are {few(list(self), 20) or 'none'}")
        return self[full]

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or super().__contains__(f"test_{name}")

    def get(self, name: str, default: Any = None) -> Any:
        """What there is, or the default where there is nothing."""
        try:
            return self[name]
        except KeyError:
            return default
