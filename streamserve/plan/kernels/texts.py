"""Documents on their way into the text kernel: strings, or the bytes of all of them in one buffer.

Lowering and stripping of accents are Python's own where a document is not ASCII: `str.lower` may make two characters of
one and looks at the neighbours, and NFKD makes capitals of small signs, so no table of single characters can stand for
them. Such a document is marked, and the kernel leaves its letters alone. For ASCII the kernel lowers while it reads.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from streamserve.core.messages import I64, U8


@dataclass(slots=True, kw_only=True, eq=False)
class Packed:
    """n documents as UTF-8, end to end."""

    text: U8
    offsets: I64
    """`[n + 1]`."""
    lowered: U8
    """`[n]`: 1 where the kernel lowers A-Z itself, plus 2 where every byte is a character."""
    tokens: I64
    """`[all tokens, 2]`: start and end of each within its document; empty where the kernel finds them."""
    token_offsets: I64
    """`[n + 1]`."""
    longest_bytes: int


_NO_TOKENS: I64 = np.zeros((0, 2), dtype=np.int64)
_ASCII = 2
#: Marks of one ASCII document: as it is, and to be lowered.
_ALONE: tuple[U8, U8] = (np.full(1, _ASCII, dtype=np.uint8), np.full(1, 1 + _ASCII, dtype=np.uint8))
_NO_OFFSETS: I64 = np.zeros(0, dtype=np.int64)


def preprocess(document: str, *, lower: bool, accents: str | None) -> str:
    """A document as scikit-learn's vectorisers preprocess it: lowered, then stripped of accents."""
    if lower:
        document = document.lower()
    if accents is None or document.isascii():
        return document
    plain = unicodedata.normalize("NFKD", document)
    if accents == "ascii":
        return plain.encode("ASCII", "ignore").decode("ASCII")
    return "".join([character for character in plain if not unicodedata.combining(character)])


class Texts:
    """n documents with how they are to be preprocessed; each form is made when it is first asked for."""

    def __init__(self, documents: Sequence[str], *, lower: bool, accents: str | None) -> None:
        self._documents = documents
        self._lower = lower
        self._accents = accents

    def __len__(self) -> int:
        return len(self._documents)

    @property
    def documents(self) -> Sequence[str]:
        """As they came."""
        return self._documents

    def taken(self, places: Sequence[int]) -> Texts:
        """Some of them."""
        if len(places) == len(self._documents):
            return self
        return Texts([self._documents[i] for i in places], lower=self._lower, accents=self._accents)

    @cached_property
    def strings(self) -> list[str]:
        """Preprocessed."""
        return [preprocess(document, lower=self._lower, accents=self._accents) for document in self._documents]

    @cached_property
    def packed(self) -> Packed:
        """As bytes, for the kernel."""
        documents = self._documents
        if len(documents) == 1 and documents[0].isascii():
            data = documents[0].encode()
            return _packed(data, np.array((0, len(data))), _ALONE[self._lower])
        joined = "".join(documents)
        offsets = np.zeros(len(documents) + 1, dtype=np.int64)
        lowered = np.full(len(documents), self._lower + _ASCII, dtype=np.uint8)
        if joined.isascii():
            np.cumsum([len(document) for document in documents], out=offsets[1:])
            return _packed(joined.encode(), offsets, lowered)
        parts = []
        for i, document in enumerate(documents):
            if document.isascii():
                parts.append(document.encode())
            else:
                whole = preprocess(document, lower=self._lower, accents=self._accents)
                parts.append(whole.encode("utf-8", "surrogatepass"))
                lowered[i] = 0
        np.cumsum([len(part) for part in parts], out=offsets[1:])
        return _packed(b"".join(parts), offsets, lowered)

    def tokenised(self, pattern: str, stop_words: frozenset[str]) -> Packed:
        """As bytes with tokens found by a regular expression of Python's, single spaces between them."""
        find = _compiled(pattern).findall
        words: list[str] = []
        counts = [0]
        for document in self.strings:
            found = find(document)
            words += [word for word in found if word not in stop_words] if stop_words else found
            counts.append(len(words))
        data = " ".join(words).encode("utf-8", "surrogatepass")
        tokens, token_offsets = _spans(words, data), np.array(counts, dtype=np.int64)
        offsets = np.append(tokens[:, 0], len(data))[token_offsets]
        tokens -= np.repeat(offsets[:-1], np.diff(token_offsets))[:, None]
        return _packed(data, offsets, np.zeros(len(offsets) - 1, dtype=np.uint8), tokens, token_offsets)


def _spans(words: list[str], data: bytes) -> I64:
    """`[words, 2]`: the first and the last byte (plus one) of each in `data`, which holds them with single spaces."""
    firsts = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) & 0xC0 != 0x80)  # of characters
    lengths = np.fromiter(map(len, words), dtype=np.int64, count=len(words))
    starts = np.cumsum(lengths + 1) - lengths - 1
    return np.append(firsts, len(data))[np.stack([starts, starts + lengths], axis=1)]


def _packed(
    data: bytes, offsets: I64, lowered: U8, tokens: I64 = _NO_TOKENS, token_offsets: I64 = _NO_OFFSETS
) -> Packed:
    longest = len(data) if len(lowered) == 1 else int(np.diff(offsets).max(initial=0))
    return Packed(
        text=np.frombuffer(bytearray(data), dtype=np.uint8),  # writable: numba takes it sooner
        offsets=offsets,
        lowered=lowered,
        tokens=tokens,
        token_offsets=token_offsets,
        longest_bytes=longest,
    )


def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)  # `re` keeps the last 512 itself
