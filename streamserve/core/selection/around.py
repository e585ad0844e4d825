"""A policy around another one: what it says of itself is what that one says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamserve.core.selection.base import Policy, is_sticky, reads_probabilities
from streamserve.core.values import unchanging


@unchanging()
class Around:
    """Bears the name of the policy within, so that records, salts and metrics stay those of that one."""

    policy: Policy

    @property
    def name(self) -> str:
        return self.policy.name

    @property
    def sticky_by_key(self) -> bool:
        return is_sticky(self.policy)

    @property
    def reads_probabilities(self) -> bool:
        return reads_probabilities(self.policy)

    def frozen(self, state: Any) -> Mapping[str, Any]:
        """Who is frozen; of a policy whose states are those of the one within."""
        return frozen_models(self.policy, state)


def frozen_models(policy: Policy, state: Any) -> Mapping[str, Any]:
    """Model id -> since when and why (`freezing.Frozen`), of those that this state has frozen."""
    return policy.frozen(state) if isinstance(policy, Around) else {}
