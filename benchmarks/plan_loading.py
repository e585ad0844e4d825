"""Load plans (`plans STORE FILE...`) or pickles (`pickles FILE...`) in a process of its own; say memory and time."""

from __future__ import annotations

import json
import pickle
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from streamserve.plan.kernels import warm
from streamserve.plan.packing import load
from streamserve.plan.store import Store

_TEXT = "a few words of some film that nobody liked, though it had its moments and one good song"
_HOT = 1000


def resident_bytes() -> int:
    """Proportional set size, or resident set size where the system does not tell it."""
    rollup = Path("/proc/self/smaps_rollup")
    name, file = ("Pss:", rollup) if rollup.exists() else ("VmRSS:", Path("/proc/self/status"))
    return next(int(line.split()[1]) * 1024 for line in file.read_text().splitlines() if line.startswith(name))


def main(what: str, *names: str) -> None:
    """Load, touch every page, tell."""
    warm()
    store = Store(names[0]) if what == "plans" else None
    files = [Path(name) for name in (names[1:] if store else names)]
    if store is None:
        import sklearn.feature_extraction.text  # noqa: PLC0415  (its own memory is not the models')
        import sklearn.linear_model  # noqa: PLC0415  (as above)
        import sklearn.pipeline  # noqa: F401, PLC0415  (as above; imported for what it weighs)
    before, kept, spent = resident_bytes(), [], []
    for file in files:
        started = time.perf_counter()
        loaded: Any = load(file, store) if store else pickle.loads(file.read_bytes())
        spent.append(time.perf_counter() - started)
        kept.append(loaded)
    rows = [_row_of(loaded) for loaded in kept]
    first = [_seconds(loaded, row) for loaded, row in zip(kept, rows, strict=True)]
    hot = [_seconds(loaded, row) for loaded, row in zip(kept, rows, strict=True) for _ in range(_HOT // len(kept) + 1)]
    for loaded in kept:
        if store:
            for constant in loaded.graph.constants():
                np.add.reduce(constant.array, axis=None, dtype=np.float64)
    report = {"growth_bytes": resident_bytes() - before, "count": len(files), "seconds": sum(spent)}
    report |= {"slowest_s": max(spent), "median_s": float(np.median(spent))}
    print(json.dumps({**report, "first_s": float(np.median(first)), "hot_p99_s": float(np.percentile(hot, 99))}))


def _row_of(model: Any) -> Any:
    """One row of the form that a plan or an estimator takes."""
    columns = model.graph.form.columns if hasattr(model, "graph") else getattr(model, "n_features_in_", 0)
    return np.linspace(-1, 1, columns)[None, :] if columns else [_TEXT]


def _seconds(model: Any, row: Any) -> float:
    started = time.perf_counter()
    model.predict(row)
    return time.perf_counter() - started


if __name__ == "__main__":
    main(*sys.argv[1:])
