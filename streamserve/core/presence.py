"""Columns of `Missing` codes that say: everything was answered. Most do, and are then one shared array a length."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from streamserve.core.fast import every
from streamserve.core.messages import U8
from streamserve.core.reasons import PRESENT


@lru_cache(maxsize=64)
def all_present(n: int) -> U8:
    """`[n]`, not to be written to."""
    missing = np.full(n, PRESENT, np.uint8)
    missing.flags.writeable = False
    return missing


def is_present(missing: U8) -> bool:
    """Everything was answered; true of nothing."""
    return missing is all_present(len(missing)) or every(missing == PRESENT)
