"""Which rows of which queued requests a model call gets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from streamserve.core.asked import Asked
from streamserve.core.decoding import InputRows
from streamserve.core.desk import Batch, Desk
from streamserve.core.fast import every, some
from streamserve.core.messages import I64, AnyArray
from streamserve.core.table import Table


class Composing:
    """Makes batches. Models that are called for the same requests, one after the other, share what was copied of them:
    of sixteen members, fifteen cost a comparison."""

    def __init__(self, table: Table, inputs: InputRows) -> None:
        self._table = table
        self._inputs = inputs
        self._next_batch = 0
        self._newest: Batch | None = None
        """Of usable requests of one row each."""

    def number(self) -> int:
        self._next_batch += 1
        return self._next_batch - 1

    def chosen_anew(self) -> None:
        """Requests have other choices than when they were copied."""
        self._newest = None

    def again(self, head: I64) -> Batch | None:
        """The newest batch, if it is of exactly these requests."""
        newest = self._newest
        is_same = newest is not None and len(newest) == len(head) and every(newest.handles == head)
        return newest if is_same else None

    def take_again(self, desk: Desk, newest: Batch, why: str, now_ms: int) -> Batch:
        """Take its requests out of this desk's queue too."""
        desk.take(newest.handles)
        return replace(newest, number=self.number(), started_ms=now_ms, limited=_limits(why))

    def compose(self, desk: Desk, head: I64, max_rows: int, why: str, now_ms: int) -> Batch:
        """Take those of `head` that are of the first one's group, up to `max_rows`; a larger request goes in parts."""
        table = self._table
        at = table.at(head)
        groups = table["group"][at]
        if some(groups != groups[0]):
            head, at = head[groups == groups[0]], at[groups == groups[0]]
        n_rows = table["n_rows"][at]
        first = int(head[0])
        taken = desk.rows_taken.get(first, 0)
        if taken or int(n_rows[0]) > max_rows:
            return self._part(desk, first, taken, max_rows, now_ms)
        alike = every(n_rows == 1)
        if not alike:
            k = max(1, int(np.searchsorted(np.cumsum(n_rows), max_rows, side="right")))
            head, at, n_rows = head[:k], at[:k], n_rows[:k]
        desk.take(head)
        desk.forget_parts(head)  # a large one that was begun and now fits is taken whole
        inputs = self._inputs.rows(int(groups[0]), table["first_row"][at], n_rows)
        batch = self.batch(head, n_rows, inputs, why, now_ms)
        self._newest = batch if alike else None
        return batch

    def _part(self, desk: Desk, handle: int, taken: int, max_rows: int, now_ms: int) -> Batch:
        table = self._table
        at = table.at(np.array([handle], np.int64))
        rows = min(max_rows, int(table["n_rows"][at][0]) - taken)
        inputs = self._inputs.rows(int(table["group"][at][0]), table["first_row"][at] + taken, np.array([rows]))
        desk.rows_taken[handle] = taken + rows
        batch = self.batch(np.array([handle], np.int64), np.array([rows], np.int64), inputs, "cap", now_ms)
        if taken + rows == int(table["n_rows"][at][0]):
            desk.remove_from_queue(handle)
        return replace(batch, limited=True, part_of=handle)

    def batch(self, handles: I64, n_rows: I64, inputs: AnyArray, why: str, now_ms: int) -> Batch:
        """Of these requests, whatever is to be said of them."""
        return Batch(
            number=self.number(),
            handles=handles,
            n_rows=n_rows,
            inputs=inputs,
            asked=Asked.read(self._table, self._table.at(handles)),
            started_ms=now_ms,
            limited=_limits(why),
        )


def _limits(why: str) -> bool:
    """The batcher, not the queue, set the size."""
    return why not in ("drained", "first")
