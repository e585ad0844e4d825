"""Writing: one lane a partition, batches built as late as possible, a poisoned producer replaced."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import ProducerClosed, ProducerFenced

from streamserve.errors import BrokerError
from streamserve.kafka.clients import METADATA_MAX_AGE_MS, ClientOptions, expect_answers, started
from streamserve.kafka.ports import Ack, At, Fence, RecordColumns
from streamserve.kafka.tasks import ended

_log = logging.getLogger(__name__)

MAX_BATCH_BYTES = 256 * 1024
#: Kafka's own overhead of a record and its batch header, generously.
_RECORD_OVERHEAD_BYTES = 128


class _Send:
    """One `send`: done when each of its records is acknowledged, failed when one of its batches is."""

    __slots__ = (
        "append_ms",
        "at",
        "error",
        "future",
        "lost",
        "offset",
        "records",
        "shut_out",
        "taken",
        "waiting",
        "written",
    )

    def __init__(self, at: At, records: RecordColumns, future: asyncio.Future[Ack]) -> None:
        self.at = at
        self.records = records
        self.future = future
        self.taken = 0
        self.waiting = 0
        self.written = 0
        self.lost = False
        """One of its batches is not in the log, or nobody knows: what comes after it does not count as written."""
        self.offset = -1
        self.append_ms = -1
        self.error = ""
        self.shut_out = False

    @property
    def is_over(self) -> bool:
        return not self.waiting and (bool(self.error) or self.taken == len(self.records.values))

    def close(self) -> None:
        if not self.future.done():  # unless its caller has cancelled it
            self.future.set_result(
                Ack(
                    error=self.error,
                    offset=self.offset,
                    append_ms=self.append_ms,
                    written=self.written if self.error else 0,
                    shut_out=self.shut_out,
                )
            )


_Shares = list[tuple[_Send, int, int]]
"""Who has records in a batch, how many records were in it before theirs, and how many are theirs."""
_Lane = tuple[At, Fence | None]
"""Where to, and behind which fence: a batch has one producer id."""


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
        self._lanes: dict[_Lane, deque[_Send]] = {}
        self._pumps: dict[_Lane, asyncio.Task[None]] = {}
        self._open: set[_Send] = set()
        """Who waits to hear, wherever it is: in a lane, in a pump's hands, or in a batch on its way."""
        self._on_their_way: set[asyncio.Future[Any]] = set()
        """Batches that the producer has taken and the broker has not answered."""
        self._rebuilding: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        """Of the producer that is replaced."""
        self._stopping = False
        self.may_send: Callable[[], bool] = lambda: True
        """False: somebody else may own by now what is written about; it fails instead of being sent."""

    async def start(self) -> None:
        self._producer = await self._connect()

    async def stop(self) -> None:
        self._stopping = True
        if self._pumps:
            await asyncio.wait(list(self._pumps.values()), timeout=self._stop_s)
        for pump in list(self._pumps.values()):
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

    def send(self, at: At, records: RecordColumns, fence: Fence | None = None) -> asyncio.Future[Ack]:
        """With a fence: under its producer id and epoch. After an error nothing more that was sent behind that fence
        gets into the log but what was on its way, and its owner is to take the partition anew."""
        send = _Send(at, records, asyncio.get_running_loop().create_future())
        if self._stopping or not len(records.values):
            send.error = "the writer was stopped" if self._stopping else ""
            send.close()
            return send.future
        self._open.add(send)
        key = (at, fence)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = deque()
        lane.append(send)
        pump = self._pumps.get(key)
        if pump is None or pump.done():
            self._pumps[key] = asyncio.get_running_loop().create_task(self._pump(key, lane), name=f"pump {at}")
        return send.future

    def drop(self, at: At) -> None:
        lane = self._lanes.get((at, None))
        if lane:
            self._shut(lane)

    async def over(self, at: At) -> None:
        waiting = [send.future for send in self._open if send.at == at]
        if waiting:
            await asyncio.wait(waiting)

    async def _pump(self, key: _Lane, lane: deque[_Send]) -> None:
        """Send what is in the lane, batch after batch; ends when the lane is empty."""
        at, fence = key
        while lane:
            while self._rebuilding is not None:
                await asyncio.shield(self._rebuilding)
            producer = self._producer
            if producer is None:
                return
            if fence is not None and not fence.is_open:
                self._shut(lane)
                break
            builder, sends = self._fill(producer.create_batch(), lane)
            if not sends:
                continue
            if not self.may_send():
                self._not_sent(sends, "this process has not heard from its group for too long")
                continue
            if fence is not None:
                _stamp(builder, producer, at, fence)
            try:
                acknowledged = await producer.send_batch(builder, at.topic, partition=at.partition)
            except Exception as error:  # noqa: BLE001  (whatever it is, who waits must hear of it)
                self._failed(key, producer, sends, error)
                continue
            self._on_their_way.add(acknowledged)
            acknowledged.add_done_callback(self._on_their_way.discard)
            acknowledged.add_done_callback(
                lambda done, sends=sends, producer=producer: self._acknowledged(key, producer, sends, done)
            )
        if fence is not None:  # there is a new one after each take-over
            self._lanes.pop(key, None)
            self._pumps.pop(key, None)

    def _shut(self, lane: deque[_Send]) -> None:
        """Its partition was given up: what no batch holds yet is not sent."""
        for send in lane:
            send.error = send.error or "its partition is no longer ours"
            send.taken = len(send.records.values)
            self._close_if_over(send)
        lane.clear()

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
            if (n_added := builder.record_count() - held) > 0:
                send.waiting += 1
                sends.append((send, held, n_added))
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

    def _acknowledged(self, key: _Lane, producer: AIOKafkaProducer, sends: _Shares, done: asyncio.Future[Any]) -> None:
        if done.cancelled():
            self._failed(key, producer, sends, BrokerError("the send was cancelled"))
            return
        error = done.exception()
        if error is not None:
            self._failed(key, producer, sends, error)
            return
        metadata = done.result()
        for send, held, n_added in sends:
            send.waiting -= 1
            if not send.lost:
                send.written += n_added
            if send.offset < 0:
                send.offset = metadata.offset + held
            send.append_ms = metadata.timestamp if metadata.timestamp is not None else -1
            self._close_if_over(send)

    def _failed(self, key: _Lane, producer: AIOKafkaProducer, sends: _Shares, error: BaseException) -> None:
        at, fence = key
        _log.warning("a batch for %s-%d was refused: %r", at.topic, at.partition, error)
        for send, _, _ in sends:
            send.shut_out = send.shut_out or isinstance(error, ProducerFenced)
        self._not_sent(sends, repr(error))
        if fence is not None and not _is_dead(producer, error):
            return  # what is out of order now is that fence's sequence; the producer's own is not
        if producer is self._producer and self._rebuilding is None and not self._stopping:
            self._rebuilding = asyncio.get_running_loop().create_task(self._rebuild(producer), name="rebuild producer")

    def _not_sent(self, sends: _Shares, error: str) -> None:
        for send, _, _ in sends:
            send.waiting -= 1
            send.lost = True
            send.error = send.error or error
            send.taken = len(send.records.values)
            self._close_if_over(send)

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
            for left in list(self._on_their_way):  # a producer that is gone answers for none of them
                left.cancel()
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
        expect_answers(producer.client)
        await started(producer, self._options)
        return producer

    async def _close(self, producer: AIOKafkaProducer) -> None:
        try:
            await asyncio.wait_for(producer.stop(), self._stop_s)
        except Exception as error:  # noqa: BLE001  (nothing we still need depends on it)
            _log.warning("a producer did not stop cleanly: %r", error)


def _stamp(builder: Any, producer: AIOKafkaProducer, at: At, fence: Fence) -> None:
    """Have a batch bear the fence's producer id and epoch instead of the producer's own, once it is to go."""
    plain = builder._set_producer_state

    def stamped(_producer_id: int, _epoch: int, _sequence: int) -> None:
        n = builder.record_count()
        producer._txn_manager.increment_sequence_number(TopicPartition(*at), -n)  # it was counted as the producer's own
        plain(fence.producer_id, fence.epoch, fence.next_sequence(at, n))

    builder._set_producer_state = stamped


def _is_dead(producer: Any, error: BaseException) -> bool:
    """Whether a producer can send nothing more at all."""
    if isinstance(error, ProducerClosed):
        return True
    sender = getattr(producer, "_sender", None)
    return sender is not None and (sender.sender_task is None or sender.sender_task.done())
