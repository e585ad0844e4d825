"""Tensors as people send them: shape, datatype and values, none of which can be trusted.

The names of datatypes are those of the Open Inference Protocol v2 ("Tensor Data Types").
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from math import prod
from typing import Any

import numpy as np

from streamserve.core.reasons import Reason
from streamserve.kafka.codecs.columns import FLOAT64, TEXT, Refusal, Tensor, excerpt

DATATYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": FLOAT64,
    "BYTES": TEXT,
}

#: More is a mistake or an attack; numpy itself ends at 64.
MAX_DIMENSIONS = 16
_MAX_DIMENSION = 1 << 31

#: Python types that JSON gives for each kind of dtype. `bool` is an `int` to Python, so types are compared exactly.
_ALLOWED: dict[str, frozenset[type]] = {
    "b": frozenset({bool}),
    "i": frozenset({int}),
    "u": frozenset({int}),
    "f": frozenset({int, float}),
    "O": frozenset({str}),
}
_KIND_WORDS = {"b": "true or false", "i": "whole numbers", "u": "whole numbers", "f": "numbers", "O": "strings"}


def check_shape(shape: object) -> tuple[int, ...] | Refusal:
    """Dimensions of a tensor of at least one row and one value a row; nothing is allocated by them."""
    if not isinstance(shape, list | tuple):
        return Refusal(Reason.WRONG_SHAPE, f"shape is {excerpt(shape)}; expected a list such as [1, 20]")
    if len(shape) > MAX_DIMENSIONS:
        return Refusal(Reason.WRONG_SHAPE, f"shape has {len(shape)} dimensions; at most {MAX_DIMENSIONS} are allowed")
    for size in shape:
        if type(size) is not int or not 0 <= size <= _MAX_DIMENSION:
            words = f"shape holds {excerpt(size)}; expected whole numbers from 0 to {_MAX_DIMENSION}"
            return Refusal(Reason.WRONG_SHAPE, words)
    if not shape or shape[0] == 0:
        return Refusal(Reason.NO_ROWS, f"shape {list(shape)} has no rows; the first dimension counts them")
    if 0 in shape:  # a billion rows of nothing would be a billion rows
        return Refusal(Reason.WRONG_SHAPE, f"shape {list(shape)} has rows without values")
    return tuple(shape)


def flatten(data: list[Any]) -> tuple[list[Any], tuple[int, ...]] | Refusal:
    """Values of nested lists in row-major order, and the sizes of the nesting; ragged lists are refused."""
    dimensions = [len(data)]
    while data and isinstance(data[0], list):
        width = len(data[0])
        if any(not isinstance(each, list) or len(each) != width for each in data):
            return Refusal(Reason.WRONG_SHAPE, "lists inside the data differ in length, or stand beside single values")
        dimensions.append(width)
        if len(dimensions) > MAX_DIMENSIONS:
            return Refusal(Reason.WRONG_SHAPE, f"data is nested more than {MAX_DIMENSIONS} deep")
        data = list(chain.from_iterable(data))
    return data, tuple(dimensions)


def typed(values: Sequence[Any], dtype: np.dtype[Any], name: str) -> bytes | list[str] | Refusal:
    """Flat JSON values as native elements of `dtype`; each must be of its kind and in its range."""
    wrong = set(map(type, values)) - _ALLOWED[dtype.kind]
    if wrong:
        bad = next(value for value in values if type(value) in wrong)
        words = f"data holds {excerpt(bad)}; {name} takes {_KIND_WORDS[dtype.kind]}"
        return Refusal(Reason.WRONG_DATATYPE, words)
    if dtype == TEXT:
        return list(values)
    try:
        with np.errstate(over="ignore"):
            array = np.array(values, FLOAT64 if dtype.kind == "f" else dtype).astype(dtype, copy=False)
    except OverflowError:
        return Refusal(Reason.WRONG_DATATYPE, f"data holds a number that is out of the range of {name}")
    if dtype.kind == "f" and not np.isfinite(array).all():
        return Refusal(Reason.WRONG_DATATYPE, f"data holds a number that is out of the range of {name}")
    return array.tobytes()


def json_tensor(shape: object, datatype: object, data: object) -> Tensor | Refusal:
    """A tensor from its three JSON parts, `data` flat or nested as `shape` says."""
    dtype = DATATYPES.get(datatype) if isinstance(datatype, str) else None
    if dtype is None or not isinstance(datatype, str):
        words = f"datatype is {excerpt(datatype)}; expected one of {', '.join(DATATYPES)}"
        return Refusal(Reason.WRONG_DATATYPE, words)
    checked = check_shape(shape)
    if isinstance(checked, Refusal):
        return checked
    values = _shaped(data, checked)
    if isinstance(values, Refusal):
        return values
    payload = typed(values, dtype, datatype)
    if isinstance(payload, Refusal):
        return payload
    return Tensor(dtype=dtype, trailing=checked[1:], n_rows=checked[0], payload=payload)


def _shaped(data: object, shape: tuple[int, ...]) -> list[Any] | Refusal:
    """Flat values, as many as the shape says, nested as it says if they are nested."""
    if not isinstance(data, list):
        return Refusal(Reason.WRONG_FORM, f"data is {excerpt(data)}; expected a list")
    flat = flatten(data)
    if isinstance(flat, Refusal):
        return flat
    values, nesting = flat
    if len(values) != prod(shape) or (len(nesting) > 1 and nesting != shape):
        found = f"{len(values)} values" if len(nesting) == 1 else f"lists of {list(nesting)}"
        return Refusal(Reason.WRONG_SHAPE, f"shape is {list(shape)} and data has {found}")
    return values
