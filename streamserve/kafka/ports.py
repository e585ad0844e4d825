"""What the shell asks of a log: four small protocols, kept by the real clients and by the in-memory log.

Trouble of a send is a value (`Ack.error`); trouble of a read or of a look-up is a `BrokerError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple, Protocol

from streamserve.core.messages import I64, Headers
from streamserve.core.values import unchanging


class At(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


@unchanging(eq=False)
class Chunk:
    """Records of one fetch of one partition, as columns, in offset order."""

    at: At
    offsets: I64
    append_ms: I64
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[Headers]
    """A header's name that is not UTF-8 comes with its bad bytes written as `\\xNN`."""
    next_offset: int
    lag: int = 0
    """Records of the partition in the log behind this chunk, as the fetch told it."""
    n_bytes: int = field(init=False)
    """Of keys, values and headers."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_bytes", _bytes_of(self))

    def __len__(self) -> int:
        return len(self.keys)


def _bytes_of(chunk: Chunk) -> int:
    names_and_values = chain.from_iterable(chain.from_iterable(chunk.headers))
    return sum(map(len, filter(None, chain(chunk.values, chunk.keys, names_and_values))))


@unchanging()
class Record:
    """One record to be written."""

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()


class RecordColumns(Protocol):
    """Records to be written, as columns (`EncodedRecords` of the codecs)."""

    @property
    def keys(self) -> Sequence[bytes | None]: ...

    @property
    def values(self) -> Sequence[bytes | None]: ...

    @property
    def headers(self) -> Sequence[Sequence[tuple[str, bytes | None]]]: ...


@unchanging()
class Ack:
    """What became of one send. `error` empty: all of it is in the log."""

    error: str = ""
    offset: int = -1
    """Of the first record."""
    append_ms: int = -1
    """Append time of the last batch; -1 where the topic does not tell."""
    written: int = 0
    """With an error: how many of its records, the first ones, are in the log all the same."""
    shut_out: bool = False
    """It was refused because a later owner of the partition has fenced this one off."""


@dataclass(slots=True, kw_only=True, eq=False)
class Fence:
    """The right to write for one input partition, until a later owner takes it (`kafka.fencing`)."""

    number: int
    """Of the input partition."""
    producer_id: int
    epoch: int
    used_s: float = 0.0
    """When its id was last used in a transaction, by a monotonic clock."""
    is_open: bool = True
    """False: nothing more is sent behind it."""
    sequences: dict[At, int] = field(default_factory=dict)
    """Records sent, by where to: the broker takes batches in this order only, each once."""

    def next_sequence(self, at: At, n: int) -> int:
        """The sequence number of a batch of n records."""
        first = self.sequences.get(at, 0)
        self.sequences[at] = (first + n) % (1 << 31)
        return first


@unchanging()
class Committed:
    """A group's commit in one partition; offset -1: none."""

    offset: int
    metadata: str


class LogReader(Protocol):
    """Reads chosen partitions from chosen offsets; a member of no group."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def fetch(self, *, max_records: int, timeout_ms: int) -> list[Chunk]:
        """Whatever is there, at most `max_records`; empty after the time-out. One caller at a time."""
        ...

    def read(self, positions: Mapping[At, int]) -> None:
        """From now on read exactly these partitions; those already read go on where they are."""
        ...

    def pause(self, partitions: Collection[At]) -> None: ...

    def resume(self, partitions: Collection[At]) -> None: ...

    def lag(self, at: At) -> int | None:
        """Records between the position and the end, as of the last fetch; None if unknown."""
        ...


Rebalance = Callable[[frozenset[At]], Awaitable[None]]


class GroupReader(Protocol):
    """Reads one topic as a member of a group."""

    async def start(self, *, assigned: Rebalance, revoked: Rebalance) -> None:
        """Join. New partitions arrive paused: `begin` lets each one go from its offset."""
        ...

    async def stop(self) -> None: ...

    async def fetch(self, *, max_records: int, timeout_ms: int) -> list[Chunk]: ...

    def begin(self, positions: Mapping[At, int]) -> None: ...

    def pause(self, partitions: Collection[At]) -> None: ...

    def resume(self, partitions: Collection[At]) -> None: ...

    def lag(self, at: At) -> int | None: ...

    async def commit(self, offsets: Mapping[At, Committed]) -> bool:
        """False: this member is no longer the owner; nothing was committed."""
        ...


class LogLookups(Protocol):
    """Questions about the log, on connections of their own: a parked fetch would delay the answers."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def starts(self, partitions: Collection[At]) -> dict[At, int]: ...

    async def ends(self, partitions: Collection[At]) -> dict[At, int]: ...

    async def since(self, times: Mapping[At, int]) -> dict[At, int]:
        """The first offset of each that was appended at its time (ms) or later; its end where there is none."""
        ...

    async def committed(self, group: str, partitions: Collection[At]) -> dict[At, Committed]: ...


class LogWriter(Protocol):
    """Writes records to named partitions; what is sent to one partition is appended in that order."""

    may_send: Callable[[], bool]
    """False: somebody else may own by now what is written about; it fails instead of being sent."""

    async def start(self) -> None: ...

    async def stop(self) -> None:
        """Everything sent is acknowledged or has failed when this returns."""
        ...

    def send(self, at: At, records: RecordColumns) -> asyncio.Future[Ack]:
        """Never raises for what a broker says; the future always ends with an `Ack`."""
        ...

    def drop(self, at: At) -> None:
        """What was sent to this partition and is not on its way yet fails instead: it is another owner's to write."""
        ...

    async def over(self, at: At) -> None:
        """Returns once all that was sent to this partition is acknowledged or has failed."""
        ...


@unchanging(eq=False)
class Columns:
    """The plain form of `RecordColumns`."""

    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[Sequence[tuple[str, bytes | None]]]

    @classmethod
    def of(cls, records: Sequence[Record]) -> Columns:
        return cls(
            keys=[record.key for record in records],
            values=[record.value for record in records],
            headers=[record.headers for record in records],
        )
