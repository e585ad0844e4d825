"""The forest kernels: trees as rows of three numbers, walked row by row or tree by tree.

A node is three int32 side by side, so that it costs one cache line: column (-1: a leaf; plus `NAN_LEFT` where NaN goes
left), right child (of a leaf: its number), and the bits of the float32 threshold. The left child comes right after.
Row by row suits few rows; tree by tree suits many, since a tree stays in the cache while all rows go through it. Either
adds the leaves of a row in the order of the trees.
"""

from __future__ import annotations

import numpy as np
from numba import carray, njit, types  # type: ignore[attr-defined]  # not in its __all__

from streamserve.plan.kernels.memory import pointer

NAN_LEFT = 1 << 30
_COLUMN = NAN_LEFT - 1
#: Rows that go through one tree together.
_BLOCK = 256


@njit(nogil=True)
def _reached(columns, thresholds, root, table, row, has_nan):
    """The leaf that a row comes to. `columns` and `thresholds` are the same memory.

    Branches, not selections: the processor guesses the way and loads ahead.
    """
    at = np.int64(root) * 3
    column = columns[at]
    while column >= 0:
        value = table[row, column & _COLUMN]
        if value <= thresholds[at + 2] or (has_nan and value != value and column & NAN_LEFT):
            at += 3
        else:
            at = np.int64(columns[at + 1]) * 3
        column = columns[at]
    return columns[at + 1]


@njit(nogil=True)
def _add_leaf(leaves, width, leaf, head, sums, row):
    if head >= 0:
        sums[row, head] += leaves[np.int64(leaf) * width]
    else:
        for i in range(width):
            sums[row, i] += leaves[np.int64(leaf) * width + i]


@njit(nogil=True)
def _views(kept):
    columns = carray(pointer(kept[0]), kept[1], np.int32)
    thresholds = carray(pointer(kept[0]), kept[1], np.float32)
    roots = carray(pointer(kept[4]), kept[5], np.int32)
    heads = carray(pointer(kept[6]), kept[7], np.int32)
    return columns, thresholds, roots, heads


@njit(nogil=True, inline="always")
def _by_tree(columns, thresholds, roots, heads, leaves, width, table, sums, has_nan):
    for start in range(0, len(table), _BLOCK):
        end = min(start + _BLOCK, len(table))
        for tree in range(len(roots)):
            root, head = roots[tree], heads[tree]
            if head >= 0:
                for row in range(start, end):
                    leaf = _reached(columns, thresholds, root, table, row, has_nan)
                    sums[row, head] += leaves[np.int64(leaf) * width]
            else:
                for row in range(start, end):
                    leaf = _reached(columns, thresholds, root, table, row, has_nan)
                    _add_leaf(leaves, width, leaf, head, sums, row)


_KEPT = types.int64[::1]
_TABLE = types.Array(types.float32, 2, "C", readonly=True)


@njit(types.void(_KEPT, types.int64, _TABLE, types.boolean, types.float64[:, ::1]), nogil=True, cache=True)
def add_dense(kept, width, table, by_tree, sums):
    """Add to `sums [n, K]` what every tree says of each row of `table`. `width`: values of a leaf."""
    columns, thresholds, roots, heads = _views(kept)
    leaves = carray(pointer(kept[2]), kept[3], np.float64)
    has_nan = False
    for row in range(len(table)):
        for column in range(table.shape[1]):
            has_nan |= table[row, column] != table[row, column]
    if not by_tree:
        for row in range(len(table)):
            for tree in range(len(roots)):
                leaf = _reached(columns, thresholds, roots[tree], table, row, has_nan)
                _add_leaf(leaves, width, leaf, heads[tree], sums, row)
    elif has_nan:
        _by_tree(columns, thresholds, roots, heads, leaves, width, table, sums, True)
    else:
        _by_tree(columns, thresholds, roots, heads, leaves, width, table, sums, False)


_INT32 = types.Array(types.int32, 1, "C", readonly=True)
_FLOAT32 = types.Array(types.float32, 1, "C", readonly=True)


@njit(
    types.void(_KEPT, types.int64, _INT32, _INT32, _FLOAT32, types.float32[:, ::1], types.float64[:, ::1]),
    nogil=True,
    cache=True,
)
def add_sparse(kept, width, ends, indices, data, values, sums):
    """The same of CSR rows; `values` `[1, columns]` has room for a row, all zeros, and is left so."""
    columns, thresholds, roots, heads = _views(kept)
    leaves = carray(pointer(kept[2]), kept[3], np.float64)
    for row in range(len(ends) - 1):
        for i in range(ends[row], ends[row + 1]):
            values[0, indices[i]] = data[i]
        for tree in range(len(roots)):
            leaf = _reached(columns, thresholds, roots[tree], values, 0, False)
            _add_leaf(leaves, width, leaf, heads[tree], sums, row)
        for i in range(ends[row], ends[row + 1]):
            values[0, indices[i]] = 0
