"""A model that is tried before it is in the config: the section that it would have there, with the same checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from streamserve.errors import ConfigError
from streamserve.settings.checks import cross_checks
from streamserve.settings.fields import Name
from streamserve.settings.mistakes import from_validation
from streamserve.settings.models import ModelSettings
from streamserve.settings.raw import RawConfig


class _Models(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    models: dict[Name, ModelSettings]


def checked_model(name: str, table: Mapping[str, Any]) -> ModelSettings:
    """`[models.NAME]` with these keys. Raises `ConfigError`, one line a mistake."""
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in table.items()}
    values = {"models": {name: plain}}
    mistakes = [mistake.words for mistake in cross_checks(RawConfig(values))]
    try:
        found = _Models.model_validate(values)
    except ValidationError as error:
        mistakes += [mistake.words for mistake in from_validation(error, values)]
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return found.models[name]
