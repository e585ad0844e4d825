"""JSON of a user, parsed once and without exceptions.

One parser (msgspec) reads requests on the fast and on the careful path, so both agree on every number. It refuses NaN,
Infinity and numbers beyond the range of a double; of keys given twice the last counts; fields that nobody reads are
checked for structure, not for UTF-8.
"""

from __future__ import annotations

from typing import Any

import msgspec

from streamserve.core.reasons import Reason
from streamserve.kafka.codecs.columns import Refusal

_decode = msgspec.json.Decoder(Any).decode


def parse(value: bytes) -> object | Refusal:
    """What JSON holds, or why it holds nothing."""
    try:
        body: object = _decode(value)
    except msgspec.ValidationError as error:  # the only thing that an untyped decoder validates: a number's range
        return Refusal(Reason.WRONG_DATATYPE, f"a number that no double can hold: {error}")
    except msgspec.DecodeError as error:
        return Refusal(Reason.NOT_JSON, f"not JSON: {error}")
    except RecursionError:
        return Refusal(Reason.WRONG_FORM, "JSON that is nested too deeply")
    return body
