"""Fixed weights: nothing is learnt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from streamserve.core.messages import PROBABILITY_ONE
from streamserve.core.selection.base import Distribution
from streamserve.core.selection.weights import LearnsNothing, check_weights, weights_of
from streamserve.core.values import unchanging


@unchanging()
class Static(LearnsNothing):
    """Asks every model that has a weight above 0, always, and combines them by these weights.

    `weights`: by model id (`name@version`) or by name; a model that is not named has weight 0 and is not asked. None:
    all models, equally. Raises ConfigError on a weight that is negative or not finite, and, once the models are
    known, on a name that is none of them.
    """

    when_to_use: ClassVar[str] = "You know the weights, or have one model."

    weights: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        check_weights(self.name, "weight", self.weights)

    @property
    def name(self) -> str:
        return "static"

    def initial(self, models: Sequence[str]) -> None:
        weights_of(self.name, "weight", self.weights, models)

    def distribution(self, state: None, models: Sequence[str]) -> Distribution:
        weights = weights_of(self.name, "weight", self.weights, models)
        mask = sum(1 << bit for bit, weight in enumerate(weights) if weight > 0.0)
        shares = np.asarray(weights, np.float64)
        return Distribution(
            masks=np.array([mask], np.uint64),
            probabilities=np.array([PROBABILITY_ONE], np.int64),
            weights=shares / shares.sum(),
        )
