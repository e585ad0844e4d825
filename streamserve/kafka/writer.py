"""Writing: one lane a partition, batches built as late as possible, a poisoned producer replaced."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from aiokafka import AIOKafkaProducer

from streamserve.errors import BrokerError
from streamserve.kafka.clients import METADATA_MAX_AGE_MS, ClientOptions, started
from streamserve.kafka.ports import Ack, At, RecordColumns
from streamserve.kafka.tasks import ended

_log = logging.getLogger(__name__)

MAX_BATCH_BYTES = 256 * 1024
#: Kafka's own overhead of a record and its batch header, generously.
_RECORD_OVERHEAD_BYTES = 128


class _Send:
    """One `send`: done when each of its records is acknowledged, failed when one of its batches is."""

    __slots__ = ("append_ms", "error", "future", "offset", "records", "taken", "waiting")

    def __init__(self, records: RecordColumns, future: asyncio.Future[Ack]) -> None:
        self.records = records
        self.future = future
        self.taken = 0
        self.waiting = 0
        self.offset = -1
        self.append_ms = -1
        self.error = ""

    @property
    def is_over(self) -> bool:
        return not self.waiting and (bool(self.error) or self.taken == len(self.records.values))

    def close(self) -> None:
        if not self.future.done():  # unless its caller has cancelled it
            self.future.set_result(Ack(error=self.error, offset=self.offset, append_ms=self.append_ms))


_Shares = list[tuple[_Send, int]]
"""Who has records in a batch, and how many records were in it before theirs."""


class KafkaWriter:
    """`LogWriter` on Kafka: idempotent, acks from all, no linger."""

    def __init__(
        self,
        options: ClientOptions,
        *,
        max_record_bytes: int = 8 << 20,
        stop_s: float = 5.0,
        connect: Callable[[], Awaitable[Any]] | None = None,
    ) -> None:
        """`stop_s`: how long `stop` waits for what is on its way. `connect`: another producer than Kafka's (tests)."""
        self._options = options
        self._max_record_bytes = max_record_bytes
        self._stop_s = stop_s
        self._connect = connect or self._connected
        self._producer: AIOKafkaProducer | None = None
        self._lanes: dict[At, deque[_Send]] = {}
        self._pumps: dict[At, asyncio.Task[None]] = {}
        self._open: set[_Send] = set()
        """Who waits to hear, wherever it is: in a lane, in a pump's hands, or in a batch on its way."""
        self._rebuilding: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        """Of the producer that is replaced."""
        self._stopping = False

    async def start(self) -> None:
        self._producer = await self._connect()

    async def stop(self) -> None:
        self._stopping = True
        if self._pumps:
            await asyncio.wait(self._pumps.values(), timeout=self._stop_s)
        for pump in self._pumps.values():
            await ended(pump)
        if self._rebuilding is not None:
            await ended(self._rebuilding)
        if self._closing is not None:
            await self._closing
        if self._producer is not None:
            await self._close(self._producer)
            self._producer = None
        for send in self._open:
            send.error = send.error or "the writer was stopped before the broker acknowledged it"
            send.close()
        self._open.clear()
        self._lanes.clear()

    def send(self, at: At, records: RecordColumns) -> asyncio.Future[Ack]:
        send = _Send(records, asyncio.get_running_loop().create_future())
        if self._stopping or not len(records.values):
            send.error = "the writer was stopped" if self._stopping else ""
            send.close()
            return send.future
        self._open.add(send)
        lane = self._lanes.get(at)
        if lane is None:
            lane = self._lanes[at] = deque()
        lane.append(send)
        pump = self._pumps.get(at)
        if pump is None or pump.done():
            self._pumps[at] = asyncio.get_running_loop().create_task(self._pump(at, lane), name=f"pump {at}")
        return send.future

    async def _pump(self, at: At, lane: deque[_Send]) -> None:
        """Send what is in the lane, batch after batch; ends when the lane is empty."""
        while lane:
            while self._rebuilding is not None:
                await asyncio.shield(self._rebuilding)
            producer = self._producer
            if producer is None:
                return
            builder, sends = self._fill(producer.create_batch(), lane)
            if not sends:
                continue
            try:
                acknowledged = await producer.send_batch(builder, at.topic, partition=at.partition)
            except Exception as error:  # noqa: BLE001  (whatever it is, who waits must hear of it)
                self._failed(at, producer, sends, error)
                continue
            acknowledged.add_done_callback(
                lambda done, sends=sends, producer=producer: self._acknowledged(at, producer, sends, done)
            )

    def _fill(self, builder: Any, lane: deque[_Send]) -> tuple[Any, _Shares]:
        sends: _Shares = []
        append = builder.append
        stamp_ms = int(time.time() * 1000)  # else the client asks for the time of each record; the broker sets its own
        while lane:
            send = lane[0]
            keys, values, headers = send.records.keys, send.records.values, send.records.headers
            taken, n, held = send.taken, len(values), builder.record_count()
            while taken < n:
                value, head = values[taken], headers[taken]
                try:
                    if value is not None and self._too_large(keys[taken], value, head):
                        send.error = f"a record of {len(value)} bytes is larger than the topic takes"
                        taken = n
                        break
                    if type(head) is not list:  # what the client's builder insists on
                        head = list(head)
                    full = append(timestamp=stamp_ms, key=keys[taken], value=value, headers=head) is None
                except Exception as error:  # noqa: BLE001  (bytes that are none, a name with a lone surrogate, ...)
                    send.error, taken = f"a record cannot be written: {error!r}", n
                    break
                if full:
                    break
                taken += 1
            if builder.record_count() > held:
                send.waiting += 1
                sends.append((send, held))
            send.taken = taken
            if taken < n:
                break
            lane.popleft()
            self._close_if_over(send)
        return builder, sends if builder.record_count() else []

    def _too_large(self, key: bytes | None, value: bytes, headers: Sequence[tuple[str, bytes | None]]) -> bool:
        size = len(value)
        if size < MAX_BATCH_BYTES:  # the common case: no need to look at the headers
            return False
        size += len(key or b"") + sum(len(name) + len(text or b"") for name, text in headers)
        return size + _RECORD_OVERHEAD_BYTES > self._max_record_bytes

    def _acknowledged(self, at: At, producer: AIOKafkaProducer, sends: _Shares, done: asyncio.Future[Any]) -> None:
        if done.cancelled():
            self._failed(at, producer, sends, BrokerError("the send was cancelled"))
            return
        error = done.exception()
        if error is not None:
            self._failed(at, producer, sends, error)
            return
        metadata = done.result()
        for send, held in sends:
            send.waiting -= 1
            if send.offset < 0:
                send.offset = metadata.offset + held
            send.append_ms = metadata.timestamp if metadata.timestamp is not None else -1
            self._close_if_over(send)

    def _failed(self, at: At, producer: AIOKafkaProducer, sends: _Shares, error: BaseException) -> None:
        _log.warning("a batch for %s-%d was refused: %r", at.topic, at.partition, error)
        for send, _ in sends:
            send.waiting -= 1
            send.error = send.error or repr(error)
            send.taken = len(send.records.values)
            self._close_if_over(send)
        if producer is self._producer and self._rebuilding is None and not self._stopping:
            self._rebuilding = asyncio.get_running_loop().create_task(self._rebuild(producer), name="rebuild producer")

    def _close_if_over(self, send: _Send) -> None:
        if send.is_over:
            self._open.discard(send)
            send.close()

    async def _rebuild(self, old: AIOKafkaProducer) -> None:
        delay_s = 0.1
        self._producer = None
        self._closing = asyncio.get_running_loop().create_task(self._close(old), name="close producer")
        try:
            # A client that was not let finish its stop leaves tasks behind, and ignores a second one.
            await asyncio.shield(self._closing)
            while True:
                try:
                    self._producer = await self._connect()
                except Exception as error:  # noqa: BLE001  (an end here would be every lane's)
                    _log.warning("no new producer yet: %r", error)
                    await asyncio.sleep(delay_s)
                    delay_s = min(2.0, delay_s * 2)
                else:
                    return
        finally:
            self._rebuilding = None

    async def _connected(self) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(
            **self._options,
            acks="all",
            enable_idempotence=True,
            linger_ms=0,
            max_batch_size=MAX_BATCH_BYTES,
            max_request_size=self._max_record_bytes,
            metadata_max_age_ms=METADATA_MAX_AGE_MS,
        )
        await started(producer, self._options)
        return producer

    async def _close(self, producer: AIOKafkaProducer) -> None:
        try:
            await asyncio.wait_for(producer.stop(), self._stop_s)
        except Exception as error:  # noqa: BLE001  (nothing we still need depends on it)
            _log.warning("a producer did not stop cleanly: %r", error)
