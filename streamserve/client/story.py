"""One request's story across the topics, found by partition, offset and time: no topic is read as a whole."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from streamserve.client.failures import UnusableInput
from streamserve.client.lines import (
    answer_plain,
    answer_words,
    dead_letter_words,
    epoch_of,
    feedback_words,
    outcome_words,
    plain,
    prediction_of,
    prediction_words,
    state_words,
    words,
)
from streamserve.client.prediction import Prediction
from streamserve.client.scanning import LogRecord, Scanner
from streamserve.core.epochs import outcome_partition
from streamserve.core.messages import Answers
from streamserve.core.records import StateRecord
from streamserve.errors import ContractError, StreamserveError, TopicsDiffer
from streamserve.kafka.codecs import decode_answers, decode_outcome, parse_ref
from streamserve.kafka.codecs.refs import REF_HEADER
from streamserve.kafka.ports import At
from streamserve.topics import Kind, topic_name

#: A late answer or an outcome follows its prediction or feedback within this.
FOLLOWS_MS = 60_000
#: Records of one partition that are looked through for one part of the story.
MAX_SCANNED = 50_000
_DLQ_TOPIC, _DLQ_OFFSET = "__connect.errors.topic", "__connect.errors.offset"

_Found = TypeVar("_Found")


@dataclass(slots=True, kw_only=True)
class Story:
    """What the log holds of one request. Times are epoch milliseconds of the broker."""

    ref: str
    request: LogRecord
    answers: list[tuple[LogRecord, Answers, int]] = field(default_factory=list)
    """Record, its block, and the request's index in it."""
    prediction: Prediction | None = None
    predictions: list[LogRecord] = field(default_factory=list)
    """Its terminal record; a second one, which readers drop, is shown too."""
    epoch: StateRecord | None = None
    """The learnt state under which its models were chosen; None: the initial one, or no longer kept."""
    feedback: list[LogRecord] = field(default_factory=list)
    outcomes: list[LogRecord] = field(default_factory=list)
    dead_letters: list[LogRecord] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """For a person, in the order of time."""
        told = [(self.request.append_ms, "request", words(Kind.REQUESTS, self.request))]
        told += [(record.append_ms, "answer", answer_words(block, index)) for record, block, index in self.answers]
        for number, record in enumerate(self.predictions):
            said = words(Kind.PREDICTIONS, record) if number else self._prediction_words()
            told.append(
                (record.append_ms, "prediction", said + (" (a second one: dropped by readers)" if number else ""))
            )
        told += [(record.append_ms, "feedback", feedback_words(record)) for record in self.feedback]
        told += [(record.append_ms, "outcome", outcome_words(record)) for record in self.outcomes]
        told += [(record.append_ms, "dead letter", dead_letter_words(record)) for record in self.dead_letters]
        if self.epoch is not None:
            told.append((self.epoch.append_ms, "epoch", state_words(self.epoch)))
        began_ms = self.request.append_ms
        told.sort(key=lambda part: part[0])
        lines = [f"{time_ms - began_ms:+9,d} ms  {kind:<11} {said}" for time_ms, kind, said in told]
        return [f"request {self.ref} of {self.request.at.topic}", *lines, *(f"note: {note}" for note in self.notes)]

    def _prediction_words(self) -> str:
        prediction = self.prediction
        if prediction is None:
            return words(Kind.PREDICTIONS, self.predictions[0])
        members = ", ".join(f"{model} {labels.tolist()}" for model, labels in prediction.members.items())
        chosen = f"; chosen with probability {prediction.probability:.3g}: {', '.join(prediction.chosen) or 'none'}"
        return prediction_words(prediction) + chosen + (f"; members {members}" if members else "")

    def plain(self) -> dict[str, Any]:
        """For a program."""
        epoch = self.epoch
        return {
            "ref": self.ref,
            "request": plain(Kind.REQUESTS, self.request),
            "answers": [
                {"offset": record.offset, "append_ms": record.append_ms, **answer_plain(block, index)}
                for record, block, index in self.answers
            ],
            "predictions": [plain(Kind.PREDICTIONS, record) for record in self.predictions],
            "epoch": None
            if epoch is None
            else {
                "route": epoch.route,
                "context": epoch.context,
                "policy": epoch.policy,
                "epoch": epoch.epoch,
                "append_ms": epoch.append_ms,
                "data": dict(epoch.data),
            },
            "feedback": [plain(Kind.FEEDBACK, record) for record in self.feedback],
            "outcomes": [plain(Kind.OUTCOMES, record) for record in self.outcomes],
            "dead_letters": [plain(Kind.DLQ, record) for record in self.dead_letters],
            "notes": self.notes,
        }


async def tell(app: str, ref: str, scanner: Scanner, *, join_window_ms: int) -> Story:
    """The story of a request. `join_window_ms`: how long after it feedback is looked for.

    Raises UnusableInput for what is no ref, TopicsDiffer where the app has no topics, StreamserveError where the log
    holds no such request (any more).
    """
    place = parse_ref(ref)
    if place is None:
        raise UnusableInput(f"{ref!r} is no ref: expected <partition>-<offset> of a request, such as 2-17")
    at = At(topic_name(app, Kind.REQUESTS), place[0])
    partitions = await scanner.lookups.partition_count(at.topic)
    if not partitions:
        raise TopicsDiffer(f"app {app} has no topic {at.topic}; `streamserve topics create CONFIG` makes it")
    if place[0] >= partitions:
        raise StreamserveError(f"ref {ref} names partition {place[0]}; {at.topic} has 0 to {partitions - 1}")
    request = await scanner.one(at, place[1])
    if request is None:
        start, end = await scanner.bounds(at)
        kept = f"holds {start} to {end - 1}" if start < end else "is empty"
        if start == end and end:
            kept += f" (what stood before {end} is no longer kept)"
        raise StreamserveError(f"no request stands at {ref}: partition {place[0]} of {at.topic} {kept}")
    teller = _Teller(app, scanner, Story(ref=ref, request=request), place, partitions)
    await teller.predictions()
    await teller.answers()
    await teller.dead_letters()
    await teller.feedback(join_window_ms)
    await teller.outcomes()
    await teller.epoch()
    return teller.story


class _Teller:
    """Fills in a story, part by part."""

    def __init__(self, app: str, scanner: Scanner, story: Story, place: tuple[int, int], partitions: int) -> None:
        self._app, self._scanner, self.story = app, scanner, story
        self._partition, self._offset = place
        self._partitions = partitions

    async def predictions(self) -> None:
        ref = self.story.ref.encode()
        records = self._from(Kind.PREDICTIONS, self.story.request.append_ms)
        async for record in records:
            first = self.story.predictions[0].append_ms if self.story.predictions else None
            if first is not None and record.append_ms > first + FOLLOWS_MS:
                break
            if record.header(REF_HEADER) == ref:
                self.story.predictions.append(record)
        if not self.story.predictions:
            self.story.notes.append("no prediction yet")
            return
        try:
            self.story.prediction = prediction_of(self.story.predictions[0])
        except ContractError as error:
            self.story.notes.append(str(error))

    async def answers(self) -> None:
        until_ms = self._last_ms(self.story.predictions) + FOLLOWS_MS
        async for record in self._from(Kind.ANSWERS, self.story.request.append_ms, until_ms):
            try:
                block = decode_answers(record.value or b"", self._partition)
            except ContractError as error:
                self.story.notes.append(str(error))
                continue
            index = int(np.searchsorted(block.offsets, self._offset))
            if index < len(block) and block.offsets[index] == self._offset:
                self.story.answers.append((record, block, index))

    async def dead_letters(self) -> None:
        if self.story.prediction is not None and self.story.prediction.outcome != "error":
            return
        place = (self.story.request.at.topic.encode(), b"%d" % self._offset)
        until_ms = self._last_ms(self.story.predictions) + FOLLOWS_MS
        async for record in self._from(Kind.DLQ, self.story.request.append_ms, until_ms):
            if (record.header(_DLQ_TOPIC), record.header(_DLQ_OFFSET)) == place:
                self.story.dead_letters.append(record)

    async def feedback(self, join_window_ms: int) -> None:
        ref = self.story.ref
        quoted = f'"{ref}"'.encode()
        until_ms = self._last_ms(self.story.predictions) + join_window_ms
        async for record in self._from(Kind.FEEDBACK, self.story.request.append_ms, until_ms):
            named = record.header(REF_HEADER)
            # Without the header the id may be the ref; what it says beside is not looked into.
            if named == ref.encode() or (named is None and quoted in (record.value or b"")):
                self.story.feedback.append(record)

    async def outcomes(self) -> None:
        if not self.story.feedback or self.story.prediction is None:
            return
        shared = outcome_partition(self.story.prediction.route, "", self._partitions)
        until_ms = self._last_ms(self.story.feedback) + FOLLOWS_MS
        for partition in sorted({shared, self._partition}):  # a keyed state is taught in the request's own partition
            records = self._from(Kind.OUTCOMES, self.story.feedback[0].append_ms, until_ms, partition)
            async for record in records:
                if _outcome_ref(record) == (self._partition, self._offset):
                    self.story.outcomes.append(record)

    async def epoch(self) -> None:
        prediction = self.story.prediction
        if prediction is None or prediction.epoch < 0:
            return
        topic = topic_name(self._app, Kind.EPOCHS)
        shared = outcome_partition(prediction.route, "", self._partitions)
        for partition in dict.fromkeys((shared, self._partition)):
            record = await self._scanner.one(At(topic, partition), prediction.epoch)
            state = None if record is None else _readable(epoch_of, record)
            if state is not None and state.route == prediction.route:
                self.story.epoch = state
                return
        self.story.notes.append(f"epoch {prediction.epoch}, under which it was decided, is no longer kept")

    async def _from(
        self, kind: Kind, since_ms: int, until_ms: int | None = None, partition: int | None = None
    ) -> AsyncIterator[LogRecord]:
        at = At(topic_name(self._app, kind), self._partition if partition is None else partition)
        if not await self._scanner.lookups.partition_count(at.topic):
            self.story.notes.append(f"there is no topic {at.topic}")
            return
        start, end = await self._scanner.since(at, since_ms)
        if end - start > MAX_SCANNED:
            self.story.notes.append(f"{at.topic} was looked through for {MAX_SCANNED} records after the request only")
            end = start + MAX_SCANNED
        async for record in self._scanner.read(at, start, end):
            if until_ms is not None and record.append_ms > until_ms:
                return
            yield record

    def _last_ms(self, records: list[LogRecord]) -> int:
        return records[-1].append_ms if records else self.story.request.append_ms


def _outcome_ref(record: LogRecord) -> tuple[int, int] | None:
    def ref(record: LogRecord) -> tuple[int, int]:
        return decode_outcome(
            record.value, partition=record.at.partition, offset=record.offset, append_ms=record.append_ms
        ).ref

    return _readable(ref, record)


def _readable(read: Callable[[LogRecord], _Found], record: LogRecord) -> _Found | None:
    try:
        return read(record)
    except ContractError:
        return None
