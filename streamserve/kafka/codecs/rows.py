"""Input codec `rows`: plain JSON numbers, read as float64.

`[[1, 2], [3, 4]]` is two rows, `[1, 2]` is one, and `{"rows": [[1, 2]], "id": "a"}` has an id. Deeper nesting gives
rows that are arrays. Rows are lists, never objects: names do not say in which order a model takes its columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import msgspec

from streamserve.core.codec import Decoded
from streamserve.core.messages import Headers
from streamserve.core.reasons import Reason
from streamserve.kafka.codecs.columns import (
    FLOAT64,
    ColumnsBuilder,
    Refusal,
    Tensor,
    excerpt,
    id_text,
    unreadable,
)
from streamserve.kafka.codecs.jsonbody import parse
from streamserve.kafka.codecs.tensors import flatten, typed

_EXPECTED = 'expected [[...], ...], [...] for one row, or {"rows": ...}'
_decode = msgspec.json.Decoder(list[list[float]]).decode


class RowsCodec:
    """Reads JSON rows of numbers. See the module's words."""

    __slots__ = ("max_request_bytes",)
    name = "rows"

    def __init__(self, max_request_bytes: int) -> None:
        self.max_request_bytes = max_request_bytes

    def decode(self, values: Sequence[bytes | None], headers: Sequence[Headers]) -> Decoded:
        columns, limit = ColumnsBuilder(), self.max_request_bytes
        for value in values:
            if not value or len(value) > limit:
                columns.refuse(unreadable(value, limit))
            elif not (value.startswith(b"[[") and _fast(value, columns)):
                _careful(value, columns)
        return columns.finish()


def _fast(value: bytes, columns: ColumnsBuilder) -> bool:
    """Rows of numbers, all as wide as the first; False (and nothing taken) where they are not."""
    try:
        rows = _decode(value)
    except (msgspec.DecodeError, RecursionError):
        return False
    width = len(rows[0])
    if not width or any(len(row) != width for row in rows):
        return False
    group = columns.group(FLOAT64, (width,))
    group.numbers.fromlist(rows[0] if len(rows) == 1 else list(chain.from_iterable(rows)))
    columns.group_of.append(group.index)
    columns.n_rows.append(len(rows))
    columns.ids.append(None)
    return True


def _careful(value: bytes, columns: ColumnsBuilder) -> None:
    body = parse(value)
    if isinstance(body, Refusal):
        columns.refuse(body)
        return
    request_id = None
    if isinstance(body, dict):
        request_id = id_text(body.get("id"))
        if "rows" not in body:
            columns.refuse(Refusal(Reason.WRONG_FORM, f"the value has no `rows`; {_EXPECTED}"), request_id)
            return
        body = body["rows"]
    tensor = _tensor_of(body)
    if isinstance(tensor, Refusal):
        columns.refuse(tensor, request_id)
    else:
        columns.add(tensor, request_id)


def _tensor_of(rows: Any) -> Tensor | Refusal:
    if not isinstance(rows, list):
        return Refusal(Reason.WRONG_FORM, f"rows are {excerpt(rows)}; {_EXPECTED}")
    if rows and isinstance(rows[0], dict):
        return Refusal(Reason.WRONG_FORM, "rows are objects; expected lists of numbers in the model's column order")
    flat = flatten(rows)
    if isinstance(flat, Refusal):
        return flat
    values, sizes = flat
    if not values:
        return Refusal(Reason.WRONG_SHAPE if rows else Reason.NO_ROWS, "there are no values in the rows")
    payload = typed(values, FLOAT64, "a row")
    if isinstance(payload, Refusal):
        return payload
    shape = sizes if len(sizes) > 1 else (1, *sizes)
    return Tensor(dtype=FLOAT64, trailing=shape[1:], n_rows=shape[0], payload=payload)
