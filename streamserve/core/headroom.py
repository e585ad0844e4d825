"""How long before its deadline an answer has to be decided, for its record to be in the log in time.

The configured guard is what that takes on a good day. Under overload, or on a slow broker, a record waits for the loop
and for the batch before it. What was sent of late tells how long: estimates that are too low follow in few steps, those
that are too high in many, so they stay near the slowest twentieth (an expectile; Newey and Powell 1987).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from streamserve.core.bounds import Fill
from streamserve.core.effects import Effect, EmitAnswers, EmitPredictions
from streamserve.core.events import Event, Produced, ProduceFailed

_RISE = 0.2
_FALL = 0.01
#: What took much longer is an outage or a pause, and says little of the next: it counts as twice the estimate and this.
_SPIKE_MS = 10.0
#: Half of the shortest budget stays for the models, however slow the broker is.
_MOST_OF_BUDGET = 0.5


class Slowness:
    """What something takes on a bad day, from what it took of late."""

    def __init__(self) -> None:
        self.estimate_ms = 0.0

    def took(self, ms: float) -> None:
        gap = min(max(0.0, ms), 2 * self.estimate_ms + _SPIKE_MS) - self.estimate_ms
        self.estimate_ms += gap * (_RISE if gap > 0 else _FALL)


class Headroom:
    """Of one process. Hears what becomes of the terminal records, or of the answers, that a stage emits."""

    def __init__(self, least_ms: int, shortest_budget_ms: int) -> None:
        self._least_ms = least_ms
        self._most_ms = max(least_ms, int(shortest_budget_ms * _MOST_OF_BUDGET))
        self._sent: dict[int, int] = {}
        """Token -> when it was emitted."""
        self._way = Slowness()
        self._call = Slowness()

    @property
    def guard_ms(self) -> int:
        """For what is decided now: at least the configured guard, at most half of the shortest budget."""
        return self._bounded(self._way.estimate_ms)

    @property
    def guard_of_calls_ms(self) -> int:
        """For calls that begin now: the same, and what passes between the end of a call and the decision."""
        return self._bounded(self._way.estimate_ms + self._call.estimate_ms)

    def fill(self) -> Fill:
        return Fill(self.guard_ms, self._most_ms)

    def _bounded(self, ms: float) -> int:
        return min(self._most_ms, max(self._least_ms, math.ceil(ms)))

    def emitted(self, effects: Iterable[Effect], now_ms: int) -> None:
        for effect in effects:
            if isinstance(effect, EmitPredictions | EmitAnswers) and effect.token >= 0:
                self._sent[effect.token] = now_ms

    def heard(self, event: Event) -> None:
        if isinstance(event, Produced | ProduceFailed):
            sent_ms = self._sent.pop(event.token, None)
            if sent_ms is not None and isinstance(event, Produced) and event.append_ms >= 0:
                self._way.took(event.append_ms - sent_ms)

    def noticed(self, began_ms: int, duration_ms: float, now_ms: int) -> None:
        """A model call that began then and took so long is heard of now."""
        self._call.took(now_ms - began_ms - duration_ms)
