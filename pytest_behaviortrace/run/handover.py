"""A recipe, or a question about a recorded run, as JSON, to hand it to another process exactly as it is."""

from __future__ import annotations

import dataclasses
import json
from types import UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from pytest_behaviortrace.run.recipe import Recipe
    from pytest_behaviortrace.run.recorded import RunQuestion


def dumps(recipe: Recipe | RunQuestion) -> str:
    """The recipe or question as JSON text."""
    return json.dumps(dataclasses.asdict(recipe), ensure_ascii=True)


def loads(text: str) -> Recipe | RunQuestion:
    """What `dumps` wrote; equal to it, with the same hash."""
    from pytest_behaviortrace.run.recipe import Recipe
    from pytest_behaviortrace.run.recorded import RunQuestion

    value = json.loads(text)
    found: Recipe | RunQuestion = _rebuild(RunQuestion if "run_sha256" in value else Recipe, value)
    return found


def _rebuild(kind: Any, value: Any) -> Any:
    """`value`, as JSON gives it, in the annotated type: dataclasses and tuples are restored, the rest is kept."""
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{f.name: _rebuild(hints[f.name], value[f.name]) for f in dataclasses.fields(kind)})  # type: ignore[operator]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType) and value is not None:
        return _rebuild(next(a for a in arguments if a is not type(None)), value)
    if origin is tuple:
        kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
        return tuple(_rebuild(k, v) for k, v in zip(kinds, value, strict=True))
    return value
