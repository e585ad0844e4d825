"""Columns of numbers: checks, scaling, imputing, and choosing among them.

Source: scikit-learn's `preprocessing/_data.py`, `impute/_base.py`, `utils/validation.py`. Arithmetic is done in the
input's own precision, as there: a float32 batch stays one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse

from streamserve.core.messages import AnyArray, Flags
from streamserve.plan.graph import Node
from streamserve.plan.operators.base import RowsRefused, operator, refuse
from streamserve.plan.operators.common import documents

_FLOATS = "fd"
_TINY_ROUNDINGS = 10


@operator("columns", shape="dense")
def columns(node: Node, inputs: Sequence[Any]) -> Any:
    """Some columns by their places; as `[n]` texts where `alone`."""
    places = node.array("places")
    if node.param("alone"):
        return documents(inputs[0][:, int(places[0])])
    return inputs[0][:, places]


@operator("floats", shape="same")
def floats(node: Node, inputs: Sequence[Any]) -> Any:
    """Numbers as floats, checked: infinities are refused, and NaN unless `allow_nan`."""
    values = inputs[0]
    if sparse.issparse(values):
        if values.dtype.kind != "f":
            values = values.astype(np.float64)
        _check(values.data, allow_nan=bool(node.param("allow_nan")), rows_of=values)
        return values
    table = as_floats(values)
    _check(table, allow_nan=bool(node.param("allow_nan")))
    return table


def as_floats(values: AnyArray) -> AnyArray:
    """Numbers in float32 or float64 as they are, others in float64. Raises `RowsRefused` for rows of no numbers."""
    if values.dtype.kind == "f" and values.dtype.char in _FLOATS:
        return values
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError):
        wrong = np.array([_is_no_number(row) for row in values], dtype=bool)
        raise RowsRefused(wrong, "a value is no number") from None


def _is_no_number(row: AnyArray) -> bool:
    try:
        row.astype(np.float64)
    except (TypeError, ValueError):
        return True
    return False


def words_of_refusal(*, allow_nan: bool) -> str:
    return "a value is infinite" if allow_nan else "a value is NaN or infinite"


def _check(values: Any, *, allow_nan: bool, rows_of: Any = None) -> None:
    """A sum is finite where all values are, and costs one pass; only else each is looked at."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(np.sum(values)):
            return
    wrong = np.isinf(values) if allow_nan else ~np.isfinite(values)
    if rows_of is None:
        refuse(wrong.any(axis=1), words_of_refusal(allow_nan=allow_nan))
    elif wrong.any():
        rows: Flags = np.zeros(rows_of.shape[0], dtype=bool)
        rows[np.repeat(np.arange(rows_of.shape[0]), np.diff(rows_of.indptr))[wrong]] = True
        refuse(rows, "a value is NaN or infinite")


@operator("singles", shape="same")
def singles(node: Node, inputs: Sequence[Any]) -> Any:
    """Numbers as float32, which trees compare; what is too large for it is refused, and NaN unless `allow_nan`."""
    values = inputs[0]
    with np.errstate(over="ignore"):
        if sparse.issparse(values):
            narrow = values.astype(np.float32)
            _check(narrow.data, allow_nan=False, rows_of=narrow)
            return narrow
        table = np.ascontiguousarray(as_floats(values), dtype=np.float32)
    _check(table, allow_nan=bool(node.param("allow_nan")))
    return table


def _in_place(operation: Any, node: Node, value: Any) -> Any:
    """As `X op= by`: in the precision of X."""
    by = node.array("by")
    if node.param("narrow"):
        by = by.astype(value.dtype)
    if sparse.issparse(value):
        return sparse.csr_matrix(
            (operation(value.data, by.take(value.indices, mode="clip")), value.indices, value.indptr), shape=value.shape
        )
    return operation(value, by, out=np.empty_like(value))


@operator("subtract", shape="same")
def subtract(node: Node, inputs: Sequence[Any]) -> Any:
    """Minus a number a column."""
    return _in_place(np.subtract, node, inputs[0])


@operator("divide", shape="same")
def divide(node: Node, inputs: Sequence[Any]) -> Any:
    """By a number a column."""
    return _in_place(np.divide, node, inputs[0])


@operator("times", shape="same")
def times(node: Node, inputs: Sequence[Any]) -> Any:
    """Times a number a column."""
    return _in_place(np.multiply, node, inputs[0])


@operator("plus", shape="same")
def plus(node: Node, inputs: Sequence[Any]) -> Any:
    """Plus a number a column."""
    return _in_place(np.add, node, inputs[0])


@operator("clip", shape="same")
def clip(node: Node, inputs: Sequence[Any]) -> Any:
    """Between two numbers."""
    low, high = (inputs[0].dtype.type(node.param(name)) for name in ("low", "high"))
    if sparse.issparse(inputs[0]):
        value = inputs[0]
        return sparse.csr_matrix((np.clip(value.data, low, high), value.indices, value.indptr), shape=value.shape)
    return np.clip(inputs[0], low, high)


@operator("threshold", shape="same")
def threshold(node: Node, inputs: Sequence[Any]) -> Any:
    """1 above a number, else 0; of a CSR matrix the zeros go."""
    if sparse.issparse(inputs[0]):
        matrix = inputs[0]
        marked = sparse.csr_matrix(
            ((matrix.data > node.param("above")).astype(matrix.dtype), matrix.indices, matrix.indptr), matrix.shape
        )
        marked.eliminate_zeros()
        return marked
    return (inputs[0] > node.param("above")).astype(inputs[0].dtype)


@operator("row_norm", shape="dense", each_row_alone=False)
def row_norm(node: Node, inputs: Sequence[Any]) -> Any:
    """A dense row divided by its norm; norms close to zero count as 1."""
    values, kind = inputs[0], node.param("norm")
    if kind == "l2":
        norms = np.sqrt(np.einsum("ij,ij->i", values, values))
    else:
        norms = np.abs(values).sum(axis=1) if kind == "l1" else np.abs(values).max(axis=1)
    norms[norms < _TINY_ROUNDINGS * np.finfo(norms.dtype).eps] = 1.0
    return values / norms[:, None]


@operator("impute", shape="dense")
def impute(node: Node, inputs: Sequence[Any]) -> Any:
    """NaN becomes its column's number; columns that were never observed are left out."""
    values = inputs[0][:, node.array("kept")]
    missing = np.isnan(values)
    if not missing.any():
        return values
    return np.where(missing, node.array("by").astype(values.dtype), values)
