"""Reading a piece of one or more partitions: from an offset, to an end, no further."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from streamserve.client.connection import ClientLog, ClientLookups
from streamserve.core.messages import Headers
from streamserve.errors import BrokerError
from streamserve.kafka.ports import At, Chunk, LogReader

_FETCH_RECORDS = 500
_FETCH_MS = 500
#: A broker that has records and gives none for so long is taken for gone.
SILENCE_MS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecord:
    """One record, as it stands in the log."""

    at: At
    offset: int
    append_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    def header(self, name: str) -> bytes | None:
        """The last value of a header; None where there is none."""
        return dict(self.headers).get(name)


def records_of(chunk: Chunk) -> list[LogRecord]:
    """A chunk, record by record."""
    return [
        LogRecord(at=chunk.at, offset=offset, append_ms=append_ms, key=key, value=value, headers=headers)
        for offset, append_ms, key, value, headers in zip(
            chunk.offsets.tolist(), chunk.append_ms.tolist(), chunk.keys, chunk.values, chunk.headers, strict=True
        )
    ]


class Scanner:
    """Reads pieces of a log, one after the other, on one connection."""

    def __init__(self, reader: LogReader, lookups: ClientLookups) -> None:
        self._reader = reader
        self.lookups = lookups

    async def read(self, at: At, start: int, end: int) -> AsyncGenerator[LogRecord, None]:
        """Records of one partition with offsets from `start`, below `end`."""
        if start >= end:
            return
        self._reader.read({})
        self._reader.read({at: start})
        next_offset, silent_ms = start, 0
        while next_offset < end:
            chunks = await self._reader.fetch(max_records=_FETCH_RECORDS, timeout_ms=_FETCH_MS)
            silent_ms = 0 if chunks else silent_ms + _FETCH_MS
            for chunk in chunks:
                next_offset = max(next_offset, chunk.next_offset)
                for record in records_of(chunk):
                    if record.offset < end:
                        yield record
            if next_offset < end:
                if self._reader.lag(at) == 0:  # what stands at the end are no records: transaction markers
                    return
                if silent_ms > SILENCE_MS:
                    raise BrokerError(
                        f"nothing came from {at.topic}, partition {at.partition}, for {SILENCE_MS // 1000} s, "
                        f"although it ends at {end}: is its leader up?"
                    )

    async def one(self, at: At, offset: int) -> LogRecord | None:
        """The record at this offset; None where there is none."""
        start, end = await self.bounds(at)
        if not start <= offset < end:
            return None
        async for record in self.read(at, offset, min(end, offset + 1)):
            return record if record.offset == offset else None
        return None

    async def bounds(self, at: At) -> tuple[int, int]:
        """First offset kept, and the offset after the last record."""
        return (await self.lookups.starts([at]))[at], (await self.lookups.ends([at]))[at]

    async def since(self, at: At, time_ms: int) -> tuple[int, int]:
        """Offsets [start, end) of what was appended at that time or later, as of now."""
        _, end = await self.bounds(at)
        return (await self.lookups.first_since({at: time_ms})).get(at, end), end

    async def follow(self, positions: Mapping[At, int], ends: Mapping[At, int] | None) -> AsyncIterator[LogRecord]:
        """Records of many partitions from these offsets, as they come; up to `ends`, where they are given."""
        left = {at for at, start in positions.items() if ends is None or start < ends[at]}
        self._reader.read({})
        self._reader.read({at: positions[at] for at in left})
        while left:
            for chunk in await self._reader.fetch(max_records=_FETCH_RECORDS, timeout_ms=_FETCH_MS):
                for record in records_of(chunk):
                    if ends is None or record.offset < ends[record.at]:
                        yield record
                if ends is not None and chunk.next_offset >= ends[chunk.at]:
                    left.discard(chunk.at)
            if ends is not None:
                left -= {at for at in left if self._reader.lag(at) == 0}


@asynccontextmanager
async def scanning(log: ClientLog) -> AsyncIterator[Scanner]:
    """A scanner, for as long as the context lasts. Raises BrokerError where no broker answers."""
    lookups = log.lookups()
    reader = log.reader()
    await lookups.start()
    try:
        await reader.start()
        try:
            yield Scanner(reader, lookups)
        finally:
            await reader.stop()
    finally:
        await lookups.stop()
