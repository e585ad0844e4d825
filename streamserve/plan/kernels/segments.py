"""Segmentation: a document into a buffer in which every n-gram is one slice, and where its units begin and end."""

from __future__ import annotations

import numpy as np
from numba import njit

from streamserve.plan.kernels.lookup import BASE, find, key_of, slot_of

_IS_WORD, _IS_SPACE = 1, 2


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
def words(text, low, high, lower, classes, min_length, buffer, prefix, units, stops, stop_mask, stop_arena, power):
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
            keep = find(buffer, start, filled - start, key, slot_of(key, stop_mask), stops, stop_mask, stop_arena) < 0
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
def characters(text, low, high, lower, classes, buffer, prefix, units):
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
def padded_words(text, low, high, lower, classes, buffer, prefix, units):
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
def ascii_padded(text, low, high, lower, classes, buffer, units):
    """`padded_words` of an ASCII document, whose every byte is a unit. -> (number of words, bytes)."""
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
def ascii_characters(text, low, high, lower, classes, buffer):
    """`characters` of an ASCII document, whose every byte is a unit. -> bytes."""
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
def hash_all(buffer, filled, prefix):
    """Prefix hashes of the whole buffer."""
    running = np.uint64(0)
    for i in range(filled):
        running = running * BASE + np.uint64(buffer[i] + 1)
        prefix[i + 1] = running


@njit(nogil=True)
def given(text, low, high, buffer, prefix, tokens, first, last, units):
    """Tokens that were found elsewhere: the document is already the buffer. -> number of units."""
    for i in range(high - low):
        byte = text[low + i]
        buffer[i] = byte
        prefix[i + 1] = prefix[i] * BASE + np.uint64(byte + 1)
    for i in range(first, last):
        units[0, i - first] = tokens[i, 0]
        units[1, i - first] = tokens[i, 1]
    return last - first
