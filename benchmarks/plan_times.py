"""Times of `benchmarks.plans`: a plan and its original on the same rows, alone and in batches."""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.plan_rows import DIFFERENT, Run
from benchmarks.results import Row
from streamserve.datasets import sentiment
from streamserve.plan.compile import Plan, compile_plan
from streamserve.plan.costs import chosen, cycled
from streamserve.plan.kernels import compilations

#: Ratings closer to 0 are left out: people did not agree on their sign.
CLEAR_RATING = 0.5
_ALONE = 600
_BATCHES = (10, 1000)
_REPEATS = 7
_COLUMNS = 40


def paper_union() -> FeatureUnion:
    """ML.NET's sentiment featuriser as PRETZEL ran it, in scikit-learn's words."""
    return FeatureUnion(
        [
            ("char", TfidfVectorizer(analyzer="char", ngram_range=(3, 3), use_idf=False)),
            ("word", TfidfVectorizer(ngram_range=(1, 2), use_idf=False)),
        ]
    )


def text(run: Run) -> Iterator[Row]:
    """The sentiment pipeline of each domain, on snippets it was not fitted on."""
    snippets = sentiment()
    domains = np.array(snippets.domains)
    clear = np.abs(snippets.ratings) > CLEAR_RATING
    for domain in dict.fromkeys(snippets.domains):
        places = np.flatnonzero(clear & (domains == domain))
        seen, unseen = places[places % 10 != 0], places[places % 10 == 0]
        texts = [snippets.texts[i] for i in seen[: max(200, int(len(seen) * run.scale))]]
        labels = (snippets.ratings[seen[: len(texts)]] > 0).astype(int)
        model = make_pipeline(paper_union(), LogisticRegression(max_iter=1000)).fit(texts, labels)
        yield from timed(f"sentiment, {domain}", model, [snippets.texts[i] for i in unseen])


def tables(run: Run) -> Iterator[Row]:
    """Models over 40 columns of noise, of which some decide."""
    draw = np.random.default_rng(0)
    rows = draw.normal(size=(max(500, int(4000 * run.scale)), _COLUMNS))
    labels = (rows[:, :5].sum(axis=1) > 0).astype(int)
    trees = max(10, int(100 * run.scale))
    models: dict[str, Any] = {
        "scaler, logistic": make_pipeline(StandardScaler(), LogisticRegression()),
        f"scaler, {trees} trees, depth 8": make_pipeline(
            StandardScaler(), RandomForestClassifier(trees, max_depth=8, random_state=0)
        ),
        f"{trees} trees, unbounded": RandomForestClassifier(trees, random_state=0),
        f"boosting, {trees} trees": GradientBoostingClassifier(n_estimators=trees, random_state=0),
    }
    for name, model in models.items():
        yield from timed(name, model.fit(rows, labels), draw.normal(size=(1000, _COLUMNS)))


def timed(name: str, model: Pipeline, rows: Any) -> Iterator[Row]:
    """Microseconds of `predict_proba`: one row alone (median, p99, the first call), and a row in batches."""
    plan = chosen(compile_plan(model))
    same = plan.predict_proba(rows).tolist() == model.predict_proba(rows).tolist()
    note = "equal" if same else _tolerance(plan, model, rows)
    before = compilations()
    ours, theirs = _alone(plan.predict_proba, rows), _alone(model.predict_proba, rows)
    for what, share in (("median", 50), ("p99", 99)):
        a, b = float(np.percentile(ours, share)), float(np.percentile(theirs, share))
        yield _row(f"{name}, {what}", 1, a, b, note)
    for size in _BATCHES:
        batch = cycled(rows, size)
        a, b = (_batch_us(call, batch) / size for call in (plan.predict_proba, model.predict_proba))
        yield _row(name, size, a, b, note)
    if compilations() != before:
        yield _row(f"{name}, compiled", 1, compilations() - before, None, DIFFERENT)


def _tolerance(plan: Plan, model: Any, rows: Any) -> str:
    worst = float(np.abs(plan.predict_proba(rows) - model.predict_proba(rows)).max())
    return f"within {worst:.0e}" if worst <= 1e-12 else DIFFERENT


def _row(name: str, batch: int, ours: float, theirs: float | None, note: str) -> Row:
    ratio = theirs / ours if theirs is not None else None
    return {
        "model": name,
        "batch": batch,
        "ours": ours,
        "theirs": theirs,
        "ratio": ratio,
        "unit": "us/row",
        "note": note,
    }


def _alone(call: Callable[[Any], Any], rows: Any) -> list[float]:
    spent = []
    count = len(rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i in range(_ALONE):
            one = rows[i % count : i % count + 1]
            started = time.perf_counter()
            call(one)
            spent.append(1e6 * (time.perf_counter() - started))
    return spent[10:]


def _batch_us(call: Callable[[Any], Any], batch: Any) -> float:
    call(batch)
    gc.collect()
    spent = []
    for _ in range(_REPEATS):
        started = time.perf_counter()
        call(batch)
        spent.append(1e6 * (time.perf_counter() - started))
    return float(np.median(spent))
