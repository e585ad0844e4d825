"""CountVectorizer, HashingVectorizer, TfidfVectorizer and TfidfTransformer.

Traps that this module knows (source: scikit-learn's `feature_extraction/text.py`): stop words go before n-grams; one
group in the token pattern changes what a token is; `TfidfTransformer` makes floats of counts; a vocabulary of the
user's own may name an entry that no n-gram can be.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from streamserve.core.messages import AnyArray
from streamserve.plan.graph import Param
from streamserve.plan.importers.context import Importing, NotWhite, TransformerImporter
from streamserve.plan.kernels.dictionary import build
from streamserve.plan.operators.text import ANALYSERS

_CALLABLES = ("preprocessor", "tokenizer")
_OF_GRAMS = ("lower", "accents", "analyser", "pattern", "stop_words", "min_n", "max_n")
_MOST_HASHES = 1 << 22


def _vectoriser(importing: Importing, estimator: Any, source: int, origin: str) -> int:
    params = _params(estimator)
    entries = _entries(estimator.vocabulary_)
    arena, slots = build(entries)
    params["features"] = len(entries)
    constants: dict[str, AnyArray] = {"arena": arena, "slots": slots}
    weighted = type(estimator).__name__ == "TfidfVectorizer"
    if weighted:
        params |= {"sublinear": bool(estimator.sublinear_tf), "norm": estimator.norm}
        if estimator.use_idf:
            constants["idf"] = np.asarray(estimator.idf_, dtype=np.float64)
    return importing.add("vectorise", source, origin=origin, constants=constants, **params)


def _hashing(importing: Importing, estimator: Any, source: int, origin: str) -> int:
    params = _params(estimator)
    if estimator.n_features > _MOST_HASHES:
        raise NotWhite(f"n_features = {estimator.n_features}: every thread keeps a count for each")
    params |= {"norm": estimator.norm, "features": int(estimator.n_features), "signed": bool(estimator.alternate_sign)}
    grams = {name: params[name] for name in _OF_GRAMS}
    source = importing.builder.add("encodable", [source], params=grams, origin=origin)
    return importing.builder.add("vectorise", [source], params=params, origin=origin)


def _params(estimator: Any) -> dict[str, Param]:
    for name in _CALLABLES:
        if getattr(estimator, name) is not None:
            raise NotWhite(f"{name} is a function of the user's own")
    if callable(estimator.analyzer) or estimator.analyzer not in ANALYSERS:
        raise NotWhite("analyzer is a function of the user's own")
    if callable(estimator.strip_accents):
        raise NotWhite("strip_accents is a function of the user's own")
    if estimator.input != "content":
        raise NotWhite(f"input = {estimator.input!r}: rows name files")
    if np.dtype(estimator.dtype) not in (np.dtype(np.float64), np.dtype(np.int64)):
        raise NotWhite(f"dtype = {np.dtype(estimator.dtype)}: counts of this type are rounded otherwise")
    low, high = estimator.ngram_range
    word = estimator.analyzer == "word"
    return {
        "lower": bool(estimator.lowercase),
        "accents": estimator.strip_accents or None,
        "analyser": estimator.analyzer,
        "pattern": _pattern(estimator.token_pattern) if word else "",
        "stop_words": tuple(sorted(estimator.get_stop_words() or ())) if word else (),
        "min_n": int(low),
        "max_n": int(high),
        "dtype": np.dtype(estimator.dtype).name,
        "binary": bool(estimator.binary),
        "sublinear": False,
        "norm": None,
    }


def _pattern(pattern: Any) -> str:
    if not isinstance(pattern, str):
        raise NotWhite("token_pattern is no string")
    if re.compile(pattern).groups > 1:
        raise NotWhite("token_pattern has more than one group")
    return pattern


def _entries(vocabulary: Any) -> list[str]:
    """The vocabulary in order of its numbers."""
    entries: list[str] = [""] * len(vocabulary)
    for entry, number in vocabulary.items():
        if not isinstance(entry, str) or not 0 <= int(number) < len(entries):
            raise NotWhite(f"its vocabulary holds {entry!r} as number {number}")
        entries[int(number)] = entry
    if len({int(number) for number in vocabulary.values()}) != len(entries):
        raise NotWhite("two entries of its vocabulary have one number")
    return entries


def _tfidf(importing: Importing, estimator: Any, source: int, origin: str) -> int:
    """Reads counts of a CountVectorizer; of anything else it stays as it is."""
    if importing.builder.nodes[source].op not in {"vectorise", "concat"}:
        raise NotWhite("its counts come from no vectoriser that was opened")
    if estimator.sublinear_tf:
        source = importing.add("sublinear", source, origin=origin)
    if estimator.use_idf:
        constants: dict[str, AnyArray] = {"idf": np.asarray(estimator.idf_, dtype=np.float64)}
        source = importing.add("idf", source, origin=origin, constants=constants)
    if estimator.norm is not None:
        source = importing.add("norm", source, origin=origin, norm=estimator.norm)
    if not (estimator.sublinear_tf or estimator.use_idf or estimator.norm):
        raise NotWhite("it changes nothing but the type of the counts")
    return source


TRANSFORMERS: dict[str, TransformerImporter] = {
    "CountVectorizer": _vectoriser,
    "HashingVectorizer": _hashing,
    "TfidfVectorizer": _vectoriser,
    "TfidfTransformer": _tfidf,
}
