"""From what a program holds to a request: value and headers, by the route's codec."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeGuard, get_args

import numpy as np
import orjson
from numpy.typing import NDArray

from streamserve.client.arguments import check_budget, check_key, check_text, is_whole, shown, text_bytes
from streamserve.client.failures import UnusableInput
from streamserve.core.admission import MOST_PRIORITY
from streamserve.kafka.codecs.outputs import datatype_of
from streamserve.kafka.codecs.raw import DTYPE_HEADER, DTYPES, SHAPE_HEADER
from streamserve.kafka.ports import Record
from streamserve.ragged import why_no_array

Codec = Literal["oip", "rows", "text", "raw"]
#: An array or nested lists of rows, one text, or a request's bytes.
Input = NDArray[Any] | Sequence[Any] | str | bytes

ROUTE_HEADER = "ss-route"
DEADLINE_HEADER = "ss-deadline-ms"
PRIORITY_HEADER = "ss-priority"
CONTEXT_HEADER = "ss-context"
CLOUD_EVENTS_ID_HEADER = "ce_id"
#: 4 MiB are declared for the topic; 64 KiB are left for the batch around the record.
MAX_RECORD_BYTES = (4 << 20) - (64 << 10)

_CODECS: tuple[str, ...] = get_args(Codec)
_INPUT_NAME = "input"
_NUMBERS = "biuf"


def request_record(
    x: Input,
    *,
    codec: Codec | None = None,
    route: str | None = None,
    deadline_ms: int | None = None,
    priority: int | None = None,
    context: str | None = None,
    key: str | bytes | None = None,
    id: str | None = None,
) -> Record:
    """The record of the requests topic for `x`.

    `codec` is the route's (`routes.X.input`); None goes by type: text for `str`, as it is for `bytes`, else `oip`. An
    array's first dimension counts the rows; one dimension of numbers is one row, one dimension of texts is as many
    rows. The dtype is kept; lists become int64, float64, bool or texts.
    Raises UnusableInput for what cannot be sent so.
    """
    check_codec(codec, "codec")
    check_text(route, "route")
    check_text(context, "context")
    check_budget(deadline_ms, "deadline_ms")
    check_key(key)
    check_text(id, "id")
    if priority is not None and not _is_priority(priority):
        raise UnusableInput(
            f"priority = {shown(priority)}: allowed are whole numbers from -{MOST_PRIORITY} to {MOST_PRIORITY}"
        )
    value, headers, has_id = _body(x, codec, id)
    if id is not None and not has_id:
        headers.append((CLOUD_EVENTS_ID_HEADER, text_bytes(id, "id")))
    if route is not None:
        headers.append((ROUTE_HEADER, text_bytes(route, "route")))
    if deadline_ms is not None:
        headers.append((DEADLINE_HEADER, b"%d" % deadline_ms))
    if priority is not None:
        headers.append((PRIORITY_HEADER, b"%d" % priority))
    if context is not None:
        headers.append((CONTEXT_HEADER, text_bytes(context, "context")))
    record = Record(value=value, key=key_bytes(key), headers=tuple(headers))
    size = record_bytes(record)
    if size > MAX_RECORD_BYTES:
        raise UnusableInput(f"the request takes {size} bytes; the requests topic takes {MAX_RECORD_BYTES}: send less")
    return record


def check_codec(value: object, what: str) -> None:
    """What a route reads, or None. Raises UnusableInput."""
    if value is not None and not (isinstance(value, str) and value in _CODECS):
        raise UnusableInput(f"{what} = {shown(value)}: allowed are {', '.join(_CODECS)}")


def several(xs: Iterable[Input], ids: Sequence[str] | None) -> tuple[list[Input], list[str | None]]:
    """Inputs of several requests, and their ids. Raises UnusableInput."""
    if isinstance(xs, str | bytes | bytearray | memoryview) or not _is_iterable(xs):
        raise UnusableInput(f"xs = {shown(xs)}: expected several inputs, such as a list of texts or of rows")
    inputs = list(xs)
    if ids is None:
        return inputs, [None] * len(inputs)
    if isinstance(ids, str | bytes) or not _is_iterable(ids):
        raise UnusableInput(f"ids = {shown(ids)}: expected one str a request")
    names: list[str | None] = list(ids)
    if len(names) != len(inputs):
        raise UnusableInput(f"{len(inputs)} inputs and {len(names)} ids: give one id a request")
    for index, name in enumerate(names):
        if not isinstance(name, str):
            raise UnusableInput(f"ids[{index}] = {shown(name)}: expected a str")
    return inputs, names


def _is_iterable(value: object) -> bool:
    """Whether it can be gone through; an array without dimensions only looks so."""
    return isinstance(value, Iterable) and np.ndim(value if isinstance(value, np.ndarray) else [0]) > 0


def key_bytes(key: str | bytes | None) -> bytes | None:
    """A record key as it is written. Raises UnusableInput for text that is not Unicode."""
    return text_bytes(key, "key") if isinstance(key, str) else key


def record_bytes(record: Record) -> int:
    """What a record takes in a batch, at most a few bytes less."""
    named = sum(len(name) + len(text or b"") + 8 for name, text in record.headers)
    return len(record.value or b"") + len(record.key or b"") + named + 32


def _is_priority(value: object) -> TypeGuard[int]:
    return is_whole(value) and bool(abs(value) <= MOST_PRIORITY)


def _body(x: Input, codec: Codec | None, id: str | None) -> tuple[bytes, list[tuple[str, bytes | None]], bool]:
    """Value, headers, and whether the id is in the value."""
    if isinstance(x, bytes | bytearray | memoryview):
        return bytes(x), [], False
    if codec == "text" or (codec is None and isinstance(x, str)):
        return _text(x), [], False
    rows = as_rows(x)
    if codec == "raw":
        return *_raw(rows), False
    if codec == "rows":
        return _dumps({"rows": _numbers(rows)} | _identity(id)), [], True
    return _oip(rows, id), [], True


def as_rows(x: Input) -> NDArray[Any]:
    """`[n, ...]`: the rows of an input. Raises UnusableInput where there are none, or they are ragged."""
    if isinstance(x, str):
        x = [x]
    try:
        rows = np.asarray(x)
    except Exception as error:  # noqa: BLE001  (what is to be an array may be an object of foreign code)
        # numpy's words are of its insides; an object that turns itself into an array speaks for itself.
        words = why_no_array(x) if isinstance(x, list | tuple) else f"{type(error).__name__}: {error}"
        raise UnusableInput(f"x is no array: {words}; give rows of equal length") from None
    if rows.ndim == 0 or not rows.size:
        raise UnusableInput(f"x has shape {list(rows.shape)}; give rows, the first dimension counts them")
    if rows.dtype.kind == "O" and any(type(value) is not str for value in rows.flat):
        raise UnusableInput("x holds values of different kinds; give numbers, booleans or texts of one kind")
    if rows.dtype.kind not in "biufUO" or (rows.dtype.itemsize > 8 and rows.dtype.kind == "f"):
        raise UnusableInput(f"x has dtype {rows.dtype}; allowed are booleans, whole numbers, floats to 64 bits and str")
    return rows[None, :] if rows.ndim == 1 and rows.dtype.kind in _NUMBERS else rows


def _oip(rows: NDArray[Any], id: str | None) -> bytes:
    tensor = {
        "name": _INPUT_NAME,
        "shape": rows.shape,
        "datatype": datatype_of(rows.dtype),
        "data": _flat(_numbers(rows)),
    }
    return _dumps(_identity(id) | {"inputs": [tensor]})


def _identity(id: str | None) -> dict[str, Any]:
    return {} if id is None else {"id": id}


def _flat(rows: NDArray[Any]) -> object:
    flat = rows.ravel()
    return flat.tolist() if rows.dtype.kind in "UO" else np.ascontiguousarray(flat)


def _numbers(rows: NDArray[Any]) -> NDArray[Any]:
    """The rows as JSON can hold them, exactly."""
    if rows.dtype.kind == "f":
        if not np.isfinite(rows).all():
            raise UnusableInput("x holds NaN or infinity, which JSON lacks; a route with input = 'raw' takes them")
        if rows.dtype.itemsize == 2:
            rows = rows.astype(np.float32)
    if rows.dtype.kind in _NUMBERS and not rows.dtype.isnative:
        rows = rows.astype(rows.dtype.newbyteorder("="))
    return np.ascontiguousarray(rows)


def _raw(rows: NDArray[Any]) -> tuple[bytes, list[tuple[str, bytes | None]]]:
    if rows.dtype.name not in DTYPES:
        raise UnusableInput(f"x has dtype {rows.dtype}; a raw tensor is one of {', '.join(DTYPES)}")
    value = rows.astype(rows.dtype.newbyteorder("<"), copy=False).tobytes()
    shape = ",".join(map(str, rows.shape))
    return value, [(DTYPE_HEADER, rows.dtype.name.encode()), (SHAPE_HEADER, shape.encode())]


def _text(x: Input) -> bytes:
    if not isinstance(x, str):
        raise UnusableInput(f"x is a {type(x).__name__}; this route reads text: give one str a request")
    if not x:
        raise UnusableInput("x is an empty text; there is nothing to predict from")
    return text_bytes(x, "x")


def _dumps(value: object) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    except (orjson.JSONEncodeError, TypeError) as error:
        raise UnusableInput(f"x cannot be written as JSON: {error}") from None
