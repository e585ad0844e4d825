"""Which records have been counted, so that a second one changes nothing: small enough to be kept in a changelog.

Of a request the first terminal record counts. Its offsets are dense and come nearly in order, so those that have come
are a few ranges. Of feedback the first outcome for a state counts; the join sends a second one only of feedback that it
had not settled when it was killed, and says in each outcome from which offset on that is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable

import msgspec

from streamserve.core.records import OutcomeRecord

#: Outcomes whose entries are written together.
PAGE = 500
#: A join that sends nothing for longer may have been down: its clock stands still.
_LONGEST_STEP_MS = 5_000


class SeenRefs(msgspec.Struct, kw_only=True):
    """Requests of one partition that have been counted, as ranges `[begin, end)` of their offsets."""

    begins: list[int] = []
    ends: list[int] = []
    most: int = 1_000
    """Ranges kept; above it the lowest gap is closed: a first record that comes so late is taken for a second."""

    def first_time(self, offset: int) -> bool:
        """Whether this request was not counted before; remembers it."""
        at = bisect_right(self.begins, offset)
        if at and offset < self.ends[at - 1]:
            return False
        joins_below = at > 0 and self.ends[at - 1] == offset
        joins_above = at < len(self.begins) and self.begins[at] == offset + 1
        if joins_below and joins_above:
            self.ends[at - 1] = self.ends.pop(at)
            del self.begins[at]
        elif joins_below:
            self.ends[at - 1] = offset + 1
        elif joins_above:
            self.begins[at] = offset
        else:
            self.begins.insert(at, offset)
            self.ends.insert(at, offset + 1)
            if len(self.begins) > self.most:
                del self.begins[1], self.ends[0]
        return True


Entry = tuple[int, int, int, int, str, str, int]
"""Offset of the outcome; partition of its join; feedback's partition and offset; route; context; time by `_clocks`."""
_Key = tuple[int, int, str, str]


class SeenFeedback:
    """Feedback whose outcome, for a state, has been counted in one partition of outcomes.

    Kept in pages, by the outcomes' offsets, so that a change writes little."""

    def __init__(self, kept_ms: int = 60_000, most: int = 100_000) -> None:
        """`kept_ms`: how long after the join has settled a feedback a second outcome of it may still come."""
        self._kept_ms, self._most = kept_ms, most
        self._known: set[_Key] = set()
        self._recent: dict[int, deque[Entry]] = {}
        self._pages: dict[int, dict[int, Entry]] = {}
        self._changed: set[int] = set()
        self.clocks: dict[int, tuple[int, int]] = {}
        """By join partition: last append time, and time at work until then, as its outcomes show."""

    def first_time(self, outcome: OutcomeRecord) -> bool:
        """Whether no outcome of this feedback was counted for this state; remembers it."""
        join, at_ms = outcome.ref[0], self._at_work_ms(outcome)
        entry: Entry = (outcome.offset, join, *outcome.feedback, outcome.route, outcome.context, at_ms)
        first = entry[2:6] not in self._known
        if first:
            self._remember(entry)
            self._changed.add(outcome.offset // PAGE)
            if len(self._known) > self._most:
                self._drop(max(self._recent.values(), key=len))
        self._forget(outcome, at_ms)
        return first

    def restore(self, pages: Iterable[list[Entry]], below: int) -> None:
        """Take up what was written, of outcomes below this offset: the others are read again."""
        for entry in sorted(entry for page in pages for entry in page):
            if entry[0] < below:
                self._remember(entry)

    def changes(self) -> dict[int, list[Entry]]:
        """The pages that have changed since the last call; an empty one is to be removed."""
        changed, self._changed = self._changed, set()
        return {page: list(self._pages.get(page, {}).values()) for page in sorted(changed)}

    def __len__(self) -> int:
        return len(self._known)

    def _remember(self, entry: Entry) -> None:
        self._known.add(entry[2:6])
        self._recent.setdefault(entry[1], deque()).append(entry)
        self._pages.setdefault(entry[0] // PAGE, {})[entry[0]] = entry

    def _drop(self, recent: deque[Entry]) -> None:
        entry = recent.popleft()
        self._known.discard(entry[2:6])
        page = entry[0] // PAGE
        del self._pages[page][entry[0]]
        if not self._pages[page]:  # what else has left a page is not worth writing it again
            del self._pages[page]
            self._changed.add(page)

    def _at_work_ms(self, outcome: OutcomeRecord) -> int:
        last_ms, at_work_ms = self.clocks.get(outcome.ref[0], (outcome.append_ms, 0))
        at_work_ms += min(max(0, outcome.append_ms - last_ms), _LONGEST_STEP_MS)
        self.clocks[outcome.ref[0]] = max(last_ms, outcome.append_ms), at_work_ms
        return at_work_ms

    def _forget(self, outcome: OutcomeRecord, now_ms: int) -> None:
        """Drop what the join of that partition can not send again: settled by it, and long enough ago to be committed.

        Its own outcomes are the clock: while it is down nothing is forgotten."""
        recent = self._recent.get(outcome.ref[0], deque())
        while recent:
            _, join, partition, offset, *_, at_ms = recent[0]
            if at_ms >= now_ms - self._kept_ms or (partition == join and offset >= outcome.open_offset):
                return
            self._drop(recent)
