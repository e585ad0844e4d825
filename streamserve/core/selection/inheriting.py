"""A new version of a model begins with a part of what its predecessor has earned, instead of with nothing.

Where a learnt state knows the predecessor and not the heir, loading it gives the heir its part: every role does that
alike, until the learner has published a state that knows the heir.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from streamserve.core.records import OutcomeRecord
from streamserve.core.selection.around import Around
from streamserve.core.selection.base import Distribution
from streamserve.core.selection.pooling import decided_by_features, features_read, pooled
from streamserve.core.values import unchanging
from streamserve.errors import ConfigError


@unchanging()
class Heir:
    """Whose part a model gets, and how much of it."""

    of: str
    """Model id."""
    share: float
    """From 0 (as any new model) to 1 (as if it were the same model)."""


@runtime_checkable
class Inherits(Protocol):
    """A policy whose states let a model begin with a part of another one's."""

    def inherited(self, data: Mapping[str, Any], model: str, heir: Heir) -> Mapping[str, Any]:
        """Dumped data that knows `model`; unchanged where it knows it already, or does not know whom it is heir of."""
        ...


@unchanging()
class Inheriting(Around):
    """A policy some of whose models are heirs. Its states are the policy's own. Raises ConfigError for a policy that
    learns and cannot let anybody inherit."""

    heirs: Mapping[str, Heir]

    def initial(self, models: Sequence[str]) -> Any:
        state = self.policy.initial(models)
        if state is not None and not isinstance(self.policy, Inherits):
            raise ConfigError(f"policy {self.name} does not let a model inherit from another; remove `inherits`")
        return state

    def distribution(self, state: Any, models: Sequence[str]) -> Distribution:
        return self.policy.distribution(state, models)

    @property
    def features(self) -> int:
        return features_read(self.policy)

    def distribution_at(self, state: Any, models: Sequence[str], features: Sequence[float]) -> Distribution:
        return decided_by_features(self.policy, state, models, features)

    def pooled(self, states: Sequence[Any], strength: float) -> Any:
        return pooled(self.policy, states, strength)

    def learn(self, state: Any, outcome: OutcomeRecord) -> Any:
        return self.policy.learn(state, outcome)

    def dump(self, state: Any) -> Mapping[str, Any]:
        return self.policy.dump(state)

    def load(self, data: Mapping[str, Any], models: Sequence[str]) -> Any:
        for model in models:
            heir = self.heirs.get(model)
            if heir is not None and isinstance(self.policy, Inherits):
                data = self.policy.inherited(data, model, heir)
        return self.policy.load(data, models)


def towards(data: Mapping[str, Any], key: str, model: str, heir: Heir) -> Mapping[str, Any]:
    """For numbers that say something only beside the others': the heir's is `share` of the way from their mean to its
    predecessor's. A part of a sum of losses would make it look better than everybody."""
    if not _knows(data.get(key), model, heir):
        return data
    numbers = data[key]
    mean = sum(numbers.values()) / len(numbers)
    return {**data, key: {**numbers, model: mean + heir.share * (numbers[heir.of] - mean)}}


def part(data: Mapping[str, Any], keys: Sequence[str], model: str, heir: Heir) -> Mapping[str, Any]:
    """For counts and what is summed over them: the same mean on a `share` of the evidence."""
    if not all(_knows(data.get(key), model, heir) for key in keys):
        return data
    return {**data, **{key: {**data[key], model: _scaled(data[key][heir.of], heir.share)} for key in keys}}


def _knows(numbers: object, model: str, heir: Heir) -> bool:
    """What is no table of numbers is left to `load`, which says so."""
    return isinstance(numbers, Mapping) and heir.of in numbers and model not in numbers


def _scaled(value: Any, share: float) -> Any:
    return [share * number for number in value] if isinstance(value, list) else share * value
