"""SquareCB (Foster and Rakhlin 2020): inverse-gap weighting of what a regression expects, with exact probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from streamserve.core.selection.base import Distribution
from streamserve.core.selection.drawing import one_of, with_floor
from streamserve.core.selection.linear import KeepsLinear, LinearSums, aligned_linear, check_features, mean_rewards
from streamserve.core.selection.sums import check_half_life, check_rate, check_share
from streamserve.core.values import unchanging


@unchanging()
class SquareCB(KeepsLinear):
    """Asks one model: each but the best with `1 / (models + rate sqrt(events) gap)`, the best with what is left.

    `gap`: how much less reward the ridge regression expects of it, given the features. Raises ConfigError on impossible
    parameters.
    """

    when_to_use: ClassVar[str] = "As linucb, where feedback comes late or the log is to be evaluated."

    features: int = 1
    rate: float = 10.0
    ridge: float = 1.0
    gamma: float = 0.01
    """Share of requests that go to any model, all equally."""
    half_life_events: float | None = None
    """Outcomes after which what was learnt counts half; None: nothing is forgotten."""

    def __post_init__(self) -> None:
        check_features(self.name, self.features)
        check_rate(self.name, "rate", self.rate)
        check_rate(self.name, "ridge", self.ridge)
        check_share(self.name, "gamma", self.gamma)
        check_half_life(self.name, self.half_life_events)

    @property
    def name(self) -> str:
        return "squarecb"

    def distribution_at(self, state: LinearSums, models: Sequence[str], features: Sequence[float]) -> Distribution:
        found = aligned_linear(self, state, models)
        expected = mean_rewards(found.solved(self.ridge)[1], features).tolist()
        best = expected.index(max(expected))
        scale = self.rate * math.sqrt(found.events)
        shares = [1.0 / (len(models) + scale * (expected[best] - reward)) for reward in expected]
        shares[best] = 0.0
        shares[best] = 1.0 - math.fsum(shares)
        return one_of(with_floor(shares, self.gamma))
