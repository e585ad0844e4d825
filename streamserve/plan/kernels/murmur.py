"""MurmurHash3 (x86, 32 bits, seed 0) of slices, and the feature that scikit-learn's hashing makes of it.

Source: Austin Appleby's MurmurHash3, in the public domain; scikit-learn's `feature_extraction/_hashing_fast.pyx`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from streamserve.plan.kernels.memory import load32

_FIRST, _SECOND = np.uint32(0xCC9E2D51), np.uint32(0x1B873593)
_LOWEST = -(1 << 31)


@njit(nogil=True)
def _turned(value, bits):
    return np.uint32(value << np.uint32(bits)) | np.uint32(value >> np.uint32(32 - bits))


@njit(nogil=True)
def _mixed(block):
    return np.uint32(_turned(np.uint32(block * _FIRST), 15) * _SECOND)


@njit(nogil=True)
def murmur(buffer, left, length):
    """The hash of `buffer[left:left + length]` as a signed number; eight bytes may be read past the slice's end."""
    state = np.uint32(0)
    whole = length & ~3
    for i in range(0, whole, 4):
        state = np.uint32(_turned(np.uint32(state ^ _mixed(np.uint32(load32(buffer, left + i)))), 13) * np.uint32(5))
        state = np.uint32(state + np.uint32(0xE6546B64))
    rest = length & 3
    if rest:
        mask = np.uint32((1 << (8 * rest)) - 1)
        state = np.uint32(state ^ _mixed(np.uint32(load32(buffer, left + whole)) & mask))
    state = np.uint32(state ^ np.uint32(length))
    state = np.uint32(np.uint32(state ^ (state >> np.uint32(16))) * np.uint32(0x85EBCA6B))
    state = np.uint32(np.uint32(state ^ (state >> np.uint32(13))) * np.uint32(0xC2B2AE35))
    state = np.uint32(state ^ (state >> np.uint32(16)))
    return np.int64(np.int32(state))


@njit(nogil=True)
def feature_of(hashed, features):
    """The column of a hash; the lowest number has no absolute value of 32 bits, and is placed as scikit-learn does."""
    if hashed == _LOWEST:
        return (2147483647 - (features - 1)) % features
    return abs(hashed) % features
