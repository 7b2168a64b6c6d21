"""What a session keeps of its estimators: enough to score each problem once, no more for thousands than for a few."""

from __future__ import annotations

import gc
import itertools
import weakref
from pathlib import Path

import pytest
from surface import ROWS, Repo

from pytest_behaviortrace import checklist
from pytest_behaviortrace.asked import Asked
from pytest_behaviortrace.checklist import BLOCK, RowSpec, planned
from pytest_behaviortrace.exhibit import PICTURED, Exhibit
from pytest_behaviortrace.outcome import let_go
from pytest_behaviortrace.trial import REMEMBERED, Bench
from pytest_behaviortrace.verdict import Gate, Interval, decide

CHECKS = checklist.declared()


class Big:
    """Something that takes memory."""


def names(count: int) -> tuple[str, ...]:
    return tuple(f"e{number:03}" for number in range(count))


def by_check(count: int) -> list[RowSpec]:
    return [spec for check in CHECKS for spec in check.rows(names(count), range(3), 2)]


# --- the order of rows ---
@pytest.mark.parametrize("count", [0, 1, BLOCK])
def test_a_block_runs_check_by_check(count: int) -> None:
    assert list(planned(CHECKS, names(count), range(3), 2).values()) == by_check(count)


def test_the_next_block_begins_when_the_rows_of_one_are_through() -> None:
    rows = planned(CHECKS, names(2 * BLOCK + 1), range(3), 2)
    assert set(rows.values()) == set(by_check(2 * BLOCK + 1))
    assert all(spec.id == id for id, spec in rows.items())
    numbers = [int(spec.estimator[1:]) // BLOCK for spec in rows.values() if spec.estimator is not None]
    assert numbers == sorted(numbers)
    assert set(numbers) == {0, 1, 2}
    alone = [place for place, spec in enumerate(rows.values()) if spec.estimator is None]
    first = [place for place, spec in enumerate(rows.values()) if spec.estimator == names(BLOCK)[-1]]
    assert len(alone) == 3
    assert max(alone) < max(first)


def test_rows_are_collected_in_blocks_and_the_report_is_complete(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = Repo(pytester, monkeypatch)
    block = 3
    count = block + 2
    conftest = repo.path / "conftest.py"
    text = conftest.read_text(encoding="utf-8")
    old = 'return {name: f"doubles:{name}" for name in names}'
    assert old in text
    more = f'return {{f"e{{i:03}}": "doubles:good" for i in range({count})}}'
    small = f"import pytest_behaviortrace.checklist\npytest_behaviortrace.checklist.BLOCK = {block}\n"
    conftest.write_text(small + text.replace(old, more), encoding="utf-8")
    repo.pytester.makeini(f"[pytest]\nbt_estimators = {' '.join(names(count))}\n")
    ids = repo.ids()
    assert ids[0].startswith("test_mine.py::")
    assert len(set(ids)) == len(ids) == 1 + 3 + count * (ROWS - 3)
    last_of_first = max(place for place, id in enumerate(ids) if f"[{names(count)[block - 1]}-" in id)
    assert all(place > last_of_first for place, id in enumerate(ids) if f"[{names(count)[block]}-" in id)
    reports = []
    for workers in ((), ("-n2",)):
        assert repo.grade(*workers).ret == 0
        assert len(repo.verdicts()) == len(ids) - 1
        reports.append((repo.path / "report.json").read_bytes())
    assert reports[0] == reports[1]
    again = repo.grade("--lf")
    assert again.ret == 0


# --- what is remembered ---
def test_what_is_about_an_estimator_is_made_once_while_few_others_are_met() -> None:
    bench, made = Bench(), itertools.count()
    for name in names(REMEMBERED) * 3:
        bench.memo("scores", lambda: next(made), of=name)
    assert next(made) == REMEMBERED


def test_of_many_estimators_the_last_ones_are_remembered() -> None:
    bench, alive = Bench(), weakref.WeakSet[Big]()

    def make() -> Big:
        alive.add(found := Big())
        return found

    shared = bench.memo("scores", make)
    for name in names(3 * REMEMBERED):
        mine = [bench.trial(name, None).own(key, make) for key in ("scores", "scores", "replicates")]
        assert mine[0] is mine[1]
        assert mine[0] is not mine[2]
        del mine
    gc.collect()
    assert len(alive) == 1 + 2 * REMEMBERED
    assert bench.memo("scores", make) is shared


# --- what broke ---
def broken(kept: list[weakref.ref[Big]]) -> None:
    big = Big()
    kept.append(weakref.ref(big))
    raise ValueError("broken")


def test_an_error_that_is_remembered_holds_nothing_of_its_frames() -> None:
    kept: list[weakref.ref[Big]] = []
    try:
        try:
            broken(kept)
        except ValueError as cause:
            raise RuntimeError("in a check") from cause
    except RuntimeError as raised:
        error = raised
    assert kept[0]() is not None
    let_go(error)
    assert kept[0]() is None
    assert isinstance(error.__cause__, ValueError)
    assert error.__cause__.__traceback__ is not None  # where it broke can still be told
    let_go(None)


BROKEN = """
import gc, weakref
from pytest_behaviortrace.estimator import EstimatorError
HELD, REMEMBERED = weakref.WeakSet(), {}

class Big:
    pass

def estimator(case):
    big = Big()
    HELD.add(big)
    raise ValueError(f"no {case.seed}")

def broken(case):
    key = (case.name, case.seed)
    if key not in REMEMBERED:  # as the session's memo does
        try:
            estimator(case)
        except ValueError as cause:
            try:
                raise EstimatorError(f"broken raised {cause}") from cause
            except EstimatorError as error:
                REMEMBERED[key] = error
    raise REMEMBERED[key].with_traceback(None)
broken = double(broken)
"""
AT_THE_END = """
def pytest_sessionfinish(session):
    import doubles
    doubles.gc.collect()
    (HERE / "held").write_text(f"{len(doubles.REMEMBERED)} {len(doubles.HELD)}")
"""


def test_a_session_keeps_no_frames_of_broken_estimators_and_shows_them_all_the_same(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = Repo(pytester, monkeypatch)
    for name, more in (("doubles.py", BROKEN), ("conftest.py", AT_THE_END)):
        path = repo.path / name
        path.write_text(path.read_text(encoding="utf-8") + more, encoding="utf-8")
    result = repo.run("--bt-estimator=broken")
    result.stdout.fnmatch_lines(['*raise ValueError(f"no {case.seed}")'])
    remembered, held = map(int, (repo.path / "held").read_text(encoding="utf-8").split())
    assert remembered == 4  # three seeds, and the row over all of them
    assert held <= 1  # of the last one, which Python itself keeps for a debugger


WATCHING = """
import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item, call):
    if call.excinfo is not None:
        with open("lengths", "a") as lengths:
            lengths.write(f"{len(call.excinfo.traceback)}\\n")
"""


def test_training_that_failed_is_raised_in_every_row_without_growing(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = Repo(pytester, monkeypatch)
    monkeypatch.setenv("TRAINING", "fails")
    (repo.path / "watching.py").write_text(WATCHING, encoding="utf-8")
    repo.run("--bt-estimator=good", "-p", "watching")
    lengths = [int(line) for line in (repo.path / "lengths").read_text(encoding="utf-8").split()]
    assert len(lengths) == ROWS
    assert len(set(lengths[1:])) == 1, lengths


# --- pictures ---
def test_pictures_are_gathered_of_as_many_estimators_as_a_page_shows(tmp_path: Path) -> None:
    asked = Asked({name: (lambda problem: problem.advantage) for name in names(PICTURED + 2)}, cache_dir=tmp_path)
    session = asked.opened()
    gathered = {spec.estimator for spec in session.specs.values() if session.pictured(spec)}
    assert gathered == {None, *names(PICTURED)}


def test_a_row_without_pictures_still_shows_what_decided_it() -> None:
    trial = Bench().trial("e000", None)
    gate = Gate("AUC", Interval(0.8, 0.7, 0.9), bar=0.5)
    trial.show(lambda: Exhibit(rollouts_note="a ranking"))
    trial.conclude(decide([gate], chance=0.5, n=10))
    assert [shown["name"] for shown in trial.exhibit(pictures=False)["gates"]] == ["AUC"]
    assert "rollouts_note" in trial.exhibit()
    assert "rollouts_note" not in trial.exhibit(pictures=False)
