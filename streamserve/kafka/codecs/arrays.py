"""Arrays inside our own records: numpy's name of the dtype, the shape, the row-major little-endian bytes.

Arrays of Python objects (strings, mostly) travel as a list under the dtype `json`.
"""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamserve.core.messages import AnyArray
from streamserve.topics.internal_values import ArrayValue

OBJECTS = "json"
MAX_DIMENSIONS = 32
# Fixed-size elements only: no objects, no structs, nothing of size 0.
_DTYPE = re.compile(r"\|b1|\|[iu]1|<[iu][248]|<f[248]|<U[1-9][0-9]?|\|S[1-9][0-9]{0,2}", re.ASCII)
_MAX_CODE_POINT = 0x10FFFF
#: Wider strings are written one by one: an array pads all of them to the longest.
_MAX_STRING_BYTES = 256
_PLAIN_TYPES = frozenset({str, int, float, bool, type(None)})
_MAX_MSGPACK_INT = (1 << 64) - 1
_MIN_MSGPACK_INT = -(1 << 63)


def pack_array(array: AnyArray) -> ArrayValue:
    """Any array of numbers, booleans or strings; what is none of these is written as text."""
    dtype, shape = array.dtype, list(array.shape)
    if dtype.kind == "f" and dtype.itemsize > np.dtype(np.float64).itemsize:
        return pack_array(array.astype(np.float64))  # a long double is as wide as the machine likes
    if dtype.kind in "biuf" or (dtype.kind in "US" and 0 < dtype.itemsize <= _MAX_STRING_BYTES):
        little = array if sys.byteorder == "little" and dtype.isnative else array.astype(dtype.newbyteorder("<"))
        return ArrayValue(dtype=little.dtype.newbyteorder("<").str, shape=shape, data=little.tobytes())
    return ArrayValue(dtype=OBJECTS, shape=shape, data=[_plain(value) for value in array.ravel().tolist()])


def _plain(value: Any) -> str | int | float | bool | None:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value) in (bool, float):
        return value  # type: ignore[no-any-return]
    if type(value) is int and _MIN_MSGPACK_INT <= value <= _MAX_MSGPACK_INT:
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value).encode("utf-8", "replace").decode()


def pack_column(array: NDArray[Any], dtype: type[np.generic]) -> ArrayValue:
    """An array as this dtype, whatever stage made it."""
    return pack_array(array.astype(dtype, copy=False))


def unpack_array(packed: ArrayValue) -> NDArray[Any]:
    """A read-only view of the bytes, or an array of objects. Raises ValueError where the parts do not fit."""
    dtype, shape, data = packed.dtype, packed.shape, packed.data
    if len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"an array has {len(shape)} dimensions")
    size = prod(shape)
    if dtype == OBJECTS:
        if not isinstance(data, list) or len(data) != size:
            raise ValueError(f"an array of {size} values holds another number of them")
        if not set(map(type, data)) <= _PLAIN_TYPES:
            raise ValueError("an array of single values holds a list or a map")
        objects = np.empty(size, object)
        objects[:] = data
        return objects.reshape(shape)
    element = _element(dtype)
    if element is None:
        raise ValueError(f"dtype {dtype[:40]!r} is unknown")
    if not isinstance(data, bytes) or len(data) != size * element.itemsize:
        raise ValueError(f"an array of {size} {dtype} holds another number of bytes")
    array = np.frombuffer(data, element) if data else np.empty(0, element)
    if element.kind == "b" and data and max(data) > 1:
        raise ValueError("a byte of a bool array is neither 0 nor 1")
    if element.kind == "U" and data and array.view("<u4").max() > _MAX_CODE_POINT:
        raise ValueError("a string holds what is no character")
    return array if len(shape) == 1 else array.reshape(shape)


@lru_cache(maxsize=256)
def _element(dtype: str) -> np.dtype[Any] | None:
    """None for a name that no array of ours has."""
    return np.dtype(dtype) if _DTYPE.fullmatch(dtype) else None


def unpack_column(packed: ArrayValue, dtype: type[np.generic], n: int) -> NDArray[Any]:
    """An array that must be `[n]` of this dtype."""
    array = unpack_array(packed)
    if array.dtype != dtype or array.shape != (n,):
        raise ValueError(f"a column is {array.dtype} {list(array.shape)}; expected {np.dtype(dtype)} [{n}]")
    return array
