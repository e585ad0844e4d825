"""Kernels of dense columns: chains of checks and arithmetic, and numbers made narrow; one pass over the rows each."""

from __future__ import annotations

import numpy as np
from numba import carray, njit, types  # type: ignore[attr-defined]  # not in its __all__

from streamserve.plan.kernels.memory import pointer

CHECK, CHECK_NAN, SUBTRACT, DIVIDE, TIMES, PLUS, CLIP = range(7)


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
def run_chain(codes, kept, table, out, refused):
    """Take every value through the steps; `kept` is the address of `[steps, columns]` operands, for `CLIP` of two rows.

    Marks rows that a check refuses. -> how many.
    """
    width = table.shape[1]
    operands = carray(pointer(kept[0]), (kept[1] // width, width), np.float64)
    wrong = 0
    for row in range(len(table)):
        bad = False
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
                    value -= operands[place, column]
                elif code == DIVIDE:
                    value /= operands[place, column]
                elif code == TIMES:
                    value *= operands[place, column]
                elif code == PLUS:
                    value += operands[place, column]
                else:
                    if value < operands[place, column]:
                        value = operands[place, column]
                    if value > operands[place + 1, column]:
                        value = operands[place + 1, column]
                    place += 1
                if code >= SUBTRACT:
                    place += 1
            out[row, column] = value
        refused[row] = bad
        wrong += bad
    return wrong


@njit(
    types.int64(
        types.boolean,
        types.Array(types.float64, 2, "C", readonly=True),
        types.float32[:, ::1],
        types.boolean[::1],
    ),
    nogil=True,
    cache=True,
    error_model="numpy",
)
def narrow(allow_nan, table, out, refused):
    """Numbers as float32; marks rows that hold an infinite one then, or NaN unless `allow_nan`. -> how many."""
    wrong = 0
    for row in range(len(table)):
        bad = False
        for column in range(table.shape[1]):
            value = np.float32(table[row, column])
            bad = bad or np.isinf(value) or (np.isnan(value) and not allow_nan)
            out[row, column] = value
        refused[row] = bad
        wrong += bad
    return wrong
