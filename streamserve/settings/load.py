"""From a TOML file and the environment to `Settings`, or to one error that lists every mistake."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from streamserve.errors import ConfigError
from streamserve.settings.checks import cross_checks
from streamserve.settings.environment import misspelt_variables, read_environment_variables
from streamserve.settings.fields import Section
from streamserve.settings.lines import key_lines, repeated_key
from streamserve.settings.mistakes import Mistake, Source, dotted, from_validation, unknown_key
from streamserve.settings.models import Settings
from streamserve.settings.raw import RawConfig

_FILES = (
    ("app", "state_dir"),
    ("broker", "client", "ssl_cafile"),
    ("broker", "client", "ssl_certfile"),
    ("broker", "client", "ssl_keyfile"),
)
_SECTIONS = {
    name: tuple(field.annotation.model_fields)
    for name, field in Settings.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
}
"""Those of fixed keys -> their keys."""
_TOML_TWICE = re.compile(r"Cannot (overwrite|declare|mutate|redefine) |Duplicate ")
_TOML_PLACE = re.compile(r" \(at line (\d+), column (\d+)\)$")


def load_settings(path: Path | str) -> Settings:
    """Read a config file; variables `STREAMSERVE_<SECTION>__<KEY>` override it.

    Raises `ConfigError` with one line per mistake: `file:line: what is wrong; allowed: ...`.
    """
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; `streamserve init NAME` writes a project with one") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}: not UTF-8 text, which TOML is") from None
    return parse_settings(text, path)


def parse_settings(text: str, path: Path | str) -> Settings:
    """`load_settings` for text that is already read; `path` names it in errors and anchors relative files."""
    file = _anchored(_parse_toml(text, path), Path(path).absolute().parent)
    environment = read_environment_variables(file)
    source = Source(file=str(path), lines=key_lines(text), variables=environment.variables)
    config = RawConfig(_merged(file, environment.values))
    mistakes = [*_unknown_tables(file), *cross_checks(config)]
    try:
        # Only what it has: BaseSettings reads keys such as `_env_file` as orders to itself.
        settings = Settings(**{key: value for key, value in file.items() if key in Settings.model_fields})
    except ValidationError as error:
        mistakes += from_validation(error, config.values)
    misspelt = [
        f"environment variable {name}: is no setting, and would do nothing; allowed: {meant}"
        for name, meant in misspelt_variables(_SECTIONS)
    ]
    if mistakes or misspelt:
        raise ConfigError("\n".join(filter(None, (source.tell(mistakes), *misspelt))))
    settings._path = Path(path)
    return settings


def _parse_toml(text: str, path: Path | str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        words = str(error)
        place = _TOML_PLACE.search(words)
        twice = _told_twice(text, place) if _TOML_TWICE.match(words) else ""
        if twice:
            raise ConfigError(f"{path}:{twice}") from None
        line = place[1] if place else len(text.splitlines())
        column = f" (column {place[2]})" if place else ""
        raise ConfigError(f"{path}:{line}: not TOML: {_TOML_PLACE.sub('', words)}{column}") from None
    except RecursionError:
        raise ConfigError(f"{path}: nested too deeply") from None


def _told_twice(text: str, place: re.Match[str] | None) -> str:
    """Line and words for a key that is given twice, up to the place where tomllib saw it; empty where none is found."""
    text = text.replace("\r\n", "\n")  # as tomllib counts
    if place:
        lines = text.split("\n")
        text = "\n".join([*lines[: int(place[1]) - 1], lines[int(place[1]) - 1][: int(place[2]) - 1]])
    found = repeated_key(text)
    if found is None:
        return ""
    key, line, first = found
    return f"{line}: not TOML: {dotted(key)} is given twice, first in line {first}; allowed: each key and table once"


def _anchored(file: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Files that the config names are relative to it; those that a variable names, to the working folder."""
    for *tables, key in _FILES:
        table: object = file
        for name in tables:
            table = table.get(name) if isinstance(table, dict) else None
        if isinstance(table, dict) and isinstance(table.get(key), str):
            table[key] = str(folder / Path(table[key]).expanduser())
    return file


def _merged(file: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """As pydantic-settings merges its sources: tables key by key, everything else replaced."""
    merged = dict(file)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merged(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def _unknown_tables(file: Mapping[str, Any]) -> list[Mistake]:
    return [unknown_key((key,), None) for key in file if key not in Settings.model_fields]
