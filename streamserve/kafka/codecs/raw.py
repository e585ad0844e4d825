"""Input codec `raw`: the value is a row-major little-endian tensor, described by two headers.

`ss-dtype` is numpy's name (`float32`, `uint8`, ...), `ss-shape` the sizes (`3,20`: three rows). A value is not parsed:
its bytes are copied once, into the batch. NaN and infinity pass; whether they are welcome is the model's to say.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from functools import lru_cache
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
_SHAPE = re.compile(r"-?[0-9]{1,12}( *, *-?[0-9]{1,12})*", re.ASCII)


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
    dtype_text = shape_text = None
    for name, raw in headers:
        if name == DTYPE_HEADER:
            dtype_text = raw or b""
        elif name == SHAPE_HEADER:
            shape_text = raw or b""
    if dtype_text is None or shape_text is None:
        absent = DTYPE_HEADER if dtype_text is None else SHAPE_HEADER
        words = f"no header {absent}: a raw tensor needs {DTYPE_HEADER} and {SHAPE_HEADER}"
        return Refusal(Reason.BAD_HEADER, words)
    form = _form(dtype_text, shape_text)
    if isinstance(form, Refusal):
        return form
    dtype, shape, expected = form
    if len(value) != expected:
        words = f"shape {list(shape)} of {dtype.name} takes {expected} bytes; the value has {len(value)}"
        return Refusal(Reason.WRONG_SHAPE, words)
    if dtype.kind == "b" and max(value) > 1:
        return Refusal(Reason.WRONG_DATATYPE, "a byte of a bool tensor is neither 0 nor 1")
    payload = value if _NATIVE else np.frombuffer(value, dtype.newbyteorder("<")).astype(dtype).tobytes()
    return Tensor(dtype=dtype, trailing=shape[1:], n_rows=shape[0], payload=payload)


@lru_cache(maxsize=256)
def _form(dtype_text: bytes, shape_text: bytes) -> tuple[np.dtype[Any], tuple[int, ...], int] | Refusal:
    """dtype, shape and bytes that a value must have."""
    try:
        dtype_name, sizes = dtype_text.decode().strip(), shape_text.decode().strip()
    except UnicodeDecodeError as error:
        name = DTYPE_HEADER if error.object == dtype_text else SHAPE_HEADER
        return Refusal(Reason.BAD_HEADER, f"header {name} is {excerpt(error.object)}: not UTF-8")
    dtype = DTYPES.get(dtype_name)
    if dtype is None:
        words = f"{DTYPE_HEADER} is {excerpt(dtype_name)}; expected one of {', '.join(DTYPES)}"
        return Refusal(Reason.WRONG_DATATYPE, words)
    if sizes and not _SHAPE.fullmatch(sizes):
        return Refusal(Reason.BAD_HEADER, f"{SHAPE_HEADER} is {excerpt(sizes)}; expected e.g. 3,20")
    shape = check_shape([int(size) for size in sizes.split(",")] if sizes else [])
    return shape if isinstance(shape, Refusal) else (dtype, shape, prod(shape) * dtype.itemsize)
