"""What a new owner of partitions needs, looked up from the commit, its metadata and the log.

Commit metadata is the stage's JSON. The shell reads offsets from it: `<kind>_from` (or `<kind>`) of each followed topic
and of the predictions scan, and `rebuild_from`, where the driving topic is to be read again below the commit.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from streamserve.core.events import Resume
from streamserve.core.messages import I64
from streamserve.kafka.clock import BrokerClock
from streamserve.kafka.metrics import RoleMetrics
from streamserve.kafka.once import ExactlyOnce, read_spans
from streamserve.kafka.plan import Plan
from streamserve.kafka.ports import At, Chunk, LogLookups, LogReader, LogWriter
from streamserve.kafka.sweeper import Skipped

_log = logging.getLogger(__name__)

_REF_HEADER = "ss-ref"
#: So near the end the last record is looked for: markers of transactions are none.
_LAST_RECORDS = 20


class Found(NamedTuple):
    """What was looked up."""

    resumes: dict[int, Resume]
    driving: dict[At, int]
    """From where the driving topic is to be read."""
    followed: dict[At, int]
    """From where the followed topics are."""
    skipped: dict[int, Skipped]


class _Fresh(NamedTuple):
    """Where the part of a partition begins in which somebody may still wait, and its time."""

    offset: int
    since_ms: int


class TakeOver:
    """Looks up what the predecessors of this process have left."""

    def __init__(
        self,
        *,
        plan: Plan,
        clock: BrokerClock,
        metrics: RoleMetrics,
        scan_reader: Callable[[], LogReader],
        lookups: LogLookups,
        writer: LogWriter,
        once: ExactlyOnce | None = None,
    ) -> None:
        self._plan = plan
        self._clock = clock
        self._metrics = metrics
        self._scan_reader = scan_reader
        self._lookups = lookups
        self._writer = writer
        self._once = once

    def _first_read(self, resume: Resume) -> int:
        if not self._plan.rebuilds:
            return resume.position
        return min(resume.position, _offset(read_metadata(resume.metadata), "rebuild_from", resume.position))

    async def look_up(self, numbers: list[int]) -> Found:
        started_ms = self._clock.monotonic_ms()
        if self._once is not None:  # before anything is looked up: afterwards nothing of an earlier owner can come
            await self._once.fences.take(numbers)
        elif self._plan.predictions is not None:  # what this process wrote as an earlier owner may be on its way still
            await asyncio.gather(*(self._writer.over(At(self._plan.predictions, number)) for number in numbers))
        fenced_ms = self._clock.monotonic_ms()
        positions, metadata = await self._commits(numbers)
        words = {number: read_metadata(metadata[number]) for number in numbers}
        fresh = await self._fresh(positions)
        skipped = self._skipped(positions, fresh, words)
        positions |= {number: part.offset for number, part in fresh.items()}
        answered = await self._answered(positions, words)
        followed: dict[At, int] = {}
        answers: dict[int, tuple[int, int]] = {}
        for kind, topic in self._plan.followed.items():
            ranges = await self._ranges(topic, f"{kind}_from", words)
            if fresh:
                ranges = await self._fresh_part(ranges, fresh)
            followed.update({at: start for at, (start, _) in ranges.items()})
            if kind == "answers":
                answers = {at.partition: bounds for at, bounds in ranges.items()}
        if self._once is not None:
            looked_ms = self._clock.monotonic_ms()
            await self._once.look(
                {At(self._plan.driving, n): skipped[n].start if n in skipped else positions[n] for n in numbers},
                {at: start for at, start in followed.items() if at.topic == self._plan.followed.get("answers")},
            )
            self._metrics.fenced(len(numbers), fenced_ms - started_ms, self._clock.monotonic_ms() - looked_ms)
        resumes = {
            number: Resume(
                position=positions[number],
                metadata=metadata[number],
                answered=answered.get(number),
                answers_from=answers.get(number, (0, 0))[0],
                answers_end=answers.get(number, (0, 0))[1],
            )
            for number in numbers
        }
        driving = {At(self._plan.driving, number): self._first_read(resume) for number, resume in resumes.items()}
        return Found(resumes, driving, followed, skipped)

    async def _fresh(self, positions: Mapping[int, int]) -> dict[int, _Fresh]:
        """Where the fresh part begins, of each partition with much that is older than any deadline.

        Old is measured from the newest record: this machine's clock may be wrong, and nothing has been heard yet from
        which the broker's could be told.
        """
        after_ms = self._plan.skips_after_ms
        if after_ms is None:
            return {}
        driving = {At(self._plan.driving, number): position for number, position in positions.items()}
        ends = await self._lookups.ends(driving)
        behind = {at: end for at, end in ends.items() if end - driving[at] >= self._plan.least_skipped}
        found: dict[int, _Fresh] = {}
        for at, newest_ms in (await self._newest_ms(behind)).items():
            since_ms = newest_ms - after_ms
            offset = (await self._lookups.since({at: since_ms}))[at]
            if offset - driving[at] >= self._plan.least_skipped:
                found[at.partition] = _Fresh(offset=offset, since_ms=since_ms)
        return found

    async def _newest_ms(self, ends: Mapping[At, int]) -> dict[At, int]:
        """Append time of the last record of each partition; without those where none is found near the end."""
        newest: dict[At, int] = {}

        def take(chunk: Chunk) -> None:
            if len(chunk):  # else it holds markers of transactions only
                newest[chunk.at] = int(chunk.append_ms[-1])

        await self._read({at: (max(0, end - _LAST_RECORDS), end) for at, end in ends.items()}, take)
        return newest

    async def _fresh_part(
        self, ranges: dict[At, tuple[int, int]], fresh: Mapping[int, _Fresh]
    ) -> dict[At, tuple[int, int]]:
        """What is followed belongs to requests that came before it: of old ones nothing is needed here."""
        found = dict(ranges)
        for at, (start, end) in ranges.items():
            if at.partition in fresh:
                offset = (await self._lookups.since({at: fresh[at.partition].since_ms}))[at]
                found[at] = (min(max(start, offset), end), end)
        return found

    def _skipped(
        self, positions: Mapping[int, int], fresh: Mapping[int, _Fresh], words: Mapping[int, Mapping[str, Any]]
    ) -> dict[int, Skipped]:
        """What is to be swept: what a predecessor left of its range, and what is passed over now."""
        found: dict[int, Skipped] = {}
        for number, position in positions.items():
            before = Skipped.read(words[number])
            if number in fresh:
                now = Skipped(
                    start=position,
                    end=fresh[number].offset,
                    predictions=_offset(words[number], "predictions_from", 0),
                    answers=_offset(words[number], "answers_from", 0),
                )
                before = now if before is None else replace(before, end=now.end)
            if before is not None:
                found[number] = before
        return found

    async def _commits(self, numbers: list[int]) -> tuple[dict[int, int], dict[int, str]]:
        """Where each partition goes on, and the words there: at the log's start where no commit is left in it."""
        driving = {number: At(self._plan.driving, number) for number in numbers}
        committed = await self._lookups.committed(self._plan.group, driving.values())
        starts = await self._lookups.starts(driving.values())
        held = {
            number: committed[at]
            for number, at in driving.items()
            if at in committed and committed[at].offset >= starts[at]
        }
        positions = {number: held[number].offset if number in held else starts[at] for number, at in driving.items()}
        return positions, {number: held[number].metadata if number in held else "" for number in numbers}

    async def _ranges(self, topic: str, key: str, words: Mapping[int, Mapping[str, Any]]) -> dict[At, tuple[int, int]]:
        """From where a topic is to be read, as the metadata says, and its end now."""
        partitions = [At(topic, number) for number in words]
        starts, ends = await self._lookups.starts(partitions), await self._lookups.ends(partitions)
        return {
            at: (min(max(starts[at], _offset(words[at.partition], key, starts[at])), ends[at]), ends[at])
            for at in partitions
        }

    async def _answered(self, positions: Mapping[int, int], words: Mapping[int, Mapping[str, Any]]) -> dict[int, I64]:
        """Request offsets at or above each position that have a terminal record in the log now."""
        if self._plan.predictions is None:
            return {}
        ranges = await self._ranges(self._plan.predictions, "predictions_from", words)
        refs = await self.answered_in({at.partition: bounds for at, bounds in ranges.items()})
        return {number: refs[number][refs[number] >= position] for number, position in positions.items()}

    async def answered_in(self, spans: Mapping[int, tuple[int, int]]) -> dict[int, I64]:
        """Request offsets that have a terminal record in these parts (from, to) of the predictions, increasing."""
        topic = self._plan.predictions or ""
        span = {At(topic, number): bounds for number, bounds in spans.items() if bounds[0] < bounds[1]}
        refs = await self._scan(span)
        return {number: np.array(sorted(refs.get(number, ())), np.int64) for number in spans}

    async def _scan(self, span: Mapping[At, tuple[int, int]]) -> dict[int, set[int]]:
        refs: dict[int, set[int]] = {at.partition: set() for at in span}
        await self._read(span, lambda chunk: _collect(refs[chunk.at.partition], chunk.headers, chunk.at.partition))
        return refs

    async def _read(self, spans: Mapping[At, tuple[int, int]], take: Callable[[Chunk], None]) -> None:
        if not spans:
            return
        reader = self._scan_reader()
        await reader.start()
        try:
            await read_spans(reader, spans, take)
        finally:
            await reader.stop()


def read_metadata(text: str) -> Mapping[str, Any]:
    """A stage's words in a commit; empty where there are none that we can read."""
    if not text:
        return {}
    try:
        words = json.loads(text)
    except ValueError:
        _log.warning("commit metadata is not JSON and is left aside: %.80r", text)
        return {}
    return words if isinstance(words, dict) else {}


def _offset(words: Mapping[str, Any], key: str, default: int) -> int:
    value = words.get(key, words.get(key.removesuffix("_from")))
    return value if isinstance(value, int) and value >= 0 else default


def _collect(refs: set[int], headers: list[Any], partition: int) -> None:
    prefix = f"{partition}-".encode()
    for record in headers:
        for name, value in record:
            if name == _REF_HEADER and value is not None and value.startswith(prefix):
                text = value[len(prefix) :]
                if text.isdigit():
                    refs.add(int(text))
                break
