"""Notices that the event loop's thread could not run: the process was stopped, or something kept it from its turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_TICKS = 10


class Lateness:
    """Told whenever the loop runs, and at least every tenth of `most_ms` while `tick` runs."""

    def __init__(self, monotonic_ms: Callable[[], float], most_ms: float) -> None:
        self._monotonic_ms, self._most_ms = monotonic_ms, most_ms
        self._seen_ms: float | None = None

    def seen(self) -> float:
        """For how long the loop had not run, where that is more than `most_ms`; else 0."""
        now_ms = self._monotonic_ms()
        gap_ms = 0.0 if self._seen_ms is None else now_ms - self._seen_ms
        self._seen_ms = now_ms
        return gap_ms if gap_ms > self._most_ms else 0.0

    async def tick(self, look: Callable[[], object]) -> None:
        """Call `look`, which asks `seen`, for ever."""
        while True:
            look()
            await asyncio.sleep(self._most_ms / _TICKS / 1000)
