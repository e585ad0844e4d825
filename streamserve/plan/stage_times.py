"""How long stages take while they serve, by operator: one call in sixteen is timed, counted into a histogram.

By operator and not by plan: a pool of 250 plans has thousands of stages, and as many series nobody reads.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from dataclasses import dataclass

#: Upper bounds of the buckets; one more is above them all.
BOUNDS_S = (1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 5e-2, 0.1, 1.0)
EVERY = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFigures:
    """Of one operator."""

    operator: str
    counts: tuple[int, ...]
    """Timed calls in each bucket of `BOUNDS_S`, and above."""
    sum_s: float


class StageTimes:
    """Counts of a process. Threads may share it."""

    def __init__(self, every: int = EVERY) -> None:
        """`every`: of so many calls one is timed."""
        self._every = every
        self._calls = 0
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}
        self._lock = threading.Lock()

    def due(self) -> bool:
        """Whether this call is to be timed. A count lost between threads only moves the next."""
        self._calls += 1
        return self._calls % self._every == 0

    def add(self, spent: list[tuple[str, float]]) -> None:
        """(operator, seconds) of the stages of one call."""
        with self._lock:
            for operator, seconds in spent:
                counts = self._counts.get(operator)
                if counts is None:
                    counts = self._counts[operator] = [0] * (len(BOUNDS_S) + 1)
                    self._sums[operator] = 0.0
                counts[bisect_left(BOUNDS_S, seconds)] += 1
                self._sums[operator] += seconds

    def figures(self) -> list[StageFigures]:
        """By operator, in order of their names."""
        with self._lock:
            return [
                StageFigures(operator=operator, counts=tuple(counts), sum_s=self._sums[operator])
                for operator, counts in sorted(self._counts.items())
            ]
