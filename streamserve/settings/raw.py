"""The merged config before it is known to be valid, read without trusting it: a check must not fail on a mistake."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamserve.settings import schema
from streamserve.settings.fields import read_environment
from streamserve.settings.lines import KeyPath
from streamserve.settings.mistakes import policy_at


@dataclass(frozen=True, slots=True)
class RawConfig:
    """Nested tables of unchecked values; what is of another type than asked for counts as not there."""

    values: Mapping[str, Any]

    def __getitem__(self, path: KeyPath) -> Any:
        """The value at a path, else the default of that key, else None."""
        value: object = self.values
        for key in path:
            if not isinstance(value, Mapping) or key not in value:
                return (schema.node_at(path, policy_at(self.values, path)) or {}).get("default")
            value = read_environment(value[key])
        return value

    def __contains__(self, path: KeyPath) -> bool:
        value: object = self.values
        for key in path:
            if not isinstance(value, Mapping) or key not in value:
                return False
            value = read_environment(value[key])
        return True

    def names(self, *path: str) -> tuple[str, ...]:
        """The names in a list, or the keys of a table."""
        value = self[path]
        if isinstance(value, Mapping | list | tuple):
            return tuple(name for name in value if isinstance(name, str))
        return ()

    def number(self, *path: str) -> float | None:
        """A number, or None."""
        value = self[path]
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    def text(self, *path: str) -> str | None:
        """A text, or None."""
        value = self[path]
        return value if isinstance(value, str) else None

    def policy(self, route: str) -> str | None:
        """Name of a route's policy."""
        return policy_at(self.values, ("routes", route)) or "static"
