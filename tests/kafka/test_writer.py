"""What the writer owes who sends: each future ends with an ack, and nothing goes on after `stop`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.producer.message_accumulator import BatchBuilder

from streamserve.errors import BrokerError
from streamserve.kafka.ports import Ack, At, Columns, Record
from streamserve.kafka.writer import MAX_BATCH_BYTES, KafkaWriter

WAIT_S = 10.0
AT = At("t", 0)
ENOUGH = Columns.of([Record(value=b"x" * 1_000)] * 300)
"""More than one batch holds."""


def one(value: bytes = b"x") -> Columns:
    return Columns.of([Record(value=value)])


class Client:
    """Stands in for the Kafka client: takes batches, and acknowledges them when the test says so."""

    def __init__(self, *, takes: bool = True) -> None:
        self.takes = takes
        self.reached = asyncio.Event()
        self.batches: list[asyncio.Future[Any]] = []
        self.closing = asyncio.Event()
        self.may_close = asyncio.Event()
        self.may_close.set()
        self.closed = 0

    def create_batch(self) -> BatchBuilder:
        return BatchBuilder(MAX_BATCH_BYTES, 0)

    async def send_batch(self, _builder: BatchBuilder, _topic: str, *, partition: int) -> asyncio.Future[Any]:
        self.reached.set()
        if not self.takes:
            await asyncio.Event().wait()
        self.batches.append(asyncio.get_running_loop().create_future())
        return self.batches[-1]

    async def stop(self) -> None:
        self.closing.set()
        await self.may_close.wait()
        self.closed += 1

    def acknowledge(self, offset: int) -> None:
        self.batches.pop(0).set_result(SimpleNamespace(offset=offset, timestamp=1_000))

    def refuse(self) -> None:
        self.batches.pop(0).set_exception(RuntimeError("refused"))


class Clients:
    """Connects to each of these in turn, then never again."""

    def __init__(self, *clients: Client, then: Callable[[], Awaitable[Any]] | None = None) -> None:
        self._clients = list(clients)
        self._then = then
        self.ran_out = asyncio.Event()

    async def connect(self) -> Any:
        if self._clients:
            return self._clients.pop(0)
        self.ran_out.set()
        assert self._then is not None
        return await self._then()


async def no_broker() -> Any:
    raise BrokerError("no Kafka broker answers")


async def no_word() -> Any:
    await asyncio.Event().wait()


async def writing(clients: Clients, stop_s: float = 0.05) -> KafkaWriter:
    writer = KafkaWriter({}, stop_s=stop_s, connect=clients.connect)
    await writer.start()
    return writer


async def stop(writer: KafkaWriter) -> None:
    async with asyncio.timeout(WAIT_S):
        await writer.stop()
    assert asyncio.all_tasks() == {asyncio.current_task()}


def acks(futures: list[asyncio.Future[Ack]]) -> list[Ack]:
    """None of them is waited for: what is not done by now never will be."""
    return [future.result() for future in futures]


async def test_what_may_no_longer_be_sent_fails_and_a_later_send_goes_out() -> None:
    client = Client()
    writer = await writing(Clients(client))
    writer.may_send = lambda: False
    refused = [await asyncio.wait_for(writer.send(AT, records), WAIT_S) for records in (one(), ENOUGH)]
    assert all("not heard from its group" in ack.error for ack in refused)
    assert not client.batches
    writer.may_send = lambda: True
    later = writer.send(AT, one())
    await client.reached.wait()
    client.acknowledge(7)
    assert (await asyncio.wait_for(later, WAIT_S)).offset == 7
    await stop(writer)


async def test_a_send_that_fails_half_way_tells_how_much_of_it_stands() -> None:
    client = Client()
    writer = await writing(Clients(client, then=no_word))
    sent = writer.send(AT, ENOUGH)
    async with asyncio.timeout(WAIT_S):
        while len(client.batches) < 2:  # noqa: ASYNC110  (what is waited for has no event)
            await asyncio.sleep(0)
    client.acknowledge(7)
    client.refuse()
    ack = await asyncio.wait_for(sent, WAIT_S)
    assert "refused" in ack.error
    assert ack.offset == 7
    assert 0 < ack.written < len(ENOUGH.values)
    await stop(writer)


async def test_what_comes_after_a_batch_that_failed_does_not_count_as_written() -> None:
    client = Client()
    writer = await writing(Clients(client, then=no_word))
    sent = writer.send(AT, ENOUGH)
    async with asyncio.timeout(WAIT_S):
        while len(client.batches) < 2:  # noqa: ASYNC110  (what is waited for has no event)
            await asyncio.sleep(0)
    client.refuse()
    client.acknowledge(7)
    assert (await asyncio.wait_for(sent, WAIT_S)).written == 0
    await stop(writer)


async def test_what_was_dropped_is_not_sent_and_what_is_on_its_way_is_waited_for() -> None:
    client = Client(takes=False)
    writer = await writing(Clients(client))
    first, second, elsewhere = writer.send(AT, one()), writer.send(AT, one()), writer.send(At("t", 1), one())
    await client.reached.wait()  # with the first two, which are one batch
    third = writer.send(AT, one())
    writer.drop(AT)
    assert third.result().error == "its partition is no longer ours"
    over = asyncio.create_task(writer.over(AT))
    await asyncio.sleep(0)
    assert not over.done()
    async with asyncio.timeout(WAIT_S):
        await writer.stop()
        await over
    assert all(future.done() for future in (first, second, elsewhere))


async def test_what_the_client_has_not_taken_has_failed_when_the_writer_is_stopped() -> None:
    client = Client(takes=False)
    writer = await writing(Clients(client))
    sent = [writer.send(at, records) for at in (AT, At("t", 1)) for records in (one(), ENOUGH, one())]
    await client.reached.wait()
    await stop(writer)
    assert all("stopped" in ack.error for ack in acks(sent))
    assert "stopped" in writer.send(AT, one()).result().error
    assert client.closed == 1


async def test_what_the_broker_has_not_acknowledged_has_failed_when_the_writer_is_stopped() -> None:
    client = Client()
    writer = await writing(Clients(client))
    acknowledged, split, lost = (writer.send(AT, records) for records in (one(), ENOUGH, one()))
    await client.reached.wait()
    client.acknowledge(7)  # all of the first send, and a part of the second
    await acknowledged
    await stop(writer)
    assert acknowledged.result() == Ack(offset=7, append_ms=1_000)
    assert all("stopped" in ack.error for ack in acks([split, lost]))


async def test_what_is_acknowledged_while_the_client_closes_was_written() -> None:
    client = Client()
    client.may_close.clear()
    writer = await writing(Clients(client), stop_s=WAIT_S)
    sent = writer.send(AT, one())
    stopping = asyncio.create_task(writer.stop())
    await client.closing.wait()
    assert not sent.done()
    client.acknowledge(3)
    client.may_close.set()
    await stopping
    assert sent.result() == Ack(offset=3, append_ms=1_000)


async def test_who_no_longer_waits_for_an_ack_does_not_disturb_the_others() -> None:
    client = Client()
    writer = await writing(Clients(client))
    given_up, kept = writer.send(AT, one()), writer.send(AT, one())
    await client.reached.wait()
    given_up.cancel()
    client.acknowledge(0)
    assert (await kept).offset == 1
    await stop(writer)


@pytest.mark.parametrize("then", [no_broker, no_word])
async def test_no_search_for_a_broker_outlives_the_writer(then: Callable[[], Awaitable[Any]]) -> None:
    client = Client()
    clients = Clients(client, then=then)
    writer = await writing(clients)
    refused = writer.send(AT, one())
    await client.reached.wait()
    client.refuse()
    assert "refused" in (await refused).error
    waiting = writer.send(AT, one())
    await clients.ran_out.wait()
    await stop(writer)
    assert "stopped" in waiting.result().error
    assert client.closed == 1


async def test_stopping_lets_a_refused_client_close_and_connects_no_other() -> None:
    client = Client()
    client.may_close.clear()
    clients = Clients(client, then=no_word)
    writer = await writing(clients, stop_s=WAIT_S)
    refused = writer.send(AT, one())
    await client.reached.wait()
    client.refuse()
    assert "refused" in (await refused).error
    await client.closing.wait()
    stopping = asyncio.create_task(writer.stop())
    await asyncio.sleep(0)
    client.may_close.set()
    await stopping
    assert client.closed == 1
    assert not clients.ran_out.is_set()
