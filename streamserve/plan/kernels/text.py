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

import numpy as np
from numba import carray, njit, types  # type: ignore[attr-defined]

from streamserve.plan.kernels.memory import load32, load64, pointer, trailing_zeros

WORD, CHAR, CHAR_WB, TOKENS = 0, 1, 2, 3
NORM_NONE, NORM_L1, NORM_L2, NORM_MAX = 0, 1, 2, 3
#: Multiplier of the polynomial hash: odd, so that it can be undone modulo 2^64.
BASE = np.uint64(0x9E3779B97F4A7C15)
#: Bits of a slot's second word that hold the feature's number; the rest is the arena's offset, plus one.
ID_BITS = 28
#: Entries up to this long are their own key, byte for byte; longer ones have a hash, and are compared.
EXACT_BYTES = 7
#: N-grams whose slots are loaded at once.
_BLOCK = 256
#: After the last byte of an arena and of a buffer, so that eight bytes can be loaded anywhere.
PADDING_BYTES = 8
_HASHED = np.uint64(0xFF << 56)
_IS_WORD, _IS_SPACE = 1, 2


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
    return polynomial | _HASHED


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
def _find(buffer, left, length, key, slot, slots, mask, arena):
    """The number of the entry that equals `buffer[left:left + length]`, or -1; the search begins at `slot`."""
    while True:
        packed = slots[slot, 1]
        if packed == 0:
            return np.int64(-1)
        if slots[slot, 0] == key and (
            key < _HASHED or _equals(buffer, left, length, arena, np.int64(packed >> np.uint64(ID_BITS)) - 1)
        ):
            return np.int64(packed & np.uint64((1 << ID_BITS) - 1))
        slot = (slot + np.uint64(1)) & mask


@njit(nogil=True)
def _class_at(text, at, classes):
    """(bytes, class) of the character that begins at a byte of well-formed UTF-8 (surrogates let through)."""
    first = np.int64(text[at])
    if first < 0x80:
        return 1, classes[first]
    if first < 0xE0:
        return 2, classes[((first & 0x1F) << 6) | (text[at + 1] & 0x3F)]
    if first < 0xF0:
        point = ((first & 0x0F) << 12) | (np.int64(text[at + 1] & 0x3F) << 6) | (text[at + 2] & 0x3F)
        return 3, classes[point]
    point = (
        ((first & 0x07) << 18)
        | (np.int64(text[at + 1] & 0x3F) << 12)
        | (np.int64(text[at + 2] & 0x3F) << 6)
        | (text[at + 3] & 0x3F)
    )
    return 4, classes[point]


@njit(nogil=True)
def _words(text, low, high, lower, classes, min_length, buffer, prefix, units, stops, stop_mask, stop_arena, power):
    """Maximal runs of word characters, at least `min_length` long, stop words left out. -> number of units.

    The buffer holds them with a space between; `units[0]` are their starts and `units[1]` their ends.
    """
    at, count, filled = low, 0, 0
    has_stops = len(stops) > 1
    while at < high:
        size, kind = _class_at(text, at, classes)
        if not kind & _IS_WORD:
            at += size
            continue
        if count:
            buffer[filled] = 32
            prefix[filled + 1] = prefix[filled] * BASE + np.uint64(33)
            filled += 1
        start, characters = filled, 0
        while True:
            for i in range(size):
                byte = lower[text[at + i]]
                buffer[filled] = byte
                prefix[filled + 1] = prefix[filled] * BASE + np.uint64(byte + 1)
                filled += 1
            characters += 1
            at += size
            if at >= high:
                break
            size, kind = _class_at(text, at, classes)
            if not kind & _IS_WORD:
                break
        keep = characters >= min_length
        if keep and has_stops and filled - start < len(power):
            key = key_of(buffer, start, filled - start, prefix[filled] - prefix[start] * power[filled - start])
            keep = _find(buffer, start, filled - start, key, slot_of(key, stop_mask), stops, stop_mask, stop_arena) < 0
        if keep:
            units[0, count] = start
            units[1, count] = filled
            count += 1
        else:
            filled = max(start - 1, 0) if count else 0
    return count


@njit(nogil=True)
def _put(text, at, size, lower, buffer, prefix, filled):
    for i in range(size):
        byte = lower[text[at + i]]
        buffer[filled + i] = byte
        prefix[filled + i + 1] = prefix[filled + i] * BASE + np.uint64(byte + 1)
    return filled + size


@njit(nogil=True)
def _characters(text, low, high, lower, classes, buffer, prefix, units):
    """Every character; of two or more whitespace characters in a row one space is left. -> number of units."""
    at, count, filled = low, 0, 0
    while at < high:
        size, kind = _class_at(text, at, classes)
        start = filled
        ahead = at + size
        if kind & _IS_SPACE and ahead < high and _class_at(text, ahead, classes)[1] & _IS_SPACE:
            while ahead < high:
                size, kind = _class_at(text, ahead, classes)
                if not kind & _IS_SPACE:
                    break
                ahead += size
            buffer[filled] = 32
            prefix[filled + 1] = prefix[filled] * BASE + np.uint64(33)
            filled += 1
        else:
            filled = _put(text, at, size, lower, buffer, prefix, filled)
        at = ahead
        units[0, count] = start
        units[1, count] = filled
        count += 1
    return count


@njit(nogil=True)
def _padded_words(text, low, high, lower, classes, buffer, prefix, units):
    """Words between whitespace with a space on either side, neighbours sharing one. -> number of words.

    `units[2]` holds the unit at which each word's leading space is, and the last word's trailing one.
    """
    at, count, filled, words = low, 0, 0, 0
    buffer[0] = 32
    prefix[1] = prefix[0] * BASE + np.uint64(33)
    units[0, 0] = 0
    units[1, 0] = 1
    units[2, 0] = 0
    filled, count = 1, 1
    while at < high:
        size, kind = _class_at(text, at, classes)
        if kind & _IS_SPACE:
            at += size
            continue
        while True:
            start = filled
            filled = _put(text, at, size, lower, buffer, prefix, filled)
            units[0, count] = start
            units[1, count] = filled
            count += 1
            at += size
            if at >= high:
                break
            size, kind = _class_at(text, at, classes)
            if kind & _IS_SPACE:
                break
        buffer[filled] = 32
        prefix[filled + 1] = prefix[filled] * BASE + np.uint64(33)
        units[0, count] = filled
        units[1, count] = filled + 1
        words += 1
        units[2, words] = count
        filled += 1
        count += 1
    return words


@njit(nogil=True)
def _ascii_padded(text, low, high, lower, classes, buffer, units):
    """`_padded_words` of an ASCII document, whose every byte is a unit. -> (number of words, bytes)."""
    filled, words = 1, 0
    buffer[0] = 32
    units[2, 0] = 0
    inside = False
    for at in range(low, high):
        byte = text[at]
        if classes[byte] & _IS_SPACE:
            if inside:
                words += 1
                units[2, words] = filled
                buffer[filled] = 32
                filled += 1
                inside = False
        else:
            buffer[filled] = lower[byte]
            filled += 1
            inside = True
    if inside:
        words += 1
        units[2, words] = filled
        buffer[filled] = 32
        filled += 1
    return words, filled


@njit(nogil=True)
def _ascii_characters(text, low, high, lower, classes, buffer):
    """`_characters` of an ASCII document, whose every byte is a unit. -> bytes."""
    filled = 0
    at = low
    while at < high:
        byte = text[at]
        at += 1
        if classes[byte] & _IS_SPACE and at < high and classes[text[at]] & _IS_SPACE:
            while at < high and classes[text[at]] & _IS_SPACE:
                at += 1
            byte = 32
        buffer[filled] = lower[byte]
        filled += 1
    return filled


@njit(nogil=True)
def _hash_all(buffer, filled, prefix):
    """Prefix hashes of the whole buffer."""
    running = np.uint64(0)
    for i in range(filled):
        running = running * BASE + np.uint64(buffer[i] + 1)
        prefix[i + 1] = running


@njit(nogil=True)
def _given(text, low, high, buffer, prefix, tokens, first, last, units):
    """Tokens that were found elsewhere: the document is already the buffer. -> number of units."""
    for i in range(high - low):
        byte = text[low + i]
        buffer[i] = byte
        prefix[i + 1] = prefix[i] * BASE + np.uint64(byte + 1)
    for i in range(first, last):
        units[0, i - first] = tokens[i, 0]
        units[1, i - first] = tokens[i, 1]
    return last - first


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
            keys[at] = (prefix[left + n] - prefix[left] * power[n]) | _HASHED
            places[at, 0] = left
            places[at, 1] = n
    return filled + max(last - n + 1 - first, 0)


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
            found = _find(buffer, places[i, 0], places[i, 1], key, slot_of(key, mask), slots, mask, arena)
            if found >= 0:
                if counts[found] == 0:
                    bits[found >> 6] |= np.uint64(1) << np.uint64(found & 63)
                    summary[found >> 12] |= np.uint64(1) << np.uint64((found >> 6) & 63)
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
ANALYSER, MIN_N, MAX_N, MIN_LENGTH, BINARY, SUBLINEAR, NORM, FEATURES, EMIT, OPTIONS = range(10)
_KEPT = types.int64[::1]
SIGNATURE = types.int64(
    _KEPT, _KEPT, types.float64,  # options, addresses of what a stage keeps, scale
    _KEPT,  # addresses of a thread's buffers
    types.uint8[::1], types.int64[::1], types.uint8[::1], types.int64[:, ::1], types.int64[::1],  # documents
    types.int32[::1], types.float64[::1], types.int64[::1], types.float64[:, ::1],  # results
)  # fmt: skip


@njit(nogil=True)
def _at(table, place, kind):
    return carray(pointer(table[2 * place]), table[2 * place + 1], kind)


@njit(SIGNATURE, nogil=True, cache=True)
def score(options, kept, scale, own, text, offsets, lowered, tokens, token_offsets, found, values, row_ends, scores):
    """Add to `scores [n, K]` each document's weighted features times `weights [features, K]`, in ascending order.

    With `options[EMIT]` the features themselves go to `found`, `values` and `row_ends` instead. -> features found.
    """
    slots = carray(pointer(kept[0]), (kept[1] // 2, 2), np.uint64)
    stops = carray(pointer(kept[4]), (kept[5] // 2, 2), np.uint64)
    arena, stop_arena = _at(kept, 1, np.uint8), _at(kept, 3, np.uint8)
    logs, idf, power = _at(kept, 4, np.float64), _at(kept, 5, np.float64), _at(kept, 7, np.uint64)
    classes, lower = _at(kept, 8, np.uint8), _at(kept, 9, np.uint8)
    heads = scores.shape[1]
    weights = carray(pointer(kept[12]), (kept[13] // heads, heads), np.float64)
    counts, bits, buffer = _at(own, 0, np.int32), _at(own, 1, np.uint64), _at(own, 2, np.uint8)
    prefix, keys = _at(own, 3, np.uint64), _at(own, 5, np.uint64)
    units = carray(pointer(own[8]), (3, own[9] // 3), np.int64)
    places = carray(pointer(own[12]), (own[13] // 2, 2), np.int64)
    analyser, min_n, max_n = options[ANALYSER], options[MIN_N], options[MAX_N]
    norm, emits = options[NORM], options[EMIT] != 0
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
        ascii = lowered[row] & 2 != 0
        if analyser == CHAR_WB:
            if ascii:
                words, size = _ascii_padded(text, low, high, table, classes, buffer, units)
                if hashes:
                    _hash_all(buffer, size, prefix)
            else:
                words = _padded_words(text, low, high, table, classes, buffer, prefix, units)
            for word in range(words):
                first, last = units[2, word], units[2, word + 1] + 1
                for n in range(min_n, max_n + 1):
                    size = min(n, last - first)
                    if ascii:
                        grams = _ascii_keys(buffer, prefix, power, first, last, size, keys, places, grams)
                    else:
                        grams = _keys(buffer, prefix, power, units, first, last, size, keys, places, grams)
                    if n >= last - first:
                        break
        elif analyser == CHAR and ascii:
            last = _ascii_characters(text, low, high, table, classes, buffer)
            if hashes:
                _hash_all(buffer, last, prefix)
            for n in range(min_n, min(max_n, last) + 1):
                grams = _ascii_keys(buffer, prefix, power, 0, last, n, keys, places, grams)
        else:
            if analyser == WORD:
                last = _words(text, low, high, table, classes, options[MIN_LENGTH], buffer, prefix, units, stops,
                              stop_mask, stop_arena, power)  # fmt: skip
            elif analyser == CHAR:
                last = _characters(text, low, high, table, classes, buffer, prefix, units)
            else:
                last = _given(
                    text, low, high, buffer, prefix, tokens, token_offsets[row], token_offsets[row + 1], units
                )
            for n in range(min_n, min(max_n, last) + 1):
                grams = _keys(buffer, prefix, power, units, 0, last, n, keys, places, grams)
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
                result += values[i] * weights[found[i], 0]
            scores[row, 0] = result
        else:
            for i in range(touched):
                value, feature = values[i], found[i]
                for head in range(heads):
                    scores[row, head] += value * weights[feature, head]
    return filled
