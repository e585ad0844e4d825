"""Whether losses have risen: the Page-Hinkley test of river, one for each (route, model, context).

Its whole state is a few numbers, so it is kept in the changelog beside the counts, and goes on after a restart as if
there had been none. The test adds up by how much each loss is above the mean of all so far, less a tolerance; when
that sum is more than the threshold above its lowest, the mean has risen (Page 1954).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from river.drift import PageHinkley
from river.stats import Mean

_FEWEST = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftRule:
    """When to raise the alarm. What the numbers mean in labels is measured in docs/decisions/0051."""

    threshold: float = 20.0
    """How far the sum may rise."""
    tolerance: float = 0.05
    """By how much a loss may be above the mean without counting."""


class DriftState(msgspec.Struct, kw_only=True):
    """A test between two losses, as it is written."""

    n: float = 0.0
    mean: float = 0.0
    total: float = 0.0
    lowest: float | None = None
    raised: bool = False
    read: int = 0
    """Offset of outcomes below which all is in it."""
    at_ms: int = 0
    """Append time of the last one."""


class Drift:
    """One running test."""

    def __init__(self, rule: DriftRule, state: DriftState | None = None) -> None:
        # `alpha` 1: nothing is forgotten until the alarm, after which the test begins anew.
        self._test: Any = PageHinkley(
            min_instances=_FEWEST, delta=rule.tolerance, threshold=rule.threshold, alpha=1.0, mode="up"
        )
        self.read, self.at_ms = 0, 0
        if state is not None:
            self.read, self.at_ms = state.read, state.at_ms
            self._test._x_mean = Mean._from_state(state.n, state.mean)
            self._test._sum_increase = state.total
            self._test._min_increase = float("inf") if state.lowest is None else state.lowest
            self._test._drift_detected = state.raised

    def update(self, loss: float) -> bool:
        """Whether this loss raises the alarm."""
        self._test.update(loss)
        return bool(self._test.drift_detected)

    def state(self) -> DriftState:
        test = self._test
        return DriftState(
            n=float(test._x_mean.n),
            mean=float(test._x_mean.get()),
            total=test._sum_increase,
            lowest=None if test._min_increase == float("inf") else test._min_increase,
            raised=bool(test.drift_detected),
            read=self.read,
            at_ms=self.at_ms,
        )
