"""Keys of slices of a buffer, and the search for them in a dictionary's table."""

from __future__ import annotations

import numpy as np
from numba import njit

from streamserve.plan.kernels.memory import load32, load64

#: Multiplier of the polynomial hash: odd, so that it can be undone modulo 2^64.
BASE = np.uint64(0x9E3779B97F4A7C15)
#: Bits of a slot's second word that hold the feature's number; the rest is the arena's offset, plus one.
ID_BITS = 28
#: Entries up to this long are their own key, byte for byte; longer ones have a hash, and are compared.
EXACT_BYTES = 7
#: After the last byte of an arena and of a buffer, so that eight bytes can be loaded anywhere.
PADDING_BYTES = 8
#: Set in the key of what is compared.
HASHED = np.uint64(0xFF << 56)


@njit(nogil=True)
def slot_of(key, mask):
    """Where the search for a key begins. The polynomial's low bits are weak, so all are mixed first."""
    mixed = key ^ (key >> np.uint64(32))
    mixed *= np.uint64(0xD6E8FEB86659FD93)
    return (mixed ^ (mixed >> np.uint64(32))) & mask


@njit(nogil=True)
def key_of(data, left, length, polynomial):
    """The key of a slice: its bytes and length where it is short, else its hash, marked as one."""
    if length <= EXACT_BYTES:
        word = load64(data, left)
        kept = word & ((np.uint64(1) << np.uint64(8 * length)) - np.uint64(1))
        return kept | (np.uint64(length) << np.uint64(56))
    return polynomial | HASHED


@njit(nogil=True)
def _equals(buffer, left, length, arena, offset):
    """Whether the arena's entry at `offset` is the slice, of more than `EXACT_BYTES`."""
    if np.int64(load32(arena, offset)) != length:
        return False
    offset += 4
    whole = length & ~7
    for i in range(0, whole, 8):
        if load64(buffer, left + i) != load64(arena, offset + i):
            return False
    rest = length & 7
    if rest == 0:
        return True
    mask = (np.uint64(1) << np.uint64(8 * rest)) - np.uint64(1)
    return (load64(buffer, left + whole) ^ load64(arena, offset + whole)) & mask == 0


@njit(nogil=True)
def find(buffer, left, length, key, slot, slots, mask, arena):
    """The number of the entry that equals `buffer[left:left + length]`, or -1; the search begins at `slot`."""
    while True:
        packed = slots[slot, 1]
        if packed == 0:
            return np.int64(-1)
        if slots[slot, 0] == key and (
            key < HASHED or _equals(buffer, left, length, arena, np.int64(packed >> np.uint64(ID_BITS)) - 1)
        ):
            return np.int64(packed & np.uint64((1 << ID_BITS) - 1))
        slot = (slot + np.uint64(1)) & mask
