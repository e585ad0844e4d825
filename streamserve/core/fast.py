"""Small questions to columns, asked in the way that is cheap for one row as for thousands.

At low rates a stage handles one request at a time, and what each question costs at all is what counts: `count_nonzero`
answers in a fifth of the time of `ndarray.any`, a comparison spares most sorts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamserve.core.messages import I64, U64, Flags


def some(flags: NDArray[np.bool_] | NDArray[Any]) -> bool:
    """At least one is set."""
    return bool(np.count_nonzero(flags))


def every(flags: NDArray[np.bool_] | NDArray[Any]) -> bool:
    """None is unset; true of nothing."""
    return bool(np.count_nonzero(flags) == flags.size)


def indices(flags: NDArray[np.bool_]) -> I64:
    """Where `[n]` flags are set."""
    return flags.nonzero()[0]


_BITS = [np.uint64(1 << bit) for bit in range(64)]


def has_bit(masks: U64, bit: int) -> Flags:
    """`[n]`: which masks have this bit set."""
    flags: Flags = (masks & _BITS[bit]) != 0
    return flags


def distinct(values: NDArray[Any]) -> list[int]:
    """The different values of a `[n]` column of integers, in order."""
    if not len(values):
        return []
    if every(values == values[0]):
        return [int(values[0])]
    found: list[int] = np.unique(values).tolist()
    return found
