"""The keyed states of a route in one partition, for a role that decides: what is in force for requests still open.

States name models, and rows are states as they stand in the log: so all versions of the route share them, and each
reads them by its own models.
"""

from __future__ import annotations

from collections import deque

from streamserve.core.history import NEVER_MS, StateHistory
from streamserve.core.keyed import Calendar, Packing, age_of, times_of
from streamserve.core.records import StateRecord
from streamserve.core.routes import Route

#: Unpacked histories that are kept: of contexts that were decided by lately.
_REMEMBERED = 4096
#: Looked at in one go; a role is told every 50 ms how far the states are known.
_MOST_AT_ONCE = 500
_LEAST_STEP_MS = 1_000
_STEPS = 256


class KeyedHistories:
    """By context. The newest state of each is kept until it is forgotten, those before it for as long as a request that
    they decide may still be open."""

    def __init__(self, route: Route, partition: int, delay_ms: int, keep_ms: int) -> None:
        """`route`: any of its versions; all have one policy and forget alike. `keep_ms`: how long after a state was
        replaced requests may still be decided by it."""
        rule = route.contexts
        assert rule is not None
        self.loaded = False
        """All states appended until the partition was assigned are known."""
        self._delay_ms = delay_ms
        self._keep_ms = keep_ms
        self._forget_after_ms = rule.forget_after_ms
        self._packing = Packing(route.name, route.policy.name, partition)
        self._newest: dict[str, bytes] = {}
        self._older: dict[str, list[bytes]] = {}
        self._replaced: deque[tuple[int, str]] = deque()
        """(append time of the state that took over, context)."""
        self._calendar = Calendar(max(_LEAST_STEP_MS, rule.forget_after_ms // _STEPS))
        self._histories: dict[str, dict[Route, StateHistory]] = {}
        self._before_ms = NEVER_MS
        """What was replaced before is not needed."""

    def __len__(self) -> int:
        return len(self._newest)

    def add(self, record: StateRecord) -> None:
        """In any order, and more than once."""
        context, row = record.context, self._packing.pack(record)
        newest = self._newest.get(context)
        if newest is None:
            self._newest[context] = row
            self._calendar.note(context, self._forgotten_ms(record.learnt_ms))
        else:
            held, mine = age_of(newest), age_of(row)
            if mine[1] == held[1] or (mine[1] > held[1] and mine[0] < held[0]):
                return  # it is known, or it reached the log late
            if mine[1] > held[1]:
                self._newest[context] = row
                self._keep_older(context, newest, record.append_ms)
            elif mine[0] > held[0]:
                self._newest[context] = row  # what we took for the newest reached the log late
            else:
                self._keep_older(context, row, times_of(newest)[0])
        self._histories.pop(context, None)

    def _keep_older(self, context: str, row: bytes, replaced_ms: int) -> None:
        if replaced_ms <= self._before_ms:
            return
        older = self._older.setdefault(context, [])
        if row not in older:
            older.append(row)
            self._replaced.append((replaced_ms, context))

    def history(self, context: str, route: Route) -> StateHistory | None:
        """As this version of the route reads it. None: nothing was learnt, or it is forgotten."""
        known = self._histories.get(context)
        found = None if known is None else known.get(route)
        if found is not None:
            return found
        newest = self._newest.get(context)
        if newest is None:
            return None
        if len(self._histories) >= _REMEMBERED:
            self._histories.clear()
        found = StateHistory(route, self._delay_ms)
        rows = [newest, *self._older.get(context, ())]
        for row in rows:
            found.add(self._packing.unpack(context, row))
        found.keep_newest(len(rows))
        self._histories.setdefault(context, {})[route] = found
        return found

    def known_until(self, ms: int) -> None:
        """Drop what no open request can be decided by at this broker time; some of it."""
        self._before_ms = max(self._before_ms, ms - self._keep_ms)
        for _ in range(min(_MOST_AT_ONCE, len(self._replaced))):
            if self._replaced[0][0] > self._before_ms:
                break
            self._drop_replaced(self._replaced.popleft()[1])
        for context in self._calendar.take(ms, _MOST_AT_ONCE):
            row = self._newest.get(context)
            if row is None:
                continue
            due_ms = self._forgotten_ms(times_of(row)[1])
            if due_ms <= ms:
                del self._newest[context]
                self._older.pop(context, None)
                self._histories.pop(context, None)
            else:
                self._calendar.note(context, due_ms)

    def _drop_replaced(self, context: str) -> None:
        older = self._older.get(context)
        if older is None:
            return
        older.remove(min(older, key=lambda row: age_of(row)[1]))
        if not older:
            del self._older[context]
        self._histories.pop(context, None)

    def _forgotten_ms(self, learnt_ms: int) -> int:
        return learnt_ms + self._forget_after_ms + self._keep_ms
