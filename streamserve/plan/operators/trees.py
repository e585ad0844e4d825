"""Trees and forests.

A forest is arrays: trees end to end, every node before its left and right part, the left child right after its parent.
A node is the column that it looks at (or -1: a leaf), the place of its right child (of a leaf: its number), and a
threshold. Thresholds are kept in float32, rounded down: values are float32, so `x <= t` comes out the same.

Source: scikit-learn's `tree/_tree.pyx`, `ensemble/_forest.py`, `ensemble/_gradient_boosting.pyx`: values are compared
as float32, NaN goes where the node says, leaves are added in the order of the trees.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse

from streamserve.core.messages import F64, I64, AnyArray
from streamserve.plan.graph import Node
from streamserve.plan.kernels.forest import NAN_LEFT
from streamserve.plan.operators.base import operator
from streamserve.plan.operators.linear import classes_of

#: Cells of CSR rows that are made dense at once.
_CELLS_AT_ONCE = 1 << 22


@operator("forest", shape="scores")
def forest(node: Node, inputs: Sequence[Any]) -> F64:
    """`[n, K]`: the start, plus each tree's leaf, in order; divided by `divide_by`."""
    table = inputs[0]
    rows = table.shape[0]
    start = node.array("start")
    sums: F64 = np.tile(start, (rows, 1)).astype(np.float64)
    step = max(1, _CELLS_AT_ONCE // max(1, table.shape[1]))
    for first in range(0, rows, step):
        part = table[first : first + step]
        _add(node, part.toarray() if sparse.issparse(part) else part, sums[first : first + step])
    divide_by = node.param("divide_by")
    if divide_by != 1:
        sums /= divide_by
    return sums


def _add(node: Node, table: AnyArray, sums: F64) -> None:
    leaves, heads = node.array("leaves"), node.array("heads")
    for tree, root in enumerate(node.array("roots").tolist()):
        reached = _leaves_of(node, table, root)
        if heads[tree] < 0:
            sums += leaves[reached]
        else:
            sums[:, heads[tree]] += leaves[reached, 0]


def parts_of(node: Node) -> tuple[I64, I64, AnyArray]:
    """Column, right child and threshold of every node of the trees."""
    nodes = node.array("nodes")
    return nodes[:, 0], nodes[:, 1], np.ascontiguousarray(nodes[:, 2]).view(np.float32)


def _leaves_of(node: Node, table: AnyArray, root: int) -> I64:
    """The leaf that every row comes to in the tree that begins at `root`."""
    column, right, threshold = parts_of(node)
    at = np.full(len(table), root, dtype=np.int64)
    rows = np.arange(len(table))
    while True:
        inner = column[at] >= 0
        if not inner.any():
            reached: I64 = right[at].astype(np.int64)
            return reached
        here = at[inner]
        values: Any = table[rows[inner], column[here] & (NAN_LEFT - 1)]
        goes_left = (values <= threshold[here]) | (np.isnan(values) & (column[here] & NAN_LEFT != 0))
        at[inner] = np.where(goes_left, here + 1, right[here])


@operator("first_column", shape="answers")
def first_column(_: Node, inputs: Sequence[Any]) -> F64:
    """`[n]` of `[n, 1]`; several stay."""
    scores: F64 = inputs[0]
    return scores.reshape(-1) if scores.shape[1] == 1 else scores


@operator("not_below", shape="answers")
def not_below(node: Node, inputs: Sequence[Any]) -> AnyArray:
    """Of one score the second class from 0 on (a linear model's begins above 0); of several the highest's."""
    scores = inputs[0]
    best = (scores >= 0).astype(np.intp) if scores.ndim == 1 else np.argmax(scores, axis=1)
    labels: AnyArray = classes_of(node)[best]
    return labels
