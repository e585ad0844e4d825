"""The clients of one simulated process: the ports of the shell, on the simulated log.

Everything goes over a network of a few milliseconds. What a dead process still does reaches nobody; what is sent to a
stopped one waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import TypeVar

import numpy as np

from streamserve.kafka.fencing import Fences
from streamserve.kafka.once import ExactlyOnce, Outputs
from streamserve.kafka.perform import Topics
from streamserve.kafka.ports import At, Chunk, Committed, GroupReader, LogLookups, LogReader, LogWriter, Rebalance
from streamserve.testing.simulator.groups import Membership
from streamserve.testing.simulator.leaders import Led
from streamserve.testing.simulator.node import Node
from streamserve.testing.simulator.transactions import SimulatedTransactions
from streamserve.testing.simulator.writer import SimulatedWriter

_Found = TypeVar("_Found")

#: One way, and there and back.
NETWORK_MS = (0.2, 2.0)
FETCH_MS = (0.8, 5.0)
_SLOW_FETCHES, _SLOW_LOOK_UPS = 0.0005, 0.01


class _Reading:
    """Fetching, shared by both kinds of reader: one fetch is parked at the broker until there is something."""

    def __init__(self, node: Node, *, committed_only: bool = False, sees_markers: bool = False) -> None:
        """`sees_markers`: a fetch from where only markers stand brings a chunk without records."""
        self._node = node
        self._committed_only = committed_only
        self._sees_markers = sees_markers
        self._positions: dict[At, int] = {}
        self._paused: set[At] = set()
        self._parked: tuple[asyncio.Future[list[Chunk]], int] | None = None
        self._coming = False
        """An answer to the parked fetch is on its way."""
        self._looks_at = 0.0
        """When what is read late is looked at again."""

    async def fetch(self, *, max_records: int, timeout_ms: int) -> list[Chunk]:
        loop = self._node.machine.loop
        future: asyncio.Future[list[Chunk]] = loop.create_future()
        self._parked = (future, max_records)
        self._look()
        timer = loop.call_later(timeout_ms / 1000, _end_empty, future)
        try:
            return await future
        finally:
            timer.cancel()
            if self._parked is not None and self._parked[0] is future:
                self._parked = None

    def _look(self) -> None:
        """Let the broker answer the parked fetch, now or when something is appended."""
        if self._parked is None or self._coming or self._node.machine.dead:
            return
        log = self._node.log
        reading = [at for at in self._positions if at not in self._paused]
        if self._node.follows_late:
            reading = self._not_late(reading)
        positions, committed_only = self._positions, self._committed_only
        for at in reading:
            if log.readable(at, positions[at], committed_only):
                self._coming = True
                log.world.after(self._node.delay(FETCH_MS, _SLOW_FETCHES), self._deliver)
                return
        for at in reading:
            watchers = log.partition(at).watchers
            if self._look not in watchers:
                watchers.append(self._look)

    def _not_late(self, reading: list[At]) -> list[At]:
        """Those that are not read late now; the others are looked at when that is over."""
        late, world = self._node.follows_late, self._node.log.world
        until = max((late.get(at.topic, 0.0) for at in reading), default=0.0)
        if until <= world.now:
            return reading
        if self._looks_at < until:
            self._looks_at = until
            world.at(until, self._look)
        return [at for at in reading if late.get(at.topic, 0.0) <= world.now]

    def _deliver(self) -> None:
        log = self._node.log
        if self._node.machine.dead or not log.reached(self._deliver):
            return
        self._coming = False
        if self._parked is None or self._parked[0].done():
            return
        future, most = self._parked
        chunks = self._take(most)
        if not chunks:
            self._look()
            return
        self._parked = None
        future.set_result(chunks)

    def _take(self, most: int) -> list[Chunk]:
        chunks: list[Chunk] = []
        log = self._node.log
        for at in sorted(self._positions):
            if at in self._paused or most <= 0 or self._node.follows_late.get(at.topic, 0.0) > log.world.now:
                continue
            position = self._positions[at]
            chunk = log.chunk(at, position, most, self._committed_only)
            if chunk is None and log.readable(at, position, self._committed_only):
                part = log.partition(at)  # all that stands there was compacted or aborted, or is a marker
                self._positions[at] = part.stable if self._committed_only else part.next_offset
                if self._sees_markers:
                    chunks.append(_empty(at, self._positions[at]))
            elif chunk is not None:
                self._positions[at] = chunk.next_offset
                most -= len(chunk)
                chunks.append(chunk)
        return chunks

    def pause(self, partitions: Collection[At]) -> None:
        self._paused |= self._positions.keys() & set(partitions)

    def resume(self, partitions: Collection[At]) -> None:
        self._paused -= set(partitions)
        self._look()

    def lag(self, at: At) -> int | None:
        if at not in self._positions:
            return None
        return max(0, self._node.log.partition(at).next_offset - self._positions[at])


def _empty(at: At, next_offset: int) -> Chunk:
    nothing = np.zeros(0, np.int64)
    return Chunk(at=at, offsets=nothing, append_ms=nothing, keys=[], values=[], headers=[], next_offset=next_offset)


def _end_empty(future: asyncio.Future[list[Chunk]]) -> None:
    if not future.done():
        future.set_result([])


class SimulatedReader(_Reading):
    """`LogReader`."""

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        self._positions.clear()

    def read(self, positions: Mapping[At, int]) -> None:
        self._positions = {at: self._positions.get(at, offset) for at, offset in sorted(positions.items())}
        self._paused &= self._positions.keys()
        self._look()


class SimulatedGroupReader(_Reading):
    """`GroupReader`, with the life of aiokafka's member: heartbeats, eager rebalances, a listener that is awaited."""

    def __init__(self, node: Node, *, topic: str, group: str, instance: str | None, committed_only: bool) -> None:
        super().__init__(node, committed_only=committed_only)
        self._instance = instance
        self._group = node.coordinator.group(group, topic)
        self._member: Membership | None = None
        self._generation = -1
        self._mine: frozenset[At] = frozenset()
        self._assigned: Rebalance | None = None
        self._revoked: Rebalance | None = None
        self._life: asyncio.Task[None] | None = None
        self._lost = asyncio.Event()
        """The group wants this member to join again."""

    @property
    def group_name(self) -> str:
        return self._group.name

    @property
    def owned(self) -> Mapping[At, int]:
        """What this member believes to own and has begun to read: partitions, and where it is."""
        return self._positions

    async def start(self, *, assigned: Rebalance, revoked: Rebalance) -> None:
        self._assigned, self._revoked = assigned, revoked
        self._life = self._node.machine.loop.create_task(self._live())

    async def stop(self) -> None:
        if self._life is not None:
            self._life.cancel()
        self._positions.clear()
        if self._member is not None:
            if not self._node.hands_over():
                self._send(self._group.leave, self._member)
            self._member = None

    async def _live(self) -> None:
        if self._assigned is None or self._revoked is None:
            return
        while True:
            self._lost.clear()
            self._generation, self._mine = await self._join()
            self._positions.clear()
            self._paused.clear()
            if self._generation == self._group.generation:  # else it lay in a socket while the process was stopped
                self._node.effects.assigned(self._group.name, self._mine)
            await self._assigned(self._mine)
            self._beat(self._generation)
            await self._lost.wait()
            self._positions.clear()  # nothing is ours until it is begun again
            if self._mine:
                await self._revoked(self._mine)

    async def _join(self) -> tuple[int, frozenset[At]]:
        node = self._node
        future: asyncio.Future[tuple[int, frozenset[At]]] = node.machine.loop.create_future()
        if self._member is None:
            self._member = Membership(node.name, node.session_ms, self._instance)
        member = self._member

        def joined(generation: int, mine: frozenset[At]) -> None:
            world = node.log.world
            world.after(world.delay(*NETWORK_MS), node.answer, future, (generation, mine))

        self._send(self._group.join, member, joined)
        return await future

    def _beat(self, generation: int) -> None:
        """Now and again, until the group wants something else."""
        if generation == self._generation and not self._lost.is_set() and self._member is not None:
            self._send(self._heartbeat, self._member, generation)
            self._node.machine.loop.call_later(self._node.heartbeat_ms / 1000, self._beat, generation)

    def _heartbeat(self, member: Membership, generation: int) -> None:
        said = self._group.heartbeat(member, generation)
        if said != "ok" and not self._node.machine.dead:
            world = self._node.log.world
            world.after(world.delay(*NETWORK_MS), self._told, member, generation, said)

    def _told(self, member: Membership, generation: int, said: str) -> None:
        if self._node.machine.dead or member is not self._member or generation != self._generation:
            return
        if said == "unknown":
            self._member = None
        self._lost.set()

    def _send(self, what: Callable[..., object], *args: object) -> None:
        """To the coordinator, when it can be reached; nothing leaves a dead process."""
        if not self._node.machine.dead:
            world = self._node.log.world
            world.after(world.delay(*NETWORK_MS), self._arrive, what, args)

    def _arrive(self, what: Callable[..., object], args: tuple[object, ...]) -> None:
        again = partial(self._arrive, what, args)
        if self._node.log.reached(again, (self._group.name,), "coordinator moved"):
            what(*args)

    def begin(self, positions: Mapping[At, int]) -> None:
        for at, offset in sorted(positions.items()):
            if at in self._mine:
                self._positions[at] = offset
                self._paused.discard(at)
        self._node.effects.begun(self._group.name, self._positions)
        self._look()

    async def commit(self, offsets: Mapping[At, Committed]) -> bool:
        node = self._node
        future: asyncio.Future[bool] = node.machine.loop.create_future()
        node.effects.before_commit()
        fate = node.effects.fate_of_commit()
        if self._member is None or not offsets.keys() <= self._mine:
            return False

        def arrived() -> None:
            member = self._member if self._member is not None else Membership(node.name, 0)
            taken = fate != "lost" and self._group.commit(member, generation, dict(offsets))
            world, delay = node.log.world, node.log.world.delay(*NETWORK_MS)
            if fate:
                world.after(delay + 30, node.fail, future, "the commit timed out")
                return
            world.after(delay, node.answer, future, taken)
            if not taken:
                world.after(delay, self._told, member, generation, "unknown")

        generation = self._generation
        self._send(arrived)
        node.effects.after_commit()
        return await future


class SimulatedLookups:
    """`LogLookups`."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def starts(self, partitions: Collection[At]) -> dict[At, int]:
        log = self._node.log
        return await self._ask(partitions, lambda: {at: log.partition(at).start for at in sorted(partitions)})

    async def ends(self, partitions: Collection[At]) -> dict[At, int]:
        log = self._node.log
        return await self._ask(partitions, lambda: {at: log.partition(at).next_offset for at in sorted(partitions)})

    async def since(self, times: Mapping[At, int]) -> dict[At, int]:
        log = self._node.log
        return await self._ask(times, lambda: {at: log.since(at, times[at]) for at in sorted(times)})

    async def committed(self, group: str, partitions: Collection[At]) -> dict[At, Committed]:
        groups = self._node.coordinator.groups
        nothing = Committed(offset=-1, metadata="")
        return await self._ask(
            (group,), lambda: {at: groups[group].commits.get(at, nothing) for at in sorted(partitions)}
        )

    async def _ask(self, led: Iterable[Led], question: Callable[[], _Found]) -> _Found:
        node, world = self._node, self._node.log.world
        future: asyncio.Future[_Found] = node.machine.loop.create_future()
        if not node.machine.dead:
            world.after(world.delay(*NETWORK_MS), self._arrive, led, question, future)
        return await future

    def _arrive(self, led: Iterable[Led], question: Callable[[], _Found], future: asyncio.Future[_Found]) -> None:
        node = self._node
        if node.log.reached(partial(self._arrive, led, question, future), led, "look-up without a leader"):
            node.log.world.after(node.delay(NETWORK_MS, _SLOW_LOOK_UPS), node.answer, future, question())


class SimulatedConnections:
    """`Connections` of one process."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.writers: list[SimulatedWriter] = []
        self.groups: list[SimulatedGroupReader] = []

    def group(self, *, topic: str, group: str, instance: str | None, committed_only: bool) -> GroupReader:
        reader = SimulatedGroupReader(
            self._node, topic=topic, group=group, instance=instance, committed_only=committed_only
        )
        self.groups.append(reader)
        return reader

    def reader(self) -> LogReader:
        return SimulatedReader(self._node)

    def lookups(self) -> SimulatedLookups:
        return SimulatedLookups(self._node)

    def scan(self, *, committed_only: bool = False) -> LogReader:
        return SimulatedReader(self._node, committed_only=committed_only, sees_markers=True)

    def once(
        self, outputs: Outputs | None, *, group: str, topics: Topics, writer: LogWriter, lookups: LogLookups
    ) -> ExactlyOnce | None:
        node = self._node
        if node.transactions is None or outputs is None:
            return None
        if not isinstance(writer, SimulatedWriter):
            raise TypeError("the writer is another than these connections make")
        transactions = SimulatedTransactions(group.partition(".")[0], node.machine, node.log, node.transactions)
        clock = node.machine.clock.monotonic
        return ExactlyOnce(
            fences=Fences(transactions, prefix=group, covers=outputs.of, send=writer.send, clock=clock),
            outputs=outputs,
            lookups=lookups,
            scan_reader=self.scan,
            letter_topics=topics.of,
        )

    def writer(self) -> SimulatedWriter:
        writer = SimulatedWriter(self._node.name, self._node.machine, self._node.log, self._node.effects)
        self.writers.append(writer)
        return writer
