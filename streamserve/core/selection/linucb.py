"""LinUCB with disjoint models (Li, Chu, Langford, Schapire 2010, algorithm 1): the best by what features promise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from streamserve.core.selection.base import Distribution
from streamserve.core.selection.drawing import one_of
from streamserve.core.selection.linear import KeepsLinear, LinearSums, aligned_linear, check_features, root
from streamserve.core.selection.sums import check_half_life, check_rate
from streamserve.core.values import unchanging


@unchanging()
class LinUCB(KeepsLinear):
    """Asks the model with the highest upper bound `theta'x + alpha sqrt(x' A^-1 x)` of its reward, given the features.

    `A` is the ridge regression's matrix of what that model was judged on. Of several with the same bound the first.
    Nothing is drawn, so nothing can be evaluated from its log but by exact replay. Raises ConfigError on impossible
    parameters.
    """

    when_to_use: ClassVar[str] = "Numbers that come with a request tell which model suits it; feedback comes soon."

    features: int = 1
    alpha: float = 0.5
    ridge: float = 1.0
    half_life_events: float | None = None
    """Outcomes after which what was learnt counts half; None: nothing is forgotten."""

    def __post_init__(self) -> None:
        check_features(self.name, self.features)
        check_rate(self.name, "alpha", self.alpha)
        check_rate(self.name, "ridge", self.ridge)
        check_half_life(self.name, self.half_life_events)

    @property
    def name(self) -> str:
        return "linucb"

    def distribution_at(self, state: LinearSums, models: Sequence[str], features: Sequence[float]) -> Distribution:
        inverse, coefficients = aligned_linear(self, state, models).solved(self.ridge)
        x = np.array([*features, 1.0])
        bounds = [
            float(coefficients[place] @ x) + self.alpha * root(float(x @ inverse[place] @ x))
            for place in range(len(models))
        ]
        best = bounds.index(max(bounds))
        return one_of([float(place == best) for place in range(len(models))])
