"""Small questions to columns, asked in the way that is cheap for one row as for thousands.

At low rates a stage handles one request at a time, and what each question costs at all is what counts: looking for a
byte answers in a fifteenth of the time of `ndarray.any`, a comparison spares most sorts.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamserve.core.messages import I64, U64, Flags


def some(flags: Flags) -> bool:
    """At least one is set."""
    return 1 in flags.tobytes()


def every(flags: Flags) -> bool:
    """None is unset; true of nothing."""
    return 0 not in flags.tobytes()


def constant(n: int, value: int, dtype: str = "int64") -> NDArray[Any]:
    """`[n]`, all the same, and not to be written to: small ones are shared."""
    return _shared_constant(n, value, dtype) if n <= _FEW else _constant(n, value, dtype)


def _constant(n: int, value: int, dtype: str) -> NDArray[Any]:
    column = np.full(n, value, dtype)
    column.flags.writeable = False
    return column


_shared_constant = lru_cache(maxsize=4096)(_constant)


def lowest(values: NDArray[Any]) -> int:
    """The least of a `[n]` column of integers, n at least 1."""
    return int(values[0]) if len(values) == 1 else int(values.min())


def highest(values: NDArray[Any]) -> int:
    """The greatest of a `[n]` column of integers, n at least 1."""
    return int(values[0]) if len(values) == 1 else int(values.max())


def indices(flags: NDArray[np.bool_]) -> I64:
    """Where `[n]` flags are set."""
    return flags.nonzero()[0]


_FEW = 16
_BITS = [np.uint64(1 << bit) for bit in range(64)]


def has_bit(masks: U64, bit: int) -> Flags:
    """`[n]`: which masks have this bit set."""
    flags: Flags = (masks & _BITS[bit]) != 0
    return flags


def distinct(values: NDArray[Any]) -> list[int]:
    """The different values of a `[n]` column of integers, in order."""
    if len(values) <= 1:
        alone: list[int] = values.tolist()
        return alone
    if every(values == values[0]):
        return [int(values[0])]
    found: list[int] = np.unique(values).tolist()
    return found
