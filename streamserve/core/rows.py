"""Stores of rows: arrays that grow at the end and are dropped when nobody needs them.

A row's number is absolute and never changes while its store lives, so columns of requests can hold it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from streamserve.core.fast import every
from streamserve.core.messages import I32, I64, AnyArray

_MOST_MS = 2**31 - 1
_FIRST_CAPACITY = 1024
_FIRST_BYTES = 1 << 18


class RowStore:
    """Rows of one dtype and one trailing shape.

    oldest_needed: called when the store is full; the number of the oldest row that is still needed, or `end`.
    """

    def __init__(self, like: AnyArray, oldest_needed: Callable[[], int]) -> None:
        row_bytes = max(1, like.dtype.itemsize * math.prod(like.shape[1:]))
        capacity = max(1, min(_FIRST_CAPACITY, _FIRST_BYTES // row_bytes))
        self._rows: NDArray[np.generic] = np.empty((capacity, *like.shape[1:]), like.dtype)
        self._oldest_needed = oldest_needed
        self.base = 0
        self.end = 0

    def takes(self, rows: AnyArray) -> bool:
        """The same dtype and trailing shape."""
        return rows.dtype == self._rows.dtype and rows.shape[1:] == self._rows.shape[1:]

    def append(self, rows: AnyArray) -> int:
        """Add rows; the number of the first."""
        first, n = self.end, len(rows)
        if first - self.base + n > len(self._rows):
            self._make_room(n)
        at = first - self.base
        self._rows[at : at + n] = rows
        self.end += n
        return first

    def slice(self, first_row: int, n: int) -> AnyArray:
        """n consecutive rows, as a view."""
        start = first_row - self.base
        return self._rows[start : start + n]

    def take(self, first_rows: I64, n_rows: I64) -> AnyArray:
        """The rows of several requests, one after the other; a view where they are consecutive."""
        start = first_rows - self.base
        if len(start) == 0:
            return self._rows[:0]
        if every(n_rows == 1):
            if len(start) == 1 or every(start[1:] - start[:-1] == 1):
                return self._rows[int(start[0]) : int(start[-1]) + 1]
            return self._rows[start]
        return self._rows[ranges(start, n_rows)]

    def _make_room(self, n: int) -> None:
        live_from = min(max(self._oldest_needed(), self.base), self.end)
        live = self.end - live_from
        capacity = len(self._rows)
        while capacity < 2 * (live + n):
            capacity *= 2
        # Always a new array: batches under way may hold views of the old one.
        grown = np.empty((capacity, *self._rows.shape[1:]), self._rows.dtype)
        grown[:live] = self._rows[live_from - self.base : self.end - self.base]
        self._rows = grown
        self.base = live_from


def ranges(starts: I64, lengths: I64) -> I64:
    """`start, start + 1, ...` of each range, one after the other. `[n]`, `[n]` -> `[sum(lengths)]`."""
    total = int(lengths.sum())
    ends: I64 = lengths.cumsum()
    steps = np.arange(total, dtype=np.int64)
    shifted: I64 = steps + (starts - (ends - lengths)).repeat(lengths)
    return shifted


def span_ms(from_ms: I64, to_ms: int) -> I32:
    """Time from each moment to a later one; none below 0, and what 32 bits cannot hold is their largest number."""
    return np.minimum(np.maximum(to_ms - from_ms, 0), _MOST_MS).astype(np.int32)


def starts_of(lengths: I64) -> I64:
    """`row_starts` of consecutive requests: `[n]` -> `[n + 1]`, not to be written to; of requests of one row each it is
    mostly the same array."""
    if every(lengths == 1):
        return _counting(len(lengths) + 1)
    starts = np.zeros(len(lengths) + 1, np.int64)
    lengths.cumsum(out=starts[1:])
    return starts


@lru_cache(maxsize=64)
def _counting(n: int) -> I64:
    """0, 1, 2, ..."""
    numbers = np.arange(n, dtype=np.int64)
    numbers.flags.writeable = False
    return numbers
