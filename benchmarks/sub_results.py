"""Single texts through plans that share their features, with a cache of sub-results and without, side by side.

    python -m benchmarks.sub_results [--calls 20000]

Texts come by popularity (Zipf, exponent 1.1) or each one once (`fresh`); each call asks one of four plans for one text.
Both ways answer the same calls, a hundred at a time in turn, so that a busy machine is busy for both. Times are
processor times of the thread.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import FeatureUnion, make_pipeline

from streamserve.plan import Plan
from streamserve.plan.compile import laid_out
from streamserve.plan.importers import import_fitted
from streamserve.plan.materialised import SubResults, shared_keys

_WORDS, _TEXTS, _PLANS, _TURN = 30_000, 4_000, 4, 100


def texts(count: int, draw: np.random.Generator) -> list[str]:
    """Of some 80 words each."""
    ranks = np.arange(1, _WORDS + 1)
    words = np.array([f"w{rank}{'abcdefgh'[rank % 8]}" for rank in ranks])
    chances = ranks**-1.0 / np.sum(ranks**-1.0)
    return [" ".join(words[draw.choice(_WORDS, size=draw.integers(40, 120), p=chances)]) for _ in range(count)]


def plans(known: list[str], draw: np.random.Generator) -> list[Plan]:
    """Heads of their own over the same features."""
    features = FeatureUnion(
        [
            ("word", TfidfVectorizer(ngram_range=(1, 2))),
            ("char", TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 3))),
        ]
    ).fit(known)
    found = []
    for _ in range(_PLANS):
        head = LogisticRegression(max_iter=1000)
        model = make_pipeline(features, head)
        matrix = features.transform(known[:200])
        head.fit(matrix, draw.integers(2, size=200))
        found.append(laid_out(import_fitted(model).graph))
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--mib", type=int, default=64)
    calls, most_bytes = parser.parse_args().calls, parser.parse_args().mib << 20
    draw = np.random.default_rng(5)
    known = texts(_TEXTS, draw)
    without = plans(known, draw)
    for kind in ("popular", "fresh"):
        cache, shared = SubResults(most_bytes), shared_keys([plan.graph for plan in without])
        kept = [laid_out(plan.imported) for plan in without if plan.imported is not None]
        for plan in kept:
            plan.layout.materialise(cache, shared)
        stream = _stream(kind, calls, known, draw)
        spent: dict[str, list[float]] = {"without": [], "with": []}
        for start in range(0, calls, _TURN):
            for name, some in (("without", without), ("with", kept)):
                spent[name] += [_seconds(some[which], text) for which, text in stream[start : start + _TURN]]
        for name, seconds in spent.items():
            hot = np.array(seconds[calls // 4 :]) * 1e6
            p50, p90, p99 = np.percentile(hot, (50, 90, 99))
            print(f"{kind:8} {name:8} mean {hot.mean():7.1f}  p50 {p50:7.1f}  p90 {p90:7.1f}  p99 {p99:7.1f} us a text")
        print(f"{kind:8} {cache.figures()}")


def _stream(kind: str, calls: int, known: list[str], draw: np.random.Generator) -> list[tuple[int, str]]:
    which = draw.integers(_PLANS, size=calls).tolist()
    if kind == "fresh":
        return list(zip(which, texts(calls, draw), strict=True))
    ranks = np.arange(1, len(known) + 1)
    asked = draw.choice(len(known), size=calls, p=ranks**-1.1 / np.sum(ranks**-1.1))
    # as from a decoder: each time another object
    return [(plan, known[i].encode().decode()) for plan, i in zip(which, asked.tolist(), strict=True)]


def _seconds(plan: Plan, text: str) -> Any:
    started_ns = time.thread_time_ns()
    plan.run([text], ("predict", "predict_proba"))
    return (time.thread_time_ns() - started_ns) / 1e9


if __name__ == "__main__":
    main()
