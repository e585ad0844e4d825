"""A policy around another one: what it says of itself is what that one says."""

from __future__ import annotations

from dataclasses import dataclass

from streamserve.core.selection.base import Policy, is_sticky, reads_probabilities


@dataclass(frozen=True, slots=True, kw_only=True)
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
