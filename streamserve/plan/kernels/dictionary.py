"""A vocabulary as bytes: an arena of entries and an open-addressing table over it.

The arena holds entry 0, 1, 2, ... one after the other, each as its length (4 bytes, little-endian) and its UTF-8
bytes, and 8 zero bytes at its end. The table has a power of two of slots, at most two thirds full, each (key, arena
offset plus one and number); it is made from the arena alone, so equal vocabularies give equal bytes. The text kernel
reads both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numba import njit, types

from streamserve.core.messages import U8, U64, AnyArray
from streamserve.plan.kernels.lookup import BASE, ID_BITS, PADDING_BYTES, key_of, slot_of
from streamserve.plan.kernels.memory import load32

_HEAD_BYTES = 4
#: A table with no entry: one empty slot, so that a search ends at once.
EMPTY_SLOTS: U64 = np.zeros((1, 2), dtype=np.uint64)
EMPTY_ARENA: U8 = np.zeros(PADDING_BYTES, dtype=np.uint8)
MOST_ENTRIES = 1 << ID_BITS


def encoded(entry: str) -> bytes:
    """UTF-8 that lets lone surrogates through, as Python's strings may hold them."""
    return entry.encode("utf-8", "surrogatepass")


def build(entries: Sequence[str]) -> tuple[U8, U64]:
    """(arena, slots) of entries; the number of an entry is its place. Raises ValueError for more than 2^28."""
    if len(entries) >= MOST_ENTRIES:
        raise ValueError(f"a vocabulary of {len(entries)} entries; at most {MOST_ENTRIES - 1} are possible")
    parts: list[bytes] = []
    for entry in entries:
        data = encoded(entry)
        parts += (len(data).to_bytes(_HEAD_BYTES, "little"), data)
    parts.append(bytes(PADDING_BYTES))
    arena: U8 = np.frombuffer(b"".join(parts), dtype=np.uint8)
    size = 1
    while size * 2 < len(entries) * 3:
        size *= 2
    slots = np.zeros((max(size, 2), 2), dtype=np.uint64) if len(entries) else EMPTY_SLOTS.copy()
    _fill(arena, len(entries), slots)
    return arena, slots


def entries_of(arena: AnyArray) -> Iterator[str]:
    """The entries in order."""
    data, at = arena.tobytes()[:-PADDING_BYTES], 0
    while at < len(data):
        length = int.from_bytes(data[at : at + _HEAD_BYTES], "little")
        at += _HEAD_BYTES
        yield data[at : at + length].decode("utf-8", "surrogatepass")
        at += length


def longest_of(arena: U8) -> int:
    """Bytes of the longest entry; 0 for none."""
    return int(_longest(arena))


def powers(longest: int) -> U64:
    """`B^0 ... B^longest` modulo 2^64."""
    result = np.ones(longest + 1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        np.multiply.accumulate(np.concatenate([result[:1], np.full(longest, BASE)]), out=result)
    return result


_ARENA = types.Array(types.uint8, 1, "C", readonly=True)


@njit(types.void(_ARENA, types.int64, types.uint64[:, ::1]), nogil=True, cache=True)
def _fill(arena, entries, slots):
    mask = np.uint64(len(slots) - 1)
    at = np.int64(0)
    for number in range(entries):
        length = np.int64(load32(arena, at))
        polynomial = np.uint64(0)
        for i in range(at + 4, at + 4 + length):
            polynomial = polynomial * BASE + np.uint64(arena[i] + 1)
        key = key_of(arena, at + 4, length, polynomial)
        slot = slot_of(key, mask)
        while slots[slot, 1] != 0:
            slot = (slot + np.uint64(1)) & mask
        slots[slot, 0] = key
        slots[slot, 1] = (np.uint64(at + 1) << np.uint64(ID_BITS)) | np.uint64(number)
        at += 4 + length


@njit(types.int64(_ARENA), nogil=True, cache=True)
def _longest(arena):
    at, longest = np.int64(0), np.int64(0)
    while at < len(arena) - PADDING_BYTES:
        length = np.int64(load32(arena, at))
        longest = max(longest, length)
        at += 4 + length
    return longest
