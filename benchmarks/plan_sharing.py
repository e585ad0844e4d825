"""Many models as one: what one more head costs a document, and what 16 models cost beside one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.plan_rows import Run
from benchmarks.plan_times import CLEAR_RATING, paper_union
from benchmarks.results import Row
from streamserve.datasets import sentiment
from streamserve.plan.compile import Plan, laid_out
from streamserve.plan.costs import cycled
from streamserve.plan.importers import import_fitted
from streamserve.plan.precision import narrowed
from streamserve.plan.sharing import Group

_BATCH = 1000
_HEADS = (1, 8, 64)
_COLUMNS, _MODELS = 20, 16
_ROWS = 2000
_OUTPUTS = ("predict", "predict_proba")
_REPEATS = 9
#: Rows on which heads in float32 are compared with those in float64.
_ERROR_ROWS = 200
#: Below it there are fewer heads: a run to see that all is well.
_WHOLE_SCALE = 0.05


def sharing(run: Run) -> Iterator[Row]:
    """Sentiment heads over one featuriser, and logistic pipelines over the same columns, together and one by one."""
    snippets = sentiment()
    clear = np.flatnonzero(np.abs(snippets.ratings) > CLEAR_RATING)
    texts = [snippets.texts[i] for i in clear[: max(500, int(len(clear) * run.scale))]]
    labels = (snippets.ratings[clear[: len(texts)]] > 0).astype(int)
    model = make_pipeline(paper_union(), LogisticRegression()).fit(texts, labels)
    draw = np.random.default_rng(0)
    plans: dict[str, Plan] = {}
    coef = model[-1].coef_
    counts = _HEADS if run.scale >= _WHOLE_SCALE else _HEADS[:-1]
    for i in range(counts[-1]):
        model[-1].coef_ = coef * draw.uniform(0.5, 2, size=coef.shape)
        plans[f"m{i}"] = laid_out(import_fitted(model).graph)
    yield from _of("sentiment", plans, counts, cycled(texts, _BATCH))
    yield from _narrow(plans, counts, cycled(texts, _BATCH))
    tables = {}
    for i in range(_MODELS):
        rows = draw.normal(size=(_ROWS, _COLUMNS))
        fitted = make_pipeline(StandardScaler(), LogisticRegression()).fit(rows, rows[:, 0] + rows[:, i] > 0)
        tables[f"m{i}"] = laid_out(import_fitted(fitted).graph)
    for size in (100, _BATCH):
        yield from _of("logistic", tables, (1, _MODELS), draw.normal(size=(size, _COLUMNS)))


def _of(name: str, plans: dict[str, Plan], counts: tuple[int, ...], batch: Any) -> Iterator[Row]:
    alone_us = 0.0
    for count in counts:
        some = {model: plans[model] for model in list(plans)[:count]}
        group = Group(some)
        together, apart = _least_us(group, some, batch)
        alone_us = alone_us or together
        extra = (together - alone_us) / max(count - 1, 1)
        yield {
            "model": f"{name}, {count} models",
            "batch": len(batch),
            "ours": together,
            "theirs": apart,
            "ratio": apart / together,
            "unit": "us/row",
            "note": f"theirs: one by one; {extra:.3f} us for each further model",
        }


def _narrow(plans: dict[str, Plan], counts: tuple[int, ...], batch: Any) -> Iterator[Row]:
    """The same heads in float32 beside those in float64, both together; the thread's own time: the two are close."""
    made = {model: narrowed(plan, batch[:_ERROR_ROWS]) for model, plan in plans.items()}
    worst = max((error for _, error in made.values()), key=lambda error: error.absolute)
    alone_us = [0.0, 0.0]
    for count in counts:
        some = list(plans)[:count]
        narrow, wide = Group({model: made[model][0] for model in some}), Group({model: plans[model] for model in some})
        asked = dict.fromkeys(some, _OUTPUTS)
        both = _in_turns(
            partial(narrow.run, batch, asked), partial(wide.run, batch, asked), len(batch), time.thread_time
        )
        alone_us = [one or now for one, now in zip(alone_us, both, strict=True)]
        extra = [(now - one) / max(count - 1, 1) for one, now in zip(alone_us, both, strict=True)]
        yield {
            "model": f"sentiment in float32, {count} models",
            "batch": len(batch),
            "ours": both[0],
            "theirs": both[1],
            "ratio": both[1] / both[0],
            "unit": "us/row",
            "note": f"theirs: float64; {extra[0]:.3f} us for each further model, {extra[1]:.3f} in float64; "
            f"worst of all: {worst.words()}",
        }


def _least_us(group: Group, plans: dict[str, Plan], batch: Any) -> tuple[float, float]:
    """Microseconds a row together and one by one."""
    asked = dict.fromkeys(plans, _OUTPUTS)

    def one_by_one() -> None:
        for plan in plans.values():
            plan.run(batch, _OUTPUTS)

    return _in_turns(lambda: group.run(batch, asked), one_by_one, len(batch))


def _in_turns(
    one: Callable[[], object], other: Callable[[], object], rows: int, clock: Callable[[], float] = time.perf_counter
) -> tuple[float, float]:
    """Microseconds a row of two calls, the least of calls that take turns: a disturbance meets both."""
    least = [float("inf"), float("inf")]
    for _ in range(_REPEATS):
        started = clock()
        one()
        between = clock()
        other()
        ended = clock()
        least = [min(least[0], between - started), min(least[1], ended - between)]
    first, second = (1e6 * seconds / rows for seconds in least)
    return first, second
