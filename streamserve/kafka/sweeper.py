"""Answers what an outage left behind, behind the fresh requests.

When the head of a partition is older than any deadline, its owner begins at the fresh part and notes the range that it
skipped in its commits. Here each request of that range gets its one terminal record: what is in the log already is
found by a scan of the predictions; the others are `expired`, or `ok`, `partial` and late where answers are in the log.
A stage and a loop of their own do it, at a limited rate, so that it never holds up what can still be in time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streamserve.core.events import Resume
from streamserve.core.messages import I64
from streamserve.core.stage import Stage
from streamserve.errors import BrokerError
from streamserve.kafka.clock import BrokerClock
from streamserve.kafka.loop import DEFAULT_LIMITS, Limits, StageLoop, Wiring
from streamserve.kafka.metrics import RoleMetrics
from streamserve.kafka.ports import At, Chunk, LogLookups, LogReader

_log = logging.getLogger(__name__)

RECORDS_PER_S = 10_000
_RETRY_S = 1.0
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """Requests of a partition, `start` to before `end`, that still need their records, and from where on the log may
    hold some, and answers to them."""

    start: int
    end: int
    predictions: int
    answers: int

    def words(self) -> str:
        """For a commit's metadata."""
        return f"[{self.start},{self.end},{self.predictions},{self.answers}]"

    @classmethod
    def read(cls, words: Mapping[str, Any]) -> Skipped | None:
        """Of a commit's metadata; None where nothing is left."""
        match words.get("skipped"):
            case [int(start), int(end), int(predictions), int(answers)] if 0 <= start < end:
                return cls(start=start, end=end, predictions=predictions, answers=answers)
        return None


Scan = Callable[[Mapping[int, tuple[int, int]]], Awaitable[Mapping[int, I64]]]
"""Offsets in the predictions topic (from, to) by partition -> request offsets that have their record there."""


class Sweeper:
    """The skipped ranges of one process's partitions."""

    def __init__(
        self,
        *,
        stage: Stage,
        wiring: Wiring,
        answers_topic: str | None,
        clock: BrokerClock,
        metrics: RoleMetrics,
        reader: LogReader,
        lookups: LogLookups,
        predictions_topic: str,
        scan: Scan,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        """stage: a terminal one of its own. reader: of its own, in no group; started by `run`."""
        self.loop = StageLoop(stage=stage, wiring=wiring, clock=clock, metrics=metrics, limits=limits)
        self.reader = reader
        self._driving = wiring.driving
        self._answers_topic = answers_topic
        self._lookups = lookups
        self._predictions_topic = predictions_topic
        self._scan = scan
        self._ranges: dict[int, Skipped] = {}
        """What is left, as of the start of this ownership; `left` knows how far it has come."""
        self._begun: set[int] = set()
        self._positions: dict[At, int] = {}
        self._changed = asyncio.Event()
        self._reads = False

    # what the keeper of the partitions says

    def take(self, ranges: Mapping[int, Skipped]) -> None:
        """These are ours to sweep now."""
        self._ranges.update(ranges)
        for number, skipped in ranges.items():
            _log.warning(
                "partition %d: %d requests are older than any deadline; fresh ones go first, these get their records "
                "behind them",
                number,
                skipped.end - skipped.start,
            )
        self._changed.set()

    def drop(self, numbers: Collection[int]) -> None:
        """These partitions are no longer ours."""
        for number in numbers:
            self._ranges.pop(number, None)
            self._begun.discard(number)
        self.loop.end(numbers)
        self._positions = {at: o for at, o in self._positions.items() if at.partition not in numbers}
        if self._reads:
            self._read()

    def left(self, number: int) -> Skipped | None:
        """What of a partition's range is not settled yet."""
        skipped = self._ranges.get(number)
        ledger = self.loop.ledgers.get(number)
        if skipped is None or ledger is None:
            return skipped
        start = min(ledger.committable(), skipped.end)
        return replace(skipped, start=start) if start < skipped.end else None

    @property
    def requests_left(self) -> int:
        """An upper bound: what was never a record counts too."""
        found = [self.left(number) for number in self._ranges]
        return sum(skipped.end - skipped.start for skipped in found if skipped is not None)

    # sweeping

    async def run(self) -> None:
        """Sweep for ever."""
        tasks: list[asyncio.Task[None]] = []
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                if not tasks:
                    await self.reader.start()
                    self._reads = True
                    tasks = [asyncio.ensure_future(self.loop.run()), asyncio.ensure_future(self.loop.drain(self))]
                await self._begin()
                while self._ranges and not self._changed.is_set():
                    self._finish()
                    await asyncio.wait(tasks, timeout=_LOOK_S)
                    for task in tasks:
                        if task.done():
                            task.result()
        finally:
            self.loop.stop()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if tasks:
                await self.reader.stop()

    async def _begin(self) -> None:
        """Look up what is answered already, and read the rest."""
        while new := {number: left for number, left in self._ranges.items() if number not in self._begun}:
            try:
                ends = await self._lookups.ends([At(self._predictions_topic, number) for number in new])
                spans = {at.partition: (new[at.partition].predictions, end) for at, end in ends.items()}
                answered = await self._scan(spans)
                answers = await self._answers(new)
            except BrokerError as error:
                _log.warning("cannot sweep yet: %s", error)
                await asyncio.sleep(_RETRY_S)
                continue
            new = {number: left for number, left in new.items() if self._ranges.get(number) == left}  # not lost since
            self.loop.begin(
                {number: _resume(number, left, answered.get(number), answers) for number, left in new.items()}
            )
            self._begun |= new.keys()
            for number, left in new.items():
                self._positions[At(self._driving, number)] = left.start
                if self._answers_topic is not None:
                    self._positions[At(self._answers_topic, number)] = answers[number][0]
            self._read()
            return

    async def _answers(self, new: Mapping[int, Skipped]) -> dict[int, tuple[int, int]]:
        if self._answers_topic is None:
            return dict.fromkeys(new, (0, 0))
        partitions = [At(self._answers_topic, number) for number in new]
        starts, ends = await self._lookups.starts(partitions), await self._lookups.ends(partitions)
        return {at.partition: (max(starts[at], new[at.partition].answers), ends[at]) for at in partitions}

    def _read(self) -> None:
        self.reader.read(self._positions)

    def _finish(self) -> None:
        """Ranges of which everything has been read and settled are no longer kept."""
        done = []
        for number in self._begun:
            ledger = self.loop.ledgers.get(number)
            if ledger is not None and ledger.next_offset >= self._ranges[number].end and not len(ledger):
                done.append(number)
        if done:
            _log.info("partitions %s: what was skipped has its records", sorted(done))
            self.drop(done)

    # what the loop's drain task reads

    async def fetch(self, *, max_records: int, timeout_ms: int) -> list[Chunk]:
        """The next records of the ranges, at a limited rate."""
        try:
            chunks = await self.reader.fetch(max_records=max_records, timeout_ms=timeout_ms)
        except BrokerError as error:  # it is away, or a transaction is open there for long: nobody waits for us
            _log.warning("what was skipped cannot be read: %s; tried again", error)
            await asyncio.sleep(_RETRY_S)
            return []
        found = [part for chunk in chunks if (part := self._of_range(chunk)) is not None]
        await asyncio.sleep(sum(map(len, chunks)) / RECORDS_PER_S)
        return found

    def _of_range(self, chunk: Chunk) -> Chunk | None:
        at = chunk.at
        skipped = self._ranges.get(at.partition)
        if skipped is None or at not in self._positions:
            return None
        self._positions[at] = chunk.next_offset
        if at.topic != self._driving or chunk.next_offset <= skipped.end:
            return chunk
        n = int(np.searchsorted(chunk.offsets, skipped.end))
        return replace(
            chunk,
            offsets=chunk.offsets[:n],
            append_ms=chunk.append_ms[:n],
            keys=chunk.keys[:n],
            values=chunk.values[:n],
            headers=chunk.headers[:n],
            next_offset=skipped.end,
        )


def _resume(number: int, left: Skipped, answered: I64 | None, answers: Mapping[int, tuple[int, int]]) -> Resume:
    answers_from, answers_end = answers[number]
    return Resume(position=left.start, answered=answered, answers_from=answers_from, answers_end=answers_end)
