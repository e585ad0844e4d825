"""Input codec `oip`: an Open Inference Protocol v2 inference request in JSON, with one input of any name.

`inputs[0]` has `shape`, `datatype` and `data` (flat or nested); the first dimension counts the rows. `parameters`
(content types too), `outputs` and unknown fields are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from math import prod
from typing import Literal

import msgspec

from streamserve.core.codec import Decoded
from streamserve.core.messages import Headers
from streamserve.core.reasons import Reason
from streamserve.kafka.codecs.columns import (
    FLOAT64,
    ColumnsBuilder,
    Group,
    Refusal,
    Tensor,
    excerpt,
    id_text,
    unreadable,
)
from streamserve.kafka.codecs.jsonbody import parse
from streamserve.kafka.codecs.tensors import check_shape, json_tensor


class _FlatFloats(msgspec.Struct, gc=False):
    shape: tuple[int, ...]
    datatype: str
    data: list[float]


class _Request(msgspec.Struct, gc=False):
    """The common case, all that the fast path takes; anything else is looked at by the careful one."""

    inputs: tuple[_FlatFloats]
    id: str | None = None


class _NestedFloats(msgspec.Struct, gc=False):
    shape: tuple[int, int]
    datatype: Literal["FP64"]
    data: list[list[float]]


class _NestedRequest(msgspec.Struct, gc=False):
    """As `tolist()` of a matrix writes it."""

    inputs: tuple[_NestedFloats]
    id: str | None = None


_decode = msgspec.json.Decoder(_Request).decode
_decode_nested = msgspec.json.Decoder(_NestedRequest).decode


class OipCodec:
    """Reads Open Inference Protocol v2 JSON. See the module's words."""

    __slots__ = ("max_request_bytes",)
    name = "oip"

    def __init__(self, max_request_bytes: int) -> None:
        self.max_request_bytes = max_request_bytes

    def decode(self, values: Sequence[bytes | None], headers: Sequence[Headers]) -> Decoded:
        """Each value alone: joined into one parse, crafted values could shift the rows of their neighbours."""
        columns, limit = ColumnsBuilder(), self.max_request_bytes
        last_shape: tuple[int, ...] | None = None
        rows = size = 0
        group: Group | None = None
        add_group, add_rows, add_id = columns.group_of.append, columns.n_rows.append, columns.ids.append
        for value in values:
            if not value or len(value) > limit:
                columns.refuse(unreadable(value, limit))
                continue
            try:
                request = _decode(value)
            except msgspec.ValidationError:
                if not _nested(value, columns):
                    _careful(value, columns)
                continue
            except (msgspec.DecodeError, RecursionError):
                _careful(value, columns)
                continue
            (tensor,) = request.inputs
            shape, data = tensor.shape, tensor.data
            if tensor.datatype != "FP64":
                _careful(value, columns)
                continue
            if shape != last_shape:
                if isinstance(check_shape(shape), Refusal) or len(data) != prod(shape):
                    _careful(value, columns)
                    continue
                last_shape, rows, size, group = shape, shape[0], len(data), columns.group(FLOAT64, shape[1:])
            if len(data) != size or group is None:
                _careful(value, columns)
                continue
            group.numbers.fromlist(data)
            add_group(group.index)
            add_rows(rows)
            add_id(request.id)
        return columns.finish()


def _nested(value: bytes, columns: ColumnsBuilder) -> bool:
    """A matrix of FP64 as nested lists; False (and nothing taken) where it is not one."""
    try:
        request = _decode_nested(value)
    except (msgspec.DecodeError, RecursionError):
        return False
    (tensor,) = request.inputs
    (count, width), rows = tensor.shape, tensor.data
    if not count or not width or len(rows) != count or any(len(row) != width for row in rows):
        return False
    group = columns.group(FLOAT64, (width,))
    group.numbers.fromlist(list(chain.from_iterable(rows)))
    columns.group_of.append(group.index)
    columns.n_rows.append(count)
    columns.ids.append(request.id)
    return True


def _careful(value: bytes, columns: ColumnsBuilder) -> None:
    """Everything but FP64 data in its usual forms, and all that is wrong."""
    body = parse(value)
    if isinstance(body, Refusal):
        columns.refuse(body)
        return
    request_id = id_text(body.get("id")) if isinstance(body, dict) else None
    tensor = _tensor_of(body)
    if isinstance(tensor, Refusal):
        columns.refuse(tensor, request_id)
    else:
        columns.add(tensor, request_id)


def _tensor_of(body: object) -> Tensor | Refusal:
    if not isinstance(body, dict) or "inputs" not in body:
        words = "has no `inputs`" if isinstance(body, dict) else f"is {excerpt(body)}; expected an object with `inputs`"
        return Refusal(Reason.WRONG_FORM, f"the value {words}")
    inputs = body["inputs"]
    if not isinstance(inputs, list):
        return Refusal(Reason.WRONG_FORM, f"`inputs` is {excerpt(inputs)}; expected a list of one input")
    if len(inputs) != 1:
        return Refusal(Reason.WRONG_FORM, f"`inputs` has {len(inputs)} entries; a route reads exactly one")
    (tensor,) = inputs
    if not isinstance(tensor, dict):
        return Refusal(Reason.WRONG_FORM, f"the input is {excerpt(tensor)}; expected an object")
    absent = [name for name in ("shape", "datatype", "data") if name not in tensor]
    if absent:
        return Refusal(Reason.WRONG_FORM, f"the input has no {' and no '.join(f'`{name}`' for name in absent)}")
    return json_tensor(tensor["shape"], tensor["datatype"], tensor["data"])
