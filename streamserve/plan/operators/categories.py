"""Categories: one-hot and ordinal encoding.

Source: scikit-learn's `preprocessing/_encoders.py` and `utils/_encode.py`. What an encoder does with a category (group
it as infrequent, drop it) is worked out once, at import: a cell is looked up, and what it gives is in a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse

from streamserve.core.messages import I64, AnyArray
from streamserve.plan.graph import Node
from streamserve.plan.operators.base import operator, refuse

#: In the tables: nothing, and refuse the row.
NOTHING, REFUSED = -1, -2
_NAN = object()


def _codes(column: AnyArray, categories: Sequence[Any]) -> I64:
    """The place of each value among the categories; their number for one that is none. 1, 1.0 and True are equal."""
    places = {_NAN if value != value else value: i for i, value in enumerate(categories)}  # noqa: PLR0124  (NaN)
    unknown = len(categories)
    found = []
    for value in column.tolist():
        try:
            found.append(places.get(_NAN if value != value else value, unknown))  # noqa: PLR0124  (NaN)
        except TypeError:  # it has no hash, so it is no category
            found.append(unknown)
    return np.array(found, dtype=np.int64)


@operator("one_hot", shape="sparse")
def one_hot(node: Node, inputs: Sequence[Any]) -> Any:
    """A 1 in the column of each cell's category: CSR `[n, features]`."""
    chosen = looked_up(node, inputs[0])
    given = chosen >= 0
    ends = np.concatenate([[0], np.cumsum(given.sum(axis=1))]).astype(np.int32)
    columns = chosen[given].astype(np.int32)
    shape = (len(chosen), int(node.param("features")))
    return sparse.csr_matrix((np.ones(len(columns)), columns, ends), shape=shape)


@operator("dense_one_hot", shape="dense")
def dense_one_hot(node: Node, inputs: Sequence[Any]) -> Any:
    """The same as an array."""
    chosen = looked_up(node, inputs[0])
    found = np.zeros((len(chosen), int(node.param("features"))))
    given = chosen >= 0
    found[np.nonzero(given)[0], chosen[given]] = 1.0
    return found


def looked_up(node: Node, values: AnyArray) -> I64:
    """`[n, columns]`: what the tables give for every cell."""
    tables, starts = node.array("tables"), node.array("starts")
    _check_infinite(values)
    chosen = np.empty(values.shape, dtype=np.int64)
    for column, categories in enumerate(node.param("categories")):
        chosen[:, column] = tables[starts[column] + _codes(values[:, column], categories)]
    refuse((chosen == REFUSED).any(axis=1), "a category is unknown")
    return chosen


def _check_infinite(values: AnyArray) -> None:
    """Numbers are checked as a whole: an infinite one is refused even where unknown categories are ignored."""
    if values.dtype.kind == "f" and np.isinf(values).any():
        refuse(np.asarray(np.isinf(values).any(axis=1)), "a value is infinite")


@operator("ordinal", shape="dense")
def ordinal(node: Node, inputs: Sequence[Any]) -> Any:
    """The number of each cell's category."""
    chosen = looked_up(node, inputs[0])
    values: AnyArray = node.array("values")[chosen]
    return values
