"""Arrays of gradients in files: the same values as in memory, out of reach of their readers, gone with their use."""

import ctypes
import errno
import gc
import os
import tempfile

import numpy as np
import pytest
from problems import make_problem

from pytest_behaviortrace import rows
from pytest_behaviortrace.estimator import EstimatorError
from pytest_behaviortrace.scoring import score

WIDTH = 1024
"""Buckets of a row, which fill a page of memory."""


@pytest.fixture
def in_files(monkeypatch, tmp_path):
    """Every array lies in a file, in a folder of its own."""
    monkeypatch.setattr(rows, "LARGE", 1)
    monkeypatch.setattr(rows, "STRETCH", 7 * WIDTH * 4)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def table(n=50, width=WIDTH, seed=0):
    values = np.random.default_rng(seed).normal(size=(n, width)).astype(np.float32)
    values[::3] = 0.0
    return values


def copying(values):
    def fill(part, out):
        out[:] = values[part]

    return fill


def test_a_filed_array_is_an_ordinary_one_with_the_same_values(in_files):
    values = table()
    filed = rows.made(*values.shape, copying(values))
    assert type(filed) is np.ndarray
    assert (filed.dtype, filed.shape, filed.strides) == (values.dtype, values.shape, values.strides)
    np.testing.assert_array_equal(filed, values)
    assert rows.sealed(filed)
    assert rows.sealed(filed[3:, ::2])


def test_small_arrays_stay_in_memory():
    values = table(4)
    assert not rows.sealed(rows.made(*values.shape, copying(values)))
    assert not rows.sealed(values)
    assert not rows.sealed("text")


def test_rows_of_zeros_take_no_room(in_files, monkeypatch):
    written = []
    monkeypatch.setattr(rows, "_write", lambda file, block: written.append(block.copy()))
    values = table()
    rows.made(*values.shape, copying(values))
    np.testing.assert_array_equal(np.concatenate(written), values[np.any(values, axis=1)])


@pytest.mark.skipif(os.name == "nt", reason="a file in use cannot be deleted there")
def test_no_file_is_left_even_while_the_array_is_in_use(in_files):
    values = table()
    filed = rows.made(*values.shape, copying(values))
    assert list(in_files.iterdir()) == []
    assert filed.any()


def test_nothing_can_be_written_to_it(in_files):
    filed = rows.made(*table().shape, copying(table()))
    with pytest.raises(ValueError, match="read-only"):
        filed[0, 0] = 1.0
    with pytest.raises(ValueError, match="WRITEABLE"):
        filed.flags.writeable = True
    base = filed
    while isinstance(base.base, np.ndarray):
        base = base.base
        with pytest.raises(ValueError, match="WRITEABLE"):
            base.flags.writeable = True


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mprotect"), reason="no mprotect")
def test_not_even_by_reopening_its_pages(in_files):
    filed = rows.made(*table().shape, copying(table()))
    libc = ctypes.CDLL(None, use_errno=True)
    address, length = ctypes.c_void_p(filed.ctypes.data), ctypes.c_size_t(filed.nbytes)
    assert libc.mprotect(address, length, 3) == -1  # PROT_READ | PROT_WRITE
    assert ctypes.get_errno() == errno.EACCES


def test_pages_that_were_given_back_read_the_same_again(in_files):
    values = table()
    filed = rows.made(*values.shape, copying(values))
    for part, block in rows.in_stretches(filed):
        np.testing.assert_array_equal(block, values[part])
    np.testing.assert_array_equal(filed, values)


def test_only_what_cannot_be_lost_is_given_back(tmp_path):
    np.save(tmp_path / "a.npy", table())
    private = np.load(tmp_path / "a.npy", mmap_mode="c")
    private[1] = 5.0
    view = private.view()
    view.flags.writeable = False
    rows.give_back(view)
    rows.give_back(np.zeros(3))
    assert (private[1] == 5.0).all()


@pytest.mark.parametrize("filed", [False, True])
def test_scaling_in_stretches_is_scaling(filed, monkeypatch, tmp_path):
    values = table()
    rng = np.random.default_rng(1)
    factor, times = rng.random(len(values)), rng.normal(size=len(values))
    with np.errstate(all="ignore"):
        unit = np.nan_to_num(values / np.linalg.norm(values, axis=1, keepdims=True))
    if filed:
        monkeypatch.setattr(rows, "LARGE", 1)
        monkeypatch.setattr(rows, "STRETCH", 7 * WIDTH * 4)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    np.testing.assert_array_equal(rows.scaled(values), unit)
    np.testing.assert_array_equal(rows.scaled(values, factor), values * factor[:, None].astype(np.float32))
    both = unit * times[:, None].astype(np.float32)
    np.testing.assert_array_equal(rows.scaled(values, times=times), both)


def test_rows_of_two_arrays_in_an_order(in_files):
    first, second = table(), table(9, seed=1)
    order = np.random.default_rng(2).permutation(59)
    np.testing.assert_array_equal(rows.picked(first, second, order), np.concatenate([first, second])[order])


def test_a_full_disk_is_said_with_what_to_do(in_files, monkeypatch):
    def full(file, block):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(rows, "_write", full)
    with pytest.raises(OSError, match=r"no room for .* GB of gradients in .*TMPDIR"):
        rows.made(*table().shape, copying(table()))


def test_an_estimator_can_neither_change_nor_is_it_suspected_of_changing_a_filed_array(in_files):
    values = table(6)
    problem = make_problem(values).replacing(gradients=rows.made(*values.shape, copying(values)))

    def reads(problem):
        return problem.gradients.sum(1)

    def writes(problem):
        problem.gradients[0] = 0.0
        return np.zeros(len(problem))

    np.testing.assert_array_equal(score("reads", reads, problem).scores, values.sum(1))
    with pytest.raises(EstimatorError, match="read-only"):
        score("writes", writes, problem)
    np.testing.assert_array_equal(problem.gradients, values)


def test_the_owner_of_an_array_is_what_goes_with_its_memory(in_files):
    small = np.zeros((2, 2), np.float32)
    assert rows.owner(small[1:][:, :1]) is small
    filed = rows.made(*table().shape, copying(table()))
    assert rows.owner(filed[2:]) is rows.owner(filed)
    assert isinstance(rows.owner(filed), rows.ReadOnlyMap)


def test_frozen_means_all_the_way_down():
    base = np.zeros((4, 4), np.float32)
    view = base[1:]
    view.flags.writeable = False
    assert not rows.frozen(view)
    base.flags.writeable = False
    assert rows.frozen(view)


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="no /proc")
def test_reading_a_filed_array_in_stretches_keeps_no_pages(in_files, monkeypatch):
    monkeypatch.setattr(rows, "STRETCH", 1 << 20)
    count = 64 * 256  # 64 MB
    filed = rows.made(count, WIDTH, lambda part, out: out.fill(1.0))

    def of_files():
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[2]) * 4096

    gc.collect()
    before, most = of_files(), 0
    for _, block in rows.in_stretches(filed):
        assert block.sum(dtype=np.float64) == block.size
        most = max(most, of_files())
    assert most - before < filed.nbytes / 4
    filed.sum()
    assert of_files() - before > filed.nbytes / 2  # read at once they are all there: the measure can tell
