"""Whether a short text speaks well (1) or badly (0) of its subject: one pipeline a domain, and one for all domains."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline, make_union

from streamserve.datasets import sentiment_split
from workers.trained import trained_on_texts

ALL = "all"


def model(domain: str = ALL) -> Any:
    """The pipeline of this domain, trained on its texts alone; of `all`, on those of all four."""
    data = sentiment_split()
    rows = np.flatnonzero(~data.held_out & ((data.domains == domain) | (domain == ALL)))
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=2)
    characters = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True, min_df=2)
    pipeline = make_pipeline(make_union(words, characters), LogisticRegression(C=4.0, solver="liblinear"))
    return trained_on_texts(f"sentiment_{domain}", pipeline, data.texts[rows], data.labels[rows])
