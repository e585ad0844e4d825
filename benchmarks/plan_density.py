"""Many sentiment plans in one process: their memory and their loading, beside unpickled pipelines."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import FeatureUnion, Pipeline

from benchmarks.results import Row
from streamserve.datasets import sentiment
from streamserve.plan.compile import laid_out
from streamserve.plan.importers import import_fitted
from streamserve.plan.packing import pack
from streamserve.plan.store import Store

#: Users of each distinct vocabulary among 250 pipelines (PRETZEL, Figure 3).
WORD_USERS = (86, 85, 46, 9, 9, 8, 7)
CHAR_USERS = (86, 85, 46, 18, 8, 7)
PLANS, WORDS, CHARS = 250, 1_000_000, 15_000
_UNPICKLED = 3


def density(scale: float, folder: Path) -> Iterator[Row]:
    """Bytes and seconds of all plans in one process, against the increment of an unpickled pipeline."""
    plans = max(2, round(PLANS * scale))
    store, files = Store(folder / "store"), []
    started = time.perf_counter()
    for i, model in enumerate(_pipelines(plans, scale)):
        if i < _UNPICKLED:
            (folder / f"{i}.pickle").write_bytes(pickle.dumps(model))
        files.append(folder / f"{i}.plan")
        pack(laid_out(import_fitted(model).graph), files[-1], store, thin=True)
    yield {"model": "packing", "plans": plans, "ours": time.perf_counter() - started, "unit": "s"}
    on_disk = sum(store.object_bytes().values()) / 1e6
    unshared = sum(holding.bytes for holding in store.holdings()) / 1e6
    yield side_by_side("store", plans, on_disk, unshared, "MB", "arrays on disk, against a copy for every plan")
    ours = measured("plans", folder / "store", *files)
    theirs = measured("pickles", *sorted(folder.glob("*.pickle")))
    each = theirs["growth_bytes"] / theirs["count"]
    note = f"resident, all pages touched; theirs extrapolated from {theirs['count']}"
    yield side_by_side("memory", plans, ours["growth_bytes"] / 1e6, each * plans / 1e6, "MB", note)
    note = f"theirs extrapolated from {theirs['count']}"
    yield side_by_side("loading all", plans, ours["seconds"], theirs["seconds"] / theirs["count"] * plans, "s", note)
    yield {"model": "loading one, slowest", "plans": plans, "ours": 1e3 * ours["slowest_s"], "unit": "ms"}
    first, hot = 1e6 * ours["first_s"], 1e6 * ours["hot_p99_s"]
    note = "ratio: first over the 99th percentile of the following"
    yield {"model": "first request, median", "plans": plans, "ours": first, "theirs": hot, "ratio": first / hot,
           "unit": "us", "note": note}  # fmt: skip
    yield {"model": "loading one, median", "plans": plans, "ours": 1e3 * ours["median_s"], "unit": "ms"}


def side_by_side(model: str, plans: int, ours: float, theirs: float, unit: str, note: str) -> Row:
    """A row of two figures of which less is better."""
    return {
        "model": model,
        "plans": plans,
        "ours": ours,
        "theirs": theirs,
        "ratio": theirs / ours,
        "unit": unit,
        "note": note,
    }


def _pipelines(count: int, scale: float) -> Iterator[Pipeline]:
    """Pipelines whose vocabularies are real n-grams filled up with generated ones; every one has its own weights."""
    texts = list(sentiment().texts)
    words = _vocabularies(texts, len(WORD_USERS), max(2_000, int(WORDS * scale)), TfidfVectorizer(ngram_range=(1, 2)))
    char = TfidfVectorizer(analyzer="char", ngram_range=(3, 3))
    chars = _vocabularies(texts, len(CHAR_USERS), max(1_000, int(CHARS * scale)), char)
    draw = np.random.default_rng(1)
    shared = _spread(WORD_USERS, count), _spread(CHAR_USERS, count)
    for word, character in zip(*shared, strict=True):
        union = FeatureUnion([("char", chars[character]), ("word", words[word])])
        union._validate_transformers()
        model = LogisticRegression()
        width = len(chars[character].vocabulary_) + len(words[word].vocabulary_)
        model.coef_, model.intercept_ = draw.normal(size=(1, width)), draw.normal(size=1)
        model.classes_, model.n_features_in_ = np.array([0, 1]), width
        yield Pipeline([("features", union), ("model", model)])


def _spread(users: tuple[int, ...], count: int) -> list[int]:
    """Which vocabulary each of `count` pipelines has, in the paper's shares."""
    whole = np.repeat(np.arange(len(users)), users)
    return [int(whole[i * len(whole) // count]) for i in range(count)]


def _vocabularies(texts: list[str], count: int, size: int, vectoriser: TfidfVectorizer) -> list[TfidfVectorizer]:
    found = []
    for i in range(count):
        part = texts[i::count]
        real = list(vectoriser.set_params(use_idf=False, vocabulary=None).fit(part).vocabulary_)[:size]
        made = [f"{real[j % len(real)]} {i}{j:x}" for j in range(size - len(real))]
        entries = sorted({*real, *made})
        options = {**vectoriser.get_params(), "vocabulary": {entry: j for j, entry in enumerate(entries)}}
        found.append(TfidfVectorizer(**options).fit(part[:1]))
    return found


def measured(*words: Any) -> dict[str, Any]:
    """What a process of its own says that loads these."""
    command = [sys.executable, "-m", "benchmarks.plan_loading", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
