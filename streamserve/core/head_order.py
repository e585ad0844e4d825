"""In which order labelled rows teach a head: one order of the log, whoever reads it, in whatever pieces.

Outcomes stand in several partitions. Their order is that of (append time, partition, offset), times of a partition made
never to fall. One is let out when nothing can come any more that stands before it: once every partition has been read
to an end asked for `skew_ms` after it was read, or to a later time. So what is let out is a function of the log, and
what was let out is told by one place of each partition.

A feedback may have several outcomes in the log (the join writes again what it has not committed). The first within
`remembered` outcomes of its partition counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush

from streamserve.core.records import OutcomeRecord
from streamserve.core.values import unchanging

#: Brokers' clocks agree within so many milliseconds.
SKEW_MS = 50
REMEMBERED = 2_000


@unchanging()
class ReadTo:
    """How far a partition has been learnt from."""

    offset: int = 0
    """Below it."""
    ms: int = 0
    """The newest time among what lies below."""


@unchanging()
class Publication:
    """The head of a model after some rows, as a record of the log."""

    model: str
    base: str
    """Content hash of the plan that it was first learnt from."""
    rate: float
    rows: int
    """That it has learnt from."""
    read: Mapping[int, ReadTo]
    """By outcomes partition; a head of no rows has read nothing."""
    plan: str
    """Hash of the plan with this head, in a store."""
    store: str
    """Where that store is, in words."""

    @property
    def reach(self) -> int:
        """How far it is: of two publications of a model the one that reaches further is the newer."""
        return sum(place.offset for place in self.read.values())


class HeadOrder:
    """Outcomes of all partitions, let out in their order."""

    def __init__(
        self,
        partitions: int,
        read: Mapping[int, ReadTo] = {},
        *,
        skew_ms: int = SKEW_MS,
        remembered: int = REMEMBERED,
    ) -> None:
        """`read`: how far it was before; what lies below is only remembered."""
        self.read = {number: read.get(number, ReadTo()) for number in range(partitions)}
        """How far everything has been let out."""
        self._skew_ms, self._remembered = skew_ms, remembered
        self._newest_ms = {number: place.ms for number, place in self.read.items()}
        self._feedback: dict[int, dict[tuple[int, int], int]] = {number: {} for number in range(partitions)}
        """By partition, the newest offset of each feedback's outcomes."""
        self._waiting: list[tuple[int, int, int, int, OutcomeRecord | None]] = []
        """(time, partition, offset, when it was read, itself unless it is a repetition)"""
        self.next_offset = {number: max(0, place.offset - remembered) for number, place in self.read.items()}
        """From where each partition is to be read."""

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, partition: int, records: Sequence[OutcomeRecord], next_offset: int, read_at_ms: int) -> None:
        """Records of one partition in their order, up to `next_offset`. `read_at_ms`: of a clock that never falls."""
        for record in records:
            is_new = self._is_first(partition, record)
            if record.offset < self.read[partition].offset:
                continue
            self._newest_ms[partition] = ms = max(self._newest_ms[partition], record.append_ms)
            heappush(self._waiting, (ms, partition, record.offset, read_at_ms, record if is_new else None))
        self.next_offset[partition] = max(self.next_offset[partition], next_offset)

    def _is_first(self, partition: int, record: OutcomeRecord) -> bool:
        known = self._feedback[partition]
        before = known.pop(record.feedback, None)
        known[record.feedback] = record.offset  # popped first: the dictionary is in the order of offsets
        while known and next(iter(known.values())) <= record.offset - self._remembered:
            del known[next(iter(known))]
        return before is None or before <= record.offset - self._remembered

    def to_read(self, ends: Mapping[int, int], most_waiting: int) -> list[int]:
        """Partitions to be read on: all that are behind these ends; where much waits, the one that it waits for."""
        behind = self._behind(ends)
        if len(self._waiting) < most_waiting:
            return behind
        return sorted(behind, key=lambda number: self._newest_ms[number])[:1]

    def _behind(self, ends: Mapping[int, int]) -> list[int]:
        return [number for number, end in ends.items() if self.next_offset[number] < end]

    def ripe(self, asked_ms: int, ends: Mapping[int, int], most: int) -> list[OutcomeRecord]:
        """Up to `most` that come next. `ends`: of all partitions, asked for at `asked_ms`."""
        found: list[OutcomeRecord] = []
        until_ms = min((self._newest_ms[number] for number in self._behind(ends)), default=None)
        while self._waiting and len(found) < most:
            ms, partition, offset, read_at_ms, record = self._waiting[0]
            if read_at_ms + self._skew_ms >= asked_ms or (until_ms is not None and ms >= until_ms):
                break
            heappop(self._waiting)
            self.read[partition] = ReadTo(offset=offset + 1, ms=ms)
            if record is not None:
                found.append(record)
        return found


def newest(publications: Iterable[Publication]) -> dict[str, Publication]:
    """Of each model the one that reaches furthest; of equals the first."""
    found: dict[str, Publication] = {}
    for one in publications:
        if one.model not in found or one.reach > found[one.model].reach:
            found[one.model] = one
    return found


def label_of_row(outcome: OutcomeRecord, row: int, rows: int) -> object:
    """The label of one of a request's rows; None: it has none. One label may be said for a request of one row."""
    if not outcome.has_label:
        return None
    label = outcome.label
    if isinstance(label, list):
        return label[row] if len(label) == rows else None
    return label if rows == 1 else None
