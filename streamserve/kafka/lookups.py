"""Questions about the log, on connections of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.commit import OffsetFetchRequest

from streamserve.errors import BrokerError
from streamserve.kafka.clients import ANSWER_MS, ClientOptions, expect_answers, started, stopped
from streamserve.kafka.ports import At, Committed

#: A take-over asks on new connections, rather than find out one by one which old ones lead nowhere.
_LOOKUP_IDLE_MS = 2_000
_ATTEMPTS = 20
_ATTEMPT_S = 0.1


async def persistently(ask: Callable[[], Awaitable[Any]], what: str) -> Any:
    """Ask again while the broker says that it will know soon (a coordinator moves, a leader is elected)."""
    for attempt in range(_ATTEMPTS):
        try:
            return await ask()
        except (KafkaError, TimeoutError) as error:
            if attempt == _ATTEMPTS - 1 or not getattr(error, "retriable", False):
                raise BrokerError(f"{what} failed: {error!r}") from error
            await asyncio.sleep(_ATTEMPT_S)
    raise BrokerError(f"{what} failed")


def commits_of(response: Any) -> dict[At, Committed]:
    """By partition, of an answer to OffsetFetch; offset -1: none is held. Raises the KafkaError that it holds instead.

    aiokafka's own look-up (0.14) passes over the error of the whole: a coordinator that is still loading after a
    restart looks to it like a group without commits, and a take-over would begin at the log's start.
    """
    rows = [(topic, *row) for topic, of_topic in response.topics for row in of_topic]
    for code in (response.error_code, *(row[-1] for row in rows)):
        if code:
            raise for_code(code)(f"error {code} of the group's coordinator")
    return {
        At(topic, partition): Committed(offset=offset, metadata=metadata or "")
        for topic, partition, offset, metadata, _ in rows
    }


class KafkaLookups:
    """`LogLookups` on Kafka."""

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._consumer: AIOKafkaConsumer | None = None
        self._admin: AIOKafkaAdminClient | None = None

    async def start(self) -> None:
        self._consumer = AIOKafkaConsumer(
            **self._options, enable_auto_commit=False, connections_max_idle_ms=_LOOKUP_IDLE_MS
        )
        expect_answers(self._consumer._client)
        await started(self._consumer, self._options)
        self._admin = AIOKafkaAdminClient(
            **self._options, request_timeout_ms=ANSWER_MS, connections_max_idle_ms=_LOOKUP_IDLE_MS
        )
        await started(self._admin, self._options)

    async def stop(self) -> None:
        for client in (self._admin, self._consumer):
            if client is not None:
                await stopped(client)
        self._consumer = self._admin = None

    async def starts(self, partitions: Collection[At]) -> dict[At, int]:
        return await self._offsets(partitions, end=False)

    async def ends(self, partitions: Collection[At]) -> dict[At, int]:
        return await self._offsets(partitions, end=True)

    async def _offsets(self, partitions: Collection[At], *, end: bool) -> dict[At, int]:
        if not partitions:
            return {}
        if self._consumer is None:
            raise BrokerError("look-ups were not started")
        wanted = [TopicPartition(at.topic, at.partition) for at in partitions]
        ask = self._consumer.end_offsets if end else self._consumer.beginning_offsets
        found = await persistently(lambda: ask(wanted), "asking for offsets")
        return {At(tp.topic, tp.partition): offset for tp, offset in found.items()}

    async def since(self, times: Mapping[At, int]) -> dict[At, int]:
        """Of each partition the first offset appended at this time (ms) or later; its end where there is none."""
        if not times:
            return {}
        consumer = self._consumer
        if consumer is None:
            raise BrokerError("look-ups were not started")
        wanted = {TopicPartition(at.topic, at.partition): max(0, ms) for at, ms in times.items()}
        found = await persistently(lambda: consumer.offsets_for_times(wanted), "asking for offsets by time")
        ends = await self.ends([at for at in times if found[TopicPartition(*at)] is None])
        return {at: ends[at] if at in ends else found[TopicPartition(*at)].offset for at in times}

    async def committed(self, group: str, partitions: Collection[At]) -> dict[At, Committed]:
        admin = self._admin
        if admin is None:
            raise BrokerError("look-ups were not started")
        by_topic: dict[str, list[int]] = {}
        for at in partitions:
            by_topic.setdefault(at.topic, []).append(at.partition)
        request = OffsetFetchRequest(group, list(by_topic.items()))

        async def ask() -> dict[At, Committed]:
            return commits_of(await admin._send_request(request, await admin.find_coordinator(group)))

        found: dict[At, Committed] = await persistently(ask, f"reading the commits of group {group}")
        return found
