"""Which partitions a stage owns, and since when: answers to questions about whole columns."""

from __future__ import annotations

import numpy as np

from streamserve.core.messages import I64, Flags
from streamserve.core.table import NEVER_MS as _NEVER


class Owned:
    """Ownerships by partition. What was begun under an earlier ownership of a partition is not of this one."""

    def __init__(self) -> None:
        self._since: I64 = np.full(1, _NEVER, np.int64)
        """The last one stands for every partition beyond."""

    def __contains__(self, partition: int) -> bool:
        return 0 <= partition < len(self._since) and bool(self._since[partition] != _NEVER)

    def begin(self, partition: int, first_handle: int) -> None:
        """Owned from now on: handles below `first_handle` belong to an earlier ownership."""
        if partition >= len(self._since) - 1:
            more = np.full(partition + 2 - len(self._since), _NEVER, np.int64)
            self._since = np.concatenate((self._since, more))
        self._since[partition] = first_handle

    def end(self, partition: int) -> None:
        if partition in self:
            self._since[partition] = _NEVER

    def has(self, partition: I64) -> Flags:
        """`[n]`: which are owned."""
        flags: Flags = self._since.take(partition, mode="clip") != _NEVER
        return flags

    def began(self, partition: I64, handles: I64) -> Flags:
        """`[n]`: which are owned and were begun under the present ownership."""
        flags: Flags = self._since.take(partition, mode="clip") <= handles
        return flags
