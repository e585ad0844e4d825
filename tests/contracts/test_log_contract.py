"""What the shell needs of a log: the same suite on the in-memory log, the simulated one and the real broker."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete

from streamserve.kafka.clients import KafkaGroupReader, KafkaReader
from streamserve.kafka.lookups import KafkaLookups
from streamserve.kafka.ports import (
    At,
    Chunk,
    Columns,
    Committed,
    GroupReader,
    LogLookups,
    LogReader,
    LogWriter,
    Record,
)
from streamserve.kafka.rawfetch import RawReader
from streamserve.kafka.writer import KafkaWriter
from streamserve.testing.log import MemoryGroupReader, MemoryLog, MemoryLookups, MemoryReader, MemoryWriter
from streamserve.testing.simulator.broker import SimulatedLog
from streamserve.testing.simulator.clients import SimulatedConnections
from streamserve.testing.simulator.clock import MachineClock
from streamserve.testing.simulator.groups import Coordinator
from streamserve.testing.simulator.node import Node
from streamserve.testing.simulator.world import Machine, World
from tests.contracts.conftest import RUN

WAIT_S = 15.0
PARTITIONS = 2


class Log(Protocol):
    """Makes clients of one log that has one topic, `t`."""

    topic: str

    def reader(self) -> LogReader: ...
    def scan(self) -> LogReader: ...
    async def delete_before(self, at: At, offset: int) -> None: ...
    def group(self, name: str) -> GroupReader: ...
    def lookups(self) -> LogLookups: ...
    def writer(self) -> LogWriter: ...


@dataclass
class InMemory:
    log: MemoryLog
    topic: str

    def reader(self) -> LogReader:
        return MemoryReader(self.log)

    scan = reader

    async def delete_before(self, at: At, offset: int) -> None:
        self.log.delete_before(at, offset)

    def group(self, name: str) -> GroupReader:
        return MemoryGroupReader(self.log, topic=self.topic, group=name)

    def lookups(self) -> LogLookups:
        return MemoryLookups(self.log)

    def writer(self) -> LogWriter:
        return MemoryWriter(self.log)


@dataclass
class Simulated:
    """Every client is one of the same process."""

    connections: SimulatedConnections
    log: SimulatedLog
    topic: str

    def reader(self) -> LogReader:
        return self.connections.reader()

    def scan(self) -> LogReader:
        return self.connections.scan()

    async def delete_before(self, at: At, offset: int) -> None:
        self.log.delete_before(at, offset)

    def group(self, name: str) -> GroupReader:
        group = f"{name}-{self.topic}"
        return self.connections.group(topic=self.topic, group=group, instance=None, committed_only=True)

    def lookups(self) -> LogLookups:
        return self.connections.lookups()

    def writer(self) -> LogWriter:
        return self.connections.writer()


@dataclass
class Kafka:
    options: Mapping[str, Any]
    topic: str

    def reader(self) -> LogReader:
        return KafkaReader(self.options)

    def scan(self) -> LogReader:
        return RawReader(self.options)

    async def delete_before(self, at: At, offset: int) -> None:
        admin = AIOKafkaAdminClient(**self.options)
        await admin.start()
        try:
            await admin.delete_records({TopicPartition(at.topic, at.partition): RecordsToDelete(offset)})
        finally:
            await admin.close()

    def group(self, name: str) -> GroupReader:
        return KafkaGroupReader(
            self.options,
            topic=self.topic,
            group=f"{name}-{self.topic}",
            instance=None,
            session_timeout_ms=6_000,
            heartbeat_interval_ms=300,
            committed_only=True,
        )

    def lookups(self) -> LogLookups:
        return KafkaLookups(self.options)

    def writer(self) -> LogWriter:
        return KafkaWriter(self.options)


@pytest.fixture(params=["memory", "simulated", pytest.param("kafka", marks=[pytest.mark.broker, pytest.mark.beside])])
def make_log(request: pytest.FixtureRequest) -> Callable[[], Any]:
    if request.param == "memory":

        async def memory() -> Log:
            return InMemory(MemoryLog({"t": PARTITIONS}), "t")

        return memory
    if request.param == "simulated":
        world = World(seed=1)
        machine = Machine(world, MachineClock(world.clock))
        log = SimulatedLog(world, {"t": PARTITIONS}, prefixes=0.0)
        node = Node(
            name="p",
            machine=machine,
            log=log,
            coordinator=Coordinator(log),
            session_ms=6_000,
            heartbeat_ms=300,
        )
        request.node.stash[RUN] = lambda coroutine: run_on(world, machine, coroutine)

        async def simulated() -> Log:
            return Simulated(SimulatedConnections(node), log, "t")

        return simulated
    servers = request.getfixturevalue("broker").bootstrap_servers

    async def kafka() -> Log:
        topic = f"t-{uuid.uuid4().hex[:12]}"
        admin = AIOKafkaAdminClient(bootstrap_servers=servers)
        await admin.start()
        try:
            configs = {"message.timestamp.type": "LogAppendTime"}
            await admin.create_topics([NewTopic(topic, PARTITIONS, 1, topic_configs=configs)])
        finally:
            await admin.close()
        return Kafka({"bootstrap_servers": servers}, topic)

    return kafka


def run_on(world: World, machine: Machine, coroutine: Coroutine[Any, Any, None]) -> None:
    task = machine.loop.create_task(coroutine)
    task.add_done_callback(lambda _: setattr(world, "over", True))
    world.run(600_000)
    machine.kill()
    machine.loop.bury()
    task.result()


@asynccontextmanager
async def started(*parts: Any) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for part in parts:
            await part.start()
            stack.push_async_callback(part.stop)
        yield


async def read(reader: Any, n: int) -> list[Chunk]:
    """Chunks until n records are there."""
    chunks: list[Chunk] = []
    async with asyncio.timeout(WAIT_S):
        while sum(len(chunk) for chunk in chunks) < n:
            chunks += await reader.fetch(max_records=100, timeout_ms=200)
    return chunks


def values(chunks: list[Chunk]) -> list[bytes | None]:
    return [value for chunk in chunks for value in chunk.values]


def some(n: int, start: int = 0) -> Columns:
    return Columns.of([Record(value=b"%d" % i, key=b"k%d" % i, headers=(("h", b"%d" % i),)) for i in range(start, n)])


async def test_what_is_written_is_read_in_order_with_its_columns(make_log: Callable[[], Any]) -> None:
    log = await make_log()
    writer, reader = log.writer(), log.reader()
    async with started(writer, reader):
        acks = [await writer.send(At(log.topic, 0), some(3)), await writer.send(At(log.topic, 0), some(5, 3))]
        assert [(ack.error, ack.offset) for ack in acks] == [("", 0), ("", 3)]
        reader.read({At(log.topic, 0): 1})
        chunks = await read(reader, 4)
    assert values(chunks) == [b"1", b"2", b"3", b"4"]
    assert [offset for chunk in chunks for offset in chunk.offsets.tolist()] == [1, 2, 3, 4]
    assert chunks[0].keys[0] == b"k1"
    assert chunks[0].headers[0] == (("h", b"1"),)
    assert len({*chunks[0].headers}) == len(chunks[0])  # hashable
    assert chunks[-1].next_offset == 5
    stamps = [ms for chunk in chunks for ms in chunk.append_ms.tolist()]
    assert acks[0].append_ms == stamps[0]
    assert stamps == sorted(stamps)


async def test_a_chunk_says_how_much_is_behind_it(make_log: Callable[[], Any]) -> None:
    log = await make_log()
    writer, reader = log.writer(), log.reader()
    async with started(writer, reader):
        await writer.send(At(log.topic, 0), some(30))
        reader.read({At(log.topic, 0): 0})
        chunks: list[Chunk] = []
        async with asyncio.timeout(WAIT_S):
            while sum(len(chunk) for chunk in chunks) < 30:
                chunks += await reader.fetch(max_records=10, timeout_ms=200)
    assert [chunk.lag for chunk in chunks] == [20, 10, 0]


async def test_a_null_value_and_a_null_key_come_through(make_log: Callable[[], Any]) -> None:
    log = await make_log()
    writer, reader = log.writer(), log.reader()
    async with started(writer, reader):
        await writer.send(At(log.topic, 1), Columns.of([Record(value=None, key=b"k"), Record(value=b"", key=None)]))
        reader.read({At(log.topic, 1): 0})
        chunks = await read(reader, 2)
    assert values(chunks) == [None, b""]
    assert [key for chunk in chunks for key in chunk.keys] == [b"k", None]


async def test_a_send_to_a_partition_that_does_not_exist_is_a_value(make_log: Callable[[], Any]) -> None:
    log = await make_log()
    writer = log.writer()
    async with started(writer):
        bad = await writer.send(At(log.topic, 99), some(1))
        good = await writer.send(At(log.topic, 0), some(1))
    assert bad.error
    assert not good.error


async def test_sends_that_share_a_batch_each_learn_their_own_offset(make_log: Callable[[], Any]) -> None:
    log = await make_log()
    writer = log.writer()
    async with started(writer):
        sends = [writer.send(At(log.topic, 0), some(n)) for n in (1, 3, 2, 1)]
        acks = [await send for send in sends]
    assert [ack.offset for ack in acks] == [0, 1, 4, 6]


async def test_nothing_to_send_is_acknowledged(make_log: Callable[[], Any]) -> None:
    log = await make_log()
    writer = log.writer()
    async with started(writer):
        assert not (await writer.send(At(log.topic, 0), some(0))).error


async def test_reading_more_partitions_keeps_the_place_in_the_others(make_log: Callable[[], Any]) -> None:
    log = await make_log()
    writer, reader = log.writer(), log.reader()
    async with started(writer, reader):
        for partition in range(PARTITIONS):
            await writer.send(At(log.topic, partition), some(3))
        reader.read({At(log.topic, 0): 0})
        assert len(values(await read(reader, 3))) == 3
        reader.read({At(log.topic, 0): 0, At(log.topic, 1): 1})
        assert values(await read(reader, 2)) == [b"1", b"2"]
        reader.read({})
        assert await reader.fetch(max_records=10, timeout_ms=50) == []
        reader.read({At(log.topic, 0): 2})
        assert values(await read(reader, 1)) == [b"2"]


async def test_a_paused_partition_is_silent_until_it_is_resumed(make_log: Callable[[], Any]) -> None:
    log = await make_log()
    writer, reader = log.writer(), log.reader()
    async with started(writer, reader):
        reader.read({At(log.topic, n): 0 for n in range(PARTITIONS)})
        reader.pause([At(log.topic, 0)])
        for partition in range(PARTITIONS):
            await writer.send(At(log.topic, partition), some(2))
        chunks = await read(reader, 2)
        assert {chunk.at.partition for chunk in chunks} == {1}
        assert await reader.fetch(max_records=10, timeout_ms=100) == []
        reader.resume([At(log.topic, 0)])
        assert {chunk.at.partition for chunk in await read(reader, 2)} == {0}


@pytest.mark.parametrize("kind", ["reader", "scan"])
async def test_who_reads_below_the_start_goes_on_at_the_start(make_log: Callable[[], Any], kind: str) -> None:
    log = await make_log()
    writer, reader, at = log.writer(), getattr(log, kind)(), At(log.topic, 0)
    async with started(writer, reader):
        await writer.send(at, some(3))
        await writer.send(at, some(5, 3))
        await log.delete_before(at, 4)
        reader.read({at: 1})
        assert values(await read(reader, 1)) == [b"4"]
        if kind == "scan":  # the other one fetches ahead
            await writer.send(at, some(6, 5))
            await log.delete_before(at, 6)
            await writer.send(at, some(7, 6))
            assert values(await read(reader, 1)) == [b"6"]


async def test_lookups_tell_starts_ends_and_commits(make_log: Callable[[], Any]) -> None:
    log = await make_log()
    writer, lookups, group = log.writer(), log.lookups(), log.group("g")
    at = At(log.topic, 0)
    got = asyncio.Event()

    async def assigned(_partitions: frozenset[At]) -> None:
        got.set()

    async def revoked(_partitions: frozenset[At]) -> None:
        pass

    async with started(writer, lookups):
        await writer.send(at, some(3))
        assert await lookups.starts([at]) == {at: 0}
        assert await lookups.ends([at, At(log.topic, 1)]) == {at: 3, At(log.topic, 1): 0}
        later = await writer.send(at, some(2))
        assert await lookups.since({at: 0, At(log.topic, 1): 0}) == {at: 0, At(log.topic, 1): 0}
        assert (await lookups.since({at: later.append_ms}))[at] <= 3  # both batches may have come in one millisecond
        assert await lookups.since({at: later.append_ms + 1}) == {at: 5}
        assert await lookups.since({}) == {}
        name = "g" if isinstance(log, InMemory) else f"g-{log.topic}"
        assert (await lookups.committed(name, [at]))[at].offset == -1
        await group.start(assigned=assigned, revoked=revoked)
        try:
            await asyncio.wait_for(got.wait(), WAIT_S)
            assert await group.commit({at: Committed(offset=2, metadata='{"v":1}')})
            assert (await lookups.committed(name, [at]))[at] == Committed(offset=2, metadata='{"v":1}')
        finally:
            await group.stop()


class Member:
    """A group member that begins each partition at the offset it is told, and notes what it is told."""

    def __init__(self, reader: GroupReader, begin_at: int = 0) -> None:
        self.reader = reader
        self.begin_at = begin_at
        self.owned: frozenset[At] = frozenset()
        self.log: list[str] = []
        self.changed = asyncio.Event()

    async def assigned(self, partitions: frozenset[At]) -> None:
        self.owned = partitions
        self.log.append("assigned")
        self.reader.begin(dict.fromkeys(partitions, self.begin_at))
        self.changed.set()

    async def revoked(self, partitions: frozenset[At]) -> None:
        self.log.append("revoked")
        self.owned = self.owned - partitions

    async def start(self) -> None:
        await self.reader.start(assigned=self.assigned, revoked=self.revoked)

    async def stop(self) -> None:
        await self.reader.stop()

    async def owns(self, n: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while len(self.owned) != n:
                self.changed.clear()
                await self.changed.wait()


async def test_new_partitions_are_silent_until_they_are_begun(make_log: Callable[[], Any]) -> None:
    log = await make_log()
    writer, group = log.writer(), log.group("g")
    told = asyncio.Event()

    async def assigned(_partitions: frozenset[At]) -> None:
        told.set()

    async def revoked(_partitions: frozenset[At]) -> None:
        pass

    async with started(writer):
        await writer.send(At(log.topic, 0), some(4))
        await group.start(assigned=assigned, revoked=revoked)
        try:
            await asyncio.wait_for(told.wait(), WAIT_S)
            assert await group.fetch(max_records=10, timeout_ms=300) == []
            group.begin({At(log.topic, 0): 2})
            assert values(await read(group, 2)) == [b"2", b"3"]
        finally:
            await group.stop()


async def test_a_second_member_takes_half_and_gives_it_back(make_log: Callable[[], Any]) -> None:
    log = await make_log()
    writer = log.writer()
    first, second = Member(log.group("g")), Member(log.group("g"))
    async with started(writer, first):
        polling = [asyncio.create_task(poll(first.reader))]
        try:
            await first.owns(2)
            await second.start()
            polling.append(asyncio.create_task(poll(second.reader)))
            await second.owns(1)
            await first.owns(1)
            assert first.owned | second.owned == {At(log.topic, 0), At(log.topic, 1)}
            assert first.log == ["assigned", "revoked", "assigned"]
            polling.pop().cancel()
            await second.stop()
            await first.owns(2)
        finally:
            for task in polling:
                task.cancel()


async def poll(reader: GroupReader) -> None:
    while True:
        await reader.fetch(max_records=10, timeout_ms=100)


async def test_a_commit_for_a_partition_of_another_member_is_refused_or_harmless(make_log: Callable[[], Any]) -> None:
    log = await make_log()
    first, second = Member(log.group("g")), Member(log.group("g"))
    async with started(first):
        polling = [asyncio.create_task(poll(first.reader))]
        try:
            await first.owns(2)
            await second.start()
            polling.append(asyncio.create_task(poll(second.reader)))
            await second.owns(1)
            await first.owns(1)
            other = next(iter(second.owned))
            assert not await first.reader.commit({other: Committed(offset=1, metadata="")})
        finally:
            for task in polling:
                task.cancel()
            await second.stop()
