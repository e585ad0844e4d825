"""`STREAMSERVE_<SECTION>__<KEY>` overrides the file; this is the only place that reads these variables.

`STREAMSERVE_BROKER__BOOTSTRAP_SERVERS=host:9092` is `broker.bootstrap_servers`. Case does not matter, and `-` or `.` in
a name of the file may be written `_`: `STREAMSERVE_POOLS__MY_POOL__PROCESSES=2` means `[pools.my-pool]`. Variables
without the double underscore (`STREAMSERVE_CACHE`) are not settings.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from streamserve.settings.fields import EnvironmentText

PREFIX = "STREAMSERVE_"
DELIMITER = "__"


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What the environment says of the settings."""

    values: dict[str, Any]
    """Nested as the file is; leaves are `EnvironmentText`."""
    variables: Mapping[tuple[str, ...], str]
    """Path of each leaf -> the variable that it comes from."""


def read_environment_variables(file: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> Environment:
    """The settings in the environment, their names matched with those that the file has."""
    values: dict[str, Any] = {}
    variables: dict[tuple[str, ...], str] = {}
    for variable, text in sorted((os.environ if environ is None else environ).items()):
        words = variable[len(PREFIX) :].split(DELIMITER)
        if not variable.upper().startswith(PREFIX) or len(words) == 1:
            continue
        path = _match(words, file)
        if _put(values, path, EnvironmentText(text)):
            variables[path] = variable
    return Environment(values=values, variables=variables)


def misspelt_variables(
    sections: Mapping[str, Iterable[str]], environ: Mapping[str, str] | None = None
) -> list[tuple[str, str]]:
    """Variables with one underscore where two are meant, and how they are written. `sections`: of fixed keys.

    What a container platform sets for a service that bears our name (`tcp://...`) is none of ours.
    """
    meant = {
        f"{PREFIX}{section}_{key}".upper(): f"{PREFIX}{section}{DELIMITER}{key}".upper()
        for section, keys in sections.items()
        for key in keys
    }
    found = (os.environ if environ is None else environ).items()
    return sorted((name, meant[name.upper()]) for name, text in found if name.upper() in meant and "://" not in text)


def _match(words: list[str], file: Mapping[str, Any]) -> tuple[str, ...]:
    """The path that the words mean: each is a key of the file where one fits, else lower case."""
    path: list[str] = []
    level: object = file
    for word in words:
        keys = [str(key) for key in level] if isinstance(level, Mapping) else []
        fitting = [key for key in keys if _plain(key) == _plain(word)]
        key = fitting[0] if len(fitting) == 1 else word.lower()
        path.append(key)
        level = level.get(key) if isinstance(level, Mapping) else None
    return tuple(path)


def _plain(name: str) -> str:
    return name.lower().replace("-", "_").replace(".", "_")


def _put(values: dict[str, Any], path: tuple[str, ...], text: EnvironmentText) -> bool:
    """Store a leaf; the more exact variable wins where one names a table that another reaches into."""
    for key in path[:-1]:
        inner = values.get(key)
        if not isinstance(inner, dict):
            inner = values[key] = {}
        values = inner
    if isinstance(values.get(path[-1]), dict):
        return False
    values[path[-1]] = text
    return True


class EnvironmentSource(PydanticBaseSettingsSource):
    """The environment as a source of pydantic-settings."""

    def __init__(self, settings_cls: type[BaseSettings], file: Mapping[str, Any]) -> None:
        super().__init__(settings_cls)
        self._file = file

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """One top-level field, as the base class wants it."""
        return read_environment_variables(self._file).values.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        return read_environment_variables(self._file).values
