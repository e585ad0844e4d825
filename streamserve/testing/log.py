"""A log in memory that keeps the client protocols: partitions, offsets, append times, groups, commits.

What it does as Kafka does is what `tests/contracts/` checks on both. Not imitated: networks, leaders, retention.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from streamserve.core.messages import Headers
from streamserve.kafka.ports import Ack, At, Chunk, Committed, Rebalance, RecordColumns


class ManualClock:
    """Time that moves only when it is told to. Seconds, as `time.monotonic` and `time.time` give them."""

    def __init__(self, epoch_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = 0
        self._epoch_ms = epoch_ms

    def advance(self, ms: int) -> None:
        if ms < 0:
            raise ValueError("time does not go back")
        self._now_ms += ms

    def monotonic(self) -> float:
        return self._now_ms / 1000

    def epoch(self) -> float:
        return (self._epoch_ms + self._now_ms) / 1000


class Stored(NamedTuple):
    offset: int
    append_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


@dataclass
class _Partition:
    records: list[Stored] = field(default_factory=list)
    start: int = 0
    end: int = 0


class _Member(NamedTuple):
    assigned: Rebalance
    revoked: Rebalance


@dataclass
class _Group:
    topic: str
    members: dict[MemoryGroupReader, _Member] = field(default_factory=dict)
    commits: dict[At, Committed] = field(default_factory=dict)
    owners: dict[At, MemoryGroupReader] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class MemoryLog:
    """Topics of one broker. `fail_next` makes the next sends to a topic fail, as a broker that refuses would."""

    def __init__(self, topics: Mapping[str, int], *, epoch: Callable[[], float] = time.time) -> None:
        """`topics`: name -> partitions. `epoch`: the broker's clock, in seconds."""
        self._epoch = epoch
        self._partitions = {At(topic, n): _Partition() for topic, count in topics.items() for n in range(count)}
        self._groups: dict[str, _Group] = {}
        self._changed = asyncio.Event()
        self.fail_next: dict[str, int] = {}

    def append(self, at: At, records: RecordColumns) -> Ack:
        """Append a batch: one append time for all of it."""
        partition = self._partitions.get(at)
        if partition is None:
            return Ack(error=f"unknown topic or partition {at}")
        if self.fail_next.get(at.topic, 0) > 0:
            self.fail_next[at.topic] -= 1
            return Ack(error="refused")
        first, append_ms = partition.end, int(self._epoch() * 1000)
        for key, value, headers in zip(records.keys, records.values, records.headers, strict=True):
            stored = Stored(partition.end, append_ms, key, value, tuple((name, text) for name, text in headers))
            partition.records.append(stored)
            partition.end += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        return Ack(offset=first, append_ms=append_ms)

    def records(self, topic: str) -> dict[int, list[Stored]]:
        """All that a topic holds, by partition."""
        return {at.partition: list(p.records) for at, p in self._partitions.items() if at.topic == topic}

    def delete_before(self, at: At, offset: int) -> None:
        """Move a partition's start, as retention does."""
        partition = self._partitions[at]
        partition.start = offset
        partition.records = [record for record in partition.records if record.offset >= offset]

    def punch(self, at: At, offsets: Collection[int]) -> None:
        """Remove records and leave gaps, as compaction does."""
        partition = self._partitions[at]
        partition.records = [record for record in partition.records if record.offset not in offsets]

    def bounds(self, at: At) -> tuple[int, int]:
        partition = self._partitions[at]
        return partition.start, partition.end

    def since(self, at: At, ms: int) -> int:
        """The first offset appended at or after this moment; the end where there is none."""
        partition = self._partitions[at]
        return next((record.offset for record in partition.records if record.append_ms >= ms), partition.end)

    def partitions(self, topic: str) -> list[At]:
        return [at for at in self._partitions if at.topic == topic]

    def group(self, name: str, topic: str) -> _Group:
        return self._groups.setdefault(name, _Group(topic=topic))

    def commits(self, group: str) -> dict[At, Committed]:
        return dict(self._groups[group].commits) if group in self._groups else {}

    def take(self, at: At, position: int, most: int) -> tuple[list[Stored], int]:
        """Records from a position, and the next position; below the start it begins at the start."""
        partition = self._partitions[at]
        position = max(position, partition.start)
        found = [record for record in partition.records if record.offset >= position][:most]
        return found, (found[-1].offset + 1 if found else position)

    async def wait(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), timeout_s)


class _Reading:
    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self._positions: dict[At, int] = {}
        self._paused: set[At] = set()

    async def fetch(self, *, max_records: int, timeout_ms: int) -> list[Chunk]:
        chunks = self._ready(max_records)
        if not chunks:
            await self._log.wait(timeout_ms / 1000)
            chunks = self._ready(max_records)
        return chunks

    def _ready(self, max_records: int) -> list[Chunk]:
        chunks = []
        for at in sorted(self._positions):
            if at in self._paused or max_records <= 0:
                continue
            records, position = self._log.take(at, self._positions[at], max_records)
            self._positions[at] = position
            if records:
                max_records -= len(records)
                chunks.append(_chunk(at, records, position, self._log.bounds(at)[1]))
        return chunks

    def pause(self, partitions: Collection[At]) -> None:
        self._paused |= self._positions.keys() & set(partitions)

    def resume(self, partitions: Collection[At]) -> None:
        self._paused -= set(partitions)

    def lag(self, at: At) -> int | None:
        if at not in self._positions:
            return None
        return max(0, self._log.bounds(at)[1] - self._positions[at])


def _chunk(at: At, records: list[Stored], next_offset: int, end: int) -> Chunk:
    return Chunk(
        at=at,
        offsets=np.array([r.offset for r in records], np.int64),
        append_ms=np.array([r.append_ms for r in records], np.int64),
        keys=[r.key for r in records],
        values=[r.value for r in records],
        headers=[r.headers for r in records],
        next_offset=next_offset,
        lag=end - next_offset,
    )


class MemoryReader(_Reading):
    """`LogReader`."""

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        self._positions.clear()

    def read(self, positions: Mapping[At, int]) -> None:
        self._positions = {at: self._positions.get(at, offset) for at, offset in positions.items()}
        self._paused &= self._positions.keys()


class MemoryGroupReader(_Reading):
    """`GroupReader`: eager rebalances, as aiokafka's assignors have them."""

    def __init__(self, log: MemoryLog, *, topic: str, group: str) -> None:
        super().__init__(log)
        self._group = log.group(group, topic)
        self._topic = topic

    async def start(self, *, assigned: Rebalance, revoked: Rebalance) -> None:
        self._group.members[self] = _Member(assigned, revoked)
        await self._rebalance()

    async def stop(self) -> None:
        """Leave; like a member that stops, without being told of a revocation."""
        if self._group.members.pop(self, None) is not None:
            self._positions.clear()
            self._group.owners = {at: o for at, o in self._group.owners.items() if o is not self}
            await self._rebalance()

    def vanish(self) -> None:
        """Be thrown out, as a member whose session timed out: it is told nothing, its commits are refused."""
        self._group.members.pop(self, None)
        self._group.owners = {at: o for at, o in self._group.owners.items() if o is not self}

    async def rebalance(self) -> None:
        """Give the group's partitions out anew."""
        await self._rebalance()

    async def _rebalance(self) -> None:
        group = self._group
        async with group.lock:
            for member, told in list(group.members.items()):
                mine = frozenset(at for at, owner in group.owners.items() if owner is member)
                if mine:
                    await told.revoked(mine)
                member._positions.clear()
                member._paused.clear()
            group.owners = {}
            members = list(group.members)
            for index, at in enumerate(self._log.partitions(self._topic) if members else ()):
                group.owners[at] = members[index % len(members)]
            for member, told in list(group.members.items()):
                mine = frozenset(at for at, owner in group.owners.items() if owner is member)
                await told.assigned(mine)

    def begin(self, positions: Mapping[At, int]) -> None:
        for at, offset in positions.items():
            if self._group.owners.get(at) is self:
                self._positions[at] = offset
                self._paused.discard(at)

    async def commit(self, offsets: Mapping[At, Committed]) -> bool:
        if any(self._group.owners.get(at) is not self for at in offsets):
            return False
        self._group.commits.update(offsets)
        return True


class MemoryLookups:
    """`LogLookups`."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def starts(self, partitions: Collection[At]) -> dict[At, int]:
        return {at: self._log.bounds(at)[0] for at in partitions}

    async def ends(self, partitions: Collection[At]) -> dict[At, int]:
        return {at: self._log.bounds(at)[1] for at in partitions}

    async def since(self, times: Mapping[At, int]) -> dict[At, int]:
        return {at: self._log.since(at, ms) for at, ms in times.items()}

    async def committed(self, group: str, partitions: Collection[At]) -> dict[At, Committed]:
        commits = self._log.commits(group)
        return {at: commits.get(at, Committed(offset=-1, metadata="")) for at in partitions}


class MemoryWriter:
    """`LogWriter`. `hold` keeps acknowledgements back until `release`."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self.may_send: Callable[[], bool] = lambda: True
        self._stopped = False
        self._held: list[tuple[At, asyncio.Future[Ack], Ack]] | None = None

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        self._stopped = True
        self.release()

    def send(self, at: At, records: RecordColumns) -> asyncio.Future[Ack]:
        future: asyncio.Future[Ack] = asyncio.get_running_loop().create_future()
        if self._stopped or not len(records.values):
            future.set_result(Ack(error="the writer was stopped" if self._stopped else ""))
            return future
        if not self.may_send():
            future.set_result(Ack(error="this process has not heard from its group for too long"))
            return future
        ack = self._log.append(at, records)
        if self._held is None:
            future.set_result(ack)
        else:
            self._held.append((at, future, ack))
        return future

    def drop(self, at: At) -> None:
        """Everything is on its way at once."""

    async def over(self, at: At) -> None:
        waiting = [future for to, future, _ in self._held or () if to == at and not future.done()]
        if waiting:
            await asyncio.wait(waiting)

    def hold(self) -> None:
        self._held = self._held or []

    def release(self) -> None:
        held, self._held = self._held or [], None
        for _, future, ack in held:
            if not future.done():
                future.set_result(ack)
