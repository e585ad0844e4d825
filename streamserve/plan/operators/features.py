"""Columns made of columns: functions of one number, bins, missing-value marks, products, choices.

Source: scikit-learn's `preprocessing/_discretization.py`, `_polynomial.py`, `_function_transformer.py`,
`impute/_base.py` (MissingIndicator), `feature_selection/_base.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse

from streamserve.core.messages import AnyArray
from streamserve.plan.graph import Node
from streamserve.plan.operators.base import operator, refuse
from streamserve.plan.operators.columns import as_floats

#: Functions of one number that numpy applies to every element by itself.
FUNCTIONS = (
    "abs", "absolute", "cbrt", "cos", "exp", "exp2", "expm1", "log", "log10", "log1p", "log2", "negative", "reciprocal",
    "sign", "sin", "sqrt", "square", "tan", "tanh",
)  # fmt: skip


@operator("doubles", shape="dense")
def doubles(_: Node, inputs: Sequence[Any]) -> Any:
    """Numbers as float64, NaN and infinities too."""
    return as_floats(inputs[0]).astype(np.float64, copy=False)


@operator("function", shape="dense")
def function(node: Node, inputs: Sequence[Any]) -> Any:
    """numpy's function of that name, of every number."""
    values: AnyArray = inputs[0]
    with np.errstate(all="ignore"):
        return getattr(np, node.param("name"))(as_floats(values) if values.dtype == object else values)


@operator("select", shape="same")
def select(node: Node, inputs: Sequence[Any]) -> Any:
    """Some columns of a matrix that another operator has made."""
    return inputs[0][:, node.array("places")]


@operator("missing", shape="dense")
def missing(node: Node, inputs: Sequence[Any]) -> Any:
    """True where a number is NaN, in the columns that had one at fitting; NaN elsewhere is refused where `refuses`."""
    marks = np.isnan(inputs[0])
    places = node.array("places")
    if node.param("refuses"):
        others = np.ones(marks.shape[1], dtype=bool)
        others[places] = False
        refuse(marks[:, others].any(axis=1), "a value is missing in a column that had none at fitting")
    return marks[:, places]


@operator("bins", shape="dense")
def bins(node: Node, inputs: Sequence[Any]) -> Any:
    """The number of the bin that each value falls into, in the input's precision."""
    values = inputs[0]
    edges, starts = node.array("edges"), node.array("starts")
    found = np.empty_like(values)
    for column in range(values.shape[1]):
        own = edges[starts[column] : starts[column + 1]]
        found[:, column] = np.searchsorted(own, values[:, column], side="right")
    return found


def _columns_of(node: Node, numbers: AnyArray) -> Any:
    return numbers.astype(np.int32) + node.array("starts")


@operator("places", shape="sparse")
def places(node: Node, inputs: Sequence[Any]) -> Any:
    """A 1 in the column of each number, CSR; `starts`: the first column of each input column."""
    numbers: AnyArray = inputs[0]
    columns = _columns_of(node, numbers)
    rows, width = columns.shape
    ends = np.arange(0, rows * width + 1, width, dtype=np.int32) if width else np.zeros(rows + 1, dtype=np.int32)
    ones = np.ones(rows * width, dtype=numbers.dtype)
    return sparse.csr_matrix((ones, columns.reshape(-1), ends), shape=(rows, int(node.param("features"))))


@operator("dense_places", shape="dense")
def dense_places(node: Node, inputs: Sequence[Any]) -> Any:
    """The same as an array."""
    numbers: AnyArray = inputs[0]
    found = np.zeros((len(numbers), int(node.param("features"))), dtype=numbers.dtype)
    np.put_along_axis(found, _columns_of(node, numbers), 1, axis=1)
    return found


@operator("polynomial", shape="dense")
def polynomial(node: Node, inputs: Sequence[Any]) -> Any:
    """Products of columns: every term of a degree is one of the degree below times a column, as it is there."""
    values = inputs[0]
    terms, factors, ends = node.array("terms"), node.array("factors"), node.array("ends")
    first = int(node.param("bias"))
    found = np.empty((len(values), first + values.shape[1] + len(terms)), dtype=values.dtype)
    found[:, :first] = 1
    found[:, first : first + values.shape[1]] = values
    begin, done = 0, first + values.shape[1]
    for end in ends.tolist():
        if end > begin:
            np.multiply(
                found.take(terms[begin:end], axis=1), values.take(factors[begin:end], axis=1),
                out=found[:, done + begin : done + end],
            )  # fmt: skip
        begin = end
    kept = node.array("kept")
    return found if len(kept) == found.shape[1] else found.take(kept, axis=1)
