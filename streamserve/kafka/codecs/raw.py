"""Input codec `raw`: the value is a row-major little-endian tensor, described by two headers.

`ss-dtype` is numpy's name (`float32`, `uint8`, ...), `ss-shape` the sizes (`3,20`: three rows). A value is not parsed:
its bytes are copied once, into the batch. NaN and infinity pass; whether they are welcome is the model's to say.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from streamserve.core.codec import Decoded
from streamserve.core.messages import Headers
from streamserve.core.reasons import Reason
from streamserve.kafka.codecs.columns import TEXT, ColumnsBuilder, Refusal, Tensor, excerpt, unreadable
from streamserve.kafka.codecs.tensors import DATATYPES, check_shape

DTYPE_HEADER = "ss-dtype"
SHAPE_HEADER = "ss-shape"
DTYPES: dict[str, np.dtype[Any]] = {dtype.name: dtype for dtype in DATATYPES.values() if dtype != TEXT}

_NATIVE = sys.byteorder == "little"
# Twelve digits are above every size that `check_shape` lets pass, and far below what int() refuses.
_SHAPE = re.compile(r" *-?[0-9]{1,12} *(, *-?[0-9]{1,12} *)*", re.ASCII)


class RawCodec:
    """Reads tensors as bytes. See the module's words."""

    __slots__ = ("max_request_bytes",)
    name = "raw"

    def __init__(self, max_request_bytes: int) -> None:
        self.max_request_bytes = max_request_bytes

    def decode(self, values: Sequence[bytes | None], headers: Sequence[Headers]) -> Decoded:
        columns, limit = ColumnsBuilder(), self.max_request_bytes
        for value, described in zip(values, headers, strict=True):
            if not value or len(value) > limit:
                columns.refuse(unreadable(value, limit))
                continue
            tensor = _tensor_of(value, described)
            if isinstance(tensor, Refusal):
                columns.refuse(tensor)
            else:
                columns.add(tensor, None)
        return columns.finish()


def _tensor_of(value: bytes, headers: Headers) -> Tensor | Refusal:
    form = _form(headers)
    if isinstance(form, Refusal):
        return form
    dtype, sizes = form
    shape = check_shape(sizes)
    if isinstance(shape, Refusal):
        return shape
    expected = prod(shape) * dtype.itemsize
    if len(value) != expected:
        words = f"shape {list(shape)} of {dtype.name} takes {expected} bytes; the value has {len(value)}"
        return Refusal(Reason.WRONG_SHAPE, words)
    if dtype.kind == "b" and max(value) > 1:
        return Refusal(Reason.WRONG_DATATYPE, "a byte of a bool tensor is neither 0 nor 1")
    payload = value if _NATIVE else np.frombuffer(value, dtype.newbyteorder("<")).astype(dtype).tobytes()
    return Tensor(dtype=dtype, trailing=shape[1:], n_rows=shape[0], payload=payload)


def _form(headers: Headers) -> tuple[np.dtype[Any], list[int]] | Refusal:
    texts: dict[str, str] = {}
    for name, raw in headers:
        if name in (DTYPE_HEADER, SHAPE_HEADER):
            try:
                texts[name] = (raw or b"").decode()
            except UnicodeDecodeError:
                return Refusal(Reason.BAD_HEADER, f"header {name} is not UTF-8")
    for name in (DTYPE_HEADER, SHAPE_HEADER):
        if name not in texts:
            return Refusal(Reason.BAD_HEADER, f"no header {name}: a raw tensor needs {DTYPE_HEADER} and {SHAPE_HEADER}")
    dtype = DTYPES.get(texts[DTYPE_HEADER].strip())
    if dtype is None:
        words = f"{DTYPE_HEADER} is {excerpt(texts[DTYPE_HEADER])}; expected one of {', '.join(DTYPES)}"
        return Refusal(Reason.WRONG_DATATYPE, words)
    if texts[SHAPE_HEADER].strip() == "":
        return dtype, []
    if not _SHAPE.fullmatch(texts[SHAPE_HEADER]):
        return Refusal(Reason.BAD_HEADER, f"{SHAPE_HEADER} is {excerpt(texts[SHAPE_HEADER])}; expected e.g. 3,20")
    return dtype, [int(size) for size in texts[SHAPE_HEADER].split(",")]
