"""The loop that the echo, the hand-written peer and the bare chain share: fetch, answer, send, commit now and then."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from benchmarks.peers.settings import COMMIT_EVERY_S, FETCH_WAIT_MS, SESSION_TIMEOUT_MS, PeerSettings

#: A fetch's answers of one partition as one batch: 500 answers of some 100 bytes are well below it.
MAX_BATCH_BYTES = 1 << 20

#: Records of a fetch in, the value of each answer out, in order.
Answer = Callable[[Sequence[Any]], Sequence[bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One loop: from a topic, through `answer`, to the same-numbered partition of another."""

    source: str
    target: str
    group: str
    answer: Answer


async def run_hop(settings: PeerSettings, hop: Hop) -> None:
    """Serve until cancelled; at least once: offsets are committed after their answers are acknowledged."""
    consumer = AIOKafkaConsumer(
        hop.source,
        bootstrap_servers=settings.bootstrap_servers,
        group_id=hop.group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        fetch_max_wait_ms=FETCH_WAIT_MS,
        session_timeout_ms=SESSION_TIMEOUT_MS,
    )
    producer = AIOKafkaProducer(
        bootstrap_servers=settings.bootstrap_servers, acks="all", linger_ms=0, max_batch_size=MAX_BATCH_BYTES
    )
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(producer)
        await stack.enter_async_context(consumer)
        await _serve(consumer, producer, settings.max_records, hop)


async def _serve(consumer: AIOKafkaConsumer, producer: AIOKafkaProducer, max_records: int, hop: Hop) -> None:
    unacknowledged: list[asyncio.Future[Any]] = []
    commit_at_s = time.monotonic() + COMMIT_EVERY_S
    while True:
        fetched = await consumer.getmany(timeout_ms=FETCH_WAIT_MS, max_records=max_records)
        records = [record for batch in fetched.values() for record in batch]
        if records:
            values = iter(hop.answer(records))
            for partition, batch in fetched.items():
                builder = producer.create_batch()
                for record, value in zip(batch, values, strict=False):
                    if builder.append(key=record.key, value=value, timestamp=None) is None:
                        raise ValueError(f"answers of one fetch exceed {MAX_BATCH_BYTES} bytes")
                unacknowledged.append(await producer.send_batch(builder, hop.target, partition=partition.partition))
        if time.monotonic() >= commit_at_s:
            if unacknowledged:
                await asyncio.gather(*unacknowledged)
                unacknowledged.clear()
                await consumer.commit()
            commit_at_s = time.monotonic() + COMMIT_EVERY_S


def copy_values(records: Sequence[Any]) -> list[bytes]:
    return [record.value for record in records]
