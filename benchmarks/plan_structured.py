"""PRETZEL's structured workload: pipelines over 40 columns that end in ensembles of 10 KB to 20 MB.

Each is StandardScaler, then PCA and distances to centres side by side, or the columns as they are, then a forest or
boosting; the largest stack a tree's probabilities on top. Scaler, PCA and centres are drawn from a few fitted ones, as
versions of a pipeline share them; every ensemble is its own. `nothing shared` gives every pipeline parts of its own.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.plan_density import measured, side_by_side
from benchmarks.results import Row
from streamserve.plan.compile import laid_out
from streamserve.plan.importers import import_fitted
from streamserve.plan.packing import pack
from streamserve.plan.store import Store

PLANS, COLUMNS = 250, 40
_FRONTS = 6
_FEW_ROWS, _ROWS = 300, 4000
_UNPICKLED = 6
#: Below it the largest ensembles are small ones, too: a run to see that all is well.
_WHOLE_SCALE = 0.05
#: Trees and depth of the ensembles, in turn: some 10 KB to some 20 MB.
_SIZES = ((5, 4), (20, 6), (60, 10), (100, None))


def structured(scale: float, folder: Path) -> Iterator[Row]:
    """Memory and loading of `250 * scale` pipelines, shared fronts and none, beside unpickled ones."""
    count = max(4, round(PLANS * scale))
    for shared in (True, False):
        place = folder / f"structured-{shared}"
        place.mkdir()
        name = "shared fronts" if shared else "nothing shared"
        store, files, started = Store(place / "store"), [], time.perf_counter()
        for i, model in enumerate(
            pipelines(count, shared=shared, seed=5, most_rows=_ROWS if scale >= _WHOLE_SCALE else _FEW_ROWS)
        ):
            if i < _UNPICKLED:
                (place / f"{i}.pickle").write_bytes(pickle.dumps(model))
            files.append(place / f"{i}.plan")
            pack(laid_out(import_fitted(model).graph), files[-1], store, thin=True)
        spent = time.perf_counter() - started
        yield {"model": f"{name}, fitting and packing", "plans": count, "ours": spent, "unit": "s"}
        ours = measured("plans", place / "store", *files)
        theirs = measured("pickles", *sorted(place.glob("*.pickle")))
        each = theirs["growth_bytes"] / theirs["count"]
        note = f"resident, all pages touched; theirs extrapolated from {theirs['count']}"
        yield side_by_side(f"{name}, memory", count, ours["growth_bytes"] / 1e6, each * count / 1e6, "MB", note)
        note = f"theirs extrapolated from {theirs['count']}"
        load_s = theirs["seconds"] / theirs["count"] * count
        yield side_by_side(f"{name}, loading all", count, ours["seconds"], load_s, "s", note)
        for which in ("median", "slowest"):
            yield {"model": f"{name}, loading one, {which}", "plans": count, "ours": 1e3 * ours[f"{which}_s"],
                   "unit": "ms"}  # fmt: skip
        first, hot = 1e6 * ours["first_s"], 1e6 * ours["hot_p99_s"]
        note = "ratio: first over the 99th percentile of the following"
        yield {"model": f"{name}, first request, median", "plans": count, "ours": first, "theirs": hot,
               "ratio": first / hot, "unit": "us", "note": note}  # fmt: skip
        note = "hot 99th percentile of one row, ours beside scikit-learn's"
        theirs_us = 1e6 * theirs["hot_p99_s"]
        yield side_by_side(f"{name}, hot", count, hot, theirs_us, "us", note)


def pipelines(count: int, *, shared: bool, seed: int, most_rows: int) -> Iterator[Pipeline]:
    """`count` fitted pipelines, one at a time; the largest on `most_rows` rows."""
    draw = np.random.default_rng(seed)
    fronts = [_front(draw) for _ in range(_FRONTS)]
    for i in range(count):
        front = fronts[i % _FRONTS] if shared else _front(draw)
        trees, depth = _SIZES[i % len(_SIZES)]
        rows = draw.normal(size=(most_rows if depth is None else _FEW_ROWS, COLUMNS))
        values = rows[:, : 3 + i % 5].sum(axis=1) + draw.normal(size=len(rows))
        number = int(draw.integers(1 << 30))
        if i % 2 and depth is not None:
            last: Any = GradientBoostingRegressor(n_estimators=trees, max_depth=depth, random_state=number)
        else:
            last = RandomForestRegressor(trees, max_depth=depth, random_state=number)
        pipeline = Pipeline([*front, ("model", last)])
        last.fit(pipeline[:-1].transform(rows), values)
        yield pipeline


def _front(draw: np.random.Generator) -> list[tuple[str, Any]]:
    """Fitted steps before the model."""
    rows = draw.normal(size=(_FEW_ROWS, COLUMNS)) * draw.uniform(0.5, 5, size=COLUMNS)
    scaler = StandardScaler().fit(rows)
    union = FeatureUnion(
        [
            ("pca", PCA(8, random_state=0)),
            ("centres", KMeans(12, random_state=int(draw.integers(1 << 30)), n_init=1)),
        ]
    ).fit(scaler.transform(rows))
    return [("scaler", scaler), ("features", union)]
