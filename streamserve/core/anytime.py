"""Bounds of a mean that hold at every moment at once, however often one looks and whenever one stops.

Howard, Ramdas, McAuliffe, Sekhon, "Time-uniform, nonparametric, nonasymptotic confidence sequences" (Annals of
Statistics 2021): the empirical-Bernstein bound of Theorem 4 with the polynomial stitched boundary of equation (10),
eta 2, s 1.4, m 1. It bounds the running mean of the conditional expectations, so it needs neither independent values
nor a choice that ignores the past: only that each value is in [0, 1] and that nobody chose what to look at by looking
at the value.
"""

from __future__ import annotations

import math

from streamserve.core.values import unchanging

_ETA, _S, _M = 2.0, 1.4, 1.0
_ZETA_S = 3.105472777583
_K1 = (_ETA**0.25 + _ETA**-0.25) / math.sqrt(2.0)
_K2 = (math.sqrt(_ETA) + 1.0) / 2.0


@unchanging()
class RunningMean:
    """Values in [0, 1], one after the other; immutable."""

    n: int = 0
    total: float = 0.0
    variation: float = 0.0
    """Sum of squared distances of each value from the mean of those before it (the first: from 1/2)."""

    def seen(self, value: float) -> RunningMean:
        """With one more value, in [0, 1]."""
        expected = self.mean
        return RunningMean(
            n=self.n + 1, total=self.total + value, variation=self.variation + (value - expected) * (value - expected)
        )

    @property
    def mean(self) -> float:
        """1/2 before any value."""
        return self.total / self.n if self.n else 0.5

    def below(self, error: float) -> float:
        """A bound that the true mean is above at every moment, but with probability `error`. At least 0."""
        return max(0.0, self.mean - self._radius(error)) if self.n else 0.0

    def above(self, error: float) -> float:
        """A bound that the true mean is below at every moment, but with probability `error`. At most 1."""
        return min(1.0, self.mean + self._radius(error)) if self.n else 1.0

    def _radius(self, error: float) -> float:
        return boundary(self.variation, error) / self.n


def boundary(variation: float, error: float) -> float:
    """How far the sum of values may be from that of their expectations, at this much variation, at any moment."""
    v = max(variation, _M)
    length = _S * math.log(math.log(_ETA * v / _M)) + math.log(_ZETA_S / (error * math.log(_ETA) ** _S))
    return math.sqrt(_K1 * _K1 * v * length + _K2 * _K2 * length * length) + _K2 * length
