"""The kernel of histogram-based boosting: trees over float64 columns, some of which hold numbers of categories.

A node is four int32 side by side: column (-1: a leaf) with its flags, right child (of a leaf: its number), and eight
bytes: the float64 threshold, or of a split by categories the number of its set. The left child comes right after. A set
is eight uint32, a bit a category; a category that was not known at fitting goes where missing values go.
"""

from __future__ import annotations

import numpy as np
from numba import carray, njit, types  # type: ignore[attr-defined]  # not in its __all__

from streamserve.plan.kernels.memory import pointer

MISSING_LEFT, BY_CATEGORY = 1 << 30, 1 << 29
COLUMN = BY_CATEGORY - 1
#: 32-bit words of a set of categories.
SET_WORDS = 8
_BLOCK = 256


@njit(nogil=True)
def _has(sets, number, category):
    return (sets[number * SET_WORDS + (category >> 5)] >> np.uint32(category & 31)) & np.uint32(1) != 0


@njit(nogil=True)
def _reached(whole, halves, sets, known, root, table, row):
    """The leaf that a row comes to. `whole` (float64) and `halves` (int32) are the same memory."""
    at = np.int64(root)
    column = halves[4 * at]
    while column >= 0:
        value = table[row, column & COLUMN]
        left = column & MISSING_LEFT != 0
        if not np.isnan(value):
            if column & BY_CATEGORY == 0:
                left = value <= whole[2 * at + 1]
            elif 0 <= value < 32 * SET_WORDS:
                category = np.int64(value)
                if _has(sets, np.int64(halves[4 * at + 2]), category):
                    left = True
                elif _has(known, column & COLUMN, category):
                    left = False
        at = at + 1 if left else np.int64(halves[4 * at + 1])
        column = halves[4 * at]
    return halves[4 * at + 1]


@njit(
    types.void(
        types.int64[::1],
        types.Array(types.float64, 2, "C", readonly=True),
        types.boolean,
        types.float64[:, ::1],
    ),
    nogil=True,
    cache=True,
)
def add_boosted(kept, table, by_tree, sums):
    """Add to `sums [n, K]` the leaf of every tree, in order. `kept`: addresses of nodes, leaves, roots, sets, known."""
    whole = carray(pointer(kept[0]), kept[1] // 2, np.float64)
    halves = carray(pointer(kept[0]), kept[1], np.int32)
    leaves = carray(pointer(kept[2]), kept[3], np.float64)
    roots = carray(pointer(kept[4]), kept[5], np.int32)
    sets = carray(pointer(kept[6]), kept[7], np.uint32)
    known = carray(pointer(kept[8]), kept[9], np.uint32)
    heads = sums.shape[1]
    if not by_tree:
        for row in range(len(table)):
            for tree in range(len(roots)):
                leaf = _reached(whole, halves, sets, known, roots[tree], table, row)
                sums[row, tree % heads] += leaves[leaf]
        return
    for start in range(0, len(table), _BLOCK):
        for tree in range(len(roots)):
            for row in range(start, min(start + _BLOCK, len(table))):
                leaf = _reached(whole, halves, sets, known, roots[tree], table, row)
                sums[row, tree % heads] += leaves[leaf]
