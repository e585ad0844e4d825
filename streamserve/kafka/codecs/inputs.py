"""The input codecs by name, as `routes.X.input` gives it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from streamserve.core.codec import InputCodec
from streamserve.errors import ConfigError
from streamserve.kafka.codecs.oip import OipCodec
from streamserve.kafka.codecs.raw import RawCodec
from streamserve.kafka.codecs.rows import RowsCodec
from streamserve.kafka.codecs.text import TextCodec

DEFAULT_MAX_REQUEST_BYTES = 1 << 20

_BUILDERS: Mapping[str, Callable[[int], InputCodec]] = {
    "oip": OipCodec,
    "rows": RowsCodec,
    "text": TextCodec,
    "raw": RawCodec,
}

INPUTS = tuple(_BUILDERS)


def input_codec(name: str, max_request_bytes: int = DEFAULT_MAX_REQUEST_BYTES) -> InputCodec:
    """The codec of that name; values above `max_request_bytes` are refused unparsed.

    Raises `ConfigError` for a name that is none.
    """
    if name not in _BUILDERS:
        raise ConfigError(f"input codec {name!r} does not exist; allowed are {', '.join(_BUILDERS)}")
    return _BUILDERS[name](max_request_bytes)


#: Every codec with the default limit.
INPUT_CODECS: Mapping[str, InputCodec] = {name: input_codec(name) for name in _BUILDERS}
