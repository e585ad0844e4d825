"""Keyed states of one partition of outcomes that are at rest: in the log, and packed. The update stage unpacks the one
that an outcome teaches, and puts it back when its snapshot is acknowledged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from streamserve.core.bounds import Fill
from streamserve.core.keyed import Calendar, Packing, age_of, times_of
from streamserve.core.records import StateRecord
from streamserve.core.routes import Route

_LEAST_STEP_MS = 1_000
_STEPS = 256
#: Looked at in one go; the stage is told every 50 ms how far the states are known.
_MOST_AT_ONCE = 200


class RestingStates:
    """By route and context. What is due comes from `due`: to be published again, or to be forgotten."""

    def __init__(self, routes: Mapping[str, Route], partition: int, *, republish_ms: int, keep_ms: int) -> None:
        """`keep_ms`: how long after the last request that a state may decide it is kept, for those still open."""
        self._routes = {
            name: _Resting(route, partition, republish_ms, keep_ms)
            for name, route in routes.items()
            if route.contexts is not None and route.contexts.keyed and route.learns
        }
        self.without_snapshot: dict[tuple[str, str], StateRecord] = {}
        """The newest record of a state, found in the epochs topic only: its writer may have died before the snapshot
        was acknowledged."""
        self.highest_epoch = -1
        """Of what was restored."""

    def follow(self, routes: Mapping[str, Route]) -> None:
        """Their newest versions, with the same policy. States stay as they are: other models come into one when it is
        taught again."""
        for name, resting in self._routes.items():
            route = routes.get(name)
            if route is not None and route.contexts is not None:
                resting.route, resting.most = route, route.contexts.most_keyed

    def __len__(self) -> int:
        return sum(len(resting.rows) for resting in self._routes.values())

    def n_of(self, route: str) -> int:
        return len(self._routes[route].rows)

    def fills(self) -> list[Fill]:
        return [Fill(len(resting.rows), resting.most) for resting in self._routes.values()]

    def restore(self, record: StateRecord) -> None:
        """A record as it stands in the log: in any order, and more than once."""
        resting = self._routes.get(record.route)
        if resting is None or record.policy != resting.route.policy.name:
            return
        self.highest_epoch = max(self.highest_epoch, record.epoch)
        key = (record.route, record.context)
        row, before = resting.packing.pack(record), resting.rows.get(record.context)
        if before is not None and age_of(row) < age_of(before):
            return
        if record.covers:
            self.without_snapshot.pop(key, None)
        elif before is not None and age_of(row) == age_of(before):
            return  # its snapshot has come already, or it was read twice
        else:
            self.without_snapshot[key] = record
        resting.put(record, row)

    def put(self, record: StateRecord) -> None:
        """The newest record of a state, acknowledged with its snapshot."""
        resting = self._routes[record.route]
        resting.put(record, resting.packing.pack(record))

    def find(self, route: str, context: str) -> StateRecord | None:
        resting = self._routes.get(route)
        row = None if resting is None else resting.rows.get(context)
        return None if resting is None or row is None else resting.packing.unpack(context, row)

    def holds(self, route: str, context: str) -> bool:
        resting = self._routes.get(route)
        return resting is not None and context in resting.rows

    def drop(self, route: str, context: str, epoch: int) -> None:
        """Its tombstone is acknowledged; nothing happens where a newer state has come since."""
        resting = self._routes.get(route)
        row = None if resting is None else resting.rows.get(context)
        if resting is not None and row is not None and age_of(row)[1] == epoch:
            del resting.rows[context]

    def due(self, now_ms: int) -> Iterator[tuple[StateRecord, bool]]:
        """Some of the states that wait for something, and whether it is to be forgotten."""
        for resting in self._routes.values():
            yield from resting.due(now_ms)


class _Resting:
    def __init__(self, route: Route, partition: int, republish_ms: int, keep_ms: int) -> None:
        assert route.contexts is not None
        self.route = route
        self.most = route.contexts.most_keyed
        self.packing = Packing(route.name, route.policy.name, partition)
        self.rows: dict[str, bytes] = {}
        self._republish_ms = republish_ms
        self._forget_after_ms = route.contexts.forget_after_ms + keep_ms
        self._step_ms = max(_LEAST_STEP_MS, min(republish_ms, self._forget_after_ms) // _STEPS)
        self._calendar = Calendar(self._step_ms)

    def put(self, record: StateRecord, row: bytes) -> None:
        if record.context not in self.rows:
            self._calendar.note(record.context, self._due_ms(row))
        self.rows[record.context] = row

    def _due_ms(self, row: bytes) -> int:
        append_ms, learnt_ms = times_of(row)
        return min(learnt_ms + self._forget_after_ms, append_ms + self._republish_ms)

    def due(self, now_ms: int) -> Iterator[tuple[StateRecord, bool]]:
        for context in self._calendar.take(now_ms, _MOST_AT_ONCE):
            row = self.rows.get(context)
            if row is None:
                continue
            is_due = self._due_ms(row) <= now_ms
            # What is sent for it may fail: it is looked at again until it is done.
            self._calendar.note(context, now_ms + self._step_ms if is_due else self._due_ms(row))
            if is_due:
                yield self.packing.unpack(context, row), times_of(row)[1] + self._forget_after_ms <= now_ms
