"""Estimators whose attributes raise: one sentence that names estimator and attribute, wherever they are given."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from surface import QUIET

from pytest_behaviortrace import estimator, grade, listing, parametrize_with_checks
from pytest_behaviortrace.asked import Asked, named
from pytest_behaviortrace.attributes import Unreadable, attribute
from pytest_behaviortrace.registry import Registered, Registry, RegistryError, made

SAID = "let it raise AttributeError for what it does not have"


class Base:
    def __call__(self, problem: Any) -> Any:
        return problem.advantage


class Delegates(Base):
    """`__getattr__` over a dict, without a thought of names that are not in it."""

    def __getattr__(self, name: str) -> Any:
        return {}[name]


class BrokenNeeds(Base):
    @property
    def needs(self) -> Any:
        raise RuntimeError("the weights are not there")


class BrokenClaims(Base):
    @property
    def claims(self) -> Any:
        raise SystemExit("bye")


class Nothing(Base):
    """Not even its class may be read, so that `isinstance` raises."""

    def __getattribute__(self, name: str) -> Any:
        raise OSError(f"no {name}")


BROKEN: list[tuple[type[Base], str]] = [
    (Delegates, r"its attribute '(needs|__name__)' raised KeyError: '(needs|__name__)' \(test_attributes.py, line"),
    (BrokenNeeds, r"its attribute 'needs' raised RuntimeError: the weights are not there \(test_attributes.py, line"),
    (BrokenClaims, r"its attribute 'claims' raised SystemExit: bye \(test_attributes.py, line"),
    (Nothing, r"its attribute '__class__' raised OSError: no __class__ \(test_attributes.py, line"),
]  # fmt: skip
GIVEN: dict[str, Any] = {
    "object": lambda kind: (kind(), {}), "named": lambda kind: (kind(), {"name": "mine"}),
    "dict": lambda kind: ({"mine": kind()}, {}), "list": lambda kind: ([kind()], {}), "class": lambda kind: (kind, {}),
}  # fmt: skip


@pytest.mark.parametrize("how", GIVEN)
@pytest.mark.parametrize(("kind", "message"), BROKEN, ids=[kind.__name__ for kind, _ in BROKEN])
def test_grade_names_estimator_and_attribute(kind: type[Base], message: str, how: str, tmp_path: Path) -> None:
    given, arguments = GIVEN[how](kind)
    with pytest.raises(ValueError, match=message) as caught:
        grade(given, cache_dir=tmp_path, **arguments)
    text = str(caught.value)
    assert "mine" in text or kind.__name__ in text
    assert text.endswith(SAID)
    assert "\n" not in text
    assert list(tmp_path.iterdir()) == []


def test_isolation_reads_the_name_of_an_object_likewise(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="its attribute '__qualname__' raised KeyError"):
        grade({"mine": Delegates()}, isolate=True, cache_dir=tmp_path)


def test_rows_as_tests_are_refused_likewise() -> None:
    with pytest.raises(ValueError, match="estimator of type Nothing: its attribute '__class__' raised OSError"):
        parametrize_with_checks([Nothing()])


@pytest.mark.parametrize("flags", [("--bt-estimator=mine:one",), ("--bt-estimator=hooked",)], ids=["path", "hook"])
@pytest.mark.parametrize(("kind", "message"), BROKEN, ids=[kind.__name__ for kind, _ in BROKEN])
def test_pytest_ends_with_usage(
    kind: type[Base], message: str, flags: tuple[str, ...], pytester: pytest.Pytester
) -> None:
    source = "\n".join(["from typing import Any", inspect.getsource(Base), inspect.getsource(kind)])
    pytester.makepyfile(mine=f"{source}\n\none = {kind.__name__}()\n")
    pytester.makeconftest("import mine\ndef pytest_behaviortrace_estimators(config): return {'hooked': mine.one}")
    result = pytester.runpytest_subprocess(*QUIET, *flags, "--bt-cache-dir=cache")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.re_match_lines([f"ERROR: estimator '.*: {message.replace('test_attributes', 'mine')}"])
    assert "Traceback" not in result.stderr.str()
    assert not (pytester.path / "cache").exists()


def test_a_module_that_imports_its_parts_on_demand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "on_demand.py").write_text("def __getattr__(name): raise ImportError('no jax here')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RegistryError, match="cannot be imported: its attribute 'f' raised ImportError: no jax here"):
        Registry().load("on_demand:f")


def test_the_list_says_what_it_could_not_read() -> None:
    said = listing.needs(Registered("mine", "hook", BrokenNeeds()))
    assert said.startswith("unknown: its attribute 'needs' raised RuntimeError: the weights are not there")
    said = listing.needs(Registered("mine", "hook", Nothing()))
    assert said.startswith("unknown: its attribute 'needs' raised OSError: no needs")


def test_what_turns_up_while_rows_run_is_an_error_of_the_estimator() -> None:
    with pytest.raises(estimator.EstimatorError, match="its attribute 'needs' raised KeyError"):
        estimator.needs_of(Delegates())


def test_ctrl_c_is_let_through() -> None:
    class Interrupted(Base):
        @property
        def needs(self) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attribute(Interrupted(), "needs")
    with pytest.raises(Unreadable):
        attribute(BrokenNeeds(), "needs")


def test_what_is_absent_is_absent() -> None:
    assert attribute(Base(), "needs") is None
    assert made(Registered("mine", "here", given := Base())) is given
    assert list(named(Base())) == ["Base"]
    assert Asked(named(Base())).seeds == 3
