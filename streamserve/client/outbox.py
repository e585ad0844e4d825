"""Sending: one batch at a time to each partition, so that each record's offset is known from its batch's.

What comes in while a batch is on its way leaves in the next one; nobody waits for a timer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from streamserve.client.inputs import record_bytes
from streamserve.kafka.ports import Ack, At, Columns, LogWriter, Record

#: Below the writer's 256 KiB, so that records sent together stand together.
MAX_BATCH_BYTES = 200 << 10

Owner = TypeVar("Owner")


class Outbox(Generic[Owner]):
    """Records on their way to one topic."""

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
        self._queues: dict[int, deque[tuple[Record, Owner]]] = {}
        self._lanes: dict[int, asyncio.Task[None]] = {}

    def put(self, partition: int, record: Record, owner: Owner) -> None:
        """Take a record to be sent; it leaves when the loop turns, or after the batch before it."""
        queue = self._queues.setdefault(partition, deque())
        queue.append((record, owner))
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

    async def _send(self, partition: int, queue: deque[tuple[Record, Owner]]) -> None:
        owners: list[Owner] = []
        try:
            while queue:
                records, owners = _batch(queue)
                if self._sending is not None:
                    self._sending(partition)
                ack = await self._writer.send(At(self._topic, partition), Columns.of(records))
                sent, owners = owners, []
                self._settled(partition, sent, ack)
        except asyncio.CancelledError:
            owners += [owner for _, owner in queue]
            queue.clear()
            self._settled(partition, owners, Ack(error="the client was closed before the broker acknowledged it"))
            raise
        finally:
            del self._lanes[partition]


def _batch(queue: deque[tuple[Record, Owner]]) -> tuple[list[Record], list[Owner]]:
    """As many records from the queue's head as one batch holds; at least one."""
    records: list[Record] = []
    owners: list[Owner] = []
    size = 0
    while queue:
        record, owner = queue[0]
        size += record_bytes(record)
        if records and size > MAX_BATCH_BYTES:
            break
        queue.popleft()
        records.append(record)
        owners.append(owner)
    return records, owners
