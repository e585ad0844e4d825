"""Models that share a thread (a lane): who of them is called next, how much at once, and where.

1. *Started first*: who has begun something large, or takes a failed call apart, before those who have not: what it
   holds is soon free. (PRETZEL, OSDI 2018, section 4.2.2: its queue of started plans goes before that of new ones.)
2. *Then the earliest deadline.*
3. *Late*: no more is handed over than keeps the thread busy for a turn of the loop. What waits longer waits in its
   queue, undecoded, where more joins it and where it is given up in time. Models that are next for the same request are
   called in the same turn, so that what they share runs once.
4. *Here or there*: a brief call is made by the loop itself (PRETZEL's request-response engine: no hand-over) where few
   models wait or it hurries, as long as such calls do not hold the loop for more than a moment in a turn. All others go
   to the thread (its batch engine), which works while the loop takes in what comes next.

Work-conserving: a lane that has nothing under way takes whoever is next, whatever its call may cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamserve.core.values import unchanging

if TYPE_CHECKING:
    from streamserve.core.desk import Desk


@unchanging()
class LaneRules:
    """How much is under way at most, all in predicted time."""

    ahead_ms: float = 5.0
    """On the thread, with which no more is handed over: a turn of the loop, so that it has work until the next."""
    brief_ms: float = 0.25
    """A call up to this long may be made by the loop: not much more than what handing it over costs."""
    here_ms: float = 1.0
    """All that the loop makes in one turn: as long as it stands still for brief calls of others (decision 5)."""
    few: int = 4
    """So many waiting models are few: their brief calls are over in that moment."""
    hurries_below_ms: float = 500.0
    """With less slack, a turn behind the thread's work would cost a request a hundredth of its time or more."""


class Lane:
    """What is under way of the models of one lane. Knows them by name only."""

    def __init__(self, rules: LaneRules) -> None:
        self._rules = rules
        self._unit_of: dict[str, int] = {}
        """Models that are called just now -> the unit that each is a part of."""
        self._units: dict[int, _Unit] = {}
        self._newest = -1
        self._newest_head: int | None = None
        self._may_be_here = False

    def offer(self, head: int, slack_ms: float, waiting: int) -> bool:
        """Whether a model that is next for this request (its handle) may be given a batch now.

        waiting: models of the lane that have something to run.
        """
        if head == self._newest_head and self._newest in self._units:
            return True
        if self._units and self.under_way_ms(here=False) >= self._rules.ahead_ms:
            return False
        self._newest += 1
        self._newest_head = head
        self._may_be_here = waiting <= self._rules.few or slack_ms < self._rules.hurries_below_ms
        return True

    def begin(self, model: str, predicted_ms: float) -> bool:
        """A batch is cut for the model offered last; whether the loop itself is to run it.

        predicted_ms: 0 where nothing is known of it; then it goes to the thread, and nothing else until it has ended.
        """
        unit = self._units.get(self._newest)
        if unit is None:
            unit = self._units[self._newest] = _Unit(here=self._may_be_here and self._is_brief(predicted_ms))
        # Those of a unit run in one pass, so it lasts as long as the longest.
        unit.ms = max(unit.ms, predicted_ms or self._rules.ahead_ms)
        unit.calls += 1
        self._unit_of[model] = self._newest
        return unit.here

    def _is_brief(self, predicted_ms: float) -> bool:
        rules = self._rules
        brief = 0 < predicted_ms <= rules.brief_ms
        return brief and self.under_way_ms(here=True) + predicted_ms <= rules.here_ms

    def ended(self, model: str) -> None:
        """The model's call is over."""
        number = self._unit_of.pop(model)
        unit = self._units[number]
        unit.calls -= 1
        if not unit.calls:
            del self._units[number]

    def under_way_ms(self, *, here: bool) -> float:
        """Predicted time of the calls given to the loop (`here`) or the thread that have not ended."""
        return sum(unit.ms for unit in self._units.values() if unit.here == here)


@dataclass(slots=True)
class _Unit:
    """Calls over the same rows."""

    here: bool
    ms: float = 0.0
    calls: int = 0


def in_turn(desks: Iterable[Desk], now_ms: int) -> Iterator[Desk]:
    """The idle desks that may be given a batch now, in order. Each is to be given one before the next is asked for."""
    sharing: dict[Lane, list[Desk]] = {}
    for desk in desks:
        if desk.running is None and (desk.has_work or desk.go_at_ms is not None):
            if desk.lane is None:
                yield desk
            else:
                sharing.setdefault(desk.lane, []).append(desk)
    for lane, waiting in sharing.items():
        if len(waiting) > 1:
            waiting.sort(key=lambda desk: (not desk.has_begun, desk.due_ms(), desk.head()))
        for desk in waiting:
            if lane.offer(desk.head(), desk.due_ms() - now_ms, len(waiting)):
                yield desk
            else:
                desk.go_at_ms = None  # its short batch waits for the lane now, not for a moment
