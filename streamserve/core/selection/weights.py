"""Weights that a config gives to models by id or by name: what `static` and `ab` share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from streamserve.core.records import OutcomeRecord
from streamserve.errors import ConfigError


class LearnsNothing:
    """The part of the protocol `Policy` that is alike where there is no state."""

    __slots__ = ()

    def learn(self, state: None, outcome: OutcomeRecord) -> None:
        return None

    def dump(self, state: None) -> Mapping[str, Any]:
        return {}

    def load(self, data: Mapping[str, Any], models: Sequence[str]) -> None:
        return None


def check_weights(policy: str, word: str, weights: Mapping[str, float] | None) -> None:
    """Raises ConfigError on a weight that is negative or not finite; `word` is what the policy calls one."""
    for model, weight in (weights or {}).items():
        if not (isinstance(weight, int | float) and math.isfinite(weight) and weight >= 0.0):
            raise ConfigError(f"policy {policy}: the {word} of {model} must be a number of at least 0, not {weight!r}")


def weights_of(policy: str, word: str, weights: Mapping[str, float] | None, models: Sequence[str]) -> list[float]:
    """One weight a model, the largest 1; None: all equal. A model that is not named has weight 0.

    Raises ConfigError on a name that is none of the models, and where all weights are 0.
    """
    if weights is None:
        return [1.0] * len(models)
    unknown = [name for name in weights if not any(names_model(name, model) for model in models)]
    if unknown:
        raise ConfigError(f"policy {policy}: {word}s for unknown models {unknown}; the route has {list(models)}")
    found = [float(weights.get(model, weights.get(_bare(model), 0.0))) for model in models]
    # Scaled first: weights near the largest float must not overflow when they are summed.
    largest = max(found)
    if largest <= 0.0:
        raise ConfigError(f"policy {policy}: every {word} is 0, so no model would be asked; give one a {word} above 0")
    return [weight / largest for weight in found]


def _bare(model: str) -> str:
    return model.rpartition("@")[0] or model


def names_model(name: str, model: str) -> bool:
    """Whether a config means this model id by this word: the id, or the name without a version."""
    return name in (model, _bare(model))
