"""Which terminal record belongs to which request: by ref, whichever of acknowledgement and answer comes first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from streamserve.client.prediction import TerminalRecord

#: Refs of a partition that are remembered, so that a second record of one is dropped. A second one comes from a
#: takeover, seconds after the first.
REMEMBERED = 16_384

Owner = TypeVar("Owner")


class Matcher(Generic[Owner]):
    """Requests on their way, by partition. Plain logic: it waits for nothing and reads no clock."""

    def __init__(self) -> None:
        self._sending: dict[int, int] = {}
        self._waiting: dict[tuple[int, int], Owner] = {}
        self._given_up: dict[tuple[int, int], Owner] = {}
        self._early: dict[int, dict[int, TerminalRecord]] = {}
        self._seen: dict[int, dict[int, None]] = {}
        self._highest: dict[int, int] = {}

    def __len__(self) -> int:
        """Requests that are in the log and not answered."""
        return len(self._waiting)

    def sending(self, partition: int) -> None:
        """A batch is on its way to this partition: answers to it may come before its acknowledgement."""
        self._sending[partition] = self._sending.get(partition, 0) + 1

    def placed(self, partition: int, first_offset: int, owners: Sequence[Owner]) -> list[tuple[Owner, TerminalRecord]]:
        """The batch stands in the log from `first_offset` on. Returns those whose answer had come already."""
        early = self._early.get(partition, {})
        answered = []
        for offset, owner in enumerate(owners, first_offset):
            record = early.pop(offset, None)
            if record is None:
                self._waiting[partition, offset] = owner
            else:
                answered.append((owner, record))
        self._sent(partition)
        return answered

    def failed(self, partition: int) -> None:
        """The batch did not reach the log, as far as is known."""
        self._sent(partition)

    def _sent(self, partition: int) -> None:
        self._sending[partition] -= 1
        if not self._sending[partition]:
            self._early.pop(partition, None)

    def seen(self, record: TerminalRecord) -> tuple[bool, Owner | None]:
        """Whether the record is the first of its ref, and whose it is, if that is known by now."""
        partition, offset = record.partition, record.request_offset
        seen = self._seen.setdefault(partition, {})
        if offset in seen:
            return False, None
        seen[offset] = None
        if len(seen) > REMEMBERED:
            del seen[next(iter(seen))]
        self._highest[partition] = max(offset, self._highest.get(partition, -1))
        ref = (partition, offset)
        owner = self._waiting.pop(ref, None)
        if owner is None:
            owner = self._given_up.pop(ref, None)
        if owner is None and self._sending.get(partition):
            early = self._early.setdefault(partition, {})
            early[offset] = record
            if len(early) > REMEMBERED:  # of others' requests, mostly; should one be ours, it is not answered in time
                del early[next(iter(early))]
        return True, owner

    def give_up(self, partition: int, offset: int) -> None:
        """Nobody waits for this answer any longer; should it come, it is still known whose it is."""
        owner = self._waiting.pop((partition, offset), None)
        if owner is not None:
            self._given_up[partition, offset] = owner
            if len(self._given_up) > REMEMBERED:
                del self._given_up[next(iter(self._given_up))]

    def highest_seen(self, partition: int) -> int:
        """Highest request offset of the partition whose terminal record was seen; -1: none."""
        return self._highest.get(partition, -1)
