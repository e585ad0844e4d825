"""Does what a stage says: one `match` over the effects; an unknown one is a TypeError."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from streamserve.core.effects import (
    Continue,
    Count,
    Effect,
    EmitAnswers,
    EmitDeadLetters,
    EmitOutcomes,
    EmitPredictions,
    EmitSnapshot,
    EmitState,
    ForwardFeedback,
    Pause,
    RunBatch,
    Settle,
)
from streamserve.core.events import Event, Produced, ProduceFailed
from streamserve.core.fast import distinct, indices
from streamserve.core.ledger import Ledger
from streamserve.core.messages import I64, Answers, DeadLetters, Predictions
from streamserve.core.reasons import Outcome, Reason
from streamserve.core.records import FeedbackForward, OutcomeRecord, StateRecord
from streamserve.core.slicing import answers_by_partition
from streamserve.kafka.clock import BrokerClock
from streamserve.kafka.codecs.encoded import EncodedRecords
from streamserve.kafka.metrics import RoleMetrics
from streamserve.kafka.ports import Ack, At, Columns, GroupReader, LogReader, LogWriter, Record, RecordColumns
from streamserve.kafka.runner import Runner

_RETRY_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """Full names of an app's topics."""

    requests: str
    answers: str
    predictions: str
    feedback: str
    outcomes: str
    epochs: str
    policy: str
    dlq: str

    def of(self, kind: str) -> str:
        return str(getattr(self, kind))


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoders:
    """Core messages to records."""

    answers: Callable[[Answers], RecordColumns]
    predictions: Callable[[Predictions], EncodedRecords]
    dead_letters: Callable[[DeadLetters], RecordColumns]
    outcome: Callable[[OutcomeRecord], Record]
    state: Callable[[StateRecord], Record]
    snapshot: Callable[[StateRecord], Record]
    forward: Callable[[FeedbackForward], Record]


class _Token:
    """Joins the acks of one token's sends into one event."""

    __slots__ = ("append_ms", "error", "offsets", "token", "waiting")

    def __init__(self, token: int, waiting: int) -> None:
        self.token = token
        self.waiting = waiting
        self.error = ""
        self.offsets: dict[int, int] = {}
        self.append_ms = -1

    def add(self, partition: int, ack: Ack) -> Event | None:
        self.waiting -= 1
        self.error = self.error or ack.error
        self.offsets[partition] = ack.offset
        self.append_ms = max(self.append_ms, ack.append_ms)
        if self.waiting:
            return None
        if self.error:
            return ProduceFailed(token=self.token, error=self.error)
        return Produced(token=self.token, offsets=self.offsets, append_ms=self.append_ms)


def _by_partition(partition: I64, records: RecordColumns) -> list[tuple[int, RecordColumns]]:
    """Encoded together, sent apart."""
    found = distinct(partition)
    if len(found) == 1:
        return [(found[0], records)]
    parts: list[tuple[int, RecordColumns]] = []
    for number in found:
        rows = indices(partition == number).tolist()
        part = Columns(
            keys=[records.keys[i] for i in rows],
            values=[records.values[i] for i in rows],
            headers=[records.headers[i] for i in rows],
        )
        parts.append((number, part))
    return parts


def _as_written(block: Predictions, too_large: list[int]) -> Predictions:
    """A block with the outcomes that its records have."""
    if not too_large:
        return block
    outcome, reason = block.outcome.copy(), block.reason.copy()
    outcome[too_large], reason[too_large] = Outcome.ERROR, Reason.OUTPUT_TOO_LARGE
    return replace(block, outcome=outcome, reason=reason)


class Performer:
    """Performs effects in order; reports back through `post`."""

    def __init__(
        self,
        *,
        topics: Topics,
        encoders: Encoders,
        writer: LogWriter,
        runner: Runner | None,
        clock: BrokerClock,
        metrics: RoleMetrics,
        post: Callable[[Event], None],
        post_quietly: Callable[[Event], None],
        ledgers: Mapping[int, Ledger],
        driving: tuple[str, GroupReader],
        followed: LogReader | None,
    ) -> None:
        self._topics = topics
        self._encoders = encoders
        self._writer = writer
        self._runner = runner
        self._clock = clock
        self._metrics = metrics
        self._post = post
        self._post_quietly = post_quietly
        self._ledgers = ledgers
        self._driving_kind, self._driving_reader = driving
        self._followed = followed
        self.unacknowledged = 0
        """Sends that the broker has not answered yet."""

    def perform(self, effect: Effect) -> None:  # noqa: PLR0912  (one arm an effect: the list is the point)
        match effect:
            case Settle():
                ledger = self._ledgers.get(effect.partition)
                if ledger is not None:
                    ledger.settle(effect.offsets)
            case RunBatch():
                self._metrics.batch(effect)
                self._run(effect)
            case EmitPredictions():
                records = self._encoders.predictions(effect.predictions)
                self._metrics.predictions(_as_written(effect.predictions, records.too_large))
                parts = _by_partition(effect.predictions.partition, records)
                topic = self._topics.predictions
                self._send(effect.token, {At(topic, partition): part for partition, part in parts})
            case EmitAnswers():
                blocks, topic = answers_by_partition(effect.answers), self._topics.answers
                self._send(effect.token, {At(topic, number): self._encoders.answers(block) for number, block in blocks})
            case EmitDeadLetters():
                self._metrics.dead_letters(effect.letters)
                at = At(self._topics.dlq, effect.letters.partition)
                self._send(effect.token, {at: self._encoders.dead_letters(effect.letters)})
            case EmitOutcomes():
                self._send_outcomes(effect)
            case EmitState():
                at = At(self._topics.epochs, effect.state.partition)
                self._send(effect.token, {at: Columns.of([self._encoders.state(effect.state)])})
            case EmitSnapshot():
                at = At(self._topics.policy, effect.state.partition)
                self._send(effect.token, {at: Columns.of([self._encoders.snapshot(effect.state)])})
            case ForwardFeedback():
                at = At(self._topics.feedback, effect.forward.to_partition)
                self._send(effect.token, {at: Columns.of([self._encoders.forward(effect.forward)])})
            case Pause() | Continue():
                self._flow(effect)
            case Count():
                self._metrics.count(effect)
            case _:
                raise TypeError(f"no way to perform {effect!r}")

    def reject(self, letters: DeadLetters) -> None:
        """Write records that no stage will see to the dead letters; again where that fails. Those of the driving topic
        are then settled."""
        self._metrics.dead_letters(letters)
        self._metrics.count(Count(what=letters.source, label="invalid", n=len(letters.offsets)))
        self._send_rejected(letters)

    def _send_rejected(self, letters: DeadLetters) -> None:
        at = At(self._topics.dlq, letters.partition)

        def done(future: asyncio.Future[Ack]) -> None:
            self.unacknowledged -= 1
            drives = letters.source == self._driving_kind
            if future.cancelled() or (drives and letters.partition not in self._ledgers):
                return
            if future.result().error:
                asyncio.get_running_loop().call_later(_RETRY_S, self._send_rejected, letters)
            elif drives:
                self._ledgers[letters.partition].settle(letters.offsets)

        self.unacknowledged += 1
        self._writer.send(at, self._encoders.dead_letters(letters)).add_done_callback(done)

    def _run(self, effect: RunBatch) -> None:
        if self._runner is None:
            raise TypeError("this role runs no models")
        self._runner.submit(effect.batch, effect.model, effect.inputs)

    def _send_outcomes(self, effect: EmitOutcomes) -> None:
        by_partition: defaultdict[At, list[Record]] = defaultdict(list)
        for outcome in effect.outcomes:
            at = At(self._topics.outcomes, outcome.to_partition)
            by_partition[at].append(self._encoders.outcome(outcome))
        self._send(effect.token, {at: Columns.of(records) for at, records in by_partition.items()})

    def _send(self, token: int, sends: Mapping[At, RecordColumns]) -> None:
        sent_at_ms = self._clock.monotonic_ms()
        waiting = _Token(token, len(sends))
        if not sends:
            self._post(Produced(token=token))
            return
        for at, records in sends.items():
            self.unacknowledged += 1
            self._writer.send(at, records).add_done_callback(
                partial(self._acknowledged, waiting, at.partition, sent_at_ms)
            )

    def _acknowledged(self, token: _Token, partition: int, sent_at_ms: float, done: asyncio.Future[Ack]) -> None:
        self.unacknowledged -= 1
        ack = Ack(error="the writer was stopped") if done.cancelled() else done.result()
        if not ack.error:
            self._clock.acknowledged(sent_at_ms, ack.append_ms)
        event = token.add(partition, ack)
        if event is not None:
            self._post_quietly(event)

    def _flow(self, effect: Pause | Continue) -> None:
        source = [At(self._topics.of(effect.source), partition) for partition in effect.partitions]
        reader = self._driving_reader if effect.source == self._driving_kind else self._followed
        if reader is None:
            raise TypeError(f"this role does not read {effect.source}")
        if isinstance(effect, Pause):
            reader.pause(source)
        else:
            reader.resume(source)
