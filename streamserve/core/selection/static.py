"""Fixed weights: nothing is learnt."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamserve.core.messages import PROBABILITY_ONE
from streamserve.core.records import OutcomeRecord
from streamserve.core.selection.base import Distribution
from streamserve.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Static:
    """Asks every model that has a weight above 0, always, and combines them by these weights.

    `weights`: by model id (`name@version`) or by name; a model that is not named has weight 0 and is not asked. None:
    all models, equally. Raises ConfigError on a weight that is negative or not finite, and, once the models are
    known, on a name that is none of them.
    """

    weights: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        for model, weight in (self.weights or {}).items():
            if not (isinstance(weight, int | float) and math.isfinite(weight) and weight >= 0.0):
                raise ConfigError(
                    f"policy static: the weight of {model} must be a number of at least 0, not {weight!r}"
                )

    @property
    def name(self) -> str:
        return "static"

    def initial(self, models: Sequence[str]) -> None:
        self._weights(models)

    def distribution(self, state: None, models: Sequence[str]) -> Distribution:
        weights = self._weights(models)
        mask = sum(1 << bit for bit, weight in enumerate(weights) if weight > 0.0)
        shares = np.asarray(weights, np.float64)
        return Distribution(
            masks=np.array([mask], np.uint64),
            probabilities=np.array([PROBABILITY_ONE], np.int64),
            weights=shares / shares.sum(),
        )

    def learn(self, state: None, outcome: OutcomeRecord) -> None:
        return None

    def dump(self, state: None) -> Mapping[str, Any]:
        return {}

    def load(self, data: Mapping[str, Any], models: Sequence[str]) -> None:
        return None

    def _weights(self, models: Sequence[str]) -> list[float]:
        if self.weights is None:
            return [1.0] * len(models)
        unknown = [name for name in self.weights if not any(_names(name, model) for model in models)]
        if unknown:
            raise ConfigError(f"policy static: weights for unknown models {unknown}; the route has {list(models)}")
        weights = [self._weight(model) for model in models]
        # Scaled first: weights near the largest float must not overflow when they are summed.
        largest = max(weights)
        if largest <= 0.0:
            raise ConfigError("policy static: every weight is 0, so no model would be asked; give one a weight above 0")
        return [weight / largest for weight in weights]

    def _weight(self, model: str) -> float:
        weights = self.weights or {}
        return float(weights.get(model, weights.get(_bare(model), 0.0)))


def _bare(model: str) -> str:
    return model.rpartition("@")[0] or model


def _names(name: str, model: str) -> bool:
    return name in (model, _bare(model))
