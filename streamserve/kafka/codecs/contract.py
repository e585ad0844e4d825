"""Reading records of our own: typed, versioned, and loud where this code cannot read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from streamserve.errors import ContractError, MalformedRecord

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
    """The decoded value; errors name the record (`what`).

    Raises `ContractError` for another version, so that a role stops, and `MalformedRecord` for another form, which is
    one record's trouble.
    """
    if value is None:
        raise MalformedRecord(f"{what} has no value")
    try:
        return decode(value)
    except (msgspec.DecodeError, RecursionError) as error:
        found = _version_of(value, version)
        if found not in (VERSION, None):
            raise ContractError(
                f"{what} cannot be read: its version is {found}, this code reads {VERSION}; "
                "run the same release of streamserve in every role"
            ) from None
        raise MalformedRecord(f"{what} cannot be read: {error}") from None


def _version_of(value: bytes, version: Callable[[bytes], VersionOnly]) -> int | None:
    try:
        return version(value).v
    except (msgspec.DecodeError, RecursionError):
        return None
