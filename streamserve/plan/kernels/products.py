"""The kernel of features that are there already: rows kept elsewhere, each given by its addresses, times weights."""

from __future__ import annotations

import numpy as np
from numba import carray, njit, types  # type: ignore[attr-defined]  # not in its __all__

from streamserve.plan.kernels.memory import pointer


@njit(
    [types.void(types.int64[:, ::1], types.int64[::1], heads[:, ::1]) for heads in (types.float64, types.float32)],
    nogil=True,
    cache=True,
    error_model="numpy",
)
def add_products(rows, kept, scores):
    """Add to `scores [n, K]` the products of some rows' features with weights `[features, K]`, in ascending order.

    In the type of the scores, as the text kernel. `rows [m, 4]`: the row of `scores`, the addresses of its int32 ids
    and float64 values, how many. `kept`: address and size of the weights.
    """
    heads = scores.shape[1]
    weights = carray(pointer(kept[0]), (kept[1] // heads, heads), scores.dtype)
    for i in range(len(rows)):
        place, count = rows[i, 0], rows[i, 3]
        ids = carray(pointer(rows[i, 1]), count, np.int32)
        values = carray(pointer(rows[i, 2]), count, np.float64)
        if heads == 1:
            total = scores[place, 0]
            for k in range(count):
                total += scores.dtype.type(values[k]) * weights[ids[k], 0]
            scores[place, 0] = total
        else:
            for k in range(count):
                value, one = scores.dtype.type(values[k]), ids[k]
                for head in range(heads):
                    scores[place, head] += value * weights[one, head]
