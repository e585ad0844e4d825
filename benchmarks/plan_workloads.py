"""PRETZEL's two workloads, in scikit-learn's words, one fitted pipeline at a time.

`sentiment` (SA): 250 pipelines of characters 3 beside words 1-2, then logistic regression. Vocabularies are shared as
in the paper's Figure 3; real n-grams of short texts, filled up with pairs of real words to some million entries.
Weights are each pipeline's own.

`attendees` (AC): 250 regressors over 40 columns, of 10 KB to 20 MB as pickles. Three kinds, in turn, as `KINDS` says:

* *small*: a scaler of 6, then boosting of its own (10 to 50 trees of depth 3 or 4);
* *middle*: a scaler, PCA and distances to centres of 6, then a forest of its own (20 trees of depth 8);
* *large*: the same front, then an ensemble and a boosting of 6 versions that stand beside the columns (the paper's
  TreeFeaturizer and tree classifier), all read by a boosting of its own.

What is of 6 versions has users as the paper's character dictionaries have (`CHAR_USERS`). With `shared=False` every
pipeline fits everything itself, so nothing is equal to anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    ExtraTreesRegressor,
    GradientBoostingRegressor,
    RandomForestRegressor,
    StackingRegressor,
)
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.plan_questions import AC, AC_ALONE, COLUMNS, SA
from benchmarks.plan_rows import WHOLE_SCALE
from streamserve.datasets import sentiment as snippets

PLANS = 250
#: Users of each distinct vocabulary among 250 pipelines (PRETZEL, Figure 3).
WORD_USERS = (86, 85, 46, 9, 9, 8, 7)
CHAR_USERS = (86, 85, 46, 18, 8, 7)
#: Entries of them at full size: the paper's third is larger by 83 to 59 MB, and its last three hold next to nothing.
WORD_ENTRIES = (1_000_000, 1_000_000, 1_400_000, 1_000_000, 1_000_000, 1_000_000, 1_000_000)
CHAR_ENTRIES = (15_000, 15_000, 16_500, 12, 12, 12)
KINDS = ("large", "small", "large", "middle")
_VERSIONS = len(CHAR_USERS)
_FEW_ROWS, _ROWS = 300, 3000
#: Trees of the large ensembles' versions at full size: 12 to 20 MB.
_TREES = (46, 40, 34, 30, 28, 28)


def spread(users: Sequence[int], count: int) -> list[int]:
    """Which version each of `count` pipelines has, in the paper's shares, the versions one after the other."""
    whole = np.repeat(np.arange(len(users)), users)
    return [int(whole[i * len(whole) // count]) for i in range(count)]


def planned(scale: float) -> int:
    """How many pipelines a run of this scale has."""
    return max(4, round(PLANS * scale))


# -- sentiment ---------------------------------------------------------------------------------------------------------


def sentiment_pipelines(count: int, scale: float) -> Iterator[tuple[str, Pipeline]]:
    """`count` sentiment pipelines with vocabularies of `scale` times the full size."""
    texts = list(snippets().texts)
    words, chars = spread(WORD_USERS, count), spread(CHAR_USERS, count)
    draw = np.random.default_rng(1)
    made: dict[str, tuple[int, TfidfVectorizer]] = {}
    for word, char in zip(words, chars, strict=True):
        for kind, version in (("word", word), ("char", char)):
            if kind not in made or made[kind][0] != version:  # one of each at a time: they are large
                made[kind] = version, _vectoriser(kind, version, texts, scale)
        yield f"w{word + 1} c{char + 1}", _with_weights(made["char"][1], made["word"][1], draw)


def _with_weights(char: TfidfVectorizer, word: TfidfVectorizer, draw: np.random.Generator) -> Pipeline:
    union = FeatureUnion([("char", char), ("word", word)])
    union._validate_transformers()
    model, width = LogisticRegression(), len(char.vocabulary_) + len(word.vocabulary_)
    model.coef_, model.intercept_ = draw.normal(size=(1, width)), draw.normal(size=1)
    model.classes_, model.n_features_in_ = np.array([0, 1]), width
    return Pipeline([("features", union), ("model", model)])


def _vectoriser(kind: str, version: int, texts: list[str], scale: float) -> TfidfVectorizer:
    entries, least = (WORD_ENTRIES, 2000) if kind == "word" else (CHAR_ENTRIES, 1000)
    size = min(entries[version], max(least, int(entries[version] * scale)))
    part = texts[version :: len(entries)]
    options: dict[str, Any] = {"use_idf": False, "ngram_range": (1, 2)}
    if kind == "char":
        options |= {"analyzer": "char", "ngram_range": (3, 3)}
    found = set(list(TfidfVectorizer(**options).fit(part).vocabulary_)[:size])
    if kind == "word":
        _fill(found, size, np.random.default_rng(version))
    vocabulary = {entry: i for i, entry in enumerate(sorted(found))}
    return TfidfVectorizer(**options, vocabulary=vocabulary).fit(part[:1])


def _fill(found: set[str], size: int, draw: np.random.Generator) -> None:
    """Pairs of the words that are there, until there are `size` entries (or as many as there are pairs)."""
    words = sorted(entry for entry in found if " " not in entry)
    size = min(size, len(words) ** 2 // 2)
    while len(found) < size:
        for a, b in draw.integers(len(words), size=(size - len(found), 2)).tolist():
            found.add(f"{words[a]} {words[b]}")


# -- attendees ---------------------------------------------------------------------------------------------------------


def attendee_pipelines(count: int, scale: float, *, shared: bool = True) -> Iterator[tuple[str, Pipeline]]:
    """`count` regressors over 40 columns."""
    draw, whole = np.random.default_rng(5), scale >= WHOLE_SCALE
    versions = draw.permutation(spread(CHAR_USERS, count)).tolist()
    fronts = [_Front(draw, version, whole=whole) for version in range(_VERSIONS)] if shared else []
    for i, version in enumerate(versions):
        front = fronts[version] if shared else _Front(draw, version, whole=whole)
        kind = KINDS[i % len(KINDS)]
        yield f"{kind} {version + 1}" if kind == "large" else f"{kind} {i}", front.pipeline(kind, i)


class _Front:
    """A version of everything that pipelines may share; large parts are fitted when they are first wanted."""

    def __init__(self, draw: np.random.Generator, version: int, *, whole: bool) -> None:
        self._draw = draw
        self._rows, self._trees = (_ROWS, _TREES[version]) if whole else (_FEW_ROWS, 5)
        self._scaler = StandardScaler().fit(self._table(_FEW_ROWS)[0])
        self._union: FeatureUnion | None = None
        self._beside: list[tuple[str, Any]] = []

    def _table(self, rows: int) -> tuple[Any, Any]:
        table = self._draw.normal(size=(rows, COLUMNS)) * self._draw.uniform(0.5, 5, size=COLUMNS)
        return table, table[:, :5].sum(axis=1) + self._draw.normal(size=rows)

    def _seed(self) -> int:
        return int(self._draw.integers(1 << 30))

    def pipeline(self, kind: str, number: int) -> Pipeline:
        rows, values = self._table(_FEW_ROWS)
        steps: list[tuple[str, Any]] = [("scaler", self._scaler)]
        if kind == "small":
            depth, trees = 3 + number % 2, 10 + 10 * (number % 5)
            last: Any = GradientBoostingRegressor(n_estimators=trees, max_depth=depth, random_state=self._seed())
        else:
            if self._union is None:
                parts = [("pca", PCA(8, random_state=0)), ("centres", KMeans(12, random_state=self._seed(), n_init=1))]
                self._union = FeatureUnion(parts).fit(self._scaler.transform(self._table(_FEW_ROWS)[0]))
            steps.append(("features", self._union))
            last = RandomForestRegressor(20, max_depth=8, max_features=6, random_state=self._seed())
        front = Pipeline(steps)
        if kind == "large":
            own = GradientBoostingRegressor(n_estimators=20, max_depth=3, random_state=self._seed())
            last = StackingRegressor(self._ensembles(front), own, cv="prefit", passthrough=True)
        return Pipeline([*steps, ("model", last.fit(front.transform(rows), values))])

    def _ensembles(self, front: Pipeline) -> list[tuple[str, Any]]:
        if not self._beside:
            rows, values = self._table(self._rows)
            forest = ExtraTreesRegressor(self._trees, max_features=6, random_state=self._seed())
            boosted = GradientBoostingRegressor(n_estimators=30, max_depth=3, random_state=self._seed())
            seen = front.transform(rows)
            few = slice(_FEW_ROWS)
            self._beside = [("forest", forest.fit(seen, values)), ("boosted", boosted.fit(seen[few], values[few]))]
        return self._beside


def _unshared(count: int, scale: float) -> Iterator[tuple[str, Pipeline]]:
    return attendee_pipelines(count, scale, shared=False)


#: (how many, scale) -> each pipeline with its form: those of one form weigh the same.
PIPELINES: dict[str, Callable[[int, float], Iterator[tuple[str, Pipeline]]]] = {
    SA: sentiment_pipelines,
    AC: attendee_pipelines,
    AC_ALONE: _unshared,
}
