"""The real clients: the only import of aiokafka beside the admin's.

What is worked around here, and why (aiokafka 0.14):

* A record whose header name is not UTF-8 raises inside its parser, for ever, and withholds the good records before
  it. Such a partition is read once by `rawfetch`, then goes on with the fast reader.
* A refused batch poisons an idempotent producer for its partition, so the producer is rebuilt.
* The listener of a group is awaited before heartbeats start again: it must not take long, so new partitions are only
  paused there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from operator import attrgetter
from typing import Any

import numpy as np
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, OffsetAndMetadata, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import (
    CommitFailedError,
    CorruptRecordException,
    IllegalGenerationError,
    IllegalStateError,
    KafkaConnectionError,
    KafkaError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)

from streamserve.errors import BrokerError
from streamserve.kafka.ports import At, Chunk, Committed, Rebalance
from streamserve.kafka.rawfetch import RawFetcher

_log = logging.getLogger(__name__)

#: Parked fetches: a drain task always waits in `fetch`, so a long wait costs no latency.
FETCH_WAIT_MS = 500
METADATA_MAX_AGE_MS = 10_000
#: A connection on which no answer comes for so long is given up and made anew. The client's own 40 s is how long all
#: service would stand still where something in between (a firewall, a load balancer) has forgotten the connections.
ANSWER_MS = 8_000
#: A broker answers a member that joins only when the others have joined, or their session is over.
_JOIN_ROOM_MS = 2_000
#: How long the group waits for a member that does not give up its partitions.
REBALANCE_TIMEOUT_MS = 10_000
_STOP_S = 3.0
#: On top of the time that a fetch may take: not for the broker, who is not waited for there.
_FETCH_ROOM_S = 1.0
#: Each asks the broker once for each partition; above that a record is not what is wrong.
_FRUITLESS_REPAIRS = 20
_LOST = (CommitFailedError, IllegalGenerationError, RebalanceInProgressError, UnknownMemberIdError, IllegalStateError)
_columns = attrgetter("offset", "timestamp", "key", "value", "headers")

ClientOptions = Mapping[str, Any]
"""Keyword arguments of every aiokafka client: `bootstrap_servers` and security."""


def no_answer(bootstrap_servers: str) -> BrokerError:
    """For people. What the client itself says is a Python list of socket addresses: left out."""
    what_to_do = "Check that it runs, its address, and the security settings ([broker] in the config)"
    return BrokerError(f"no Kafka broker answers at {bootstrap_servers}. {what_to_do}")


def expect_answers(client: Any, answer_ms: int = ANSWER_MS) -> None:
    """Let the connections of an aiokafka client (not yet started) be given up after so long without an answer.

    Not by its `request_timeout_ms`: that is also the life of a producer's batch, which must outlast a broker's restart,
    and it ends what a consumer asks at the same moment as the connection, which then is never given up.
    """
    client._request_timeout_ms = answer_ms


async def started(client: Any, options: ClientOptions) -> None:
    """Start a client. BrokerError, with the address, where no broker answers."""
    try:
        await client.start()
    except BaseException as error:
        with contextlib.suppress(Exception):
            await stopped(client)
        if isinstance(error, KafkaConnectionError):
            raise no_answer(str(options.get("bootstrap_servers"))) from error
        raise


async def stopped(client: Any) -> None:
    """Stop a client, and wait for that no longer than its broker deserves."""
    # stop() can wait for a broker that is gone (aiokafka #659): nothing we still need depends on it.
    method = client.close if isinstance(client, AIOKafkaAdminClient) else client.stop
    try:
        await asyncio.wait_for(method(), _STOP_S)
    except (TimeoutError, KafkaError) as error:
        _log.warning("a Kafka client did not stop cleanly: %s", error)
    except asyncio.CancelledError:
        # Also what the client's own fetch ends with that was to be tried again: not meant for us (aiokafka 0.14).
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise


def chunk_of(at: At, records: list[Any], next_offset: int, end: int | None = None) -> Chunk:
    """Columns of aiokafka's records of one partition. `end`: of the log, where it is known."""
    offsets, stamps, keys, values, headers = zip(*map(_columns, records), strict=True)
    return Chunk(
        at=at,
        offsets=np.array(offsets, np.int64),
        append_ms=np.array(stamps, np.int64),
        keys=list(keys),
        values=list(values),
        headers=list(map(tuple, headers)),
        next_offset=next_offset,
        lag=0 if end is None else max(0, end - next_offset),
    )


class _Fetched(OrderedDict[TopicPartition, Any]):
    """What a client has fetched and not handed out. Its records stay as the parser made them: the object that the
    client would wrap around each costs more than reading it (1.4 against 0.9 us, measured)."""

    def __setitem__(self, tp: TopicPartition, fetched: Any) -> None:
        records = getattr(fetched, "_partition_records", None)
        if records is not None:
            records._consumer_record = _unwrapped
        super().__setitem__(tp, fetched)


def _unwrapped(_tp: TopicPartition, record: Any) -> Any:
    return record


def _still_fetches(consumer: Any) -> None:
    """Raise BrokerError where the client's own task that fetches has ended: it says so to nobody, hands out nothing any
    more, and goes on as a member of its group."""
    task = consumer._fetcher._fetch_task
    if task.done():
        error = None if task.cancelled() else task.exception()
        raise BrokerError(f"reading failed: the Kafka client has ended its own fetching ({error!r})")


class _Reading:
    """Fetching, shared by both kinds of reader."""

    def __init__(self, options: ClientOptions, *, committed_only: bool) -> None:
        self._options = options
        self._committed_only = committed_only
        self._consumer: AIOKafkaConsumer | None = None
        self._raw = RawFetcher(options, committed_only=committed_only)
        self._repaired: list[Chunk] = []
        self._fruitless = 0
        self._next: dict[TopicPartition, int] = {}
        """First offset not yet handed out, of each partition that is being read."""

    def _make(self, *, answer_ms: int = ANSWER_MS, **more: Any) -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(
            **self._options,
            **more,
            fetch_max_wait_ms=FETCH_WAIT_MS,
            metadata_max_age_ms=METADATA_MAX_AGE_MS,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed" if self._committed_only else "read_uncommitted",
        )
        expect_answers(consumer._client, answer_ms)
        return consumer

    async def _start(self, consumer: AIOKafkaConsumer) -> None:
        self._consumer = consumer
        await started(consumer, self._options)
        consumer._fetcher._records = _Fetched(consumer._fetcher._records)

    @property
    def _live(self) -> AIOKafkaConsumer:
        if self._consumer is None:
            raise BrokerError("the reader was not started")
        return self._consumer

    async def stop(self) -> None:
        await self._raw.stop()
        if self._consumer is not None:
            consumer, self._consumer = self._consumer, None
            await stopped(consumer)

    async def fetch(self, *, max_records: int, timeout_ms: int) -> list[Chunk]:
        if self._repaired:
            repaired, self._repaired = self._repaired, []
            return repaired
        consumer = self._live
        try:
            # A client that waits for its group waits for ever; what it has fetched it keeps.
            async with asyncio.timeout(timeout_ms / 1000 + _FETCH_ROOM_S):
                fetched = await consumer.getmany(timeout_ms=timeout_ms, max_records=max_records)
        except TimeoutError:
            return []
        except Exception as error:  # what a damaged batch makes parser and decompressors raise has no common class
            if isinstance(error, KafkaError) and not isinstance(error, CorruptRecordException):
                raise BrokerError(f"reading failed: {error!r}") from error
            await self._repair(consumer, error)
            self._fruitless = 0 if self._repaired else self._fruitless + 1
            if self._fruitless > _FRUITLESS_REPAIRS:
                raise BrokerError(f"reading failed, and reading it the slow way found nothing: {error!r}") from error
            return []
        if not fetched:
            _still_fetches(consumer)
            await self._catch_up(consumer)
            return []
        chunks = []
        for tp, records in fetched.items():
            if tp in self._next:
                end = consumer.highwater(tp) if tp in consumer.assignment() else None
                chunk = chunk_of(At(tp.topic, tp.partition), records, records[-1].offset + 1, end)
                self._next[tp] = chunk.next_offset
                chunks.append(chunk)
        return chunks

    async def _repair(self, consumer: AIOKafkaConsumer, error: Exception) -> None:
        """Read what the parser refuses another way.

        Which partition it was is not said, and records of others, drained by the same call, are gone with the
        exception although their position has moved on: each partition is read again from where we know it was left.
        """
        _log.warning("a record breaks the client's parser (%s); reading it the slow way", error)
        for tp, position in list(self._next.items()):
            if tp in consumer.assignment():
                consumer.seek(tp, position)
                chunk = None if tp in consumer.paused() else await self._raw.fetch(At(*tp), position)
                if chunk is None or self._next.get(tp) != position or tp not in consumer.assignment():
                    continue
                consumer.seek(tp, chunk.next_offset)
                self._next[tp] = chunk.next_offset
                if len(chunk):
                    self._repaired.append(chunk)

    async def _catch_up(self, consumer: AIOKafkaConsumer) -> None:
        """Step over what holds no record (transaction markers, compacted ranges), where nothing is buffered."""
        for tp, position in list(self._next.items()):
            if tp in consumer.assignment() and tp not in consumer.paused():
                try:
                    reached = await consumer.position(tp)
                except KafkaError:  # taken away while we asked
                    continue
                if self._next.get(tp) == position:
                    self._next[tp] = max(position, reached)

    def _known(self, partitions: Collection[At]) -> list[TopicPartition]:
        assigned = self._live.assignment()
        wanted = [TopicPartition(at.topic, at.partition) for at in partitions]
        return [tp for tp in wanted if tp in assigned]

    def pause(self, partitions: Collection[At]) -> None:
        self._live.pause(*self._known(partitions))

    def resume(self, partitions: Collection[At]) -> None:
        self._live.resume(*self._known(partitions))

    def lag(self, at: At) -> int | None:
        tp = TopicPartition(at.topic, at.partition)
        consumer = self._live
        if tp not in consumer.assignment():
            return None
        highwater = consumer.highwater(tp)
        if highwater is None:
            return None
        return max(0, highwater - self._next[tp]) if tp in self._next else None


class KafkaReader(_Reading):
    """`LogReader` on Kafka."""

    def __init__(self, options: ClientOptions, *, committed_only: bool = False) -> None:
        super().__init__(options, committed_only=committed_only)
        self._assigned = asyncio.Event()

    async def start(self) -> None:
        await self._start(self._make())

    async def fetch(self, *, max_records: int, timeout_ms: int) -> list[Chunk]:
        if not self._assigned.is_set():  # getmany with nothing assigned waits for ever (aiokafka #666)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._assigned.wait(), timeout_ms / 1000)
            return []
        return await super().fetch(max_records=max_records, timeout_ms=timeout_ms)

    def read(self, positions: Mapping[At, int]) -> None:
        consumer = self._live
        targets = {TopicPartition(at.topic, at.partition): offset for at, offset in positions.items()}
        paused = consumer.paused() & targets.keys() if self._next else set()
        self._repaired = [chunk for chunk in self._repaired if TopicPartition(*chunk.at) in targets]
        self._next = {tp: self._next.get(tp, offset) for tp, offset in targets.items()}
        if not targets:
            self._assigned.clear()
            consumer.unsubscribe()
            return
        consumer.assign(list(targets))
        for tp, offset in self._next.items():
            consumer.seek(tp, offset)
        if paused:
            consumer.pause(*paused)
        self._assigned.set()


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, reader: KafkaGroupReader, *, assigned: Rebalance, revoked: Rebalance) -> None:
        self._reader, self._assigned, self._revoked = reader, assigned, revoked

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        self._reader.forget()
        if revoked:
            await self._revoked(frozenset(At(tp.topic, tp.partition) for tp in revoked))

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        self._reader._live.pause(*assigned)
        await self._assigned(frozenset(At(tp.topic, tp.partition) for tp in assigned))


class KafkaGroupReader(_Reading):
    """`GroupReader` on Kafka: subscribes to the driving topic only."""

    def __init__(
        self,
        options: ClientOptions,
        *,
        topic: str,
        group: str,
        instance: str | None,
        session_timeout_ms: int,
        heartbeat_interval_ms: int,
        committed_only: bool,
        hands_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """`hands_over`: asked when it stops, whether another joins at once under the same `instance`."""
        super().__init__(options, committed_only=committed_only)
        self._hands_over = hands_over
        self._topic, self._group, self._instance = topic, group, instance
        self._session_timeout_ms, self._heartbeat_interval_ms = session_timeout_ms, heartbeat_interval_ms

    async def start(self, *, assigned: Rebalance, revoked: Rebalance) -> None:
        consumer = self._make(
            group_id=self._group,
            group_instance_id=self._instance,
            session_timeout_ms=self._session_timeout_ms,
            heartbeat_interval_ms=self._heartbeat_interval_ms,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            answer_ms=max(ANSWER_MS, min(self._session_timeout_ms, REBALANCE_TIMEOUT_MS) + _JOIN_ROOM_MS),
        )
        consumer.subscribe([self._topic], listener=_Listener(self, assigned=assigned, revoked=revoked))
        await self._start(consumer)

    async def stop(self) -> None:
        coordinator = None if self._consumer is None else self._consumer._coordinator
        if coordinator is not None and not self._hands_over():
            # A static member does not leave: its partitions are nobody's until another joins under its name or its
            # session is over. Where no other does at once, whoever stops in order gives them up now.
            coordinator._group_instance_id = None
        await super().stop()

    def forget(self) -> None:
        """Nothing is ours until it is begun again."""
        self._repaired.clear()
        self._next.clear()

    def begin(self, positions: Mapping[At, int]) -> None:
        consumer = self._live
        for at in positions:
            tp = TopicPartition(at.topic, at.partition)
            if tp in consumer.assignment():
                self._next[tp] = positions[at]
                consumer.seek(tp, positions[at])
                consumer.resume(tp)

    async def commit(self, offsets: Mapping[At, Committed]) -> bool:
        wanted = {
            TopicPartition(at.topic, at.partition): OffsetAndMetadata(c.offset, c.metadata) for at, c in offsets.items()
        }
        try:
            await self._live.commit(wanted)
        except _LOST as error:
            _log.info("commit refused, the partitions have another owner: %s", error)
            return False
        except KafkaError as error:
            raise BrokerError(f"commit failed: {error!r}") from error
        return True
