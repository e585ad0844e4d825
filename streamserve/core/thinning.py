"""How many members of an ensemble a process asks under overload: members are dropped before requests.

Models of one process share its processors: when all of them are asked for everything, some requests get several answers
and others none. So when requests go without any answer, only so many of the route's members are asked, the heaviest, as
the answers given would have sufficed for. The others come back one by one when fewer requests come than when it was too
much, or on trial.
"""

from __future__ import annotations

from typing import NamedTuple

WINDOW_MS = 250
#: This share of requests without any answer is too much.
MOST_LOST = 0.01
#: Whether a number of members that was too much still is, is tried so often: it costs a window of lost requests.
TRIAL_MS = 10_000
#: The same for a number that has not been seen to be too much.
UNKNOWN_TRIAL_MS = 1_000
#: A member comes back when arrivals are below this share of what was too much with it.
EASE = 0.9
#: Leaving members out made it worse by so much: one of them was the one that kept up.
WORSE = 0.1


class _Seen(NamedTuple):
    """Counts of one or more windows."""

    arrived: int = 0
    answered: int = 0
    over: int = 0
    lost: int = 0

    def plus(self, other: _Seen) -> _Seen:
        return _Seen(*(mine + its for mine, its in zip(self, other, strict=True)))

    @property
    def share(self) -> float:
        return self.lost / self.over if self.over else 0.0


class Thinning:
    """Of one route in one process. Law: `kept` is at least 1, and all members as long as nothing is lost."""

    def __init__(self, members: int, deadline_ms: int) -> None:
        """deadline_ms: of the route; what a change brings is seen after it."""
        self.members = members
        self.kept = members
        self._settles_ms = min(deadline_ms, TRIAL_MS)
        self._now = self._last = _Seen()
        self._window_ends_ms: int | None = None
        self._too_much: dict[int, int] = {}
        """Members asked -> fewest arrivals in a window at which requests were lost."""
        self._before: tuple[int, float] | None = None
        """Members asked and the share lost before some were left out, until it is known whether that helped."""
        self._changed_ms = 0
        self._floor_until_ms = 0
        """Until then no fewer are asked: it was worse."""

    def arrived(self, n: int, now_ms: int) -> None:
        """Requests came in. Windows end here and in `ended`, so an idle process needs no timer."""
        self._turn(now_ms)
        self._now = self._now.plus(_Seen(arrived=n))

    def ended(self, answered: int, over: int, lost: int, now_ms: int) -> None:
        """What a model has answered, the requests of which nothing is awaited any more, and those lost among them."""
        self._turn(now_ms)
        self._now = self._now.plus(_Seen(answered=answered, over=over, lost=lost))

    def _turn(self, now_ms: int) -> None:
        if self._window_ends_ms is None:
            self._window_ends_ms = now_ms + WINDOW_MS
        if now_ms < self._window_ends_ms:
            return
        idle = now_ms >= self._window_ends_ms + WINDOW_MS  # nothing at all came for a whole window
        if now_ms < self._changed_ms + self._settles_ms:
            self._last = _Seen()
        else:
            window = _Seen() if idle else self._now
            self._judge(window, now_ms)
            self._last = window
        self._now = _Seen()
        self._window_ends_ms = now_ms + WINDOW_MS

    def _judge(self, window: _Seen, now_ms: int) -> None:
        if window.share <= MOST_LOST:
            self._before = None
            self._ease(window.arrived, now_ms)
            return
        if self._last.share <= MOST_LOST:  # a burst of one window is over before anything could help
            return
        both = window.plus(self._last)
        before, self._before = self._before, None
        if before is not None and both.share > before[1] + WORSE:
            self._floor_until_ms = now_ms + TRIAL_MS
            self._ask(before[0], now_ms)
            return
        self._too_much[self.kept] = min(window.arrived, self._too_much.get(self.kept, window.arrived))
        if self.kept > 1 and now_ms >= self._floor_until_ms:
            self._before = (self.kept, both.share)
            enough_for = both.answered // max(both.arrived, 1)
            self._ask(max(1, min(self.kept - 1, enough_for)), now_ms)

    def _ease(self, arrived: int, now_ms: int) -> None:
        if self.kept == self.members:
            self._too_much.clear()
            return
        limit = self._too_much.get(self.kept + 1)
        trial_ms = UNKNOWN_TRIAL_MS if limit is None else TRIAL_MS
        if now_ms >= self._changed_ms + trial_ms or (limit is not None and arrived < EASE * limit):
            self._ask(self.kept + 1, now_ms)

    def _ask(self, members: int, now_ms: int) -> None:
        self.kept = members
        self._changed_ms = now_ms
