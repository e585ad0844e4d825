"""What a policy may do beyond the protocol for contexts: draw a state towards the one above it, and read features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from streamserve.core.selection.base import Distribution, Policy


@runtime_checkable
class Pools(Protocol):
    """A policy whose states can be drawn towards one another."""

    def pooled(self, states: Sequence[Any], strength: float) -> Any:
        """The last of these states (from the general to the special), drawn towards each one before it: what that one
        has seen on the average counts for at most `strength` outcomes more."""
        ...


@runtime_checkable
class ReadsFeatures(Protocol):
    """A policy whose choice depends on a vector that comes with the request, as its context."""

    @property
    def features(self) -> int:
        """Numbers of that vector."""
        ...

    def distribution_at(self, state: Any, models: Sequence[str], features: Sequence[float]) -> Distribution:
        """`Policy.distribution` for a request with these features."""
        ...


def pooled(policy: Policy, states: Sequence[Any], strength: float) -> Any:
    """The state that these decide by. A policy that cannot pool goes by the most special one alone."""
    if len(states) > 1 and isinstance(policy, Pools):
        return policy.pooled(states, strength)
    return states[-1]


def features_read(policy: Policy) -> int:
    """Numbers of the vector, coming with the request, that this policy's choice depends on; 0: it reads none."""
    return policy.features if isinstance(policy, ReadsFeatures) else 0


def decided_by_features(policy: Policy, state: Any, models: Sequence[str], features: Sequence[float]) -> Distribution:
    """Raises TypeError for a policy that reads none: the config is checked for that."""
    if not isinstance(policy, ReadsFeatures):
        raise TypeError(f"policy {policy.name} reads no features")
    return policy.distribution_at(state, models, features)
