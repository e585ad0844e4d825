"""Sending: one batch at a time to each partition, so that each record's offset is known from its batch's.

What comes in while a batch is on its way leaves in the next one; nobody waits for a timer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from streamserve.client.inputs import record_bytes
from streamserve.errors import StreamserveError
from streamserve.kafka.ports import Ack, At, Columns, LogWriter, Record

#: Below the writer's 256 KiB, so that records sent together stand together.
MAX_BATCH_BYTES = 200 << 10

_log = logging.getLogger(__name__)


class Waiting(Protocol):
    """Owner of a record on its way."""

    def failed(self, error: Exception) -> None:
        """Nobody waits any longer; no effect where that is so already."""
        ...


Owner = TypeVar("Owner", bound=Waiting)
#: A record, its size and its owner.
_Queued = tuple[Record, int, Owner]


class Outbox(Generic[Owner]):
    """Records on their way to one topic. Whatever goes wrong with a record, its owner is told."""

    def __init__(
        self,
        writer: LogWriter,
        topic: str,
        *,
        settled: Callable[[int, list[Owner], Ack], None],
        sending: Callable[[int], None] | None = None,
    ) -> None:
        """`settled` is told what became of each batch (partition, its records' owners in order, ack); `sending` of each
        batch that leaves."""
        self._writer, self._topic = writer, topic
        self._settled, self._sending = settled, sending
        self._queues: dict[int, deque[_Queued[Owner]]] = {}
        self._lanes: dict[int, asyncio.Task[None]] = {}

    def put(self, partition: int, record: Record, owner: Owner) -> None:
        """Take a record to be sent; it leaves when the loop turns, or after the batch before it.

        What is no record raises here, and holds up no other.
        """
        queued = (record, record_bytes(record), owner)
        queue = self._queues.setdefault(partition, deque())
        queue.append(queued)
        if partition not in self._lanes:
            lane = asyncio.get_running_loop().create_task(self._send(partition, queue), name=f"send {partition}")
            self._lanes[partition] = lane

    async def flush(self, timeout_s: float) -> None:
        """Wait until all has been sent and acknowledged; what is left after the time-out is settled as failed."""
        if self._lanes:
            _, late = await asyncio.wait(self._lanes.values(), timeout=timeout_s)
            for lane in late:
                lane.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _send(self, partition: int, queue: deque[_Queued[Owner]]) -> None:
        owners: list[Owner] = []
        try:
            while queue:
                records, owners = _batch(queue)
                if self._sending is not None:
                    self._sending(partition)
                ack = await self._ack(partition, records)
                sent, owners = owners, []
                self._settle(partition, sent, ack)
        except asyncio.CancelledError:
            owners += [owner for *_, owner in queue]
            queue.clear()
            self._settle(partition, owners, Ack(error="the client was closed before the broker acknowledged it"))
            raise
        finally:
            del self._lanes[partition]

    async def _ack(self, partition: int, records: list[Record]) -> Ack:
        try:
            return await self._writer.send(At(self._topic, partition), Columns.of(records))
        except Exception as error:  # noqa: BLE001  (whatever it is: those who wait are told of it)
            _log.exception("sending to %s, partition %d, failed", self._topic, partition)
            return Ack(error=f"sending it failed: {error!r}")

    def _settle(self, partition: int, owners: list[Owner], ack: Ack) -> None:
        try:
            self._settled(partition, owners, ack)
        except Exception as error:  # noqa: BLE001  (as above; it is a fault of ours)
            _log.exception("what became of records for %s, partition %d, was not taken note of", self._topic, partition)
            for owner in owners:
                owner.failed(StreamserveError(f"what became of it was not taken note of: {error!r}"))


def _batch(queue: deque[_Queued[Owner]]) -> tuple[list[Record], list[Owner]]:
    """As many records from the queue's head as one batch holds; at least one."""
    records: list[Record] = []
    owners: list[Owner] = []
    size = 0
    while queue:
        record, record_size, owner = queue[0]
        size += record_size
        if records and size > MAX_BATCH_BYTES:
            break
        queue.popleft()
        records.append(record)
        owners.append(owner)
    return records, owners
