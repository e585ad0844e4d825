"""Columns of open requests, addressed by handle.

Handles grow by one a request and are never used twice, so an old one can be recognised. Rows leave from the front:
requests settle nearly in the order in which they came, since each has a deadline.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from streamserve.core.messages import I64

#: Later than every moment.
NEVER_MS = 2**63 - 1
_FIRST_CAPACITY = 1024
#: Rows from which on it is worth looking for objects that nobody needs any more.
_WORTH_RELEASING = 4096


class Table(dict[str, NDArray[Any]]):
    """Growable columns. `table["name"]` is a view of the live rows; index it with `table.at(handles)`.

    A dict of views, each made when it is first asked for after a change: a hundred look-ups a request cost no call.

    columns: name -> dtype, or (dtype, width) for a two-dimensional column.
    lists: names of columns of Python objects.
    A column `n_bytes`, if any, is what the objects of a row take; `held_bytes` is the sum of all that are kept.
    """

    def __init__(self, columns: Mapping[str, DTypeLike | tuple[DTypeLike, int]], lists: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.held_bytes = 0
        self.base = 0
        self._start = 0
        self._end = 0
        self._arrays: dict[str, NDArray[Any]] = {}
        for name, form in columns.items():
            dtype, shape = (form[0], (_FIRST_CAPACITY, form[1])) if isinstance(form, tuple) else (form, _FIRST_CAPACITY)
            self._arrays[name] = np.zeros(shape, dtype)
        self.lists: dict[str, list[Any]] = {name: [] for name in lists}
        self._release_at = _WORTH_RELEASING

    def __len__(self) -> int:
        return self._end - self._start

    def __missing__(self, name: str) -> NDArray[Any]:
        view = self[name] = self._arrays[name][self._start : self._end]
        return view

    @property
    def end(self) -> int:
        """The handle that the next row will get."""
        return self.base + len(self)

    def at(self, handles: I64) -> I64:
        """Row numbers of live handles."""
        return handles - self.base

    def entries(self, name: str, at: I64) -> list[Any]:
        """What a list holds of these rows, in their order. `at`: increasing."""
        values = self.lists[name]
        n = len(at)
        if n and at[-1] - at[0] == n - 1:  # nobody is left out between them
            first = int(at[0])
            return values[first : first + n]
        return [values[i] for i in at.tolist()]

    def append(self, n: int, columns: Mapping[str, Any], lists: Mapping[str, list[Any]]) -> I64:
        """Add n rows; columns that are not given are zero. Returns their handles."""
        first = self.end
        if self._end + n > self._capacity:
            self._make_room(n)
        rows = slice(self._end, self._end + n)
        for name, array in self._arrays.items():
            array[rows] = columns.get(name, 0)
        for name, values in self.lists.items():
            values.extend(lists[name])
        self._end += n
        self.clear()
        if "n_bytes" in self._arrays:
            self.held_bytes += int(self._arrays["n_bytes"][rows].sum())
        return np.arange(first, first + n, dtype=np.int64)

    def drop_front(self, n: int) -> None:
        """Forget the first n rows."""
        if n == 0:
            return
        if self.held_bytes:
            self.held_bytes -= int(self["n_bytes"][:n].sum())
        self._start += n
        self.base += n
        for values in self.lists.values():
            del values[:n]
        if self._start == self._end:
            self._start = self._end = 0
        self.clear()

    def release_done(self, most_bytes: int = NEVER_MS) -> None:
        """Let go of the objects (bodies, headers) of rows that are `done` behind one that is not: it may wait for its
        deadline for a minute, and all that came since would be kept with it. Looked for whenever the table has doubled,
        so that it costs nothing while rows leave in order; and while more than `most_bytes` are held."""
        n = len(self)
        if n < self._release_at and self.held_bytes < most_bytes:
            if n < _WORTH_RELEASING:
                self._release_at = _WORTH_RELEASING
            return
        self._release_at = max(2 * n, _WORTH_RELEASING)
        gone = np.flatnonzero(self["done"])
        for row in gone.tolist():
            for values in self.lists.values():
                values[row] = None
        if self.held_bytes:
            self.held_bytes -= int(self["n_bytes"][gone].sum())
            self["n_bytes"][gone] = 0

    def widen(self, name: str, width: int) -> None:
        """Give a two-dimensional column more places a row, zero at first."""
        array = self._arrays[name]
        if array.shape[1] < width:
            wider = np.zeros((len(array), width), array.dtype)
            wider[:, : array.shape[1]] = array
            self._arrays[name] = wider
            self.clear()

    @property
    def _capacity(self) -> int:
        return len(next(iter(self._arrays.values())))

    def _make_room(self, n: int) -> None:
        live = len(self)
        capacity = self._capacity
        while capacity < 2 * (live + n):
            capacity *= 2
        for name, array in self._arrays.items():
            grown = np.zeros((capacity, *array.shape[1:]), array.dtype)
            grown[:live] = array[self._start : self._end]
            self._arrays[name] = grown
        self._start, self._end = 0, live
