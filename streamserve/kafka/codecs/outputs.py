"""Arrays of outputs as JSON text, one piece a row: a whole block is written in one step and then cut apart."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import orjson

from streamserve.core.messages import AnyArray

_FLOATS = {2: "FP16", 4: "FP32", 8: "FP64"}


def datatype_of(dtype: np.dtype[Any]) -> str:
    """The Open Inference Protocol's name; what is neither number nor bool is written as text, BYTES."""
    if dtype.kind == "b":
        return "BOOL"
    if dtype.kind in "iu":
        return f"{'U' if dtype.kind == 'u' else ''}INT{8 * dtype.itemsize}"
    if dtype.kind == "f":
        return _FLOATS.get(dtype.itemsize, "FP64")
    return "BYTES"


def row_texts(rows: AnyArray) -> list[str]:
    """The values of each row of `[n, ...]`, comma-joined JSON in row-major order. NaN and infinity become null."""
    count = len(rows)
    if not rows.size:
        return [""] * count
    flat = rows.reshape(count, -1)
    width = flat.shape[1]
    if rows.dtype.kind not in "biuf":
        texts = [json_text(value) for value in flat.ravel().tolist()]
    else:
        if rows.dtype.kind == "f" and rows.dtype.itemsize not in _FLOATS:
            flat = flat.astype(np.float64)
        native = np.ascontiguousarray(flat.ravel(), flat.dtype.newbyteorder("="))
        # No number holds a comma, so the text of a block can be cut at them.
        texts = orjson.dumps(native, option=orjson.OPT_SERIALIZE_NUMPY).decode()[1:-1].split(",")
    return texts if width == 1 else joined(texts, range(0, count * width + 1, width))


def joined(texts: list[str], edges: list[int] | range) -> list[str]:
    """The pieces between consecutive edges, comma-joined."""
    return [",".join(texts[start:end]) for start, end in pairwise(edges)]


def json_text(value: object) -> str:
    """One JSON string (or null) for a value of any kind; what UTF-8 cannot hold is replaced."""
    if value is None:
        return "null"
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    text = value if type(value) is str else str(value)
    try:
        return orjson.dumps(text).decode()
    except orjson.JSONEncodeError:  # a lone surrogate
        return orjson.dumps(text.encode("utf-8", "replace").decode()).decode()


def json_strings(texts: list[str]) -> list[str]:
    """Each text as a JSON string, quotes included. Fast where no text of the block needs escaping."""
    together = "".join(texts)
    if together.isprintable() and '"' not in together and "\\" not in together:
        return [f'"{text}"' for text in texts]
    return [json_text(text) for text in texts]
