"""A route with a model beside those that its policy chooses among: it is asked for a second opinion, or not at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from streamserve.core.records import OutcomeRecord
from streamserve.core.selection.around import Around
from streamserve.core.selection.base import Distribution
from streamserve.core.values import unchanging
from streamserve.errors import ConfigError


@unchanging()
class WithSecond(Around):
    """A policy that knows nothing of one model of the route, the last; its states are the policy's own.

    Raises ConfigError for a policy that asks several models at once and never one alone: who answers first must be one.
    """

    second: str
    """Model id."""

    def initial(self, models: Sequence[str]) -> Any:
        state, first = self.policy.initial(self._first(models)), self._first(models)
        masks = self.policy.distribution(state, first).masks.tolist()
        if all(mask & (mask - 1) for mask in masks):
            raise ConfigError(
                f"policy {self.name} asks several models at once; a second opinion is for answers of one model"
            )
        return state

    def distribution(self, state: Any, models: Sequence[str]) -> Distribution:
        found = self.policy.distribution(state, self._first(models))
        return Distribution(masks=found.masks, probabilities=found.probabilities, weights=np.append(found.weights, 0.0))

    def learn(self, state: Any, outcome: OutcomeRecord) -> Any:
        return self.policy.learn(state, outcome)

    def dump(self, state: Any) -> Mapping[str, Any]:
        return self.policy.dump(state)

    def load(self, data: Mapping[str, Any], models: Sequence[str]) -> Any:
        return self.policy.load(data, self._first(models))

    def _first(self, models: Sequence[str]) -> tuple[str, ...]:
        if models[-1] != self.second:
            raise ConfigError(f"the second opinion {self.second} is to be the last model of its route")
        return tuple(models[:-1])
