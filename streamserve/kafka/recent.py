"""The few recent figures of one process that the terminal view shows (`/status`): plain JSON values."""

from __future__ import annotations

from collections import Counter as Tally
from collections import defaultdict, deque
from typing import Any

import numpy as np

from streamserve.core.reasons import Outcome

_RECENT_SPAN_MS = 5_000.0
_RECENT_LATENCIES = 4_096


class Rate:
    """Per second, over the last few."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def at(self, now_ms: float, total: int) -> float:
        seen = self._seen
        seen.append((now_ms, total))
        while len(seen) > 1 and now_ms - seen[0][0] > _RECENT_SPAN_MS:
            seen.popleft()
        then_ms, then = seen[0]
        return round((total - then) / (now_ms - then_ms) * 1000, 1) if now_ms > then_ms else 0.0


class RecentRoute:
    """Figures of a route's terminal records."""

    def __init__(self) -> None:
        self.outcomes: Tally[str] = Tally()
        self.latencies: deque[np.ndarray[Any, Any]] = deque(maxlen=16)
        self.rate = Rate()

    def status(self, now_ms: float) -> dict[str, Any]:
        return _terminal(self.outcomes, list(self.latencies), self.rate, now_ms)


class Recent:
    """Figures of the last seconds."""

    def __init__(self) -> None:
        self.routes: defaultdict[str, RecentRoute] = defaultdict(RecentRoute)
        self.batches: dict[str, tuple[int, str]] = {}
        self.consumed = 0
        self.lag = 0
        self.queued = 0
        self._rate = Rate()
        self._consumed_rate = Rate()

    def status(self, now_ms: float) -> dict[str, Any]:
        routes = self.routes.values()
        outcomes = sum((route.outcomes for route in routes), Tally[str]())
        latencies = [block for route in routes for block in route.latencies]
        return {
            "consumed_per_s": self._consumed_rate.at(now_ms, self.consumed),
            **_terminal(outcomes, latencies, self._rate, now_ms),
            "lag_records": self.lag,
            "queued_records": self.queued,
            "batches": {model: {"size": size, "why": why} for model, (size, why) in self.batches.items()},
            "routes": {name: route.status(now_ms) for name, route in self.routes.items()},
        }


def _terminal(outcomes: Tally[str], latencies: list[np.ndarray[Any, Any]], rate: Rate, now_ms: float) -> dict[str, Any]:
    newest = np.concatenate(latencies)[-_RECENT_LATENCIES:] if latencies else np.zeros(0)
    p50, p99 = np.percentile(newest, (50, 99)).tolist() if len(newest) else (None, None)
    done = sum(outcomes.values())
    return {
        "predictions": done,
        "rate_per_s": rate.at(now_ms, done),
        "latency_p50_ms": p50,
        "latency_p99_ms": p99,
        "outcomes": {str(outcome): outcomes[str(outcome)] for outcome in Outcome},
    }
