"""The client that shares no code with streamserve: `confluent-kafka`, the only module here that imports it.

Open loop: requests are sent at a steady rate whatever becomes of them, so that a stall is seen as one. Its own lateness
is reported. Imported only when a fault is run: `confluent-kafka` is the extra `chaos`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]  # not in its stub's __all__

from streamserve.chaos.account import Acknowledged, Terminal, key_of_ref, ref_key
from streamserve.errors import BrokerError

_TICK_S = 0.002
_FLUSH_S = 60.0
_ASK_S = 20.0
_READ_RECORDS = 5_000
_REF, _OUTCOME = "ss-ref", "ss-outcome"


class Load:
    """Requests at a steady rate, sent by a thread of its own from `start` to `stop`."""

    def __init__(
        self, servers: str, topic: str, *, partitions: int, request: bytes, route: str, rate_per_s: float
    ) -> None:
        self.partitions = partitions
        """May be raised while it runs."""
        self.acknowledged = Acknowledged()
        self.worst_lag_s = 0.0
        """How late a request was sent at worst, for reasons of this program's own."""
        self.ended_ms = 0.0
        self._topic, self._request, self._rate_per_s = topic, request, rate_per_s
        self._headers: list[tuple[str, str | bytes | None]] = [("ss-route", route.encode())]
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "linger.ms": 1,
                "queue.buffering.max.messages": 2_000_000,
                "queue.buffering.max.kbytes": 1_048_576,
                "socket.keepalive.enable": True,
                "reconnect.backoff.max.ms": 500,
                "topic.metadata.refresh.interval.ms": 1_000,
                "log_level": 0,
            }
        )
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self._broke: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the load, and wait until every request is acknowledged or has failed. Raises BrokerError."""
        self._over.set()
        self._thread.join(_FLUSH_S + 5.0)
        if self._broke is not None:
            raise BrokerError(f"the load could not be sent: {self._broke!r}") from self._broke
        if self._thread.is_alive():
            raise BrokerError(f"the load is not acknowledged {_FLUSH_S:.0f} s after its end")

    @property
    def sent(self) -> int:
        return len(self.acknowledged.keys) + self.acknowledged.failed

    def _run(self) -> None:
        try:
            self._send()
            self.ended_ms = time.time() * 1000
            self._producer.flush(_FLUSH_S)
        except BaseException as error:  # noqa: BLE001  (told by `stop`)
            self._broke = error

    def _send(self) -> None:
        began_s, sent = time.monotonic(), 0
        while not self._over.is_set():
            passed_s = time.monotonic() - began_s
            due = int(passed_s * self._rate_per_s)
            if due > sent:
                self.worst_lag_s = max(self.worst_lag_s, passed_s - (sent + 1) / self._rate_per_s)
            while sent < due:
                self._produce(sent % self.partitions)
                sent += 1
            self._producer.poll(0)
            self._over.wait(_TICK_S)

    def _produce(self, partition: int) -> None:
        try:
            self._producer.produce(
                self._topic, self._request, partition=partition, headers=self._headers, on_delivery=self._delivered
            )
        except KafkaException:  # a partition that the client does not know yet
            self.acknowledged.failed += 1

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        if error is not None or partition is None or offset is None:
            self.acknowledged.failed += 1
            return
        self.acknowledged.keys.append(ref_key(partition, offset))
        self.acknowledged.append_ms.append(message.timestamp()[1])


class Answers:
    """The predictions topic, read from where it stood at the start. In no group. Its calls block."""

    def __init__(self, servers: str, topic: str, *, partitions: int, committed_only: bool = True) -> None:
        self.terminal = Terminal()
        self._seen: set[int] = set()
        self._topic, self._partitions = topic, 0
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "streamserve-chaos",
                "enable.auto.commit": False,
                "isolation.level": "read_committed" if committed_only else "read_uncommitted",
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 50,
                "fetch.message.max.bytes": 9_000_000,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        self.follow(partitions)

    def follow(self, partitions: int) -> None:
        """Read so many partitions from now on."""
        new = [TopicPartition(self._topic, number, 0) for number in range(self._partitions, partitions)]
        held = [self._consumer.position([place])[0] for place in self._consumer.assignment()]
        self._consumer.assign([place if place.offset >= 0 else _at_start(place) for place in held] + new)
        self._partitions = partitions

    def read(self, timeout_s: float) -> int:
        """Take in what is there; how many records were new."""
        new = 0
        for message in self._consumer.consume(_READ_RECORDS, timeout_s):
            if message.error() is None:
                self._take(message)
                new += 1
        return new

    def missing(self, acknowledged: Acknowledged) -> int:
        return sum(key not in self._seen for key in acknowledged.keys)

    def read_until(self, acknowledged: Acknowledged, *, but: int, timeout_s: float) -> None:
        """Until all but so many have their record, or the time is over."""
        until_s = time.monotonic() + timeout_s
        while time.monotonic() < until_s:
            if not self.read(0.2) and self.missing(acknowledged) <= but:
                return

    def read_to_end(self) -> None:
        """Everything that stands in the topic now. Raises BrokerError where that takes too long."""
        until_s = time.monotonic() + _ASK_S
        for number in range(self._partitions):
            place = TopicPartition(self._topic, number)
            marks: Any = self._consumer.get_watermark_offsets(place, timeout=_ASK_S)
            while marks[1] and self._consumer.position([place])[0].offset < marks[1]:
                if time.monotonic() > until_s:
                    raise BrokerError(f"{self._topic} cannot be read to its end within {_ASK_S:.0f} s")
                self.read(0.1)

    def close(self) -> None:
        self._consumer.close()

    def _take(self, message: Message) -> None:
        headers: Mapping[str, bytes] = dict(message.headers() or ())  # type: ignore[arg-type]  # no null headers of ours
        key = key_of_ref(headers[_REF])
        self._seen.add(key)
        self.terminal.keys.append(key)
        self.terminal.append_ms.append(message.timestamp()[1])
        self.terminal.outcomes.append(headers[_OUTCOME].decode())


def _at_start(place: TopicPartition) -> TopicPartition:
    return TopicPartition(place.topic, place.partition, 0)


class Hand:
    """What a person with Kafka's own tools does to topics. Its calls block; they raise BrokerError."""

    def __init__(self, servers: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})

    def leader(self, topic: str, partition: int) -> int:
        """Node id of the leader."""
        partitions: Mapping[int, Any] = self._admin.list_topics(topic, timeout=_ASK_S).topics[topic].partitions
        return int(partitions[partition].leader)

    def truncate(self, topic: str, partitions: int) -> dict[int, int]:
        """DeleteRecords up to the end as of now; the new start of each partition."""
        wanted = [TopicPartition(topic, number, -1) for number in range(partitions)]
        futures: Mapping[TopicPartition, Future[Any]] = self._admin.delete_records(wanted)
        return {place.partition: int(_done(future).low_watermark) for place, future in futures.items()}

    def delete(self, topics: Collection[str]) -> None:
        """Delete topics: what a run leaves would slow the next one's broker down."""
        for future in self._admin.delete_topics(list(topics)).values():
            _done(future)

    def raise_partitions(self, topic: str, partitions: int) -> None:
        """CreatePartitions up to so many."""
        for future in self._admin.create_partitions([NewPartitions(topic, partitions)]).values():
            _done(future)


def _done(future: Future[Any]) -> Any:
    try:
        return future.result(_ASK_S)
    except Exception as error:
        raise BrokerError(f"the broker did not do as asked: {error}") from error
