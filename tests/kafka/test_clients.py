"""The real clients' own cures: poisonous records, refused batches, a broker that is not there."""

from __future__ import annotations

import asyncio
import struct
import uuid
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c

from streamserve.errors import BrokerError
from streamserve.kafka import clients
from streamserve.kafka.clients import KafkaGroupReader, KafkaReader
from streamserve.kafka.ports import At, Chunk, Columns, Record
from streamserve.kafka.writer import MAX_BATCH_BYTES, KafkaWriter

WAIT_S = 15.0
_CRC_AT, _CRC_FROM = 17, 21


async def made(servers: str, **configs: str) -> At:
    topic = f"t-{uuid.uuid4().hex[:12]}"
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, 2, 1, topic_configs=configs)])
    finally:
        await admin.close()
    return At(topic, 0)


async def produce_raw(options: Mapping[str, Any], at: At, batch: bytes) -> None:
    """What a foreign client may send: a record batch as it stands."""
    client = AIOKafkaClient(**options)
    await client.bootstrap()
    try:
        await client._wait_on_metadata(at.topic)
        node = client.cluster.leader_for_partition(at)
        request = ProduceRequest(
            transactional_id=None, required_acks=-1, timeout=5_000, topics=[(at.topic, [(at.partition, batch)])]
        )
        response = await client.send(node, request)
        assert response.topics[0][1][0][1] == 0
    finally:
        await client.close()


def poisonous(*values: bytes) -> bytes:
    """A batch of which each record has a header whose name is not UTF-8."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    for i, value in enumerate(values):
        builder.append(i, 1_000, None, value, [("name", b"x")])
    batch = bytearray(bytes(builder.build()).replace(b"name", b"\xff\xfeme"))
    batch[_CRC_AT:_CRC_FROM] = struct.pack(">I", calc_crc32c(bytes(batch[_CRC_FROM:])))
    return bytes(batch)


async def read(reader: Any, n: int) -> list[Chunk]:
    chunks: list[Chunk] = []
    async with asyncio.timeout(WAIT_S):
        while sum(len(chunk) for chunk in chunks) < n:
            chunks += await reader.fetch(max_records=100, timeout_ms=200)
    return chunks


def one(value: bytes) -> Columns:
    return Columns.of([Record(value=value)])


@pytest.mark.broker
@pytest.mark.beside
@pytest.mark.parametrize("in_group", [False, True])
async def test_a_record_that_breaks_the_parser_is_read_with_its_neighbours(broker: Any, in_group: bool) -> None:
    options = {"bootstrap_servers": broker.bootstrap_servers}
    at = await made(broker.bootstrap_servers)
    async with AsyncExitStack() as stack:
        writer = KafkaWriter(options)
        await writer.start()
        stack.push_async_callback(writer.stop)
        await writer.send(at, one(b"before"))
        await produce_raw(options, at, poisonous(b"bad", b"worse"))
        await writer.send(at, one(b"after"))
        await writer.send(At(at.topic, 1), one(b"elsewhere"))
        reader = await _reader(options, at, in_group, stack)
        chunks = await read(reader, 5)
        assert sorted(v or b"" for c in chunks for v in c.values) == [
            b"after",
            b"bad",
            b"before",
            b"elsewhere",
            b"worse",
        ]
        mine = [c for c in chunks if c.at == at]
        assert [o for c in mine for o in c.offsets.tolist()] == [0, 1, 2, 3]
        assert any(h == ((r"\xff\xfeme", b"x"),) for c in mine for h in c.headers)
        await writer.send(at, one(b"later"))
        assert [v for c in await read(reader, 1) for v in c.values] == [b"later"]


async def _reader(options: Mapping[str, Any], at: At, in_group: bool, stack: AsyncExitStack) -> Any:
    starts = {at: 0, At(at.topic, 1): 0}
    if not in_group:
        reader = KafkaReader(options)
        await reader.start()
        stack.push_async_callback(reader.stop)
        reader.read(starts)
        return reader
    group = KafkaGroupReader(
        options,
        topic=at.topic,
        group=at.topic,
        instance=None,
        session_timeout_ms=6_000,
        heartbeat_interval_ms=300,
        committed_only=True,
    )

    async def assigned(partitions: frozenset[At]) -> None:
        group.begin(dict.fromkeys(partitions, 0))

    async def revoked(_partitions: frozenset[At]) -> None:
        pass

    await group.start(assigned=assigned, revoked=revoked)
    stack.push_async_callback(group.stop)
    return group


@pytest.mark.broker
@pytest.mark.beside
async def test_a_refused_batch_does_not_poison_later_ones(broker: Any) -> None:
    options = {"bootstrap_servers": broker.bootstrap_servers}
    at = await made(broker.bootstrap_servers, **{"max.message.bytes": "100000"})
    writer = KafkaWriter(options)
    await writer.start()
    try:
        assert not (await writer.send(at, one(b"fits"))).error
        refused = await asyncio.wait_for(writer.send(at, one(b"x" * 200_000)), WAIT_S)
        assert "MessageSizeTooLarge" in refused.error
        acks = [await asyncio.wait_for(writer.send(at, one(b"%d" % i)), WAIT_S) for i in range(3)]
        assert [ack.error for ack in acks] == ["", "", ""]
        assert [ack.offset for ack in acks] == [1, 2, 3]
    finally:
        await writer.stop()


@pytest.mark.broker
@pytest.mark.beside
async def test_a_record_above_the_limit_is_never_sent(broker: Any) -> None:
    options = {"bootstrap_servers": broker.bootstrap_servers}
    at = await made(broker.bootstrap_servers)
    writer = KafkaWriter(options, max_record_bytes=MAX_BATCH_BYTES * 2)
    await writer.start()
    try:
        ack = await writer.send(at, one(b"x" * (MAX_BATCH_BYTES * 2)))
        assert "larger than the topic takes" in ack.error
        assert (await writer.send(at, one(b"x" * (MAX_BATCH_BYTES + 1)))).offset == 0
    finally:
        await writer.stop()


@pytest.mark.broker
@pytest.mark.beside
async def test_a_send_larger_than_a_batch_is_split_and_acknowledged_once(broker: Any) -> None:
    options = {"bootstrap_servers": broker.bootstrap_servers}
    at = await made(broker.bootstrap_servers)
    writer, reader = KafkaWriter(options), KafkaReader(options)
    await writer.start()
    await reader.start()
    try:
        big = Columns.of([Record(value=b"%05d" % i + b"x" * 2_000) for i in range(400)])
        ack = await asyncio.wait_for(writer.send(at, big), WAIT_S)
        assert (ack.error, ack.offset) == ("", 0)
        reader.read({at: 0})
        got = [v or b"" for c in await read(reader, 400) for v in c.values]
        assert [v[:5] for v in got] == [b"%05d" % i for i in range(400)]
    finally:
        await reader.stop()
        await writer.stop()


@pytest.mark.broker
@pytest.mark.beside
async def test_what_no_client_can_write_is_a_value(broker: Any) -> None:
    options = {"bootstrap_servers": broker.bootstrap_servers}
    at = await made(broker.bootstrap_servers)
    writer = KafkaWriter(options)
    await writer.start()
    try:
        bad = Columns.of([Record(value=b"x", headers=(("\ud800", b"y"),))])
        assert "cannot be written" in (await asyncio.wait_for(writer.send(at, bad), WAIT_S)).error
        assert not (await asyncio.wait_for(writer.send(at, one(b"fine")), WAIT_S)).error
    finally:
        await writer.stop()


class BrokenInside(AIOKafkaProducer):  # type: ignore[misc]
    """A client with a bug: its first batch ends in what no client should raise."""

    breaks = 1

    async def send_batch(self, batch: Any, topic: str, *, partition: int) -> Any:
        if BrokenInside.breaks:
            BrokenInside.breaks -= 1
            raise RuntimeError("a bug in the client")
        return await super().send_batch(batch, topic, partition=partition)


@pytest.mark.broker
@pytest.mark.beside
async def test_whatever_ends_a_batch_is_told_and_the_next_one_goes_out(
    broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamserve.kafka.writer.AIOKafkaProducer", BrokenInside)
    at = await made(broker.bootstrap_servers)
    writer = KafkaWriter({"bootstrap_servers": broker.bootstrap_servers})
    await writer.start()
    try:
        assert "a bug in the client" in (await asyncio.wait_for(writer.send(at, one(b"x")), WAIT_S)).error
        assert (await asyncio.wait_for(writer.send(at, one(b"y")), WAIT_S)).offset == 0
    finally:
        await writer.stop()


async def test_no_broker_is_said_in_words() -> None:
    reader = KafkaReader({"bootstrap_servers": "127.0.0.1:9"})
    with pytest.raises(BrokerError, match=r"no Kafka broker answers at 127\.0\.0\.1:9") as refused:
        await reader.start()
    assert "AddressFamily" not in str(refused.value)


class Cancelled:
    """A client whose `stop` ends as aiokafka's consumer's does while its broker is gone (0.14)."""

    async def stop(self) -> None:
        inner = asyncio.get_running_loop().create_future()
        inner.cancel()
        await inner


async def test_a_client_that_cancels_itself_in_its_stop_cancels_nobody_else() -> None:
    await clients.stopped(Cancelled())
    stopping = asyncio.create_task(clients.stopped(Cancelled()))
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping


@pytest.mark.broker
@pytest.mark.beside
async def test_a_static_member_that_stops_in_order_gives_its_partitions_up_at_once(broker: Any) -> None:
    options = {"bootstrap_servers": broker.bootstrap_servers}
    at = await made(broker.bootstrap_servers)
    owned: dict[str, int] = {}

    async def member(name: str) -> KafkaGroupReader:
        group = KafkaGroupReader(
            options,
            topic=at.topic,
            group=at.topic,
            instance=name,
            session_timeout_ms=60_000,
            heartbeat_interval_ms=100,
            committed_only=True,
        )

        async def assigned(partitions: frozenset[At]) -> None:
            owned[name] = len(partitions)

        async def revoked(_partitions: frozenset[At]) -> None:
            owned[name] = 0

        await group.start(assigned=assigned, revoked=revoked)
        return group

    async def share(**wanted: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while owned != wanted:  # noqa: ASYNC110  (what is waited for has no event)
                await asyncio.sleep(0.02)

    first = await member("first")
    try:
        await share(first=2)
        second = await member("second")
        await share(first=1, second=1)
        await second.stop()
        del owned["second"]
        await share(first=2)
    finally:
        await first.stop()


@pytest.mark.broker
@pytest.mark.beside
async def test_a_client_that_has_ended_its_own_fetching_is_told_of(broker: Any) -> None:
    """It would hand out nothing for ever, and stay a member of its group."""
    at = await made(broker.bootstrap_servers)
    reader = KafkaReader({"bootstrap_servers": broker.bootstrap_servers})
    await reader.start()
    try:
        reader.read({at: 0})
        assert await reader.fetch(max_records=1, timeout_ms=10) == []
        assert reader._consumer is not None
        task = reader._consumer._fetcher._fetch_task
        task.cancel()
        await asyncio.wait([task])
        with pytest.raises(BrokerError, match="ended its own fetching"):
            await reader.fetch(max_records=1, timeout_ms=10)
    finally:
        await reader.stop()


@pytest.mark.broker
@pytest.mark.beside
async def test_a_fetch_returns_in_time_while_the_group_is_away(broker: Any) -> None:
    at = await made(broker.bootstrap_servers)
    reader = KafkaGroupReader(
        {"bootstrap_servers": broker.bootstrap_servers},
        topic=at.topic,
        group=f"g-{at.topic}",
        instance=None,
        session_timeout_ms=6_000,
        heartbeat_interval_ms=300,
        committed_only=True,
    )
    joined = asyncio.Event()

    async def assigned(_partitions: frozenset[At]) -> None:
        joined.set()

    async def revoked(_partitions: frozenset[At]) -> None:
        """Nothing to give up."""

    await reader.start(assigned=assigned, revoked=revoked)
    try:
        await asyncio.wait_for(joined.wait(), WAIT_S)
        assert reader._consumer is not None
        reader._consumer._subscription.begin_reassignment()  # and the coordinator never says another word
        async with asyncio.timeout(WAIT_S):
            assert await reader.fetch(max_records=1, timeout_ms=10) == []
    finally:
        await reader.stop()
