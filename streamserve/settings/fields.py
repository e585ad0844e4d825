"""The field types of the config, strict about what the file says: `"4"` is no number and `true` is no 1.

A value that comes from an environment variable is text whatever it means, so it arrives as `EnvironmentText` and is
read here as the type that its field has.
"""

from __future__ import annotations

import json
import math
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, Strict
from pydantic.fields import FieldInfo

from streamserve.topics.names import check_app

#: Key of a JSON Schema node under which `words` are kept.
WORDS = "allowed"
_LABEL = "a number, a text, true or false, or a list of one kind of these; numbers are finite, whole ones of 64 bits"
_INT64 = range(-(1 << 63), 1 << 63)


class Section(BaseModel):
    """A table of the config: frozen, and without keys that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class EnvironmentText(str):
    """The raw text of one environment variable."""

    __slots__ = ()


def read_environment(value: object) -> object:
    """JSON where the text is JSON (numbers, lists, `{...}`), else the text as it stands."""
    if not isinstance(value, EnvironmentText):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return str(value)


def _read_flag(value: object) -> object:
    if isinstance(value, EnvironmentText):
        return {"true": True, "1": True, "false": False, "0": False}.get(value.strip().lower(), str(value))
    return value


def _read_text(value: object) -> object:
    return str(value) if isinstance(value, EnvironmentText) else value


def _check_label(value: object) -> object:
    items = value if isinstance(value, list) else [value]
    kinds = {_label_kind(item) for item in items}
    if not kinds or "" in kinds:
        raise ValueError(f"must be {_LABEL}")
    if len(kinds) > 1:
        raise ValueError(f"mixes {', '.join(sorted(kinds))}; allowed: {_LABEL}")
    for item in items:
        if isinstance(item, float) and not math.isfinite(item):
            raise ValueError(f"{item} is no finite number; allowed: {_LABEL}")
        if isinstance(item, int) and item not in _INT64:
            raise ValueError(f"a whole number beyond 64 bits; allowed: {_LABEL}")
    return value


def _label_kind(value: object) -> str:
    """For people; empty for what cannot be in an answer."""
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "numbers"
    return "texts" if isinstance(value, str) else ""


def _check_distinct(value: tuple[str, ...]) -> tuple[str, ...]:
    twice = sorted({item for item in value if value.count(item) > 1})
    if twice:
        raise ValueError(f"names {', '.join(twice)} more than once")
    return value


def words(allowed: str) -> FieldInfo:
    """What a field allows, in words, where its JSON Schema cannot tell a person."""
    info: FieldInfo = Field(json_schema_extra={WORDS: allowed})
    return info


_FromEnvironment = BeforeValidator(read_environment)

Int = Annotated[int, Strict(), _FromEnvironment]
Float = Annotated[float, Strict(), Field(allow_inf_nan=False), _FromEnvironment]
Flag = Annotated[bool, Strict(), BeforeValidator(_read_flag)]
Text = Annotated[str, Strict(), BeforeValidator(_read_text)]
AppName = Annotated[Text, AfterValidator(check_app), words("lower-case letters, digits, `-` and `.`")]
Name = Annotated[
    Text, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", max_length=100), words("letters, digits, `_`, `-` and `.`")
]
Version = Annotated[
    Text,
    Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+-]*$", max_length=100),
    words('text in quotes, such as "1" or "2.0.1"'),
]
Names = Annotated[
    tuple[Name, ...], AfterValidator(_check_distinct), _FromEnvironment, words("a list of names, at least one")
]
Texts = Annotated[tuple[Text, ...], _FromEnvironment]
Weights = Annotated[dict[Name, Annotated[Float, Field(ge=0)]], _FromEnvironment]
Options = Annotated[dict[str, Any], _FromEnvironment]
LabelValue = Annotated[Any, AfterValidator(_check_label), _FromEnvironment, words(_LABEL)]
