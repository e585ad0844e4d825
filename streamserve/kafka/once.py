"""Exactly once for any reader: a fence at take-over, then a look at what stands in the log behind it.

After the fence nothing of an earlier owner can come any more, so what is found is all there is: terminal records are
skipped by the stage (`Resume.answered`), dead letters and outcomes are left out here when the stage decides on them
again. Whatever is not known to be in the log is never sent again by guess: the partition is taken anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np

from streamserve.core.fast import every, indices, some
from streamserve.core.messages import DeadLetters
from streamserve.core.records import OutcomeRecord
from streamserve.core.slicing import take_letters
from streamserve.kafka.ports import Ack, At, Chunk, LogLookups, LogReader, RecordColumns

Key = tuple[str, int, int, str]
"""What a record is about: topic, partition and offset of the input, and which of its records it is."""
KeysOf = Callable[[Chunk], Collection[Key]]

#: Append times of different partitions are compared: their leaders' clocks agree within less.
CLOCK_MARGIN_MS = 1_000
_TIMEOUT_MS = 500
_RECORDS = 2_000


async def read_spans(reader: LogReader, spans: Mapping[At, tuple[int, int]], take: Callable[[Chunk], None]) -> None:
    """Hand over what stands in each span of offsets [start, end), and perhaps what stands behind it."""
    waiting = {at: end for at, (start, end) in spans.items() if start < end}
    if not waiting:
        return
    reader.read({at: spans[at][0] for at in waiting})
    while waiting:
        chunks = await reader.fetch(max_records=_RECORDS, timeout_ms=_TIMEOUT_MS)
        for chunk in chunks:
            take(chunk)
            if chunk.at in waiting and chunk.next_offset >= waiting[chunk.at]:
                del waiting[chunk.at]
        if not chunks:  # the end may be a gap or a marker, which no record reaches
            waiting = {at: end for at, end in waiting.items() if reader.lag(at) != 0}


class FenceKeeper(Protocol):
    """`fencing.Fences`, as far as a role needs it."""

    on_lost: Callable[[int, bool], None] | None

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def take(self, numbers: Collection[int]) -> None: ...
    def drop(self, numbers: Collection[int]) -> None: ...
    def send(self, number: int, at: At, records: RecordColumns) -> asyncio.Future[Ack]: ...
    async def refresh(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """Where a role writes what must stand there once, beside terminal records, and how such a record is recognised."""

    own: Mapping[str, KeysOf | None] = field(default_factory=dict)
    """Topics of which an owner writes to the same-numbered partition only. None: the stage is told what stands in it
    another way (`Resume.answered`)."""
    spread: Mapping[str, KeysOf] = field(default_factory=dict)
    """Topics of which each owner writes to `numbers`."""
    numbers: frozenset[int] = frozenset()

    def of(self, number: int) -> list[At]:
        """Where the owner of a partition writes."""
        return [At(topic, number) for topic in self.own] + self.spread_to()

    def spread_to(self) -> list[At]:
        return [At(topic, number) for topic in self.spread for number in sorted(self.numbers)]


class ExactlyOnce:
    """What a role adds to the at-least-once shell."""

    def __init__(
        self,
        *,
        fences: FenceKeeper,
        outputs: Outputs,
        lookups: LogLookups,
        scan_reader: Callable[[], LogReader],
        letter_topics: Callable[[str], str],
    ) -> None:
        """`letter_topics`: from the source of a dead letter to the topic that it comes from."""
        self.fences = fences
        self._outputs = outputs
        self._lookups = lookups
        self._scan_reader = scan_reader
        self._letter_topics = letter_topics
        self._written: dict[int, frozenset[Key]] = {}
        """By owned partition: what its predecessors wrote and the stage may decide on again."""

    async def look(self, driving: Mapping[At, int], followed: Mapping[At, int]) -> None:
        """Find what stands in the log of inputs that are about to be read (again). Raises BrokerError.

        `driving`, `followed`: from where each input of the partitions that are taken over is read; of the second only
        dead letters can come. What an input led to was appended later than it was.
        """
        found: set[Key] = set()
        reader = self._scan_reader()
        await reader.start()
        try:
            appended_ms = await self._append_times(reader, {**driving, **followed})
            own_ms: dict[int, int] = {}
            for at, ms in appended_ms.items():
                own_ms[at.partition] = min(ms, own_ms.get(at.partition, ms))
            spread_ms = min((ms for at, ms in appended_ms.items() if at in driving), default=None)
            spans = await self._spans(own_ms, spread_ms)
            await read_spans(reader, spans, partial(self._collect, found))
        finally:
            await reader.stop()
        # Kept as one: forwarded feedback, and what it led to, bears the partition where it first landed.
        self._written |= dict.fromkeys((at.partition for at in driving), frozenset(found))

    async def _append_times(self, reader: LogReader, first: Mapping[At, int]) -> dict[At, int]:
        """When the first record at or behind each offset was appended; none where there is no such record."""
        ends = await self._lookups.ends(first)
        waiting = {at: offset for at, offset in first.items() if offset < ends[at]}
        found: dict[At, int] = {}
        if waiting:
            reader.read(waiting)
        while waiting:
            chunks = await reader.fetch(max_records=len(waiting), timeout_ms=_TIMEOUT_MS)
            for chunk in chunks:
                if chunk.at in waiting and len(chunk):
                    found[chunk.at] = int(chunk.append_ms[0])
                    del waiting[chunk.at]
                    reader.pause([chunk.at])
            if not chunks:
                waiting = {at: offset for at, offset in waiting.items() if reader.lag(at) != 0}
        reader.read({})
        return found

    async def _spans(self, own_ms: Mapping[int, int], spread_ms: int | None) -> dict[At, tuple[int, int]]:
        topics = [topic for topic, keys_of in self._outputs.own.items() if keys_of is not None]
        times = {At(topic, number): ms for topic in topics for number, ms in own_ms.items()}
        if spread_ms is not None:
            times |= dict.fromkeys(self._outputs.spread_to(), spread_ms)
        times = {at: ms - CLOCK_MARGIN_MS for at, ms in times.items()}
        starts, ends = await self._lookups.since(times), await self._lookups.ends(times)
        return {at: (starts[at], ends[at]) for at in times}

    def _collect(self, found: set[Key], chunk: Chunk) -> None:
        keys_of = self._outputs.own.get(chunk.at.topic) or self._outputs.spread[chunk.at.topic]
        found.update(keys_of(chunk))

    def forget(self, numbers: Collection[int]) -> None:
        """These partitions are no longer ours."""
        self.fences.drop(numbers)
        for number in numbers:
            self._written.pop(number, None)

    def new_letters(self, letters: DeadLetters) -> DeadLetters | None:
        """Those that do not stand in the log yet; None where all do."""
        written = self._written.get(letters.partition)
        if not written:
            return letters
        topic, stage = self._letter_topics(letters.source), letters.stage
        offsets = letters.offsets.tolist()
        is_new = np.array([(topic, letters.partition, offset, stage) not in written for offset in offsets], np.bool_)
        if every(is_new):
            return letters
        return take_letters(letters, indices(is_new)) if some(is_new) else None

    def new_outcomes(self, number: int, topic: str, outcomes: list[OutcomeRecord]) -> list[OutcomeRecord]:
        """Those that do not stand in the log yet. `topic`: that of feedback; `number`: the owned partition of it."""
        written = self._written.get(number)
        if not written:
            return outcomes
        return [outcome for outcome in outcomes if outcome_key(topic, outcome) not in written]


def outcome_key(topic: str, outcome: OutcomeRecord) -> Key:
    """One feedback teaches each state once."""
    return (topic, *outcome.feedback, f"{outcome.route}/{outcome.context}")
