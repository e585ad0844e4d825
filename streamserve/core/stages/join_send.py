"""What the join has decided to send, until the broker has acknowledged it."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from streamserve.core.effects import Effect, EmitDeadLetters, EmitOutcomes, ForwardFeedback, Settle
from streamserve.core.events import ProduceFailed
from streamserve.core.messages import DeadLetters
from streamserve.core.records import FeedbackForward, FeedbackRecord, OutcomeRecord
from streamserve.core.values import unchanging

_LONGEST_RETRY_MS = 5_000


@unchanging()
class Rejected:
    """Feedback that becomes a dead letter."""

    record: FeedbackRecord
    reason: str
    detail: str


_Item = OutcomeRecord | FeedbackForward | Rejected


@dataclass(slots=True, kw_only=True, eq=False)
class _Sending:
    """One token's worth: items of one kind, of one partition and to one, with the feedback records that they settle."""

    partition: int
    items: list[tuple[FeedbackRecord, _Item]]
    first_ms: int
    attempts: int = 0


class Sender:
    """Turns decisions into effects with tokens, sends again what failed, settles what was acknowledged."""

    def __init__(self, retry_ms: int, give_up_ms: int) -> None:
        self._retry_ms = retry_ms
        self._give_up_ms = give_up_ms
        self._token = 0
        self._new: list[tuple[int, FeedbackRecord, _Item]] = []
        self._sent: dict[int, _Sending] = {}
        self._retries: list[tuple[int, int, _Sending]] = []  # heap by time
        self._settled: dict[int, list[int]] = {}
        self._left: dict[tuple[int, int], int] = {}
        """Feedback (partition, offset) that led to several records -> how many of them are not in the log."""

    def __len__(self) -> int:
        """Records that are not known to be in the log."""
        return len(self._new) + len(self._retries) + sum(len(sending.items) for sending in self._sent.values())

    def outcomes(self, partition: int, record: FeedbackRecord, outcomes: Sequence[OutcomeRecord]) -> None:
        """The record is settled when all of them are in the log."""
        self._new += [(partition, record, outcome) for outcome in outcomes]
        if len(outcomes) > 1:
            self._left[partition, record.offset] = len(outcomes)

    def forward(self, partition: int, record: FeedbackRecord, forward: FeedbackForward) -> None:
        self._new.append((partition, record, forward))

    def reject(self, partition: int, rejected: Rejected) -> None:
        self._new.append((partition, rejected.record, rejected))

    def settle(self, partition: int, offsets: list[int]) -> None:
        self._settled.setdefault(partition, []).extend(offsets)

    def acknowledged(self, token: int) -> tuple[int, list[int]] | None:
        """The partition and feedback offsets that this token settles; None for a token that is not ours any more."""
        sending = self._sent.pop(token, None)
        if sending is None:
            return None
        return sending.partition, self._in_the_log(sending, len(sending.items))

    def failed(self, event: ProduceFailed, now_ms: int) -> tuple[int, list[int]] | None:
        """Send it again later, each item alone: one that the broker refuses must not hold up the others.

        As of `acknowledged`, for what is in the log all the same.
        """
        sending = self._sent.pop(event.token, None)
        if sending is None:
            return None
        n_written = sum(event.written.values())
        written = self._in_the_log(sending, n_written)
        due_ms = now_ms + min(_LONGEST_RETRY_MS, self._retry_ms << min(sending.attempts, 10))
        for item in sending.items[n_written:]:
            alone = _Sending(
                partition=sending.partition, items=[item], first_ms=sending.first_ms, attempts=sending.attempts + 1
            )
            self._token += 1  # also what keeps the heap from comparing records
            heapq.heappush(self._retries, (due_ms, self._token, alone))
        return sending.partition, written

    def _in_the_log(self, sending: _Sending, n: int) -> list[int]:
        """The first n of these are; settle the feedback of which all is."""
        offsets = []
        for record, _ in sending.items[:n]:
            place = (sending.partition, record.offset)
            left = self._left.pop(place, 1) - 1
            if left:
                self._left[place] = left
            else:
                offsets.append(record.offset)
        if offsets:
            self.settle(sending.partition, offsets)
        return offsets

    def drop(self, partition: int) -> None:
        """The partition has a new owner: nothing more is sent for it, acknowledgements that still come are ignored."""
        self._new = [new for new in self._new if new[0] != partition]
        self._sent = {token: sending for token, sending in self._sent.items() if sending.partition != partition}
        self._retries = [retry for retry in self._retries if retry[2].partition != partition]
        heapq.heapify(self._retries)
        self._settled.pop(partition, None)
        self._left = {place: left for place, left in self._left.items() if place[0] != partition}

    @property
    def next_retry_ms(self) -> int | None:
        return self._retries[0][0] if self._retries else None

    @property
    def empty(self) -> bool:
        return not (self._new or self._sent or self._retries)

    def effects(self, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        while self._retries and self._retries[0][0] <= now_ms:
            sending = heapq.heappop(self._retries)[2]
            effects.append(self._send(self._or_give_up(sending, now_ms)))
        batches: dict[tuple[int, type, int], list[tuple[FeedbackRecord, _Item]]] = {}
        for partition, record, item in self._new:
            if isinstance(item, FeedbackForward):
                effects.append(self._send(_Sending(partition=partition, items=[(record, item)], first_ms=now_ms)))
            else:
                to = item.to_partition if isinstance(item, OutcomeRecord) else partition
                batches.setdefault((partition, type(item), to), []).append((record, item))
        self._new = []
        for (partition, _, _), items in batches.items():
            effects.append(self._send(_Sending(partition=partition, items=items, first_ms=now_ms)))
        for partition, offsets in self._settled.items():
            effects.append(Settle(partition=partition, offsets=np.array(sorted(offsets), np.int64)))
        self._settled = {}
        return effects

    def _or_give_up(self, sending: _Sending, now_ms: int) -> _Sending:
        """An outcome that the broker has refused for too long becomes a dead letter; a dead letter is sent for ever."""
        record, item = sending.items[0]
        if isinstance(item, Rejected) or now_ms - sending.first_ms < self._give_up_ms:
            return sending
        rejected = Rejected(record=record, reason="not_produced", detail="the broker did not take what it led to")
        return _Sending(partition=sending.partition, items=[(record, rejected)], first_ms=now_ms)

    def _send(self, sending: _Sending) -> Effect:
        self._token += 1
        self._sent[self._token] = sending
        _, first = sending.items[0]
        if isinstance(first, FeedbackForward):
            return ForwardFeedback(token=self._token, forward=first)
        outcomes = tuple(item for _, item in sending.items if isinstance(item, OutcomeRecord))
        if outcomes:
            return EmitOutcomes(token=self._token, outcomes=outcomes)
        rejected = [item for _, item in sending.items if isinstance(item, Rejected)]
        return EmitDeadLetters(token=self._token, letters=_letters(sending.partition, rejected))


def _letters(partition: int, rejected: list[Rejected]) -> DeadLetters:
    records = [item.record for item in rejected]
    return DeadLetters(
        source="feedback",
        partition=partition,
        offsets=np.array([record.offset for record in records], np.int64),
        append_ms=np.array([record.append_ms for record in records], np.int64),
        keys=[record.key for record in records],
        values=[record.value for record in records],
        headers=[record.headers for record in records],
        reasons=[item.reason for item in rejected],
        details=[item.detail for item in rejected],
        stage="join",
    )
