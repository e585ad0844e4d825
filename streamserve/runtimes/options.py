"""Read `[models.NAME.options]`: what has a wrong type, or is known to nobody, is refused with what is allowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from streamserve.runtimes.base import ModelSpec


class Options:
    """A model's options, read one by one; `finish` refuses those that nobody asked for."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._asked: set[str] = set()

    def integer(self, name: str, *, default: int, minimum: int = 1) -> int:
        """A whole number of at least `minimum`."""
        value = self._take(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self._spec.error(f"options.{name} = {value!r}: must be a whole number of at least {minimum}")
        return value

    def boolean(self, name: str, *, default: bool) -> bool:
        value = self._take(name, default)
        if not isinstance(value, bool):
            raise self._spec.error(f"options.{name} = {value!r}: must be true or false")
        return value

    def text(self, name: str, *, allowed: Sequence[str] = ()) -> str | None:
        """A string, one of `allowed` where that is given; None where the option is not set."""
        value = self._take(name, None)
        if value is None:
            return None
        if not isinstance(value, str) or (allowed and value not in allowed):
            known = " | ".join(f'"{word}"' for word in allowed) or "a string"
            raise self._spec.error(f"options.{name} = {value!r}: must be {known}")
        return value

    def values(self, name: str) -> list[Any] | None:
        """A list; None where the option is not set."""
        value = self._take(name, None)
        if value is not None and not isinstance(value, list | tuple):
            raise self._spec.error(f"options.{name} = {value!r}: must be a list")
        return None if value is None else list(value)

    def table(self, name: str) -> dict[str, Any]:
        """A table (`{ name = value }`), empty where the option is not set."""
        value = self._take(name, {})
        if not isinstance(value, Mapping):
            raise self._spec.error(f"options.{name} = {value!r}: must be a table")
        return dict(value)

    @property
    def asked(self) -> frozenset[str]:
        """Names read so far."""
        return frozenset(self._asked)

    def finish(self) -> None:
        """Raise `ModelError` for an option that nobody asked for."""
        unknown = sorted(set(self._spec.options) - self._asked)
        if unknown:
            allowed = ", ".join(sorted(self._asked)) or "none"
            raise self._spec.error(f"unknown option {', '.join(unknown)}; known here: {allowed}")

    def _take(self, name: str, default: Any) -> Any:
        self._asked.add(name)
        return self._spec.options.get(name, default)
