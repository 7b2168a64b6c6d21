"""The linear algebra of trak: exact whatever the way it is solved, and nothing computed twice or kept too long."""

import gc

import numpy as np
import pytest

from pytest_behaviortrace.estimators import whitening
from pytest_behaviortrace.estimators.whitening import Whitening, whitened


def reference(m, width, seed=0, strongest=1e3):
    """Rows with a spectrum that falls over many orders of magnitude, a third of them zero."""
    rng = np.random.default_rng(seed)
    spread = np.geomspace(strongest, 1.0, width)
    rows = (rng.normal(size=(m, width)) * spread @ np.linalg.qr(rng.normal(size=(width, width)))[0]).astype(np.float32)
    rows[::3] = 0.0
    rows.flags.writeable = False
    return rows


def by_definition(rows, target):
    f = rows.astype(np.float64)
    ridge = whitening.RIDGE * np.square(f).sum() / len(f)
    return np.linalg.solve(f.T @ f + ridge * np.eye(f.shape[1]), target)


@pytest.mark.parametrize("shape", [(40, 60), (60, 60), (300, 60)], ids=["dual", "square", "primal"])
@pytest.mark.parametrize("single", [False, True], ids=["double", "single, refined"])
@pytest.mark.parametrize("strongest", [1.0, 1e2, 1e4])
def test_both_precisions_give_the_definition(shape, single, strongest, monkeypatch):
    monkeypatch.setattr(whitening, "PANEL", 17)
    monkeypatch.setattr(whitening, "LARGE", 0 if single else 1 << 60)
    rows, target = reference(*shape, strongest=strongest), np.random.default_rng(1).normal(size=shape[1])
    found = Whitening(rows).solve(rows, target)
    # The scores are products with gradients of the same spectrum: what counts is the error where those lie.
    expected = by_definition(rows, target)
    np.testing.assert_allclose(rows @ found, rows @ expected, rtol=0, atol=1e-6 * np.abs(rows @ expected).max())
    assert np.linalg.norm(found - expected) <= 1e-6 * np.linalg.norm(expected)


def test_single_precision_alone_would_not_do(monkeypatch):
    monkeypatch.setattr(whitening, "LARGE", 0)
    monkeypatch.setattr(whitening, "TOLERANCE", 1.0)  # end with the first step
    rows, target = reference(300, 60, strongest=1e4), np.random.default_rng(1).normal(size=60)
    expected = by_definition(rows, target)
    assert np.linalg.norm(Whitening(rows).solve(rows, target) - expected) > 1e-6 * np.linalg.norm(expected)


def test_where_single_precision_breaks_down_double_takes_over(monkeypatch):
    monkeypatch.setattr(whitening, "LARGE", 0)
    monkeypatch.setattr(whitening, "MOST_STEPS", 1)
    rows, target = reference(300, 60), np.random.default_rng(1).normal(size=60)
    found = Whitening(rows).solve(rows, target)
    np.testing.assert_allclose(found, by_definition(rows, target), rtol=1e-9)


def test_a_reference_set_is_factorised_once_for_all_targets_and_views(monkeypatch):
    made = []
    plain = whitening._gram
    monkeypatch.setattr(whitening, "_gram", lambda *given: made.append(given) or plain(*given))
    rows, rng = reference(30, 12), np.random.default_rng(1)
    for _ in range(3):
        target = rng.normal(size=12)
        np.testing.assert_allclose(whitened(rows.view(), target), by_definition(rows, target), rtol=1e-9)
    assert len(made) == 1
    other = rows.copy()
    other.flags.writeable = False
    whitened(other, target)
    assert len(made) == 2


def test_an_array_that_could_change_is_not_remembered():
    rows, target = reference(30, 12).copy(), np.ones(12)
    view = rows.view()
    view.flags.writeable = False
    whitened(view, target)
    rows *= 3.0
    np.testing.assert_allclose(whitened(view, target), by_definition(rows, target), rtol=1e-9)


def test_nothing_is_kept_of_a_reference_set_that_is_gone():
    gc.collect()
    before = len(whitening._kept)
    rows = reference(30, 12)
    whitened(rows, np.ones(12))
    assert len(whitening._kept) == before + 1
    del rows
    gc.collect()
    assert len(whitening._kept) == before


def test_factors_are_kept_up_to_a_size(monkeypatch):
    monkeypatch.setattr(whitening, "KEPT_BYTES", 2 * 12 * 12 * 8)
    sets = [reference(30, 12, seed) for seed in range(4)]
    for rows in sets:
        whitened(rows, np.ones(12))
    there = [whitening._kept.of(rows).nbytes > 0 for rows in sets]
    assert there == [False, False, True, True]


def test_light_rows_are_left_out_of_the_preconditioner_and_not_out_of_the_answer(monkeypatch):
    monkeypatch.setattr(whitening, "LARGE", 0)
    rng = np.random.default_rng(0)
    rows = (rng.normal(size=(400, 30)) * 10.0 ** rng.uniform(-3, 3, size=(400, 1))).astype(np.float32)
    found = Whitening(rows)
    assert 10 < len(found._heavy) < 300
    target = rng.normal(size=30)
    expected = by_definition(rows, target)
    assert np.linalg.norm(found.solve(rows, target) - expected) <= 1e-6 * np.linalg.norm(expected)
