"""Buffers of the text kernel: one set a thread, shared by all plans, as large as the largest of them has needed.

A plan says its needs when it is laid out, so nothing is allocated for a vocabulary while requests are served; only a
document longer than any before it makes the buffers for its bytes longer.
"""

from __future__ import annotations

import threading
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamserve.plan.kernels.memory import addresses

_SPARE_BYTES = 16
_FIRST_DOCUMENT_BYTES = 1 << 14
_FIRST_LOGS = 1 << 12


class Scratch:
    """One thread's buffers. `fit` makes them large enough; all counts and bits are zero between two calls."""

    def __init__(self) -> None:
        self._features, self._bytes, self._grams = 0, 0, 0
        self.fit(1, _FIRST_DOCUMENT_BYTES, 2)

    def fit(self, features: int, document_bytes: int, sizes: int) -> None:
        """Room for vocabularies of that many features, and n-grams of that many sizes of documents of so many bytes."""
        grows = False
        if features > self._features:
            self._fit_features(features)
            grows = True
        if document_bytes > self._bytes:
            self._fit_bytes(2 * document_bytes)
            grows = True
        if (document_bytes + _SPARE_BYTES) * sizes > self._grams:
            self._grams = 2 * (document_bytes + _SPARE_BYTES) * sizes
            self.keys = np.zeros(self._grams, dtype=np.uint64)
            self.places = np.zeros((self._grams, 2), dtype=np.int64)
            grows = True
        if grows:
            #: In the order in which the kernel reads them.
            self.addresses = addresses(
                self.counts, self.bits, self.buffer, self.prefix, self.units, self.keys, self.places
            )

    def _fit_features(self, features: int) -> None:
        top = (features + 4095) >> 12
        self._features = top << 12
        self.counts = np.zeros(self._features, dtype=np.int32)
        self.bits = np.zeros(top + (top << 6), dtype=np.uint64)
        self.found = np.zeros(self._features, dtype=np.int32)
        self.values = np.zeros(self._features, dtype=np.float64)

    def _fit_bytes(self, document_bytes: int) -> None:
        self._bytes = document_bytes
        room = document_bytes + _SPARE_BYTES
        self.buffer = np.zeros(room, dtype=np.uint8)
        self.prefix = np.zeros(room + 1, dtype=np.uint64)
        self.units = np.zeros((3, room), dtype=np.int64)
        self.row_ends = np.zeros(1, dtype=np.int64)


class _Logs:
    """`log(0), log(1), log(2), ...` by numpy, whose last bits differ from those of the C library."""

    def __init__(self) -> None:
        self.table: Any = self._of(_FIRST_LOGS)

    def up_to(self, count: int) -> Any:
        """A table that has the logarithm of `count`."""
        if count >= len(self.table):
            self.table = self._of(2 * count)
        return self.table

    @staticmethod
    def _of(length: int) -> Any:
        numbers = np.arange(length, dtype=np.float64)
        numbers[0] = 1.0  # no feature is counted 0 times
        return np.log(numbers)


class _PerThread(threading.local):
    @cached_property
    def scratch(self) -> Scratch:
        return Scratch()

    row: NDArray[np.float32] = np.zeros(0, dtype=np.float32)


_per_thread = _PerThread()
logs = _Logs()


def empty_row(width: int) -> NDArray[np.float32]:
    """The calling thread's row of zeros; who writes into it leaves it so."""
    if len(_per_thread.row) < width:
        _per_thread.row = np.zeros(width, dtype=np.float32)
    return _per_thread.row


def scratch() -> Scratch:
    """The calling thread's buffers."""
    return _per_thread.scratch
