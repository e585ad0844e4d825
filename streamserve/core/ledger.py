"""Which offsets of a partition are still open, so that a commit never passes one of them.

Columnar: offsets come and go in fetches and batches; a request costs about 0.1 microseconds for both.
"""

from __future__ import annotations

import numpy as np

from streamserve.core.messages import I64, Flags

_FIRST_CAPACITY = 1024


class Ledger:
    """The open offsets of one partition.

    `opened` takes offsets in increasing order; offsets in the gaps between them were never records (compacted,
    transaction markers) and count as settled. `settle` takes any of them, once or again: settling twice or settling
    what was never opened changes nothing.
    """

    def __init__(self, next_offset: int) -> None:
        self._offsets: I64 = np.empty(_FIRST_CAPACITY, np.int64)
        self._open: Flags = np.zeros(_FIRST_CAPACITY, np.bool_)
        self._head = 0  # first entry that may be open
        self._tail = 0  # one past the last entry
        self._count = 0
        self._next = next_offset

    def __len__(self) -> int:
        """How many offsets are open."""
        return self._count

    @property
    def next_offset(self) -> int:
        """One past the last offset read."""
        return self._next

    def opened(self, offsets: I64, next_offset: int | None = None) -> None:
        """Take offsets that were read. `[n]`, increasing, none below `next_offset`; ValueError where one is."""
        n = len(offsets)
        if n:
            if int(offsets[0]) < self._next:
                raise ValueError(f"offset {int(offsets[0])} was already read (next is {self._next})")
            self._reserve(n)
            self._offsets[self._tail : self._tail + n] = offsets
            self._open[self._tail : self._tail + n] = True
            self._tail += n
            self._count += n
            self._next = int(offsets[-1]) + 1
        if next_offset is not None:
            self._next = max(self._next, next_offset)

    def settle(self, offsets: I64) -> None:
        """These offsets need nothing more. `[n]`, in any order."""
        if not len(offsets) or not self._count:
            return
        held = self._offsets[self._head : self._tail]
        flags = self._open[self._head : self._tail]
        if len(offsets) == 1:
            self._settle_one(held, flags, offsets)
        else:
            at = np.minimum(held.searchsorted(offsets), len(held) - 1)
            flags[at[held[at] == offsets]] = False
            self._count = int(np.count_nonzero(flags))
        self._advance()

    def _settle_one(self, held: I64, flags: Flags, offset: I64) -> None:
        """The same of one offset: most that come alone do so often."""
        at = int(held.searchsorted(offset)[0])
        if at < len(held) and held[at] == offset[0] and flags[at]:
            flags[at] = False
            self._count -= 1

    def committable(self) -> int:
        """The lowest open offset, or the next one to be read when none is open."""
        return int(self._offsets[self._head]) if self._count else self._next

    def _advance(self) -> None:
        if not self._count:
            self._head = self._tail = 0
            return
        if not self._open[self._head]:
            self._head += int(np.argmax(self._open[self._head : self._tail]))

    def _reserve(self, n: int) -> None:
        if self._tail + n <= len(self._offsets):
            return
        live = self._tail - self._head
        capacity = len(self._offsets)
        while capacity < 2 * (live + n):
            capacity *= 2
        offsets = np.empty(capacity, np.int64)
        flags = np.zeros(capacity, np.bool_)
        offsets[:live] = self._offsets[self._head : self._tail]
        flags[:live] = self._open[self._head : self._tail]
        self._offsets, self._open, self._head, self._tail = offsets, flags, 0, live
