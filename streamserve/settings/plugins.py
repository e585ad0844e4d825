"""Policies and runtimes by name: those that come with streamserve, and those that other packages add."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

from streamserve.added import added
from streamserve.errors import ConfigError
from streamserve.runtimes import runtime_names
from streamserve.runtimes.sources import why_no_source
from streamserve.settings.policies import BUILT_IN

POLICY_GROUP = "streamserve.policies"

__all__ = ["POLICY_GROUP", "added_policy", "policy_names", "runtime_names", "why_no_source"]


def policy_names() -> tuple[str, ...]:
    """Names that `routes.X.policy` may have: ours, then those that other packages add."""
    return (*BUILT_IN, *sorted(_added()))


def added_policy(name: str) -> type[Any]:
    """The class of a policy that another package adds.

    It is a frozen dataclass of the policy's options that follows `streamserve.core.selection.Policy`. Raises
    `ConfigError` where there is none of that name, or it cannot be imported.
    """
    point = _added().get(name)
    if point is None:
        raise ConfigError(f'there is no policy "{name}"; allowed: {", ".join(policy_names())}')
    try:
        found: type[Any] = point.load()
    except Exception as broken:
        raise ConfigError(f'policy "{name}" ({point.value}) cannot be imported: {broken}') from broken
    return found


def _added() -> dict[str, EntryPoint]:
    """By name; a package cannot replace a policy of ours."""
    return {point.name: point for point in added(POLICY_GROUP) if point.name not in BUILT_IN}
