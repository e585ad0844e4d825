"""Reading records of our own: typed, versioned, and loud where this code cannot read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from streamserve.errors import ContractError

#: Version of every value that this code writes; the only one so far.
VERSION: Final = 1

_Value = TypeVar("_Value")


class VersionOnly(msgspec.Struct):
    """What every value of ours has, whatever its version."""

    v: int


_json_version = msgspec.json.Decoder(VersionOnly).decode


def read(
    value: bytes | None,
    decode: Callable[[bytes], _Value],
    what: str,
    version: Callable[[bytes], VersionOnly] = _json_version,
) -> _Value:
    """The decoded value. Raises `ContractError`, naming the record (`what`), for another version or form."""
    if value is None:
        raise ContractError(f"{what} has no value")
    try:
        return decode(value)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ContractError(f"{what} cannot be read: {_why(value, error, version)}") from None


def _why(value: bytes, error: Exception, version: Callable[[bytes], VersionOnly]) -> str:
    try:
        found = version(value).v
    except (msgspec.DecodeError, RecursionError):
        return str(error)
    if found == VERSION:
        return str(error)
    return f"its version is {found}, this code reads {VERSION}; run the same release of streamserve in every role"
