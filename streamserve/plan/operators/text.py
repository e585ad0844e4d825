"""Text: from documents to rows of weighted n-grams, in scikit-learn's own terms.

Source of every rule here: scikit-learn's `feature_extraction/text.py` and `preprocessing/_data.py`, as of the versions
in `streamserve.plan.importers.versions`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse

from streamserve.plan.graph import Constant, Node
from streamserve.plan.kernels.dictionary import encoded, entries_of
from streamserve.plan.kernels.texts import Texts
from streamserve.plan.operators.base import operator, refuse

Grams = list[list[str]]
ANALYSERS = ("word", "char", "char_wb")
DEFAULT_PATTERN = r"(?u)\b\w\w+\b"
_ONES = (1 << 32) - 1
_LOWEST = -(1 << 31)
_SURROGATE = re.compile("[\ud800-\udfff]")
_WHITE = re.compile(r"\s\s+")


@operator("vectorise", shape="sparse")
def vectorise(node: Node, inputs: Sequence[Any]) -> Any:
    """A whole vectoriser in one operator, as it is imported."""
    value: Any = inputs[0]
    for part in parts(node):
        value = _PARTS[part.op](part, [value])
    return value


def parts(node: Node) -> tuple[Node, ...]:
    """The operators that a `vectorise` is made of, each to read the one before it."""
    params, constants = node.params, node.constants

    def part(op: str, names: Sequence[str] = (), arrays: Sequence[str] = ()) -> Node:
        return Node(
            op=op,
            inputs=(),
            params={name: params[name] for name in names},
            constants={name: constants[name] for name in arrays},
            origin=node.origin,
        )

    chain = [part("normalise", ("lower", "accents"))]
    chain.append(part("ngrams", ("analyser", "pattern", "stop_words", "min_n", "max_n")))
    if "arena" in constants:
        chain.append(part("lookup", ("dtype", "features"), ("arena", "slots")))
    else:
        chain.append(part("hashed", ("dtype", "features", "signed")))
    if params["binary"]:
        chain.append(part("binary"))
    if params["sublinear"]:
        chain.append(part("sublinear"))
    if "idf" in constants:
        chain.append(part("idf", (), ("idf",)))
    if params["norm"] is not None:
        chain.append(part("norm", ("norm",)))
    return tuple(chain)


@operator("normalise", shape="text")
def normalise(node: Node, inputs: Sequence[Any]) -> Texts:
    """Lower-case and strip accents."""
    return Texts(inputs[0], lower=node.param("lower"), accents=node.param("accents"))


@operator("ngrams", shape="grams")
def ngrams(node: Node, inputs: Sequence[Any]) -> Grams:
    """Segment and make n-grams."""
    texts: Texts = inputs[0]
    low, high = node.param("min_n"), node.param("max_n")
    analyser = node.param("analyser")
    if analyser == "word":
        find = re.compile(node.param("pattern")).findall
        stops = frozenset(node.param("stop_words"))
        return [_word_ngrams([word for word in find(text) if word not in stops], low, high) for text in texts.strings]
    make = _char_ngrams if analyser == "char" else _padded_ngrams
    return [make(_WHITE.sub(" ", text), low, high) for text in texts.strings]


def _word_ngrams(words: list[str], low: int, high: int) -> list[str]:
    return [" ".join(words[i : i + n]) for n in range(low, high + 1) for i in range(len(words) - n + 1)]


def _char_ngrams(text: str, low: int, high: int) -> list[str]:
    return [text[i : i + n] for n in range(low, high + 1) for i in range(len(text) - n + 1)]


def _padded_ngrams(text: str, low: int, high: int) -> list[str]:
    grams = []
    for word in text.split():
        padded = f" {word} "
        for n in range(low, high + 1):
            if n >= len(padded):  # a word that is too short counts once, whole
                grams.append(padded)
                break
            grams += [padded[i : i + n] for i in range(len(padded) - n + 1)]
    return grams


def vocabulary(arena: Constant) -> dict[str, int]:
    """Entry -> number; kept with the constant, since only the slow way asks for it."""
    kept: dict[str, int] | None = arena.__dict__.get("vocabulary")
    if kept is None:
        kept = arena.__dict__["vocabulary"] = {entry: i for i, entry in enumerate(entries_of(arena.array))}
    return kept


@operator("lookup", shape="sparse")
def lookup(node: Node, inputs: Sequence[Any]) -> Any:
    """Count the n-grams that the vocabulary has: CSR `[n, entries]`."""
    numbers = vocabulary(node.constants["arena"])
    indices: list[int] = []
    counts: list[int] = []
    ends = [0]
    for grams in inputs[0]:
        row: dict[int, int] = {}
        for gram in grams:
            number = numbers.get(gram)
            if number is not None:
                row[number] = row.get(number, 0) + 1
        for number in sorted(row):
            indices.append(number)
            counts.append(row[number])
        ends.append(len(indices))
    data = np.array(counts, dtype=node.param("dtype"))
    columns = np.array(indices, dtype=np.int32)
    return sparse.csr_matrix((data, columns, np.array(ends, dtype=np.int32)), shape=(len(ends) - 1, len(numbers)))


@operator("encodable", shape="same")
def encodable(node: Node, inputs: Sequence[Any]) -> list[str]:
    """The documents; one is refused where an n-gram that is to be hashed holds half a surrogate pair."""
    documents: list[str] = inputs[0]
    wrong = [
        not document.isascii()
        and _SURROGATE.search(document) is not None
        and any(_SURROGATE.search(gram) for gram in ngrams(node, [normalise(node, [[document]])])[0])
        for document in documents
    ]
    refuse(np.array(wrong, dtype=bool), "its text holds half a surrogate pair, which has no UTF-8")
    return documents


@operator("hashed", shape="sparse")
def hashed(node: Node, inputs: Sequence[Any]) -> Any:
    """Count the n-grams by their hashes, with a sign where `signed`: CSR `[n, features]`, sums of 0 kept."""
    features, signed = int(node.param("features")), bool(node.param("signed"))
    indices: list[int] = []
    counts: list[int] = []
    ends = [0]
    for grams in inputs[0]:
        row: dict[int, int] = {}
        for gram in grams:
            value = _murmur(encoded(gram))
            # the lowest number has no absolute value of 32 bits
            place = abs(value) % features if value > _LOWEST else (-_LOWEST - features) % features
            row[place] = row.get(place, 0) + (-1 if signed and value < 0 else 1)
        for place in sorted(row):
            indices.append(place)
            counts.append(row[place])
        ends.append(len(indices))
    data_type = np.dtype(node.param("dtype"))
    matrix = (np.array(counts, dtype=data_type), np.array(indices, dtype=np.int32), np.array(ends, dtype=np.int32))
    return sparse.csr_matrix(matrix, shape=(len(ends) - 1, features))


def _murmur(data: bytes) -> int:
    """MurmurHash3 (x86, 32 bits, seed 0) as a signed number."""
    state = 0
    for i in range(0, len(data), 4):
        block = data[i : i + 4]
        mixed = int.from_bytes(block, "little") * 0xCC9E2D51 & _ONES
        state ^= _turned(mixed, 15) * 0x1B873593 & _ONES
        if len(block) == 4:
            state = _turned(state, 13) * 5 + 0xE6546B64 & _ONES
    state ^= len(data)
    state = (state ^ state >> 16) * 0x85EBCA6B & _ONES
    state = (state ^ state >> 13) * 0xC2B2AE35 & _ONES
    state ^= state >> 16
    return state - (1 << 32) if state >= 1 << 31 else state


def _turned(value: int, bits: int) -> int:
    return (value << bits | value >> 32 - bits) & _ONES


def _with_data(matrix: Any, data: Any) -> Any:
    return sparse.csr_matrix((data, matrix.indices, matrix.indptr), shape=matrix.shape)


def _floats(matrix: Any) -> Any:
    return matrix.data.astype(np.float64) if matrix.dtype != np.float32 else matrix.data.copy()


@operator("binary", shape="same")
def binary(_: Node, inputs: Sequence[Any]) -> Any:
    """Every count becomes 1."""
    return _with_data(inputs[0], np.ones_like(inputs[0].data))


@operator("sublinear", shape="same")
def sublinear(_: Node, inputs: Sequence[Any]) -> Any:
    """A count becomes 1 + its logarithm."""
    data = _floats(inputs[0])
    np.log(data, data)
    data += 1.0
    return _with_data(inputs[0], data)


@operator("idf", shape="same")
def idf(node: Node, inputs: Sequence[Any]) -> Any:
    """Times the inverse document frequency."""
    data = _floats(inputs[0])
    data *= node.array("idf")[inputs[0].indices]
    return _with_data(inputs[0], data)


@operator("norm", shape="same")
def norm(node: Node, inputs: Sequence[Any]) -> Any:
    """A CSR row divided by its norm; a row of zeros stays."""
    matrix = inputs[0]
    data = _floats(matrix)
    kind = node.param("norm")
    for row in range(matrix.shape[0]):
        values = data[matrix.indptr[row] : matrix.indptr[row + 1]]
        total = _norm_of(values, kind)
        if total != 0.0:
            values /= total
    return _with_data(matrix, data)


def _norm_of(values: Any, kind: str) -> float:
    """Added one by one, in order: pairwise sums would differ in the last bits."""
    if kind == "max":
        return float(np.abs(values).max()) if len(values) else 0.0
    total = 0.0
    for value in values.tolist():
        total += value * value if kind == "l2" else abs(value)
    return float(np.sqrt(total)) if kind == "l2" else total


_PARTS = {
    "normalise": normalise,
    "ngrams": ngrams,
    "lookup": lookup,
    "hashed": hashed,
    "binary": binary,
    "sublinear": sublinear,
    "idf": idf,
    "norm": norm,
}
