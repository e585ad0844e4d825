"""A candidate model run over recorded requests, and what it says compared with what was said then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from streamserve.client.candidate import CallTimes, Candidate
from streamserve.client.connection import ClientLog, common_partitions
from streamserve.client.outcomes import outcomes
from streamserve.client.recorded import Pad, Said, windows
from streamserve.client.scanning import LogRecord, Scanner, scanning
from streamserve.client.spans import Span, Stretch, stretches
from streamserve.core.admission import Admission
from streamserve.core.codec import Decoded, InputCodec
from streamserve.core.epochs import EpochTable
from streamserve.core.evaluation.agreement import Comparison, Replayed
from streamserve.core.messages import Requests
from streamserve.core.routes import AppRules, Route
from streamserve.errors import StreamserveError
from streamserve.kafka.codecs import decode_decision, format_ref, input_codec
from streamserve.kafka.ports import At
from streamserve.topics import Kind, topic_name

#: By so much the clocks of two brokers may differ at most, where a topic is entered at a time of another's.
_CLOCKS_MS = 1_000
_LEAST_WINDOW = 2_000
_MOST_WINDOW = 20_000
OTHER_ROUTE = "other_route"


@dataclass(slots=True, kw_only=True)
class Reach:
    """How far one partition was read."""

    partition: int
    start: int
    end: int
    reached: int
    """Offsets below it are in the report."""


@dataclass(slots=True, kw_only=True)
class Replay:
    """What came of it: of all that was asked for, or of what was done when it ended early."""

    comparison: Comparison
    times: CallTimes
    passed_over: dict[str, int] = field(default_factory=dict)
    """Requests that were not replayed: reason -> how many."""
    unreadable_predictions: int = 0
    unreadable_outcomes: int = 0
    reach: list[Reach] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    """What retention has removed, or may have, in words: without them the report is of all that was asked for."""
    seconds: float = 0.0
    """From the first request read to the last."""
    is_broken_off: bool = False
    """It was asked to stop."""
    failure: StreamserveError | None = None
    """It could not go on."""

    @property
    def is_whole(self) -> bool:
        """Every request of the range is in it."""
        return not (self.is_broken_off or self.failure or self.gaps)

    @property
    def done(self) -> float:
        """The share of the range that was read."""
        total = sum(one.end - one.start for one in self.reach)
        return sum(one.reached - one.start for one in self.reach) / total if total else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Which requests are replayed, and when two answers agree."""

    rules: AppRules
    route: Route
    """One of the rules'."""
    span: Span
    tolerance: float = 0.0
    """For routes of numbers: how far apart two answers may be and agree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners:
    """Told on the way."""

    listed: Callable[[Replayed], None] = lambda _one: None
    """Of each request that the candidate refuses, or answers otherwise than was served."""
    progress: Callable[[Replay], None] = lambda _replay: None
    """After each window."""


async def replay(log: ClientLog, app: str, candidate: Candidate, question: Question, listeners: Listeners) -> Replay:
    """Run the candidate over the requests of a route. A cancellation or a failure on the way ends it early.

    Raises TopicsDiffer and BrokerError where it cannot begin.
    """
    result = Replay(comparison=Comparison(question.route.combine, question.tolerance), times=candidate.times)
    names = [topic_name(app, kind) for kind in (Kind.REQUESTS, Kind.PREDICTIONS, Kind.OUTCOMES)]
    async with scanning(log) as requests, scanning(log) as others:
        count = await common_partitions(requests.lookups, app, names, log.address)
        ranges = await stretches(requests, [At(names[0], partition) for partition in range(count)], question.span)
        run = _Run((requests, others), candidate, question, result, listeners)
        try:
            await run.all(app, ranges, names[1])
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()  # what is left is to close the connections and to report
            result.is_broken_off = True
        except StreamserveError as error:
            result.failure = error
        finally:
            run.close()
    return result


class _Run:
    def __init__(
        self,
        scanners: tuple[Scanner, Scanner],
        candidate: Candidate,
        question: Question,
        result: Replay,
        listeners: Listeners,
    ) -> None:
        """Two scanners, since two topics are read side by side."""
        self._requests, self._others = scanners
        self._candidate = candidate
        rules, route, self._span = question.rules, question.route, question.span
        self._route, self._index = route, rules.routes.index(route)
        self._admission = Admission(rules, EpochTable(rules))
        self._codec: InputCodec = input_codec(route.input, rules.max_request_bytes)
        self._result, self._listeners = result, listeners
        self._pad = Pad()
        whole_batches = -(-_LEAST_WINDOW // candidate.most_rows) * candidate.most_rows
        self._window = min(whole_batches, _MOST_WINDOW)

    def close(self) -> None:
        self._pad.close()

    async def all(self, app: str, ranges: Sequence[Stretch], predictions: str) -> None:
        for one in ranges:
            self._result.reach.append(
                Reach(partition=one.at.partition, start=one.start, end=one.end, reached=one.start)
            )
            if one.is_cut:
                gone = "is gone" if self._span.from_ms is None else "may be gone"
                self._gap(one.at, f"begins at offset {one.first_kept}: what the range names below that {gone}")
        begins = {one.at: ms for one in ranges if (ms := await self._first_ms(one)) is not None}
        if begins:
            await self._read_labels(app, ranges, min(begins.values()) - _CLOCKS_MS)
        for reach, one in zip(self._result.reach, ranges, strict=True):
            if one.at in begins:
                answers = At(predictions, one.at.partition)
                (said,) = await stretches(self._others, [answers], Span(from_ms=begins[one.at] - _CLOCKS_MS))
                if said.is_cut:
                    self._gap(answers, f"begins at offset {said.first_kept}: older predictions may be gone")
                await self._partition(one, said, reach)

    async def _first_ms(self, one: Stretch) -> int | None:
        async with aclosing(self._requests.read(one.at, one.start, one.end)) as records:
            async for record in records:
                return int(record.append_ms)
        return None

    async def _read_labels(self, app: str, ranges: Sequence[Stretch], from_ms: int) -> None:
        wanted = {one.at.partition: range(one.start, one.end) for one in ranges}

        def unreadable(_words: str) -> None:
            self._result.unreadable_outcomes += 1

        span = Span(from_ms=from_ms)
        topic = topic_name(app, Kind.OUTCOMES)
        for one in await stretches(self._others, [At(topic, partition) for partition in wanted], span):
            if one.is_cut:
                self._gap(one.at, f"begins at offset {one.first_kept}: older labels may be gone")
        async for outcome in outcomes(app, self._others, span, unreadable):
            is_ours = outcome.route == self._route.name and outcome.ref[1] in wanted.get(outcome.ref[0], ())
            if is_ours and outcome.primary and outcome.has_label:
                self._pad.keep_label(outcome)

    async def _partition(self, one: Stretch, answers: Stretch, reach: Reach) -> None:
        self._pad.forget_said()
        loop = asyncio.get_running_loop()
        began_s, before_s = loop.time(), self._result.seconds
        first_hole = None
        async with (
            aclosing(self._others.read(answers.at, answers.start, answers.end)) as records,
            aclosing(windows(self._requests, one.at, one.start, one.end, self._window)) as found,
        ):
            said = Said(self._pad, records, one.end)
            async for window in found:
                offsets = [reach.reached - 1, *(record.offset for record in window)]
                holes = (a + 1 for a, b in pairwise(offsets) if b > a + 1)
                first_hole = next(holes, None) if first_hole is None else first_hole
                await self._do(window, said)
                reach.reached = window[-1].offset + 1
                self._result.unreadable_predictions += said.unreadable
                said.unreadable = 0
                self._result.seconds = before_s + loop.time() - began_s
                self._listeners.progress(self._result)
        first_hole = reach.reached if first_hole is None and reach.reached < one.end else first_hole
        reach.reached = one.end
        if first_hole is not None:
            kept, _ = await self._requests.bounds(one.at)
            if first_hole < kept:  # else what is missing there are no records: transaction markers
                self._gap(one.at, f"lost records below offset {kept} while it was read: some may be missing")

    def _gap(self, at: At, words: str) -> None:
        self._result.gaps.append(f"{at.topic}, partition {at.partition}, {words}")

    async def _do(self, window: list[LogRecord], said: Said) -> None:
        """Nothing of a window is counted until all of it is known."""
        ids, passed_over = self._admitted(window)
        ours = [record for record in window if record.offset in ids]
        decoded = self._codec.decode([record.value for record in ours], [record.headers for record in ours])
        for reason, _ in decoded.errors.values():
            passed_over.append(str(reason))
        usable = [place for place in range(len(ours)) if place not in decoded.errors]
        answers, refusals = await self._answers(decoded)
        terminal = await said.of([ours[place].offset for place in usable], window[-1].offset + 1)
        labels = self._pad.labels(window[0].at.partition, window[0].offset, window[-1].offset + 1)
        for reason_name in passed_over:
            self._result.passed_over[reason_name] = self._result.passed_over.get(reason_name, 0) + 1
        for place in usable:
            offset = ours[place].offset
            ref = format_ref(ours[place].at.partition, offset)
            raw = terminal.get(offset)
            decision = None if raw is None else decode_decision(raw)
            self._result.unreadable_predictions += raw is not None and decision is None
            one = Replayed(
                ref=ref,
                id=decoded.ids[place] or ids[offset] or ref,
                answer=answers.get(place),
                refusal=refusals.get(place, ""),
                decision=decision,
                label=labels.get(offset),
                has_label=offset in labels,
            )
            if self._result.comparison.add(one):
                self._listeners.listed(one)

    def _admitted(self, window: list[LogRecord]) -> tuple[dict[int, str | None], list[str]]:
        """Offset -> `ce_id` of the requests of this route; why others are passed over."""
        n = len(window)
        columns = Requests(
            partition=np.full(n, window[0].at.partition, np.int64),
            offsets=np.array([record.offset for record in window], np.int64),
            append_ms=np.array([record.append_ms for record in window], np.int64),
            keys=[record.key for record in window],
            values=[record.value for record in window],
            headers=[record.headers for record in window],
        )
        admitted = self._admission.admit(columns)
        ids: dict[int, str | None] = {}
        passed_over = []
        for place, index in enumerate(admitted.route.tolist()):
            if index >= 0 and index != self._index:
                passed_over.append(OTHER_ROUTE)
            elif place in admitted.errors:
                passed_over.append(str(admitted.errors[place][0]))
            else:
                ids[window[place].offset] = admitted.ids[place]
        return ids, passed_over

    async def _answers(self, decoded: Decoded) -> tuple[dict[int, list[Any]], dict[int, str]]:
        """Of each value that could be read: its rows' answers, or why the candidate refused it."""
        answers: dict[int, list[Any]] = {}
        refusals: dict[int, str] = {}
        for number, group in enumerate(decoded.groups):
            found = await self._candidate.answer(group.array)
            for place in np.flatnonzero(decoded.group == number).tolist():
                first = int(decoded.first_row[place])
                rows = range(first, first + int(decoded.n_rows[place]))
                words = _first_words(found.refusals, rows)
                if words is None:
                    answers[place] = found.answers[rows.start : rows.stop]
                else:
                    refusals[place] = words
        return answers, refusals


def _first_words(refusals: dict[int, str], rows: Collection[int]) -> str | None:
    return next((refusals[row] for row in rows if row in refusals), None) if refusals else None
