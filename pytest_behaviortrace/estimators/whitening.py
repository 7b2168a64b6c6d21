"""(F'F + ridge)^-1 t for a reference set F of any size: the linear algebra behind `trak`.

Solved in the dual, by the m x m matrix FF', when the sketch is at least as wide as F has rows,
(F'F + r)^-1 t = (t - F'(FF' + r)^-1 F t) / r; else in the primal, by F'F. Small systems are solved in double precision
outright. Large ones are factorised in single precision, which takes half the time and memory, and that factor is the
preconditioner of conjugate gradients in double precision, which end when what is left to correct is below `TOLERANCE`:
usually two or three passes over F.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_behaviortrace.rows import frozen, give_back, in_stretches, owner

Matrix = NDArray[np.floating[Any]]
Vector = NDArray[np.float64]
Map = Callable[[Vector], Vector]

RIDGE = 0.1
"""Ridge of `trak` as a share of the mean diagonal of the Gram matrix (PAPER.md)."""
COLUMNS = 512
"""Columns of a dual Gram matrix turned into double precision at a time."""
PANEL = 2048
"""Rows added to a primal Gram matrix at a time: so many that computing outweighs reading and writing the matrix."""
LIGHT = 1e-4
"""Share of the sum of squares of F, in its lightest rows, that the preconditioner in the primal leaves out. Ours."""
LARGE = 1 << 36
"""Multiplications behind a Gram matrix from which it is computed in single precision: above a second or two."""
TOLERANCE = 1e-7
"""Relative size of the correction, estimated through the preconditioner, at which conjugate gradients end: F itself is
known to single precision only. Ours."""
MOST_STEPS = 60
"""Steps of conjugate gradients after which the system is solved in double precision after all. Ours."""
KEPT_BYTES = 1 << 30
"""Memory of factors that are kept for the next target on the same reference set; the oldest go first."""


class Whitening:
    """Solves for any number of targets with one reference set F (m, K)."""

    def __init__(self, reference: Matrix) -> None:
        m, width = reference.shape
        squares = np.zeros(m)
        for part, block in doubled(reference):
            squares[part] = np.einsum("ij,ij->i", block, block)
        self.ridge = RIDGE * float(squares.sum()) / max(m, 1)
        self.solved: dict[bytes, Vector] = {}
        self._there = np.flatnonzero(squares)
        """Rows that are not zero; the others add nothing to F'F."""
        order = np.argsort(squares, kind="stable")
        self._heavy = np.sort(order[np.cumsum(squares[order]) > LIGHT * squares.sum()])
        """Rows that a preconditioner needs."""
        self._large = min(m, width) ** 2 * max(m, width) >= LARGE
        self._dual = width >= (len(self._there) if self._large else m)
        self._factor: Matrix | None = None

    @property
    def nbytes(self) -> int:
        """Memory of the factor."""
        return 0 if self._factor is None else self._factor.nbytes

    def solve(self, reference: Matrix, target: Vector) -> Vector:
        """(K,): (F'F + ridge)^-1 target, or the target itself where F is zero. `reference` is the F of `__init__`."""
        if self.ridge == 0.0:
            return target
        key = target.tobytes()
        if key not in self.solved:
            self.solved[key] = self._iterated(reference, target) if self._large else self._exact(reference, target)
        return self.solved[key]

    # -- in double precision -----------------------------------------------------------------------------------------
    def _exact(self, reference: Matrix, target: Vector) -> Vector:
        from scipy.linalg import cho_factor, cho_solve

        if self._factor is None:
            gram = _gram(reference, self._dual)
            gram[np.diag_indices_from(gram)] += self.ridge
            self._factor = cho_factor(gram, lower=True, overwrite_a=True, check_finite=False)[0]
        factor = (self._factor, True)
        if not self._dual:
            return np.asarray(cho_solve(factor, target, check_finite=False), np.float64)
        inner = cho_solve(factor, products(reference, target), check_finite=False)
        return np.asarray((target - _combined(reference, inner)) / self.ridge, np.float64)

    # -- in single precision, refined --------------------------------------------------------------------------------
    def _iterated(self, reference: Matrix, target: Vector) -> Vector:
        from scipy.linalg import LinAlgError, cho_factor, cho_solve

        rows = np.asarray(reference[self._there] if self._dual else reference, np.float32)
        try:
            if self._factor is None:
                gram = _single_gram(rows, self._heavy, self._dual)
                gram[np.diag_indices_from(gram)] += np.float32(self.ridge)
                self._factor = cho_factor(gram, lower=True, overwrite_a=True, check_finite=False)[0]
            factor = self._factor

            def rough(vector: Vector) -> Vector:
                size = float(np.abs(vector).max()) or 1.0  # single precision has a short range
                found = cho_solve((factor, True), (vector / size).astype(np.float32), check_finite=False)
                return np.asarray(found, np.float64) * size

            if self._dual:
                system: Map = lambda v: products(rows, _combined(rows, v)) + self.ridge * v  # noqa: E731
                inner = _conjugate_gradients(system, rough, products(rows, target))
                return np.asarray((target - _combined(rows, inner)) / self.ridge, np.float64)
            return _conjugate_gradients(lambda v: _squared(rows, v) + self.ridge * v, rough, target)
        except LinAlgError:  # the rounding of single precision exceeds the ridge
            self._large, self._factor, self._dual = False, None, reference.shape[1] >= len(reference)
            return self._exact(reference, target)


class _Kept:
    """Factors of the reference sets that exist: by the identity of what holds their memory, and gone when it goes."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[weakref.ref[Any], dict[tuple[Any, ...], Whitening]]] = {}

    def of(self, reference: Matrix) -> Whitening:
        holder, place = owner(reference), reference.__array_interface__
        identity = id(holder)
        if identity not in self._of or self._of[identity][0]() is not holder:
            self._of[identity] = (weakref.ref(holder, lambda gone: self._drop(identity, gone)), {})
        kept = self._of[identity][1]
        key = (place["data"][0], place["shape"], place["strides"], place["typestr"])
        if key not in kept:
            kept[key] = Whitening(reference)
        return kept[key]

    def _drop(self, identity: int, gone: Any) -> None:
        if identity in self._of and self._of[identity][0] is gone:
            del self._of[identity]

    def limit(self, latest: Whitening) -> None:
        """Forget factors, the oldest first, until what is kept fits."""
        entries = [(kept, key, entry) for _, kept in self._of.values() for key, entry in kept.items()]
        total = sum(entry.nbytes for _, _, entry in entries)
        for kept, key, entry in entries:
            if total > KEPT_BYTES and entry is not latest:
                total -= entry.nbytes
                del kept[key]

    def __len__(self) -> int:
        return len(self._of)


_kept = _Kept()


def whitened(reference: Matrix, target: Vector) -> Vector:
    """(K,): (F'F + ridge)^-1 t, the factor of F kept for as long as that exists.

    Only of read-only arrays: another's content could change.
    """
    if not reference.size or not frozen(reference):
        return Whitening(reference).solve(reference, target)
    whitening = _kept.of(reference)
    found = whitening.solve(reference, target)
    _kept.limit(whitening)
    return found


def products(rows: Matrix, vector: Matrix) -> Vector:
    """(n,): inner products in double precision."""
    out, right = np.empty(len(rows)), np.asarray(vector, np.float64)
    for part, block in doubled(rows):
        out[part] = block @ right
    return out


def doubled(rows: Matrix) -> Any:
    """The rows in double precision, stretch by stretch; a stretch is overwritten by the next."""
    buffer = np.zeros((0, 0))
    for part, block in in_stretches(rows):
        if len(buffer) < len(block):
            buffer = np.empty(block.shape)
        values = buffer[: len(block)]
        np.copyto(values, block)
        yield part, values


def _combined(rows: Matrix, weights: Vector) -> Vector:
    """(K,): F'w."""
    total = np.zeros(rows.shape[1])
    for part, block in doubled(rows):
        total += weights[part] @ block
    return total


def _squared(rows: Matrix, vector: Vector) -> Vector:
    """(K,): F'F v in one pass."""
    total = np.zeros(rows.shape[1])
    for _, block in doubled(rows):
        total += (block @ vector) @ block
    return total


def _gram(reference: Matrix, dual: bool) -> NDArray[np.float64]:
    if not dual:
        gram = np.zeros((reference.shape[1],) * 2)
        for _, block in doubled(reference):
            gram += block.T @ block
        return gram
    gram = np.zeros((len(reference),) * 2)
    for start in range(0, reference.shape[1], COLUMNS):
        block = np.asarray(reference[:, start : start + COLUMNS], np.float64)
        gram += block @ block.T
    return gram


def _single_gram(rows: NDArray[np.float32], picked: NDArray[np.intp], dual: bool) -> NDArray[np.float32]:
    """Lower triangle of FF', or of F'F from the rows `picked`, in place and without temporaries of its size."""
    from scipy.linalg.blas import ssyrk

    if dual:
        return np.asarray(ssyrk(1.0, rows.T, trans=1, lower=1))
    gram = np.zeros((rows.shape[1],) * 2, np.float32, order="F")
    panel = np.empty((min(len(picked), PANEL), rows.shape[1]), np.float32)
    for start in range(0, len(picked), PANEL):
        index = picked[start : start + PANEL]
        block = np.take(rows, index, axis=0, out=panel[: len(index)], mode="clip")
        give_back(rows)
        gram = ssyrk(1.0, block.T, beta=1.0, c=gram, lower=1, overwrite_c=1)
    return gram


def _conjugate_gradients(system: Map, rough: Map, right: Vector) -> Vector:
    """Solve `system(x) = right`, symmetric and positive, with `rough` close to its inverse.

    Raises `scipy.linalg.LinAlgError` when it does not get there.
    """
    from scipy.linalg import LinAlgError

    found = np.zeros_like(right)
    left, step = right.copy(), rough(right)
    direction, size = step.copy(), float(left @ step)
    for _ in range(MOST_STEPS):
        if not np.any(step) or np.linalg.norm(step) <= TOLERANCE * np.linalg.norm(found):
            return found
        image = system(direction)
        length = size / float(direction @ image)
        found += length * direction
        left -= length * image
        step = rough(left)
        before, size = size, float(left @ step)
        if not size > 0.0 and np.any(step):
            break
        direction = step + size / before * direction
    raise LinAlgError("conjugate gradients did not converge")
