"""A client that shares no code with streamserve: `confluent-kafka`, JSON and nothing else."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from tests.acceptance.running import PATIENCE, TIMEOUT_S

ANSWER_S = 22.0 * PATIENCE
"""More than any budget that tests give a request."""

_NO_LEADER = (
    confluent_kafka.KafkaError.NOT_LEADER_FOR_PARTITION,
    confluent_kafka.KafkaError.LEADER_NOT_AVAILABLE,
    confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART,
)

Headers = Sequence[tuple[str, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One record as it stands in a topic."""

    partition: int
    offset: int
    append_ms: int
    key: bytes | None
    value: bytes | None
    headers: dict[str, bytes] = field(default_factory=dict)

    @property
    def json(self) -> Any:
        return json.loads(self.value or b"null")

    @property
    def parameters(self) -> Any:
        return self.json["parameters"]

    @property
    def outcome(self) -> str:
        return str(self.parameters["outcome"])

    @property
    def reason(self) -> str:
        return str(self.parameters["reason"])

    @property
    def ref(self) -> str:
        """Of a prediction: the request that it answers."""
        return self.headers["ss-ref"].decode()

    @property
    def label(self) -> list[Any]:
        """Of a prediction: the answer, one value a row; empty where there is none."""
        return next((tensor["data"] for tensor in self.json["outputs"] if tensor["name"] == "label"), [])


class Foreign:
    """Sends requests, notes where the broker says that they stand, and reads what came of them."""

    def __init__(self, ready: dict[str, Any]) -> None:
        self.servers: str = ready["bootstrap_servers"]
        self.topics: dict[str, str] = ready["topics"]
        self.producer = Producer(
            {"bootstrap.servers": self.servers, "linger.ms": 5, "message.max.bytes": 4_000_000, "log_level": 0}
        )
        self.consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": "foreign",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 20,
                "fetch.message.max.bytes": 9_000_000,
                "log_level": 0,
            }
        )
        self._reader = Consumer(  # one for all reads: each new one looks everything up anew
            {
                "bootstrap.servers": self.servers,
                "group.id": "foreign-reader",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 10,  # so long an end is waited at
                "fetch.message.max.bytes": 9_000_000,
                "log_level": 0,
            }
        )
        self.partitions = len(
            self.consumer.list_topics(self.topics["requests"], 20).topics[self.topics["requests"]].partitions
        )
        places = [TopicPartition(self.topics["predictions"], number) for number in range(self.partitions)]
        for place in places:
            place.offset = self._end(place)
        self.consumer.assign(places)
        self.acknowledged: dict[Any, tuple[int, int]] = {}
        """What was sent under each tag -> partition and offset."""
        self.predictions: dict[str, list[Seen]] = defaultdict(list)
        """By ref, in the order of the log."""
        self._sent = 0

    def _end(self, place: TopicPartition) -> int:
        """Where a partition ends; asked again while nobody leads it yet, as that of a topic just made."""
        until = time.monotonic() + TIMEOUT_S
        while True:
            try:
                return int(self.consumer.get_watermark_offsets(place, timeout=20)[1])
            except confluent_kafka.KafkaException as error:
                if error.args[0].code() not in _NO_LEADER or time.monotonic() > until:
                    raise

    def send(
        self,
        value: bytes | None,
        *,
        tag: Any,
        headers: Headers = (),
        key: bytes | None = None,
        partition: int | None = None,
        kind: str = "requests",
    ) -> None:
        """Produce one record; `acknowledged[tag]` says where it stands once the broker has it."""
        self._sent += 1

        def acknowledged(error: confluent_kafka.KafkaError | None, message: Message) -> None:
            assert error is None, error
            self.acknowledged[tag] = place_of(message)

        where = self._sent % self.partitions if partition is None else partition
        self.producer.produce(
            self.topics[kind], value, key, where, headers=list(headers) or None, on_delivery=acknowledged
        )
        self.producer.poll(0)

    def flush(self) -> None:
        assert self.producer.flush(TIMEOUT_S) == 0

    def ref(self, tag: Any) -> str:
        partition, offset = self.acknowledged[tag]
        return f"{partition}-{offset}"

    def hear(self, timeout_s: float = 0.0) -> list[Seen]:
        """Predictions that are new."""
        new = [seen(message) for message in self.consumer.consume(500, timeout_s) if message.error() is None]
        for prediction in new:
            self.predictions[prediction.ref].append(prediction)
        return new

    def answers(self, tags: Iterable[Any], timeout_s: float = ANSWER_S) -> dict[Any, Seen]:
        """The first terminal record of each of these, waited for."""
        self.flush()
        refs = {tag: self.ref(tag) for tag in tags}
        until = time.monotonic() + timeout_s
        while missing := [tag for tag, ref in refs.items() if ref not in self.predictions]:
            assert time.monotonic() < until, f"no terminal record for {len(missing)}: {missing[:10]}"
            self.hear(0.05)
        return {tag: self.predictions[ref][0] for tag, ref in refs.items()}

    def read(self, kind: str) -> list[Seen]:
        """A whole topic, from its start to its end as of now."""
        topic, beginning = self.topics[kind], confluent_kafka.OFFSET_BEGINNING  # not 0: dead letters may be removed
        self._reader.list_topics(topic, 20)  # without it, half a second passes until who leads a new topic is looked up
        self._reader.assign([TopicPartition(topic, number, beginning) for number in range(self.partitions)])
        try:
            found: list[Seen] = []
            ended: set[int | None] = set()
            until = time.monotonic() + TIMEOUT_S
            while len(ended) < self.partitions:
                assert time.monotonic() < until, f"{kind} cannot be read to its end"
                for message in self._reader.consume(500, 0.02):
                    error = message.error()
                    if error is None:
                        found.append(seen(message))
                    elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                        ended.add(message.partition())
            return found
        finally:
            self._reader.unassign()

    def close(self) -> None:
        self.consumer.close()
        self._reader.close()


def place_of(message: Message) -> tuple[int, int]:
    partition, offset = message.partition(), message.offset()
    assert partition is not None and offset is not None
    return partition, offset


def seen(message: Message) -> Seen:
    partition, offset = place_of(message)
    headers: Any = message.headers() or ()
    return Seen(
        partition=partition,
        offset=offset,
        append_ms=message.timestamp()[1],
        key=message.key(),
        value=message.value(),
        headers={name: value or b"" for name, value in headers},
    )


@contextmanager
def foreign_client(ready: dict[str, Any]) -> Iterator[Foreign]:
    client = Foreign(ready)
    try:
        yield client
    finally:
        client.close()


def oip(data: list[Any], shape: list[int], *, id: str | None = None, name: str = "x") -> bytes:
    """An Open Inference Protocol request of one FP64 input."""
    body: dict[str, Any] = {"inputs": [{"name": name, "shape": shape, "datatype": "FP64", "data": data}]}
    return json.dumps(body if id is None else {"id": id, **body}).encode()
