"""Kafka by confluent-kafka, which shares no code with streamserve: write, and read some topics from their beginning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition

#: No read waits longer, so that what is due meanwhile is sent in time.
MOST_WAIT_S = 0.02
_RECORDS_A_READ = 500
_METADATA_TIMEOUT_S = 15.0


class AppEndedError(Exception):
    """The app stopped while requests were being sent."""


class Kafka:
    """One producer, one consumer. `topics`: kind -> name, of an app; `read`: the kinds that are read."""

    def __init__(self, bootstrap_servers: str, topics: Mapping[str, str], read: Sequence[str]) -> None:
        self._topics = topics
        self._kinds = {topics[kind]: kind for kind in read}
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": 5,  # what Kafka's own client does since version 4
            }
        )
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": "demo-reader",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 50,
            }
        )

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Read each topic from its beginning; the app's Kafka is new, so all records in it are of this run."""
        try:
            places = []
            for topic in self._kinds:
                found = self._consumer.list_topics(topic, timeout=_METADATA_TIMEOUT_S).topics[topic]
                places += [TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in found.partitions]
            self._consumer.assign(places)
            yield
        finally:
            self._consumer.close()
            self._producer.purge()
            self._producer.flush(1.0)
            self._producer.close()

    def send(self, kind: str, value: bytes, **more: Any) -> None:
        """To the topic of that kind; `more` as of confluent-kafka's `produce`."""
        self._producer.produce(self._topics[kind], value, **more)

    def flush(self, most_s: float) -> None:
        self._producer.flush(most_s)

    def read(self, wait_s: float) -> list[tuple[str, Message]]:
        """What has come meanwhile, each with its topic's kind. Raises `AppEndedError` where the broker is gone."""
        self._producer.poll(0)
        found = []
        for message in self._consumer.consume(_RECORDS_A_READ, wait_s):
            error = message.error()
            if error is None:
                found.append((self._kinds[message.topic() or ""], message))
            elif not error.retriable():
                raise AppEndedError(error.str())
        return found


def place_of(message: Message) -> tuple[int, int]:
    """Partition and offset."""
    partition, offset = message.partition(), message.offset()
    return (-1 if partition is None else partition, -1 if offset is None else offset)
