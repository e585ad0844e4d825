"""Records that were skipped on their way: noticed by their offsets, and read again.

Offsets of a partition leave some out where a transaction has its markers and where the log begins; both look like
records that got lost between the client and here. So the first record behind any gap is put back once, and reading
begins anew at the gap; what comes then is what there is.
"""

from __future__ import annotations

from enum import Enum, auto


class Verdict(Enum):
    """What is to be done with a record."""

    TAKE = auto()
    DROP = auto()
    """It was on its way when the reading went back, and will come again."""
    GO_BACK = auto()
    """The same, and the reading is to go back now."""


class Gaps:
    """Of one process; a partition is named by whatever its records are counted by."""

    def __init__(self) -> None:
        self._behind: dict[object, int] = {}
        """Partition -> offset of the first record behind the gap that is looked at again."""

    def verdict(self, partition: object, offset: int, expected: int) -> Verdict:
        """Of the record at this offset, where `expected` is the next one that was not taken."""
        behind = self._behind.get(partition)
        if behind is not None:
            if offset > behind:
                return Verdict.DROP
            if offset >= expected:
                del self._behind[partition]
            return Verdict.TAKE
        if offset <= expected:
            return Verdict.TAKE
        self._behind[partition] = offset
        return Verdict.GO_BACK

    def clear(self) -> None:
        """The partitions are another's."""
        self._behind.clear()
