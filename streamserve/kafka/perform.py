"""Does what a stage says: one `match` over the effects; an unknown one is a TypeError."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from streamserve.core.contexts import is_keyed
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
    ForgetState,
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
from streamserve.kafka.once import ExactlyOnce
from streamserve.kafka.ports import Ack, At, Columns, GroupReader, LogReader, LogWriter, Record, RecordColumns
from streamserve.kafka.runner import Runner

_RETRY_S = 0.5
_STATES = ("epochs", "policy", "contexts")


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
    contexts: str
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
    forgotten: Callable[[str, str], Record]
    """Of a route and a context."""
    forward: Callable[[FeedbackForward], Record]


class _Part(NamedTuple):
    """What is sent to one partition under a token."""

    partition: int
    rows: int
    """Of the block that is sent; its records may hold several each."""
    records: int


class _Token:
    """Joins the acks of one token's sends into one event."""

    __slots__ = ("append_ms", "error", "offsets", "token", "waiting", "written")

    def __init__(self, token: int, waiting: int) -> None:
        self.token = token
        self.waiting = waiting
        self.error = ""
        self.offsets: dict[int, int] = {}
        self.written: dict[int, int] = {}
        self.append_ms = -1

    def add(self, part: _Part, ack: Ack) -> Event | None:
        self.waiting -= 1
        if not ack.error:
            self.written[part.partition] = part.rows
        elif ack.written and part.rows == part.records:
            self.written[part.partition] = ack.written
        self.error = self.error or ack.error
        if ack.offset >= 0:
            self.offsets[part.partition] = ack.offset
        self.append_ms = max(self.append_ms, ack.append_ms)
        if self.waiting:
            return None
        if self.error:
            return ProduceFailed(token=self.token, error=self.error, written=self.written, offsets=self.offsets)
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
        once: ExactlyOnce | None = None,
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
        self._once = once
        self.unacknowledged = 0
        """Records sent, or to be sent again, that the broker has not answered yet; of blocks of answers, their rows."""
        self.rejecting: Counter[int] = Counter()
        """By partition: rejected records whose dead letters are on their way. Until they are in the log the partition
        is not committed, since the next owner would not read those records again."""

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
                self._send_once(effect.token, [(number, At(topic, number), part) for number, part in parts])
            case EmitAnswers():
                topic = self._topics.answers
                blocks = [
                    (At(topic, number), self._encoders.answers(block), len(block))
                    for number, block in answers_by_partition(effect.answers)
                ]
                self._send(effect.token, blocks)
            case EmitDeadLetters():
                self._send_letters(effect.token, effect.letters)
            case EmitOutcomes():
                self._send_outcomes(effect)
            case EmitState():
                self._send_one(
                    effect.token, At(self._topics.epochs, effect.state.partition), self._encoders.state(effect.state)
                )
            case EmitSnapshot():
                topic = self._topics.contexts if is_keyed(effect.state.context) else self._topics.policy
                self._send_one(effect.token, At(topic, effect.state.partition), self._encoders.snapshot(effect.state))
            case ForgetState():
                self._send_one(
                    effect.token,
                    At(self._topics.contexts, effect.partition),
                    self._encoders.forgotten(effect.route, effect.context),
                )
            case ForwardFeedback():
                self._send_one(
                    effect.token,
                    At(self._topics.feedback, effect.forward.to_partition),
                    self._encoders.forward(effect.forward),
                )
            case Pause() | Continue():
                self._flow(effect)
            case Count():
                self._metrics.count(effect)
            case _:
                raise TypeError(f"no way to perform {effect!r}")

    def reject(self, letters: DeadLetters) -> None:
        """Write records that no stage will see to the dead letters; again where that fails. Those of the driving topic
        are then settled."""
        new = letters if self._once is None else self._once.new_letters(letters)
        if new is not None:
            self._metrics.dead_letters(new)
            self._metrics.count(Count(what=new.source, label="invalid", n=len(new.offsets)))
            self.rejecting[new.partition] += 1
            self.unacknowledged += len(new.offsets)
            self._send_rejected(new)
        if new is not letters and letters.source == self._driving_kind and letters.partition in self._ledgers:
            known = letters.offsets if new is None else letters.offsets[~np.isin(letters.offsets, new.offsets)]
            self._ledgers[letters.partition].settle(known)

    def _send_rejected(self, letters: DeadLetters) -> None:
        at, drives = At(self._topics.dlq, letters.partition), letters.source == self._driving_kind
        # States are read whoever owns what; all else is read again by the next owner.
        once = None if letters.source in _STATES else self._once

        def done(future: asyncio.Future[Ack]) -> None:
            ledger = self._ledgers.get(letters.partition) if drives else None
            is_over = future.cancelled() or (drives and ledger is None)
            failed = not is_over and bool(future.result().error)
            if failed and once is None:
                asyncio.get_running_loop().call_later(_RETRY_S, self._send_rejected, letters)
                return
            self.rejecting[letters.partition] -= 1
            self.unacknowledged -= len(letters.offsets)
            if ledger is not None and not is_over and not failed:  # behind a fence: the partition is taken anew
                ledger.settle(letters.offsets)

        records = self._encoders.dead_letters(letters)
        send = self._writer.send if once is None else partial(once.fences.send, letters.partition)
        send(at, records).add_done_callback(done)

    def _run(self, effect: RunBatch) -> None:
        if self._runner is None:
            raise TypeError("this role runs no models")
        self._runner.submit(effect.batch, effect.model, effect.inputs, here=effect.here)

    def _send_letters(self, token: int, letters: DeadLetters) -> None:
        new = letters if self._once is None else self._once.new_letters(letters)
        if new is None:
            self._post(Produced(token=token))
            return
        self._metrics.dead_letters(new)
        at = At(self._topics.dlq, new.partition)
        self._send_once(token, [(new.partition, at, self._encoders.dead_letters(new))])

    def _send_outcomes(self, effect: EmitOutcomes) -> None:
        by_place: defaultdict[tuple[int, At], list[OutcomeRecord]] = defaultdict(list)
        for outcome in effect.outcomes:
            by_place[outcome.ref[0], At(self._topics.outcomes, outcome.to_partition)].append(outcome)
        sends: list[tuple[int, At, RecordColumns]] = []
        for (number, at), outcomes in by_place.items():
            new = outcomes
            if self._once is not None:
                new = self._once.new_outcomes(number, self._topics.feedback, outcomes)
            if new:
                sends.append((number, at, Columns.of([self._encoders.outcome(outcome) for outcome in new])))
        self._send_once(effect.token, sends)

    def _send_one(self, token: int, at: At, record: Record) -> None:
        self._send(token, [(at, Columns.of([record]), 1)])

    def _send(self, token: int, sends: Sequence[tuple[At, RecordColumns, int]]) -> None:
        """Each with the rows that its records hold."""
        started = self._waiting(token, len(sends))
        if started is not None:
            self.unacknowledged += sum(rows for _, _, rows in sends)
            for at, records, rows in sends:
                sent = self._writer.send(at, records)
                part = _Part(at.partition, rows, len(records.values))
                sent.add_done_callback(partial(self._acknowledged, *started, part))

    def _send_once(self, token: int, sends: list[tuple[int, At, RecordColumns]]) -> None:
        """What users see: behind the fence of the input partition that it comes from, where there are fences."""
        if self._once is None:
            self._send(token, [(at, records, len(records.values)) for _, at, records in sends])
            return
        started = self._waiting(token, len(sends))
        if started is not None:
            self.unacknowledged += sum(len(records.values) for _, _, records in sends)
            for number, at, records in sends:
                sent = self._once.fences.send(number, at, records)
                part = _Part(at.partition, len(records.values), len(records.values))
                sent.add_done_callback(partial(self._fenced, *started, part))

    def _waiting(self, token: int, n: int) -> tuple[_Token, float] | None:
        if not n:
            self._post(Produced(token=token))
            return None
        return _Token(token, n), self._clock.monotonic_ms()

    def _fenced(self, token: _Token, sent_at_ms: float, part: _Part, done: asyncio.Future[Ack]) -> None:
        """A failure is none of the stage's business: by now it has lost the partition, and what it sent for others
        under the same token stands."""
        if done.cancelled() or not done.result().error:
            self._acknowledged(token, sent_at_ms, part, done)
            return
        self.unacknowledged -= part.rows
        event = token.add(part, Ack())
        if event is not None:
            self._post_quietly(event)

    def _acknowledged(self, token: _Token, sent_at_ms: float, part: _Part, done: asyncio.Future[Ack]) -> None:
        self.unacknowledged -= part.rows
        ack = Ack(error="the writer was stopped") if done.cancelled() else done.result()
        if not ack.error:
            self._clock.acknowledged(sent_at_ms, ack.append_ms)
        event = token.add(part, ack)
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
