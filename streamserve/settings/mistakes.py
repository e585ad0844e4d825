"""A mistake in the config, and how it is told: where it stands, what is wrong, what is allowed, what was meant."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from streamserve.settings import schema
from streamserve.settings.fields import EnvironmentText
from streamserve.settings.lines import KeyPath, line_of
from streamserve.settings.plugins import policy_names

_MAX_SHOWN = 60
_ROUTE_POLICY = 3
#: Sections whose values are never shown: they hold passwords, or are handed on unread.
_HIDDEN_SECTION = "broker"
_HIDDEN_TABLE = "options"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """One thing that is wrong."""

    path: KeyPath
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the values of a config come from."""

    file: str
    lines: Mapping[KeyPath, int]
    variables: Mapping[tuple[str, ...], str]
    """Path -> environment variable, for what the environment overrides."""

    def tell(self, mistakes: Iterable[Mistake]) -> str:
        """All mistakes, one a line, in the order of the file; those of the environment last."""
        told = {
            (self._variable(mistake.path) or "", line_of(self.lines, mistake.path), printable(mistake.words))
            for mistake in mistakes
        }
        return "\n".join(
            f"environment variable {variable}: {words}" if variable else f"{self.file}:{line}: {words}"
            for variable, line, words in sorted(told)
        )

    def _variable(self, path: KeyPath) -> str | None:
        """The variable that gave what is at the path; where only variables made the table around it, one of them."""
        variables: dict[KeyPath, str] = {(*inner,): name for inner, name in self.variables.items()}
        for length in range(1, len(path) + 1):
            if path[:length] in variables:
                return variables[path[:length]]
        in_file = next((length for length in range(len(path), 0, -1) if path[:length] in self.lines), 0)
        table = path[: in_file + 1]
        return next((name for inner, name in variables.items() if inner[: len(table)] == table), None)


def dotted(path: KeyPath) -> str:
    """`("pools", "main", "models", 0)` as `pools.main.models[0]`."""
    words = ""
    for key in path:
        words += f"[{key}]" if isinstance(key, int) else f".{key}"
    return words.lstrip(".")


def printable(words: str) -> str:
    """Without what a terminal would obey; a quoted key of a file may hold it, and line ends."""
    return "".join(sign if sign.isprintable() else json.dumps(sign)[1:-1] for sign in words)


def listing(names: Iterable[str]) -> str:
    """Names for a person; `none` where there are none."""
    return ", ".join(names) or "none"


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """`; did you mean "x"?`, or nothing where no name is close."""
    close = difflib.get_close_matches(word.lower(), by_case := {name.lower(): name for name in names}, n=1, cutoff=0.6)
    return f'; did you mean "{by_case[close[0]]}"?' if close else ""


def from_validation(error: ValidationError, config: Mapping[str, Any]) -> list[Mistake]:
    """What pydantic found, in our words; values that may be secret are not in them."""
    return [_mistake(dict(detail), config) for detail in error.errors(include_url=False)]


def _mistake(detail: Mapping[str, Any], config: Mapping[str, Any]) -> Mistake:
    path: KeyPath = detail["loc"]
    policy = policy_at(config, path)
    if path[2:3] == ("policy",) and path[0] == "routes" and len(path) > _ROUTE_POLICY:
        path = (*path[:_ROUTE_POLICY], *path[_ROUTE_POLICY + 1 :])  # pydantic puts the name of the variant there
    if path[-1:] == ("[key]",):
        name = json.dumps(str(path[-2]))
        return Mistake(path=path[:-1], words=f"{dotted(path[:-2])}: the name {name} is not possible; {_allowed_name()}")
    if detail["type"] == "extra_forbidden":
        return unknown_key(path, policy)
    place = schema.node_at(path, policy) or {}
    if detail["type"] == "missing":
        names = listing(policy_names()) if path[2:] == ("policy", "name") else _described(place)
        return Mistake(path=path, words=f"{dotted(path)} is missing; allowed: {names}")
    if detail["type"] == "value_error":
        words = str(detail["ctx"]["error"])
        return Mistake(path=path, words=f"{dotted(path)}{_shown(path, detail['input'])}: {words}")
    words = f"{dotted(path)}{_shown(path, detail['input'])} is not possible; allowed: {schema.allowed(place)}"
    return Mistake(path=path, words=words + _meant(detail["input"], place))


def policy_at(config: Mapping[str, Any], path: KeyPath) -> str | None:
    """The name of the policy of the route that a path runs through."""
    value: object = config
    for key in (*path[:2], "policy"):
        value = value.get(key) if isinstance(value, Mapping) else None
    name = value.get("name") if isinstance(value, Mapping) else value
    return str(name) if isinstance(name, str) and path[:1] == ("routes",) else None


def unknown_key(path: KeyPath, policy: str | None) -> Mistake:
    """A key that its table does not have; `policy` as in `schema.node_at`."""
    table = schema.node_at(path[:-1], policy) or {}
    keys = schema.keys_of(table)
    if len(path) == 1:
        words = f'unknown section "{path[0]}"'
    elif path[2:3] == ("policy",):
        words = f'unknown key "{path[-1]}" in policy {policy}'
    else:
        words = f'unknown key "{path[-1]}" in [{dotted(path[:-1])}]'
    words += f"; allowed: {listing(keys)}"
    return Mistake(path=path, words=words + did_you_mean(str(path[-1]), keys))


def _allowed_name() -> str:
    return "allowed: letters, digits, `_`, `-` and `.`, at most 100"


def _described(place: schema.Node) -> str:
    words = str(place.get("description", "")).split(". ")[0].rstrip(".")
    return schema.allowed(place) + (f" ({words})" if words else "")


def _shown(path: KeyPath, value: object) -> str:
    """` = value`, where it is short and cannot be a secret."""
    hidden = path[:1] == (_HIDDEN_SECTION,) or _HIDDEN_TABLE in path
    if hidden or not isinstance(value, str | int | float):
        return ""
    text = json.dumps(value)
    return f" = {text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + '...'}"


def _meant(value: object, place: schema.Node) -> str:
    choices = [choice for choice in schema.resolve(place).get("enum", ()) if isinstance(choice, str)]
    return did_you_mean(value, choices) if isinstance(value, str | EnvironmentText) else ""
