"""The text kernel: segment, n-grams, look-up, weight, norm, and either a dot product or rows of a CSR matrix.

One kernel for every analyser of scikit-learn. A document is brought into a buffer in which every n-gram is one slice:
words with single spaces between them, or the characters themselves. With prefix hashes `P[i+1] = P[i]·B + byte + 1`
(mod 2^64) the hash of any slice is `P[r] - P[l]·B^(r-l)`, so no n-gram costs more than another, and a vocabulary's
entry is hashed as the one string that it is: it is never split back into words. What the table finds is compared byte
by byte, so no collision can change an answer.

Counts stand in one array as long as the vocabulary; a bitmap of two levels says which are not zero and gives them back
in ascending order, which is the order in which scikit-learn and scipy add.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, njit, types  # type: ignore[attr-defined]  # not in its __all__

from streamserve.plan.kernels import segments
from streamserve.plan.kernels.lookup import EXACT_BYTES, HASHED, find, key_of, slot_of
from streamserve.plan.kernels.memory import load64, pointer, trailing_zeros
from streamserve.plan.kernels.murmur import feature_of, murmur

WORD, CHAR, CHAR_WB, TOKENS = 0, 1, 2, 3
NORM_NONE, NORM_L1, NORM_L2, NORM_MAX = 0, 1, 2, 3
#: N-grams whose slots are loaded at once.
_BLOCK = 256


@njit(nogil=True)
def _keys(buffer, prefix, power, units, first, last, n, keys, places, filled):
    """Append the key of every n-gram of units `first` to `last`, and the place of those that are compared later.

    Those that are longer than any entry are left out. -> how many keys there are now.
    """
    longest = len(power) - 1
    for i in range(first, last - n + 1):
        left = units[0, i]
        length = units[1, i + n - 1] - left
        if length <= longest:
            keys[filled] = key_of(buffer, left, length, prefix[left + length] - prefix[left] * power[length])
            places[filled, 0] = left
            places[filled, 1] = length
            filled += 1
    return filled


@njit(nogil=True)
def _ascii_keys(buffer, prefix, power, first, last, n, keys, places, filled):
    """`_keys` where every byte is a unit."""
    if n >= len(power):
        return filled
    if n <= EXACT_BYTES:
        mask = (np.uint64(1) << np.uint64(8 * n)) - np.uint64(1)
        size = np.uint64(n) << np.uint64(56)
        for left in range(first, last - n + 1):
            keys[filled + left - first] = (load64(buffer, left) & mask) | size
    else:
        for left in range(first, last - n + 1):
            at = filled + left - first
            keys[at] = (prefix[left + n] - prefix[left] * power[n]) | HASHED
            places[at, 0] = left
            places[at, 1] = n
    return filled + max(last - n + 1 - first, 0)


@njit(nogil=True)
def _murmurs(buffer, units, first, last, n, keys, filled):
    """`_keys` where features are hashes: of every n-gram its hash, whatever its length."""
    for i in range(first, last - n + 1):
        left = units[0, i]
        keys[filled] = np.uint64(murmur(buffer, left, units[1, i + n - 1] - left))
        filled += 1
    return filled


@njit(nogil=True)
def _mark(feature, bits, summary):
    bits[feature >> 6] |= np.uint64(1) << np.uint64(feature & 63)
    summary[feature >> 12] |= np.uint64(1) << np.uint64((feature >> 6) & 63)


@njit(nogil=True)
def _count_hashes(keys, filled, features, signed, counts, bits, summary):
    """Count hashes by their features, down for negative ones where `signed`; what comes to 0 stays a feature."""
    for i in range(filled):
        hashed = np.int64(keys[i])
        found = feature_of(hashed, features)
        _mark(found, bits, summary)
        counts[found] += -1 if signed and hashed < 0 else 1


@njit(nogil=True)
def _count(buffer, keys, places, filled, slots, mask, arena, counts, bits, summary):
    """Count the keys that the vocabulary has.

    In blocks, each in two passes: the first only loads the slots, many at once, since nothing hangs on what it loads;
    the second finds most of them in the cache.
    """
    for start in range(0, filled, _BLOCK):
        end = min(start + _BLOCK, filled)
        touched = np.uint64(0)
        for i in range(start, end):
            touched |= slots[slot_of(keys[i], mask), 1]
        if touched == 0:
            continue
        for i in range(start, end):
            key = keys[i]
            found = find(buffer, places[i, 0], places[i, 1], key, slot_of(key, mask), slots, mask, arena)
            if found >= 0:
                if counts[found] == 0:
                    _mark(found, bits, summary)
                counts[found] += 1


@njit(nogil=True)
def _collect(counts, bits, summary, found, values, binary, sublinear, logs, idf, norm):
    """The counted features in ascending order, as numbers and weighted values. -> (how many, norm).

    All counts and bits are zero again after it.
    """
    filled = 0
    total = 0.0
    has_idf = len(idf) > 0
    for top in range(len(summary)):
        above = summary[top]
        summary[top] = 0
        while above != 0:
            word = np.int64(trailing_zeros(above)) + (top << 6)
            above &= above - np.uint64(1)
            inner = bits[word]
            bits[word] = 0
            while inner != 0:
                feature = np.int64(trailing_zeros(inner)) + (word << 6)
                inner &= inner - np.uint64(1)
                times = counts[feature]
                counts[feature] = 0
                value = 1.0 if binary else float(times)
                if sublinear:
                    value = logs[1 if binary else times] + 1.0
                if has_idf:
                    value *= idf[feature]
                if norm == NORM_L2:
                    total += value * value
                elif norm == NORM_L1:
                    total += abs(value)
                elif norm == NORM_MAX:
                    total = max(total, abs(value))
                found[filled] = feature
                values[filled] = value
                filled += 1
    if norm == NORM_L2:
        total = np.sqrt(total)
    return filled, total


#: Places in a stage's `options`.
ANALYSER, MIN_N, MAX_N, MIN_LENGTH, BINARY, SUBLINEAR, NORM, FEATURES, EMIT, HASHES, OPTIONS = range(11)
#: Values of `options[HASHES]`: features come from a vocabulary, are hashes, or hashes with a sign.
VOCABULARY, UNSIGNED, SIGNED = 0, 1, 2
_KEPT = types.int64[::1]


def _signature(heads: Any) -> Any:
    return types.int64(
        _KEPT, _KEPT, types.float64,  # options, addresses of what a stage keeps, scale
        _KEPT,  # addresses of a thread's buffers
        types.uint8[::1], types.int64[::1], types.uint8[::1], types.int64[:, ::1], types.int64[::1],  # documents
        types.int32[::1], types.float64[::1], types.int64[::1], heads[:, ::1],  # results
    )  # fmt: skip


#: Heads in float64, and in float32.
SIGNATURES = [_signature(types.float64), _signature(types.float32)]


@njit(nogil=True)
def _at(table, place, kind):
    return carray(pointer(table[2 * place]), table[2 * place + 1], kind)


@njit(SIGNATURES, nogil=True, cache=True)
def score(options, kept, scale, own, text, offsets, lowered, tokens, token_offsets, found, values, row_ends, scores):
    """Add to `scores [n, K]` each document's weighted features times `weights [features, K]`, in ascending order.

    Values are rounded to the type of the scores, which is that of the weights; products and sums are of that type.
    With `options[EMIT]` the features themselves go to `found`, `values` and `row_ends` instead. -> features found.
    """
    slots = carray(pointer(kept[0]), (kept[1] // 2, 2), np.uint64)
    stops = carray(pointer(kept[4]), (kept[5] // 2, 2), np.uint64)
    arena, stop_arena = _at(kept, 1, np.uint8), _at(kept, 3, np.uint8)
    logs, idf, power = _at(kept, 4, np.float64), _at(kept, 5, np.float64), _at(kept, 7, np.uint64)
    classes, lower = _at(kept, 8, np.uint8), _at(kept, 9, np.uint8)
    heads = scores.shape[1]
    weights = carray(pointer(kept[12]), (kept[13] // heads, heads), scores.dtype)
    counts, bits, buffer = _at(own, 0, np.int32), _at(own, 1, np.uint64), _at(own, 2, np.uint8)
    prefix, keys = _at(own, 3, np.uint64), _at(own, 5, np.uint64)
    units = carray(pointer(own[8]), (3, own[9] // 3), np.int64)
    places = carray(pointer(own[12]), (own[13] // 2, 2), np.int64)
    analyser, min_n, max_n = options[ANALYSER], options[MIN_N], options[MAX_N]
    norm, emits = options[NORM], options[EMIT] != 0
    is_hashed = options[HASHES] != VOCABULARY
    mask, stop_mask = np.uint64(len(slots) - 1), np.uint64(len(stops) - 1)
    top_words = (options[FEATURES] + 4095) >> 12
    summary, inner = bits[:top_words], bits[top_words : top_words + (top_words << 6)]
    hashes = len(power) > EXACT_BYTES + 1
    filled = np.int64(0)
    prefix[0] = 0
    for row in range(len(offsets) - 1):
        low, high = offsets[row], offsets[row + 1]
        table = lower[256:] if lowered[row] & 1 else lower[:256]
        grams = np.int64(0)
        ascii = lowered[row] & 2 != 0 and not is_hashed
        if analyser == CHAR_WB:
            if ascii:
                words, size = segments.ascii_padded(text, low, high, table, classes, buffer, units)
                if hashes:
                    segments.hash_all(buffer, size, prefix)
            else:
                words = segments.padded_words(text, low, high, table, classes, buffer, prefix, units)
            for word in range(words):
                first, last = units[2, word], units[2, word + 1] + 1
                for n in range(min_n, max_n + 1):
                    size = min(n, last - first)
                    if is_hashed:
                        grams = _murmurs(buffer, units, first, last, size, keys, grams)
                    elif ascii:
                        grams = _ascii_keys(buffer, prefix, power, first, last, size, keys, places, grams)
                    else:
                        grams = _keys(buffer, prefix, power, units, first, last, size, keys, places, grams)
                    if n >= last - first:
                        break
        elif analyser == CHAR and ascii:
            last = segments.ascii_characters(text, low, high, table, classes, buffer)
            if hashes:
                segments.hash_all(buffer, last, prefix)
            for n in range(min_n, min(max_n, last) + 1):
                grams = _ascii_keys(buffer, prefix, power, 0, last, n, keys, places, grams)
        else:
            if analyser == WORD:
                last = segments.words(
                    text, low, high, table, classes, options[MIN_LENGTH], buffer, prefix, units,
                    stops, stop_mask, stop_arena, power,
                )  # fmt: skip
            elif analyser == CHAR:
                last = segments.characters(text, low, high, table, classes, buffer, prefix, units)
            else:
                last = segments.given(
                    text, low, high, buffer, prefix, tokens, token_offsets[row], token_offsets[row + 1], units
                )
            for n in range(min_n, min(max_n, last) + 1):
                if is_hashed:
                    grams = _murmurs(buffer, units, 0, last, n, keys, grams)
                else:
                    grams = _keys(buffer, prefix, power, units, 0, last, n, keys, places, grams)
        if is_hashed:
            _count_hashes(keys, grams, options[FEATURES], options[HASHES] == SIGNED, counts, inner, summary)
        else:
            _count(buffer, keys, places, grams, slots, mask, arena, counts, inner, summary)
        start = filled if emits else 0
        touched, total = _collect(counts, inner, summary, found[start:], values[start:], options[BINARY] != 0,
                                  options[SUBLINEAR] != 0, logs, idf, norm)  # fmt: skip
        if norm != NORM_NONE and total != 0.0:
            for i in range(start, start + touched):
                values[i] /= total
        if scale != 1.0:
            for i in range(start, start + touched):
                values[i] *= scale
        if emits:
            filled += touched
            row_ends[row] = filled
        elif heads == 1:
            result = scores[row, 0]
            for i in range(touched):
                result += scores.dtype.type(values[i]) * weights[found[i], 0]
            scores[row, 0] = result
        else:
            for i in range(touched):
                value, feature = scores.dtype.type(values[i]), found[i]
                for head in range(heads):
                    scores[row, head] += value * weights[feature, head]
    return filled
