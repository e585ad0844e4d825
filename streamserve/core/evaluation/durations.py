"""Quantiles of durations in bounded memory: counts on a logarithmic scale."""

from __future__ import annotations

import math
from collections.abc import Iterator

#: A quantile is off by at most this share of itself.
RELATIVE_ERROR = 0.01
_BASE = math.log((1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR))
_LEAST_MS = 1e-6


class Durations:
    """Milliseconds, each with a weight; at most some thousand counts, however many are added.

    The scale is that of DDSketch (Masson, Rim, Lee 2019, section 2.1): neighbouring edges differ by a constant factor,
    so the middle of a bin is within `RELATIVE_ERROR` of all that is in it.
    """

    def __init__(self) -> None:
        self._weights: dict[int, int] = {}
        self.weight = 0
        """Of all."""

    def add(self, ms: float, weight: int = 1) -> None:
        """Finite, not below 0; what is below a nanosecond counts as one."""
        index = math.ceil(math.log(max(ms, _LEAST_MS)) / _BASE)
        self._weights[index] = self._weights.get(index, 0) + weight
        self.weight += weight

    def quantile(self, share: float) -> float | None:
        """The least duration that at least this share of the weight does not exceed; None where nothing was added."""
        below = 0
        for middle, weight in self.bins():
            below += weight
            if below >= share * self.weight:
                return middle
        return None

    def bins(self) -> Iterator[tuple[float, int]]:
        """(milliseconds in the middle of a bin, weight), shortest first."""
        for index in sorted(self._weights):
            yield (1 - RELATIVE_ERROR) * math.exp(index * _BASE), self._weights[index]
