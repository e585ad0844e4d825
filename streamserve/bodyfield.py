"""One field of a JSON body, read without building the rest of it."""

from __future__ import annotations

from typing import Any

import msgspec

#: How a context would be written that a body gives as a number or a truth value.
_WRITTEN = (str, int, bool)


class BodyField:
    """Called with a body, gives the text of its field; empty where there is none, or where it is no scalar."""

    def __init__(self, path: str) -> None:
        """`path`: names with dots between them, from the outermost."""
        self._depth = path.count(".") + 1
        read: Any = Any
        for name in reversed(path.split(".")):
            read = msgspec.defstruct("Field", [("value", read, msgspec.field(default=None, name=name))])
            read = read | None
        self._decode = msgspec.json.Decoder(read).decode

    def __call__(self, value: bytes | None) -> str:
        if not value:
            return ""
        try:
            found = self._decode(value)
        except (msgspec.DecodeError, RecursionError):
            return ""  # the route's codec says what is wrong with it
        for _ in range(self._depth):
            if found is None:
                return ""
            found = found.value
        if isinstance(found, bool):
            return "true" if found else "false"
        return str(found) if isinstance(found, _WRITTEN) else ""
