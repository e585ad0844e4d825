"""Broker time: the one clock that every role shares, estimated from our own acknowledgements.

A record's append time lies between the moment it was sent and the moment its acknowledgement arrived. Each ack so
bounds the offset between the broker's clock and ours; the tightest bounds of the last minutes give the estimate.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

#: A bound older than this is forgotten: clocks drift (50 ppm is 15 ms in 5 minutes).
_BOUNDS_KEPT_MS = 120_000.0
#: So far a bound of that age may be off.
_DRIFT_MS = 6
#: One kept bound per slot of time is enough; 120 of them cover the span.
_SLOT_MS = 1_000.0
#: An offset known no better than this may be far off: it is set, not moved, as soon as it is known better.
SURE_MS = 25.0
#: The offset moves at most this share of the time passed, so that broker time never stands still or jumps.
_SLEW = 0.1


class BrokerClock:
    """Epoch milliseconds of the broker, never going back."""

    def __init__(
        self,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        epoch: Callable[[], float] = time.time,
    ) -> None:
        self._monotonic = monotonic
        self._anchor_ms = epoch() * 1000.0 - monotonic() * 1000.0
        self._offset_ms = 0.0
        self._moved_at = monotonic() * 1000.0
        self._bounds: deque[tuple[float, float, float]] = deque()  # (at, lowest, highest)
        self._last_ms = 0
        self._known = False

    def monotonic_ms(self) -> float:
        return self._monotonic() * 1000.0

    def now_ms(self) -> int:
        """Broker time, integer milliseconds."""
        at = self._monotonic() * 1000.0
        self._last_ms = max(self._last_ms, int(at + self._anchor_ms + self._offset_ms))
        return self._last_ms

    def earliest_ms(self) -> int | None:
        """No later than the broker's time now, by all that its acknowledgements told; None before the first.

        `now_ms` may be ahead of the broker by twice `bound_ms`, and while it moves to a new estimate by more.
        """
        if not self._bounds:
            return None
        return math.floor(self._monotonic() * 1000.0 + self._anchor_ms + self._range()[0]) - _DRIFT_MS

    def until_ms(self, deadline_ms: int) -> float:
        """Milliseconds from now to a broker time; negative when it has passed."""
        return deadline_ms - (self._monotonic() * 1000.0 + self._anchor_ms + self._offset_ms)

    @property
    def offset_ms(self) -> float:
        """Broker's clock minus ours, as estimated."""
        return self._offset_ms

    @property
    def bound_ms(self) -> float:
        """Half the width of what is known of the offset; infinite before the first acknowledgement."""
        if not self._bounds:
            return float("inf")
        low, high = self._range()
        return max(0.0, (high - low) / 2)

    def acknowledged(self, sent_at_ms: float, append_ms: int) -> None:
        """Learn from one ack: `sent_at_ms` by `monotonic_ms`, `append_ms` as the broker stamped it."""
        if append_ms <= 0:
            return
        at = self._monotonic() * 1000.0
        # The stamp is cut to whole milliseconds: the true time lies in [append, append + 1).
        self._remember(at, append_ms - (at + self._anchor_ms), append_ms + 1 - (sent_at_ms + self._anchor_ms))
        low, high = self._range()
        target = min(max(self._offset_ms, low), high) if low <= high else (low + high) / 2
        self._move(target, at)

    def _remember(self, at: float, low: float, high: float) -> None:
        bounds = self._bounds
        if bounds and at - bounds[-1][0] < _SLOT_MS:
            started, low_before, high_before = bounds.pop()
            merged_low, merged_high = max(low, low_before), min(high, high_before)
            # Bounds that exclude each other: a clock was set. The newer one is right.
            bounds.append((started, merged_low, merged_high) if merged_low <= merged_high else (started, low, high))
        else:
            bounds.append((at, low, high))
        while at - bounds[0][0] > _BOUNDS_KEPT_MS:
            bounds.popleft()

    def _range(self) -> tuple[float, float]:
        """The newest bounds, narrowed by older ones as long as they agree."""
        low, high = self._bounds[-1][1], self._bounds[-1][2]
        for _, older_low, older_high in reversed(self._bounds):
            narrowed = max(low, older_low), min(high, older_high)
            if narrowed[0] > narrowed[1]:
                break
            low, high = narrowed
        return low, high

    def _move(self, target: float, at: float) -> None:
        if not self._known:
            self._known = self.bound_ms <= SURE_MS
            self._offset_ms, self._moved_at = target, at
            return
        room = max(0.5, (at - self._moved_at) * _SLEW)
        self._offset_ms += min(max(target - self._offset_ms, -room), room)
        self._moved_at = at
