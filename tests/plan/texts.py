"""Documents and fitted text pipelines that the tests of plans share."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline

DOCUMENTS = [
    "Hello world, the WORLD is big",
    "a b c dd ee ff",
    " über Straße café 😀 the world",
    "",
    "İstanbul ΑΣ ©™ TM  x\t\ty\n z",
    "I'm not_sure; 3 times 12 is 36...",
    "हिन्दी में नमस्ते, 中文 日本語",
    "the end \ud800 of it",
]
LABELS = [0, 1, 1, 0, 1, 0, 1, 0]

_PIECES = st.sampled_from(
    ["hello", "world", "the", "a", "WORLD", "straße", "STRASSE", "cafe\u0301", "ΑΣ", "ας", "İ", "x" * 70, "_", "\ud800"]
)
_GAPS = st.sampled_from([" ", "  ", "\t", "\n", "\u00a0", "\u2003", "\x1c", "-", "", ". "])
#: Any text at all, and text that looks like what the pipelines were fitted on.
texts = st.one_of(
    st.text(st.characters(exclude_categories=()), max_size=60),
    st.lists(st.tuples(_PIECES, _GAPS), max_size=30).map(lambda parts: "".join(a + b for a, b in parts)),
    st.text("aA bB\t\né_", max_size=200),
)
batches = st.lists(texts, max_size=6)


def union(**weights: float) -> FeatureUnion:
    return FeatureUnion(
        [
            ("word", TfidfVectorizer(ngram_range=(1, 2), stop_words=["the"], strip_accents="unicode")),
            ("char", TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True)),
            ("count", CountVectorizer(analyzer="char", ngram_range=(1, 2))),
        ],
        transformer_weights=weights or None,
    )


VECTORISERS: dict[str, Any] = {
    "word": TfidfVectorizer(ngram_range=(1, 3)),
    "word_binary": TfidfVectorizer(binary=True, norm=None, ngram_range=(2, 2), lowercase=False),
    "word_short": TfidfVectorizer(token_pattern=r"\w+", stop_words=["a", "world"], norm=None, sublinear_tf=True),
    "word_english": TfidfVectorizer(stop_words="english", strip_accents="ascii", norm="l1", smooth_idf=False),
    "pattern": TfidfVectorizer(token_pattern=r"(?u)\b(\w)\w*\b", ngram_range=(1, 2)),
    "pattern_spaces": TfidfVectorizer(token_pattern=r"[^ ]+ [^ ]+|\S+", stop_words=["the"], sublinear_tf=True),
    "char": CountVectorizer(analyzer="char", ngram_range=(1, 5)),
    "char_long": TfidfVectorizer(analyzer="char", ngram_range=(6, 10), use_idf=False),
    "char_wb": TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 9), sublinear_tf=True),
    "char_wb_accents": TfidfVectorizer(analyzer="char_wb", ngram_range=(1, 3), strip_accents="unicode"),
    "two_steps": make_pipeline(CountVectorizer(strip_accents="ascii"), TfidfTransformer(sublinear_tf=True, norm=None)),
    "union": union(char=0.3),
}


def fitted(vectoriser: Any, model: Any | None = None, labels: Any = None) -> Pipeline:
    chain = make_pipeline(vectoriser, LogisticRegression() if model is None else model)
    return chain.fit(DOCUMENTS, LABELS if labels is None else labels)
