"""`grade` on the real run: the bytes of a pytest session, and an estimator built from another library's parts."""

from __future__ import annotations

import pytest
from wrapped_library import projected

from pytest_behaviortrace import grade, stress  # stress before pytester notes which modules are there
from pytest_behaviortrace.run.store import Store

assert stress  # Hypothesis cannot be imported twice, and pytester puts sys.modules back after a test

TESTS = """
from pytest_behaviortrace import parametrize_with_checks

@parametrize_with_checks(["norm-only"], checks=["lookalikes", "headroom", "fluency_control"], cache_dir={cache!r})
def test_attribution(row):
    row()
"""


def test_rows_in_a_users_own_tests_end_as_in_a_session(pytester: pytest.Pytester, store: Store) -> None:
    pytester.makepyfile(TESTS.format(cache=str(store.cache_dir)))
    result = pytester.runpytest_subprocess("-p", "no:hypothesispytest", "-rs")
    card = grade(
        "norm-only", checks=["lookalikes", "headroom", "fluency_control"], cache_dir=store.cache_dir, progress=False
    )
    verdicts = [row.verdict for row in card.rows]
    counts = {word: verdicts.count(word) for word in ("pass", "fail", "inconclusive", "n/a")}
    assert sum(counts.values()) == len(card.rows) == 12
    result.assert_outcomes(
        passed=counts["pass"], failed=counts["fail"], skipped=counts["inconclusive"] + counts["n/a"]
    )  # fmt: skip


def test_an_estimator_of_another_librarys_parts_is_graded(store: Store) -> None:
    """A cosine in fewer dimensions passes and fails where the shipped cosine does, and breaks on no problem."""
    checks = ["fluency_control", "lookalikes", "stress"]
    card = grade([projected, "gas"], checks=checks, cache_dir=store.cache_dir, progress=False)
    ours, theirs = (card.by_check(name) for name in ("projected", "gas"))
    for check in checks[:2]:
        verdicts = [[row.verdict for row in those[f"test_{check}"]] for those in (ours, theirs)]
        assert verdicts[0] == verdicts[1] == ["fail" if check == "lookalikes" else "pass"] * len(verdicts[0])
    assert {row.verdict for row in ours["test_stress"]} == {"pass", "n/a"}
