"""Input codec `oip`: an Open Inference Protocol v2 inference request in JSON, with one input of any name.

`inputs[0]` has `shape`, `datatype` and `data` (flat or nested); the first dimension counts the rows. `parameters`
(content types too), `outputs` and unknown fields are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

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


_decode = msgspec.json.Decoder(_Request).decode


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


def _careful(value: bytes, columns: ColumnsBuilder) -> None:
    """Everything but flat FP64 data, and all that is wrong."""
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
    if not isinstance(body, dict):
        return Refusal(Reason.WRONG_FORM, f"the value is {excerpt(body)}; expected an object with `inputs`")
    inputs = body.get("inputs")
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
