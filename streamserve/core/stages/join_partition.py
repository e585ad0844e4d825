"""One partition of the join: its window, what waits, what is open."""

from __future__ import annotations

from collections import OrderedDict, deque
from itertools import takewhile
from typing import TypeVar

from streamserve.core.effects import Continue, Effect, Pause
from streamserve.core.events import PredictionsFetched, RawAnswersFetched, Resume
from streamserve.core.records import Feedback, FeedbackRecord, PredictionRecord
from streamserve.core.stages.join_window import LateAnswers, PredictionStore

_NEVER_MS = -(1 << 62)
#: So long at least a second copy of a forwarded record is known, however short the window: it comes when the forwarder
#: has been away before it could commit.
FORWARDED_MS = 600_000
_SeenKey = tuple[object, bool, tuple[int, int] | None]
_Key = TypeVar("_Key", int, str)


class Partition:
    """State of one owned partition. Offsets are of its feedback topic."""

    def __init__(
        self, number: int, resume: Resume, store: PredictionStore, answers: LateAnswers, max_remembered: int
    ) -> None:
        self.number = number
        self.store = store
        self.answers = answers
        self.waiting: OrderedDict[int, tuple[FeedbackRecord, int]] = OrderedDict()
        """Offset -> record and when it arrived."""
        self.open: OrderedDict[int, None] = OrderedDict()
        self._by_ref: dict[int, list[int]] = {}
        self._by_id: dict[str, list[int]] = {}
        self._position = resume.position
        self._rebuilds_from = number_in(resume.metadata, "rebuild_from")
        self._next_offset = 0
        # The window moves with the newest feedback, not with the clock: after an outage labels still find predictions.
        self._feedback_ms = _NEVER_MS
        self._progress_ms = _NEVER_MS  # when predictions last came
        self._predictions_ms = _NEVER_MS  # append time of the newest prediction seen
        self._predictions_next = number_in(resume.metadata, "predictions_from")
        # Of each fetch of predictions: its first offset, its newest append time, the request of its last record.
        self._fetches: deque[tuple[int, int, int]] = deque()
        self._answers_next = resume.answers_from
        self._seen: OrderedDict[_SeenKey, tuple[int, int]] = OrderedDict()  # -> offset, append time
        self._max_remembered = max_remembered
        self._paused = False

    # -- feedback ------------------------------------------------------------------------------------------------

    def new_records(self, feedback: Feedback) -> list[FeedbackRecord]:
        """Those to be handled; they are open from now on. What was settled by a previous owner is only remembered."""
        fresh = []
        for record in feedback.records:
            if record.offset < self._next_offset:
                continue
            self._next_offset = record.offset + 1
            self._feedback_ms = max(self._feedback_ms, record.append_ms)
            if record.offset >= self._position:
                self.open[record.offset] = None
                fresh.append(record)
            elif record.origin is not None:
                self.first_time(record)
        self._next_offset = max(self._next_offset, feedback.next_offset)
        return fresh

    def first_time(self, record: FeedbackRecord) -> bool:
        """Whether this forwarded record is the first of its (ref or id, kind, origin); others can not come twice."""
        key = (record.ref or record.id, record.has_label, record.origin)
        if key in self._seen:
            return False
        self._seen[key] = (record.offset, record.append_ms)
        if len(self._seen) > self._max_remembered:
            self._seen.popitem(last=False)
        return True

    @property
    def remembered(self) -> int:
        """Forwarded records of which a second copy would be known."""
        return len(self._seen)

    def find(self, record: FeedbackRecord) -> PredictionRecord | None:
        if record.ref is not None:
            return self.store.by_offset(record.ref[1])
        return None if record.id is None else self.store.by_id(record.id)

    def close(self, offsets: list[int]) -> None:
        for offset in offsets:
            del self.open[offset]

    @property
    def lowest_open(self) -> int:
        return next(iter(self.open), max(self._next_offset, self._position))

    # -- waiting -------------------------------------------------------------------------------------------------

    def wait(self, record: FeedbackRecord, now_ms: int) -> None:
        self.waiting[record.offset] = (record, now_ms)
        if record.ref is not None:
            self._by_ref.setdefault(record.ref[1], []).append(record.offset)
        elif record.id is not None:
            self._by_id.setdefault(record.id, []).append(record.offset)

    def stop_waiting(self, record: FeedbackRecord) -> None:
        if self.waiting.pop(record.offset, None) is None:
            return
        if record.ref is not None:
            _remove(self._by_ref, record.ref[1], record.offset)
        elif record.id is not None:
            _remove(self._by_id, record.id, record.offset)

    def abandon_waiting(self) -> None:
        self.waiting.clear()
        self._by_ref.clear()
        self._by_id.clear()

    def first_due_ms(self, wait_ms: int) -> int:
        _, arrived_ms = next(iter(self.waiting.values()))
        return max(arrived_ms, self._progress_ms) + wait_ms

    def overdue(self, now_ms: int, wait_ms: int) -> list[FeedbackRecord]:
        if not self.waiting or self.first_due_ms(wait_ms) > now_ms:
            return []
        return [record for record, arrived_ms in self.waiting.values() if arrived_ms + wait_ms <= now_ms]

    def overtaken(self, wait_ms: int) -> list[FeedbackRecord]:
        """Waiting for a prediction that must have been seen by now, were there one."""
        passed_ms = self._predictions_ms - wait_ms
        waiting = (record for record, _ in self.waiting.values())
        return list(takewhile(lambda record: record.append_ms < passed_ms, waiting))

    def pausing(self, limit: int) -> list[Effect]:
        if not self._paused and len(self.waiting) > limit:
            self._paused = True
            return [Pause(source="feedback", partitions=(self.number,))]
        if self._paused and len(self.waiting) * 2 <= limit:
            self._paused = False
            return [Continue(source="feedback", partitions=(self.number,))]
        return []

    # -- predictions ---------------------------------------------------------------------------------------------

    def remember(self, event: PredictionsFetched, now_ms: int) -> list[FeedbackRecord]:
        """Store a fetch of predictions; the feedback that waited for one of them."""
        records = event.predictions.records
        found: list[int] = []
        for record in records:
            self.store.put(record)
            if self.waiting:
                found += self._by_ref.get(record.request_offset, ())
                found += self._by_id.get(record.id, ()) if record.id is not None else ()
        if records:
            self._progress_ms = now_ms
            newest_ms = max(record.append_ms for record in records)
            self._predictions_ms = max(self._predictions_ms, newest_ms)
            self._fetches.append((self._predictions_next, newest_ms, records[-1].request_offset))
        self._predictions_next = event.next_offset
        # One look-up for each, though an id may have come twice in this fetch.
        return [self.waiting[offset][0] for offset in dict.fromkeys(found)]

    def keep_answers(self, event: RawAnswersFetched) -> None:
        for block in event.blocks:
            self.answers.add(block, self._answers_next)
        self._answers_next = event.next_offset

    def expire(self, window_ms: int) -> None:
        """Forget what is out of the window of all feedback still to come."""
        oldest_open = next(iter(self.waiting.values()), None)
        newest_ms = self._feedback_ms if oldest_open is None else min(self._feedback_ms, oldest_open[0].append_ms)
        before_ms = newest_ms - window_ms
        self.store.expire(before_ms)
        self.answers.forget_below(self.store.forgotten_below, self._is_held)
        below = self.store.forgotten_below
        while self._fetches:
            _, fetched_ms, last = self._fetches[0]
            # A request that was answered late stands behind later ones that may be forgotten before it.
            if fetched_ms >= before_ms and (last >= below or self._is_held(last)):
                break
            self._fetches.popleft()
        before_ms = min(before_ms, newest_ms - FORWARDED_MS)
        while self._seen:
            key, (_, append_ms) = next(iter(self._seen.items()))
            if append_ms >= before_ms:
                break
            del self._seen[key]

    def _is_held(self, request_offset: int) -> bool:
        return self.store.by_offset(request_offset) is not None

    def metadata(self) -> str:
        predictions_from = self._fetches[0][0] if self._fetches else self._predictions_next
        answers_from = self._answers_next if self.answers.read_from is None else self.answers.read_from
        rebuild_from = next((offset for offset, _ in self._seen.values()), self.lowest_open)
        if self._next_offset < self._position:  # not yet rebuilt: the next owner needs the rest
            rebuild_from = min(rebuild_from, self._rebuilds_from)
        return (
            f'{{"v":1,"rebuild_from":{min(rebuild_from, self.lowest_open)},'
            f'"predictions_from":{predictions_from},"answers_from":{answers_from}}}'
        )


def number_in(metadata: str, name: str) -> int:
    """The number of this name in words that `commit_metadata` wrote; 0 where it is not there."""
    _, found, rest = metadata.partition(f'"{name}":')
    digits = rest.partition(",")[0].rstrip("} ")
    return int(digits) if found and digits.isdigit() else 0


def _remove(index: dict[_Key, list[int]], key: _Key, offset: int) -> None:
    offsets = index[key]
    offsets.remove(offset)
    if not offsets:
        del index[key]
