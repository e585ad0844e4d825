"""Reads a partition without aiokafka's record parser and fetcher: for records that break the one, and for look-ups that
cannot wait for the other, which waits half a second where the log ends in a marker.

A record costs some microseconds more than with the fast reader. Format: Kafka's record batch, magic 2 (KIP-98; https://kafka.apache.org/documentation/#recordbatch).
Where a batch, or the rest of it, cannot be read at all (its compression is damaged), each of its offsets becomes a
record without a value whose header `ss-unreadable` says why: it is answered and counted like any other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
from aiokafka.client import AIOKafkaClient
from aiokafka.codec import gzip_decode, lz4_decode, snappy_decode, zstd_decode
from aiokafka.errors import KafkaError, LeaderNotAvailableError, OffsetOutOfRangeError
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.offset import OffsetRequest, OffsetResetStrategy

from streamserve.core.messages import Headers
from streamserve.errors import BrokerError
from streamserve.kafka.ports import At, Chunk

_log = logging.getLogger(__name__)

_FETCH_BYTES = 1 << 20
#: Of which a fetch asks for as many as are wanted.
_RECORD_BYTES = 1 << 10
#: Before a partition is asked again that had nothing, or whose leader was not known.
_AGAIN_MS = 20
_MOST_FRUITLESS = 250
_BATCH = struct.Struct(">qiibIhiqqqhii")
"""base offset, length, leader epoch, magic, crc, attributes, last offset delta, first stamp, max stamp, producer id,
producer epoch, base sequence, records"""
_LENGTH_FROM = 12  # a batch's length counts from after the length field
_CODEC, _LOG_APPEND, _TRANSACTIONAL, _CONTROL = 0x07, 0x08, 0x10, 0x20
_DECODERS = {1: gzip_decode, 2: snappy_decode, 3: lz4_decode, 4: zstd_decode}
_ABORT = 0
UNREADABLE_HEADER = "ss-unreadable"


class RawRecord(NamedTuple):
    offset: int
    append_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class RawFetcher:
    """One connection of its own, opened when it is first needed."""

    def __init__(self, options: Mapping[str, Any], *, committed_only: bool) -> None:
        self._options = options
        self._committed_only = committed_only
        self._client: AIOKafkaClient | None = None
        self.ends: dict[At, int] = {}
        """Of each partition the log's end, as of its last fetch."""

    async def stop(self) -> None:
        if self._client is not None:
            with contextlib.suppress(KafkaError, TimeoutError):
                await asyncio.wait_for(self._client.close(), 1.0)
            self._client = None

    async def fetch(self, at: At, position: int, max_bytes: int = _FETCH_BYTES) -> Chunk | None:
        """Records from `position` on, as one fetch gives them, at least a batch; None where there are none.

        Raises BrokerError.
        """
        try:
            client = await self._connected()
            await client._wait_on_metadata(at.topic)
            node = client.cluster.leader_for_partition(at)
            if node is None or node < 0:
                raise LeaderNotAvailableError
            isolation = 1 if self._committed_only else 0
            request = FetchRequest(
                0, 1, max_bytes, isolation, [(at.topic, [(at.partition, position, max_bytes)])], rack_id=""
            )
            response = await client.send(node, request)
        except KafkaError as error:
            raise BrokerError(f"reading {at.topic}-{at.partition} at {position} failed: {error!r}") from error
        _, [(_, error_code, end, *rest)] = response.topics[0]
        if error_code == OffsetOutOfRangeError.errno:
            return await self._from_start(client, node, at, position)
        if error_code:
            client.force_metadata_update()
        else:
            self.ends[at] = end
        aborted = rest[2] if response.API_VERSION >= 11 else rest[-2]
        if error_code or not rest[-1]:
            return None
        records, next_offset = parse(bytes(rest[-1]), position, aborted if self._committed_only else None)
        return None if next_offset <= position else _chunk(at, records, next_offset)

    async def _from_start(self, client: AIOKafkaClient, node: int, at: At, position: int) -> Chunk | None:
        """A chunk without records that ends where the log begins by now, where that is behind the position."""
        try:
            asked = [(at.topic, [(at.partition, OffsetResetStrategy.EARLIEST)])]
            response = await client.send(node, OffsetRequest(-1, 0, asked))
        except KafkaError as error:
            raise BrokerError(f"asking where {at.topic}-{at.partition} begins failed: {error!r}") from error
        _, [(_, error_code, _, start, *_)] = response.topics[0]
        if error_code or start <= position:
            return None
        _log.warning("%s-%d: offsets %d to %d were deleted before they were read", *at, position, start - 1)
        return _chunk(at, [], start)

    async def _connected(self) -> AIOKafkaClient:
        if self._client is None:
            client = AIOKafkaClient(**self._options)
            await client.bootstrap()
            self._client = client
        return self._client


class RawReader:
    """`LogReader` for a look at what stands in the log: it never waits for more to come.

    A fetch may bring a chunk without records, where there is only a marker, or where records have been deleted.
    """

    def __init__(self, options: Mapping[str, Any], *, committed_only: bool = False) -> None:
        self._raw = RawFetcher(options, committed_only=committed_only)
        self._next: dict[At, int] = {}
        self._paused: set[At] = set()
        self._fruitless = 0

    async def start(self) -> None:
        """Connects when it is first asked."""

    async def stop(self) -> None:
        await self._raw.stop()

    async def fetch(self, *, max_records: int, timeout_ms: int) -> list[Chunk]:
        max_bytes = min(_FETCH_BYTES, max_records * _RECORD_BYTES)
        chunks = []
        for at in [at for at in self._next if at not in self._paused]:
            chunk = await self._raw.fetch(at, self._next[at], max_bytes)
            if chunk is not None:
                self._next[at] = chunk.next_offset
                chunks.append(chunk)
        self._fruitless = 0 if chunks else self._fruitless + 1
        if self._fruitless > _MOST_FRUITLESS:  # its records were deleted meanwhile, or it has no leader
            raise BrokerError(f"nothing can be read from {sorted(self._next.keys() - self._paused)}")
        if not chunks:
            await asyncio.sleep(min(timeout_ms, _AGAIN_MS) / 1000)
        return chunks

    def read(self, positions: Mapping[At, int]) -> None:
        self._next = {at: self._next.get(at, offset) for at, offset in positions.items()}
        self._paused &= self._next.keys()

    def pause(self, partitions: Collection[At]) -> None:
        self._paused |= self._next.keys() & set(partitions)

    def resume(self, partitions: Collection[At]) -> None:
        self._paused -= set(partitions)

    def lag(self, at: At) -> int | None:
        end, position = self._raw.ends.get(at), self._next.get(at)
        return None if end is None or position is None else max(0, end - position)


def _chunk(at: At, records: list[RawRecord], next_offset: int) -> Chunk:
    return Chunk(
        at=at,
        offsets=np.array([r.offset for r in records], np.int64),
        append_ms=np.array([r.append_ms for r in records], np.int64),
        keys=[r.key for r in records],
        values=[r.value for r in records],
        headers=[r.headers for r in records],
        next_offset=next_offset,
    )


def parse(data: bytes, position: int, aborted: list[tuple[int, int]] | None) -> tuple[list[RawRecord], int]:
    """Records of a fetch's bytes at or after `position`, and the offset after them.

    `aborted`: (producer id, first offset) of aborted transactions, or None to keep their records.
    """
    waiting = sorted(aborted or (), key=lambda pair: pair[1])
    dead: set[int] = set()
    records: list[RawRecord] = []
    next_offset, start = position, 0
    while start + _BATCH.size <= len(data):
        head = _BATCH.unpack_from(data, start)
        base, length, magic, attributes, last_delta, producer = head[0], head[1], head[3], head[5], head[6], head[9]
        end = start + _LENGTH_FROM + length
        if end > len(data) or length < _BATCH.size - _LENGTH_FROM:
            break
        while waiting and waiting[0][1] <= base:
            dead.add(waiting.pop(0)[0])
        batch = _records(data[start + _BATCH.size : end], head) if magic == 2 else []
        if attributes & _CONTROL:
            if batch and (batch[0].key or b"")[2:4] == _ABORT.to_bytes(2, "big"):
                dead.discard(producer)
        elif not (attributes & _TRANSACTIONAL and producer in dead):
            records += [record for record in batch if record.offset >= position]
        next_offset = max(next_offset, base + last_delta + 1)
        start = end
    return records, next_offset


def _records(payload: bytes, head: tuple[int, ...]) -> list[RawRecord]:
    base, attributes, last_delta, first_ms, max_ms, count = head[0], head[5], head[6], head[7], head[8], head[12]
    codec = attributes & _CODEC
    records: list[RawRecord] = []
    try:
        if codec:
            payload = _decompressed(codec, payload)
        at = 0
        for _ in range(count):
            record, at = _record(payload, at, base, first_ms, max_ms if attributes & _LOG_APPEND else None)
            records.append(record)
    except (IndexError, ValueError) as error:
        first = records[-1].offset + 1 if records else base
        # A batch holds at most `count` records: what its header says beyond that is damage too.
        lost = range(first, min(base + last_delta + 1, first + max(0, count - len(records))))
        _log.error("offsets %d to %d cannot be read: %r", lost.start, lost.stop - 1, error)
        words = ((UNREADABLE_HEADER, f"the record batch at offset {base}: {error}".encode()),)
        records += [RawRecord(offset, max_ms, None, None, words) for offset in lost]
    return records


def _decompressed(codec: int, payload: bytes) -> bytes:
    """Raises ValueError, whatever the library says."""
    try:
        return bytes(_DECODERS[codec](payload))
    except Exception as error:
        raise ValueError(f"its compression cannot be undone: {error!r}") from error


def _record(data: bytes, at: int, base: int, first_ms: int, append_ms: int | None) -> tuple[RawRecord, int]:
    length, at = _varint(data, at)
    end = at + length
    if length < 0 or end > len(data):
        raise ValueError("a record runs over its batch")
    delta_ms, at = _varint(data, at + 1)
    delta, at = _varint(data, at)
    key, at = _bytes(data, at)
    value, at = _bytes(data, at)
    count, at = _varint(data, at)
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(max(0, count)):
        name, at = _bytes(data, at)
        text, at = _bytes(data, at)
        headers.append(((name or b"").decode("utf-8", "backslashreplace"), text))
    stamp = first_ms + delta_ms if append_ms is None else append_ms
    return RawRecord(base + delta, stamp, key, value, tuple(headers)), end


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Zig-zag variable-length integer."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7


def _bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = _varint(data, at)
    if length < 0:
        return None, at
    if at + length > len(data):
        raise ValueError("a field runs over its batch")
    return data[at : at + length], at + length
