"""Histogram-based gradient boosting: float64 thresholds, sets of categories, missing values with a side of their own.

Source: scikit-learn's `ensemble/_hist_gradient_boosting/_predictor.pyx`, `gradient_boosting.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from streamserve.core.messages import F64, I64, AnyArray, Flags
from streamserve.plan.graph import Node
from streamserve.plan.kernels.histograms import BY_CATEGORY, COLUMN, MISSING_LEFT, SET_WORDS
from streamserve.plan.operators.base import operator


@operator("boosted", shape="scores")
def boosted(node: Node, inputs: Sequence[Any]) -> F64:
    """`[n, K]`: the start plus each tree's leaf, in order; trees of K classes take turns."""
    table = inputs[0]
    sums: F64 = np.tile(node.array("start"), (len(table), 1))
    for tree, root in enumerate(node.array("roots").tolist()):
        sums[:, tree % sums.shape[1]] += node.array("leaves")[_leaves_of(node, table, root)]
    return np.asfortranarray(sums)  # as the original has it: its sums over classes go the other way


def _leaves_of(node: Node, table: AnyArray, root: int) -> I64:
    nodes = node.array("nodes")
    thresholds = np.ascontiguousarray(nodes[:, 2:]).view(np.float64)[:, 0]
    at = np.full(len(table), root, dtype=np.int64)
    rows = np.arange(len(table))
    while True:
        inner = nodes[at, 0] >= 0
        if not inner.any():
            reached: I64 = nodes[at, 1].astype(np.int64)
            return reached
        here = at[inner]
        flags, columns = nodes[here, 0], nodes[here, 0] & COLUMN
        values: Any = table[rows[inner], columns]
        left = np.where(np.isnan(values), flags & MISSING_LEFT != 0, values <= thresholds[here])
        of_sets = (flags & BY_CATEGORY != 0) & ~np.isnan(values)
        if of_sets.any():
            goes_left = _in(node.array("sets"), nodes[here, 2], values)
            is_known = _in(node.array("known"), columns, values)
            by_set = goes_left | (~is_known & (flags & MISSING_LEFT != 0))
            left = np.where(of_sets, by_set, left)
        at[inner] = np.where(left, here + 1, nodes[here, 1])


def _in(sets: AnyArray, numbers: I64, values: F64) -> Flags:
    """Whether each value is a category of the set of that number."""
    fits = (values >= 0) & (values < 32 * SET_WORDS)
    category = np.where(fits, values, 0).astype(np.int64)
    number = np.clip(numbers, 0, max(len(sets) - 1, 0))
    if not len(sets):
        return np.zeros(len(values), dtype=bool)
    found: Flags = fits & ((sets[number, category >> 5] >> (category & 31).astype(np.uint32)) & 1 != 0)
    return found


@operator("power", shape="answers")
def power(_: Node, inputs: Sequence[Any]) -> AnyArray:
    """e to the power of each number: the inverse of a logarithmic link."""
    with np.errstate(all="ignore"):
        found: AnyArray = np.exp(inputs[0])
    return found
