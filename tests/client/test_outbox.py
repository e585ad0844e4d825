"""Whatever goes wrong on the way out, whoever waits is told, and later records leave."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from streamserve.client.outbox import MAX_BATCH_BYTES, Outbox
from streamserve.errors import StreamserveError
from streamserve.kafka.ports import Ack, At, Columns, Record
from streamserve.testing.log import MemoryLog, MemoryWriter

TOPIC = "t"
TIMEOUT_S = 10.0
SMALL = Record(value=b"v", key=None, headers=())
LARGE = Record(value=bytes(MAX_BATCH_BYTES), key=None, headers=())


class Failing(MemoryWriter):
    """Raises on its first sends."""

    fails = 1

    async def send(self, at: At, records: Columns) -> Ack:  # type: ignore[override]
        if self.fails:
            self.fails -= 1
            raise TypeError("a fault")
        return await super().send(at, records)


@dataclass(eq=False)
class Owner:
    ends: list[object] = field(default_factory=list)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self, end: object) -> None:
        self.ends.append(end)
        self.ended.set()

    def failed(self, error: Exception) -> None:
        if not self.ends:
            self.end(error)


def settled(partition: int, owners: list[Owner], ack: Ack) -> None:
    for owner in owners:
        owner.end(ack.error or "sent")


async def waited(*owners: Owner) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        for owner in owners:
            await owner.ended.wait()


@pytest.mark.parametrize("record", [SMALL, LARGE])
async def test_an_error_while_sending_ends_that_batch_and_no_other(record: Record) -> None:
    outbox: Outbox[Owner] = Outbox(Failing(MemoryLog({TOPIC: 1})), TOPIC, settled=settled)
    first, second, third = Owner(), Owner(), Owner()
    outbox.put(0, record, first)
    outbox.put(0, LARGE, second)  # a batch of its own
    await waited(first, second)
    assert first.ends == ["sending it failed: TypeError('a fault')"]
    assert second.ends == ["sent"]
    outbox.put(0, SMALL, third)
    await waited(third)
    assert third.ends == ["sent"]


async def test_what_is_no_record_is_refused_where_it_is_put() -> None:
    outbox: Outbox[Owner] = Outbox(MemoryWriter(MemoryLog({TOPIC: 1})), TOPIC, settled=settled)
    with pytest.raises(TypeError):
        outbox.put(0, Record(value=b"v", key=4, headers=()), Owner())  # type: ignore[arg-type]
    owner = Owner()
    outbox.put(0, SMALL, owner)
    await waited(owner)
    assert owner.ends == ["sent"]


async def test_a_fault_in_taking_note_of_an_ack_is_told_to_all_of_its_batch() -> None:
    def half(partition: int, owners: list[Owner], ack: Ack) -> None:
        owners[0].end("sent")
        raise KeyError(partition)

    outbox: Outbox[Owner] = Outbox(MemoryWriter(MemoryLog({TOPIC: 1})), TOPIC, settled=half)
    first, second = Owner(), Owner()
    outbox.put(0, SMALL, first)
    outbox.put(0, SMALL, second)
    await waited(first, second)
    assert first.ends == ["sent"]
    (error,) = second.ends
    assert isinstance(error, StreamserveError)
    assert "KeyError(0)" in str(error)


async def test_what_is_left_at_the_end_is_told_once() -> None:
    writer = MemoryWriter(MemoryLog({TOPIC: 1}))
    writer.hold()
    outbox: Outbox[Owner] = Outbox(writer, TOPIC, settled=settled)
    owners = [Owner(), Owner()]
    for owner in owners:
        outbox.put(0, LARGE, owner)
    await outbox.flush(0.0)
    assert [owner.ends for owner in owners] == [["the client was closed before the broker acknowledged it"]] * 2
