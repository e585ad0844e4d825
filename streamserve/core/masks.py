"""Which models of a route, as the bits of a number."""

from __future__ import annotations

import numpy as np

from streamserve.core.fast import has_bit
from streamserve.core.messages import U64, Flags


def bits(mask: U64, width: int) -> Flags:
    """`[n]` masks -> `[n, width]` flags."""
    return (mask[:, None] >> np.arange(width, dtype=np.uint64)[None, :] & np.uint64(1)).astype(np.bool_)


def in_order_of(ours: tuple[str, ...], theirs: tuple[str, ...], chosen: U64) -> tuple[U64, Flags]:
    """`[n]` masks in the order of another config of the route, in ours; and which name only models that are ours."""
    found, known = np.zeros(len(chosen), np.uint64), np.ones(len(chosen), np.bool_)
    for bit, model in enumerate(theirs):
        named = has_bit(chosen, bit)
        if model in ours:
            found[named] |= np.uint64(1 << ours.index(model))
        else:
            known &= ~named
    return found, known
