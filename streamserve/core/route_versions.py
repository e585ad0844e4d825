"""The routes of an app through time: which version of a route a request gets, by the append time of records of the log.

A record holds all routes of the app, and is in force for requests appended at least `delay_ms` after it; the first one
known holds for older requests too. So every role gives the same request the same version. A version is one more `Route`
with an index of its own, so a column of indices, and bits of models beside it, can never be read under another version.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from streamserve.core.fast import distinct, highest, indices, lowest
from streamserve.core.messages import I64
from streamserve.core.routes import Route
from streamserve.core.values import unchanging

NEVER_MS = -(1 << 62)


@unchanging()
class RoutesRecord:
    """All routes of the app, as they are from some time after this record on."""

    number: int
    """For people; records are told apart, and ordered, by their offset."""
    routes: tuple[Route, ...]
    append_ms: int
    offset: int
    """All such records stand in one partition."""


@unchanging(eq=False)
class Period:
    """From when on which routes are in force."""

    from_ms: int
    offset: int
    number: int
    names: dict[str, int] = field(default_factory=dict)
    """Name -> index of its version, in the order of the config."""


class Routes(Sequence[Route]):
    """Every version that a request may still have, by index; indices are never used twice."""

    def __init__(self, first: Sequence[Route], *, delay_ms: int, keep_ms: int) -> None:
        """`first`: in force until a record says otherwise. `keep_ms`: after so long nobody asks for a version that was
        replaced."""
        self._all = list(first)
        self._delay_ms, self._keep_ms = delay_ms, keep_ms
        names = {route.name: index for index, route in enumerate(first)}
        self._periods = [Period(from_ms=NEVER_MS, offset=-1, number=0, names=names)]
        self._starts: list[int] = [NEVER_MS]
        self.turns = 0
        """Rises when versions come or go: what is kept by index is then to be looked at again."""

    def __len__(self) -> int:
        return len(self._all)

    def __getitem__(self, index: Any) -> Any:
        return self._all[index]

    def __iter__(self) -> Iterator[Route]:
        return iter(self._all)

    @property
    def live(self) -> dict[int, Route]:
        """By index, those that a request may have."""
        return {index: self._all[index] for period in self._periods for index in period.names.values()}

    @property
    def newest(self) -> Period:
        """The last one known, which may not be in force yet."""
        return self._periods[-1]

    def named(self, name: str) -> list[int]:
        """Indices of a route's live versions, the oldest first."""
        return list(dict.fromkeys(period.names[name] for period in self._periods if name in period.names))

    def apply(self, records: Iterable[RoutesRecord]) -> None:
        """Take records in the order of the log; those that are known already change nothing."""
        for record in records:
            if record.offset > self.newest.offset:
                self._begin(record)

    def _begin(self, record: RoutesRecord) -> None:
        names = {route.name: self._index_of(route) for route in record.routes}
        is_first = self.newest.offset < 0
        from_ms = NEVER_MS if is_first else max(record.append_ms + self._delay_ms, self.newest.from_ms)
        period = Period(from_ms=from_ms, offset=record.offset, number=record.number, names=names)
        kept = [] if is_first else self._periods
        ends = [later.from_ms for later in kept[1:]] + [from_ms]
        needed = (
            [one for one, end_ms in zip(kept, ends, strict=True) if end_ms > record.append_ms - self._keep_ms]
            if kept
            else []
        )
        self._periods = [*needed, period]
        self._starts = [NEVER_MS, *(one.from_ms for one in self._periods[1:])]
        self.turns += 1

    def _index_of(self, route: Route) -> int:
        """A version that says the same as a live one is that one: what it has learnt and queued goes on."""
        for index in reversed(self.named(route.name)):
            known = self._all[index]
            if known is route or (route.fingerprint and route.fingerprint == known.fingerprint):
                return index
        self._all.append(route)
        return len(self._all) - 1

    def at(self, append_ms: int) -> Period:
        """Of requests appended at this time."""
        return self._periods[max(0, bisect_right(self._starts, append_ms) - 1)]

    def split(self, append_ms: I64) -> list[tuple[Period, I64 | None]]:
        """The periods of these requests, and the rows of each; None: all of them."""
        if len(self._periods) == 1:
            return [(self._periods[0], None)]
        first = self.at(lowest(append_ms))
        if first is self.at(highest(append_ms)):
            return [(first, None)]
        places = np.searchsorted(np.array(self._starts, np.int64), append_ms, side="right") - 1
        return [(self._periods[place], indices(places == place)) for place in distinct(places)]
