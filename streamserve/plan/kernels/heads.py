"""The kernel of many linear heads over columns, each after a chain of its own: one pass over the rows for all."""

from __future__ import annotations

import numpy as np
from numba import carray, njit, types  # type: ignore[attr-defined]  # not in its __all__

from streamserve.plan.kernels.dense import CHECK, CHECK_NAN, DIVIDE, PLUS, SUBTRACT, TIMES
from streamserve.plan.kernels.memory import pointer


@njit(
    types.int64(
        types.int64[::1],
        types.int64[::1],
        types.Array(types.float64, 2, "C", readonly=True),
        types.float64[:, ::1],
        types.boolean[::1],
    ),
    nogil=True,
    cache=True,
    error_model="numpy",
)
def run_heads(codes, kept, table, scores, refused):
    """Scores `[n, K]` of K chains of equal steps and their linear models. Marks rows that a check refuses. -> how many.

    `kept`: addresses of the operands `[K, steps, columns]` and of the weights `[K, columns]`. Intercepts are not added.
    """
    heads, width = scores.shape[1], table.shape[1]
    rows = kept[1] // (heads * width)
    operands = carray(pointer(kept[0]), (heads, rows, width), np.float64)
    weights = carray(pointer(kept[2]), (heads, width), np.float64)
    wrong = 0
    for row in range(len(table)):
        bad = False
        for head in range(heads):
            total = 0.0
            for column in range(width):
                value = table[row, column]
                place = 0
                for step in range(len(codes)):
                    code = codes[step]
                    if code == CHECK:
                        bad = bad or not np.isfinite(value)
                    elif code == CHECK_NAN:
                        bad = bad or np.isinf(value)
                    elif code == SUBTRACT:
                        value -= operands[head, place, column]
                    elif code == DIVIDE:
                        value /= operands[head, place, column]
                    elif code == TIMES:
                        value *= operands[head, place, column]
                    elif code == PLUS:
                        value += operands[head, place, column]
                    else:  # clip
                        value = min(max(value, operands[head, place, column]), operands[head, place + 1, column])
                        place += 1
                    if code >= SUBTRACT:
                        place += 1
                total += value * weights[head, column]
            scores[row, head] = total
        refused[row] = bad
        wrong += bad
    return wrong
