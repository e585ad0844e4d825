"""A client's way to the log: one reader, one writer, and questions; on Kafka, or what keeps the protocols."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from aiokafka import TopicPartition
from aiokafka.admin import RecordsToDelete
from aiokafka.errors import KafkaError
from aiokafka.protocol.metadata import MetadataRequest

from streamserve.addresses import check_addresses
from streamserve.client.inputs import MAX_RECORD_BYTES
from streamserve.errors import BrokerError, TopicsDiffer
from streamserve.kafka.clients import KafkaReader
from streamserve.kafka.lookups import KafkaLookups
from streamserve.kafka.ports import At, LogLookups, LogReader, LogWriter
from streamserve.kafka.writer import KafkaWriter


class ClientLookups(LogLookups, Protocol):
    """`LogLookups`, and what only clients ask of a broker."""

    async def partition_count(self, topic: str) -> int:
        """0 where there is no such topic; never makes one."""
        ...

    async def first_since(self, times_ms: Mapping[At, int]) -> dict[At, int]:
        """Offset of the first record appended at that time or later; left out where there is none."""
        ...

    async def remove_before(self, at: At, offset: int) -> int:
        """Remove a partition's records below this offset, for good; the offset at which it begins then."""
        ...


class ClientLog(Protocol):
    """Makes connections to one log. `address` is what messages call it."""

    @property
    def address(self) -> str: ...

    def reader(self) -> LogReader: ...

    def writer(self) -> LogWriter: ...

    def lookups(self) -> ClientLookups: ...


class KafkaClientLookups(KafkaLookups):
    """`ClientLookups` on Kafka."""

    async def partition_count(self, topic: str) -> int:
        if self._admin is None:
            raise BrokerError("look-ups were not started")
        try:
            # Not `describe_topics`: it lets a broker with auto.create.topics.enable create what it is asked about.
            metadata = await self._admin._send_request(MetadataRequest([topic], allow_auto_topic_creation=False))
        except (KafkaError, TimeoutError) as error:
            raise BrokerError(f"asking for the partitions of {topic} failed: {error!r}") from error
        (entry,) = metadata.to_object()["topics"]
        return len(entry["partitions"])

    async def first_since(self, times_ms: Mapping[At, int]) -> dict[At, int]:
        if self._consumer is None:
            raise BrokerError("look-ups were not started")
        asked = {TopicPartition(at.topic, at.partition): time_ms for at, time_ms in times_ms.items()}
        try:
            found = await self._consumer.offsets_for_times(asked) if asked else {}
        except (KafkaError, TimeoutError) as error:
            raise BrokerError(f"asking for offsets by time failed: {error!r}") from error
        return {At(tp.topic, tp.partition): place.offset for tp, place in found.items() if place is not None}

    async def remove_before(self, at: At, offset: int) -> int:
        if self._admin is None:
            raise BrokerError("look-ups were not started")
        tp = TopicPartition(at.topic, at.partition)
        try:
            begins = await self._admin.delete_records({tp: RecordsToDelete(offset)})
        except (KafkaError, TimeoutError) as error:
            raise BrokerError(
                f"removing records of {at.topic}, partition {at.partition}, below {offset} failed: {error!r}"
            ) from error
        return int(begins[tp])


async def common_partitions(lookups: ClientLookups, app: str, topics: Sequence[str], address: str) -> int:
    """How many partitions each of an app's topics has. Raises TopicsDiffer where one is missing, or has others."""
    counts = {topic: await lookups.partition_count(topic) for topic in topics}
    missing = [topic for topic, count in counts.items() if not count]
    if missing:
        raise TopicsDiffer(
            f"app {app} has no topic {' and no topic '.join(missing)} at {address}. "
            "Make them: `streamserve up CONFIG`, or `streamserve topics create CONFIG`"
        )
    if len(set(counts.values())) > 1:
        found = ", ".join(f"{topic} has {count}" for topic, count in counts.items())
        raise TopicsDiffer(f"an app's topics have the same number of partitions, but {found}")
    return counts[topics[0]]


class KafkaLog:
    """`ClientLog` on Kafka."""

    def __init__(self, bootstrap_servers: str, security: Mapping[str, Any] | None = None) -> None:
        """`security`: more keyword arguments of aiokafka's clients. Holds secrets: never for a log."""
        check_addresses(bootstrap_servers)
        self._options = {**(security or {}), "bootstrap_servers": bootstrap_servers}

    @property
    def address(self) -> str:
        return str(self._options["bootstrap_servers"])

    def reader(self) -> LogReader:
        return KafkaReader(self._options, committed_only=True)

    def writer(self) -> LogWriter:
        return KafkaWriter(self._options, max_record_bytes=MAX_RECORD_BYTES + (64 << 10))

    def lookups(self) -> ClientLookups:
        return KafkaClientLookups(self._options)
