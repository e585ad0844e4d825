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
    first = [_seconds(loaded, _TEXT) for loaded in kept]
    hot = [_seconds(kept[0], _TEXT) for _ in range(_HOT)]
    for loaded in kept:
        if store:
            for constant in loaded.graph.constants():
                np.add.reduce(constant.array, axis=None, dtype=np.float64)
    report = {"growth_bytes": resident_bytes() - before, "count": len(files), "seconds": sum(spent)}
    report |= {"slowest_s": max(spent), "median_s": float(np.median(spent))}
    print(json.dumps({**report, "first_s": float(np.median(first)), "hot_p99_s": float(np.percentile(hot, 99))}))


def _seconds(model: Any, text: str) -> float:
    started = time.perf_counter()
    model.predict([text])
    return time.perf_counter() - started


if __name__ == "__main__":
    main(*sys.argv[1:])
