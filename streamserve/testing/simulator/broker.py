"""The simulated log: partitions, offsets, append times, compaction, deletion, transactions; who watches for new
records; an unreachable broker.

As in Kafka: one append time a batch, never going back; a fetch returns any prefix of what is there; what is compacted
or aborted, and each marker of a transaction's end, leaves a gap; readers of what is committed end at the last stable
offset; a producer's older epoch is refused where a newer one has written, be it a marker.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from streamserve.core.messages import Headers
from streamserve.kafka.ports import At, Chunk, RecordColumns
from streamserve.testing.simulator.leaders import REFRESH_MS, Leaders, Led
from streamserve.testing.simulator.world import World

Appended = Callable[[At, int, str, float], None]
"""Told of each append: partition, index of the first new record, which process's life wrote it, when it handed the last
of it to its client."""


class Producer(NamedTuple):
    """Who writes a batch behind a fence, and the number of its first record: each comes once, in order."""

    number: int
    epoch: int
    sequence: int


class Partition:
    """Records of one partition, as columns."""

    __slots__ = (
        "begun",
        "epochs",
        "headers",
        "keys",
        "next_offset",
        "offsets",
        "sequences",
        "stamps",
        "start",
        "undecided",
        "values",
        "watchers",
    )

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.stamps: list[int] = []
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.headers: list[Headers] = []
        self.start = 0
        """What stands below is deleted: nobody can read it. It is kept here, for those who judge."""
        self.next_offset = 0
        self.epochs: dict[int, int] = {}
        """Producer -> its newest epoch, as a batch or a marker told: older ones are refused."""
        self.sequences: dict[tuple[int, int], int] = {}
        """(producer, epoch) -> number of the record that must come next."""
        self.undecided: dict[int, list[int]] = {}
        """Transaction -> its records, neither committed nor aborted yet."""
        self.watchers: list[Callable[[], None]] = []

    @property
    def columns(self) -> tuple[list[Any], ...]:
        return self.offsets, self.stamps, self.keys, self.values, self.headers

    @property
    def stable(self) -> int:
        """The last stable offset: readers of what is committed end here."""
        return min((offsets[0] for offsets in self.undecided.values()), default=self.next_offset)

    @property
    def end_of_records(self) -> int:
        """Behind the last record; behind that only markers and what was aborted may stand."""
        return self.offsets[-1] + 1 if self.offsets else 0

    def index(self, offset: int) -> int:
        """Where the first record at or above this offset stands."""
        if self.next_offset == len(self.offsets):  # no gaps
            return min(offset, len(self.offsets))
        return bisect_left(self.offsets, offset)

    def told(self) -> None:
        """Something new stands in it."""
        watchers, self.watchers = self.watchers, []
        for wake in watchers:
            wake()


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
        self.leaders = Leaders()
        self.dies_with_an_append: Callable[[int], None] | None = None
        """Told once which broker leads the partition that is written to next: it dies before it acknowledges that."""
        self.counts: dict[str, int] = {}
        """What was met because a leader was lost."""
        self.observers: dict[str, Appended] = {}
        """By topic."""
        self.prefix_fetches = 0
        self.markers = 0
        self.compacted_records = 0

    def partition(self, at: At) -> Partition:
        return self._partitions[at]

    def partitions(self, topic: str) -> list[At]:
        return [at for at in self._partitions if at.topic == topic]

    def has(self, at: At) -> bool:
        return at in self._partitions

    def reached(self, what: Callable[[], None], led: Iterable[Led] = (), words: str = "") -> bool:
        """False, and `what` is done later, while no broker can be reached, or who leads one of these.

        `words`: what waits for a leader, to be counted.
        """
        now = self.world.now
        if now < self.away_until:
            self.world.at(self.away_until + self.world.delay(1, 30), what)
            return False
        if now >= self.leaders.fenced_at:
            return True
        until = max((self.leaders.none_until(one) for one in led), default=0.0)
        if now >= until:
            return True
        self.counted_wait(words)
        self.world.at(until + self.world.delay(*REFRESH_MS), what)
        return False

    def counted_wait(self, words: str) -> None:
        self.counts[words] = self.counts.get(words, 0) + 1

    def replicated(self, what: Callable[[int], None]) -> bool:
        """False while a dead broker counts as in sync: what was appended now, with this stamp, is seen once it is
        fenced; `what` is told the stamp then."""
        fenced_at = self.leaders.fenced_at
        if self.world.now >= fenced_at:
            return True
        self.counted_wait("seen after its append")
        self.world.at(fenced_at, what, self.world.clock.broker_ms())
        return False

    def lose_leader(self, broker: int, for_ms: float) -> bool:
        """A broker dies, and is fenced so long afterwards; False where another is dead already."""
        fenced_at = self.world.now + for_ms
        if not self.leaders.die(broker, self.world.now, fenced_at):
            return False
        self.world.at(fenced_at, self._elected)
        return True

    def _elected(self) -> None:
        for partition in self._partitions.values():
            partition.told()

    def append(
        self, at: At, parts: Sequence[RecordColumns], writer: str = "", sent: float = 0.0, stamp: int | None = None
    ) -> tuple[int, int]:
        """Append one batch; its first offset and its append time. `stamp`: of one that was appended before it was
        replicated."""
        partition = self._partitions[at]
        first, index = partition.next_offset, len(partition.offsets)
        if stamp is None:
            self._last_ms = stamp = max(self._last_ms, self.world.clock.broker_ms())
        elif partition.stamps:
            stamp = max(stamp, partition.stamps[-1])
        for records in parts:
            partition.keys += records.keys
            partition.values += records.values
            partition.headers += map(tuple, records.headers)
        n = len(partition.values) - index
        partition.offsets += range(first, first + n)
        partition.stamps += [stamp] * n
        partition.next_offset += n
        if writer and self.dies_with_an_append is not None:
            die, self.dies_with_an_append = self.dies_with_an_append, None
            die(self.leaders.of(at))
        observer = self.observers.get(at.topic)
        if observer is not None:
            observer(at, index, writer, sent)
        partition.told()
        return first, stamp

    def refuses(self, at: At, producer: Producer) -> str:
        """`fenced` for a batch of an older epoch, `out of order` for one that is not the next; else it is noted."""
        partition, (number, epoch, sequence) = self._partitions[at], producer
        if epoch < partition.epochs.get(number, epoch):
            return "fenced"
        if sequence != partition.sequences.get((number, epoch), 0):
            return "out of order"
        partition.epochs[number] = epoch
        return ""

    def counted(self, at: At, producer: Producer, n: int) -> None:
        """So many records of it were appended."""
        self._partitions[at].sequences[producer.number, producer.epoch] = producer.sequence + n

    def mark(self, at: At, number: int, epoch: int) -> None:
        """The marker of a transaction's end: an offset that no reader sees, and the end of older epochs."""
        partition = self._partitions[at]
        partition.epochs[number] = max(epoch, partition.epochs.get(number, epoch))
        partition.next_offset += 1
        self.markers += 1
        partition.told()

    def begin(
        self, at: At, transaction: int, parts: Sequence[RecordColumns], stamp: int | None = None
    ) -> tuple[int, int]:
        """Append a batch of a transaction: nobody who reads what is committed sees it, or what is behind it, until
        `end`."""
        n = sum(len(records.values) for records in parts)
        partition = self._partitions[at]
        partition.undecided[transaction] = list(range(partition.next_offset, partition.next_offset + n))
        return self.append(at, parts, stamp=stamp)

    def end(self, at: At, transaction: int, *, commit: bool) -> None:
        """What was aborted leaves a gap, as it is for readers of what is committed."""
        partition = self._partitions[at]
        offsets = partition.undecided.pop(transaction)
        if not commit:
            first, n = partition.index(offsets[0]), len(offsets)
            for column in partition.columns:
                del column[first : first + n]
        self.mark(at, -1 - transaction, 0)

    def delete_before(self, at: At, offset: int) -> None:
        """As DeleteRecords, or retention: what stands below can be read no more."""
        partition = self._partitions[at]
        partition.start = max(partition.start, min(offset, partition.next_offset))

    def since(self, at: At, ms: int) -> int:
        """The first offset appended at or after this moment; the end where there is none."""
        partition = self._partitions[at]
        index = max(bisect_left(partition.stamps, ms), partition.index(partition.start))
        return partition.offsets[index] if index < len(partition.offsets) else partition.next_offset

    def readable(self, at: At, position: int, committed_only: bool) -> bool:
        """Whether a fetch from this position would bring something, be it a marker."""
        if self.leaders.lacks(at, self.world.clock.now):
            return False
        partition = self._partitions[at]
        return position < (partition.stable if committed_only else partition.next_offset)

    def chunk(self, at: At, position: int, most: int, committed_only: bool = False) -> Chunk | None:
        """A prefix of what stands from a position on: usually all of it. From a deleted one: from the start on."""
        if self.leaders.lacks(at, self.world.clock.now):
            self.counted_wait("fetch without a leader")
            return None
        partition = self._partitions[at]
        is_whole = partition.next_offset == len(partition.offsets)
        start = partition.index(max(position, partition.start))
        end = partition.index(partition.stable) if committed_only and partition.undecided else len(partition.offsets)
        n = end - start
        if n <= 0:
            return None
        rng = self.world.rng
        if n > 1 and rng.random() < self._prefixes:
            n = rng.randrange(1, n)
            self.prefix_fetches += 1
        end = start + min(n, most)
        offsets = np.arange(start, end) if is_whole else np.array(partition.offsets[start:end], np.int64)
        next_offset = partition.offsets[end - 1] + 1
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
            for column in partition.columns:
                column.clear()

    def compact(self) -> None:
        """Of each key of a compacted topic only the newest record stays; tombstones go too.

        The last record stays whatever it is: a broker leaves the segment that it is writing to alone.
        """
        for at, partition in self._partitions.items():
            if at.topic not in self._compacted:
                continue
            newest, last = {key: index for index, key in enumerate(partition.keys)}, len(partition.keys) - 1
            kept = [
                i
                for i, key in enumerate(partition.keys)
                if (newest[key] == i and partition.values[i] is not None) or i == last
            ]
            self.compacted_records += len(partition.keys) - len(kept)
            for column in partition.columns:
                column[:] = [column[i] for i in kept]
