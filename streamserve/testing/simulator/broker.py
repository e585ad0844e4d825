"""The simulated log: partitions, offsets, append times, compaction; who watches for new records; an unreachable broker.

As in Kafka: one append time a batch, never going back; a fetch returns any prefix of what is there; what is compacted
leaves gaps. Not here yet, since nothing writes them: transactions (their markers would be gaps that no fetch returns,
and `committed_only` readers would end at the last stable offset).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from streamserve.core.messages import Headers
from streamserve.kafka.ports import At, Chunk, RecordColumns
from streamserve.testing.simulator.world import World

Appended = Callable[[At, int, str, float], None]
"""Told of each append: partition, index of the first new record, which process's life wrote it, when it handed the last
of it to its client."""


class Partition:
    """Records of one partition, as columns."""

    __slots__ = ("appended", "headers", "keys", "next_offset", "offsets", "stamps", "values", "watchers")

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.stamps: list[int] = []
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.headers: list[Headers] = []
        self.next_offset = 0
        self.appended = 0
        self.watchers: list[Callable[[], None]] = []

    def index(self, offset: int) -> int:
        """Where the first record at or above this offset stands."""
        if self.next_offset == len(self.offsets):  # nothing was compacted
            return min(offset, len(self.offsets))
        return bisect_left(self.offsets, offset)


class SimulatedLog:
    """All topics of one broker."""

    def __init__(
        self, world: World, topics: Mapping[str, int], compacted: Collection[str] = (), prefixes: float = 0.1
    ) -> None:
        """`topics`: name -> partitions. `prefixes`: share of fetches that do not return all that is there."""
        self._prefixes = prefixes
        self.world = world
        self._partitions = {At(topic, n): Partition() for topic, count in topics.items() for n in range(count)}
        self._compacted = frozenset(compacted)
        self._last_ms = 0
        self.away_until = 0.0
        self.observers: dict[str, Appended] = {}
        """By topic."""
        self.prefix_fetches = 0
        self.compacted_records = 0

    def partition(self, at: At) -> Partition:
        return self._partitions[at]

    def partitions(self, topic: str) -> list[At]:
        return [at for at in self._partitions if at.topic == topic]

    def has(self, at: At) -> bool:
        return at in self._partitions

    def reached(self, what: Callable[[], None]) -> bool:
        """False, and `what` is done once it is back, while the broker cannot be reached."""
        if self.world.now >= self.away_until:
            return True
        self.world.at(self.away_until + self.world.delay(1, 30), what)
        return False

    def append(self, at: At, parts: Sequence[RecordColumns], writer: str = "", sent: float = 0.0) -> tuple[int, int]:
        """Append one batch; its first offset and its append time."""
        partition = self._partitions[at]
        first, index = partition.next_offset, len(partition.offsets)
        self._last_ms = stamp = max(self._last_ms, self.world.clock.broker_ms())
        for records in parts:
            partition.keys += records.keys
            partition.values += records.values
            partition.headers += [tuple((name, value) for name, value in headers) for headers in records.headers]
        n = len(partition.values) - index
        partition.offsets += range(first, first + n)
        partition.stamps += [stamp] * n
        partition.next_offset += n
        observer = self.observers.get(at.topic)
        if observer is not None:
            observer(at, index, writer, sent)
        watchers, partition.watchers = partition.watchers, []
        for wake in watchers:
            wake()
        return first, stamp

    def since(self, at: At, ms: int) -> int:
        """The first offset appended at or after this moment; the end where there is none."""
        partition = self._partitions[at]
        index = bisect_left(partition.stamps, ms)
        return partition.offsets[index] if index < len(partition.offsets) else partition.next_offset

    def chunk(self, at: At, position: int, most: int) -> Chunk | None:
        """A prefix of what stands from a position on: usually all of it."""
        partition = self._partitions[at]
        start = partition.index(position)
        n = len(partition.offsets) - start
        if n <= 0:
            return None
        rng = self.world.rng
        if n > 1 and rng.random() < self._prefixes:
            n = rng.randrange(1, n)
            self.prefix_fetches += 1
        end = start + min(n, most)
        offsets = np.array(partition.offsets[start:end], np.int64)
        next_offset = int(offsets[-1]) + 1
        return Chunk(
            at=at,
            offsets=offsets,
            append_ms=np.array(partition.stamps[start:end], np.int64),
            keys=partition.keys[start:end],
            values=partition.values[start:end],
            headers=partition.headers[start:end],
            next_offset=next_offset,
            lag=partition.next_offset - next_offset,
        )

    def forget(self) -> None:
        """Let go of all records: a run that has been judged is a web of cycles, and they are what is large in it."""
        for partition in self._partitions.values():
            for column in (partition.offsets, partition.stamps, partition.keys, partition.values, partition.headers):
                column.clear()

    def compact(self) -> None:
        """Of each key of a compacted topic only the newest record stays; tombstones go too."""
        for at, partition in self._partitions.items():
            if at.topic not in self._compacted:
                continue
            newest = {key: index for index, key in enumerate(partition.keys)}
            kept = [i for i, key in enumerate(partition.keys) if newest[key] == i and partition.values[i] is not None]
            self.compacted_records += len(partition.keys) - len(kept)
            for name in ("offsets", "stamps", "keys", "values", "headers"):
                column = getattr(partition, name)
                setattr(partition, name, [column[i] for i in kept])
