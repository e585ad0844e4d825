"""`latency`: single rows cold and hot, `throughput`: batches and cores, `steady`: a million rows."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.plan_packed import Packed, packed
from benchmarks.plan_process import Holder, Task, holding
from benchmarks.plan_questions import AC, SA
from benchmarks.plan_rows import WHOLE_SCALE, Run, row
from benchmarks.results import Row

_PICKLES = 10
_HOT = 100
_BATCHES = (1, 10, 100, 1000)
_WINDOWS = 3
_STEADY_ROWS = 1_000_000
#: Times faster than scikit-learn that single rows, and batches of a thousand, are to be.
_ALONE, _BATCHED = {SA: 50, AC: 100}, {SA: 10, AC: 1}
_EFFICIENCY = 0.85


def _tasks(workload: str, models: Packed) -> tuple[Task, Task]:
    """All plans, and some pickles."""
    order = np.random.default_rng(8).permutation(len(models.pickles))[:_PICKLES]
    some = tuple(models.pickles[i] for i in order)
    ours = Task(what="plans", workload=workload, files=models.plans, store=models.store)
    return ours, Task(what="pickles", workload=workload, files=some)


def latency(run: Run) -> Iterator[Row]:
    """Median, 99th percentile and the worst of single rows: hot, the first call after loading (cold), and a client's
    first request, which comes after the one call with which a worker warms a model."""
    hot = _HOT if run.scale >= WHOLE_SCALE else 10
    for workload in (SA, AC):
        models = packed(workload, run.scale, run.folder)
        with holding(*_tasks(workload, models)) as (plans, pickles):
            ours, theirs = (holder.ask("calls", hot=hot) for holder in (plans, pickles))
        about = {"workload": workload, "plans": len(models.plans), "batch": 1}
        for kind in ("hot", "cold", "hot_cpu", "cold_cpu"):
            for name, share in (("median", 50), ("p99", 99), ("p99.9", 99.9), ("worst", 100)):
                a, b = (float(np.percentile(each[kind], share)) for each in (ours, theirs))
                wanted = f"ratio >= {_ALONE[workload]}" if (kind, name) == ("hot", "median") and run.scale >= 1 else ""
                note = f"theirs: {len(theirs['cold'])} models"
                yield row(f"{_words(kind)}, {name}", a, "us", theirs=b, wanted=wanted, note=note, **about)
        for clock in ("", "_cpu"):
            hot_p99 = float(np.percentile(ours[f"hot{clock}"], 99))
            for kind, what in (("cold", "cold call"), ("warmed", "first request")):
                for name, share in (("median", 50), ("p99", 99), ("worst", 100)):
                    first = float(np.percentile(ours[f"{kind}{clock}"], share)) / hot_p99
                    wanted = "ours <= 3" if (kind, name) == ("warmed", "p99") and run.scale >= 1 else ""
                    yield row(f"{what}{_words(clock)}, {name}", first, "hot p99", wanted=wanted, **about)


def _words(kind: str) -> str:
    return kind.replace("_cpu", " (CPU)")


def throughput(run: Run) -> Iterator[Row]:
    """Rows a second of one process and of one for each core, in batches; beside scikit-learn's."""
    seconds = max(0.2, min(2.0, 2 * run.scale))
    windows = _WINDOWS if run.scale >= 0.02 else 1  # below that only whether it works is asked
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for workload in (SA, AC):
        models = packed(workload, run.scale, run.folder)
        ours, theirs = _tasks(workload, models)
        with holding(*[ours] * cores, theirs) as (*plans, pickles):
            for batch in _BATCHES:
                about = {"workload": workload, "plans": len(models.plans), "batch": batch}
                alone, every, baseline = [], [], []
                for _ in range(windows):  # in turn: what disturbs one disturbs the others
                    alone.append(_rate(plans[:1], batch, seconds))
                    every.append(_rate(plans, batch, seconds))
                    baseline.append(_rate([pickles], batch, seconds))
                wanted = f"ratio >= {_BATCHED[workload]}" if batch == _BATCHES[-1] and run.scale >= 1 else ""
                yield row("rows a second, one process", max(alone), "rows/s", theirs=max(baseline), processes=1,
                          more_is_better=True, wanted=wanted, **about)  # fmt: skip
                if cores > 1:
                    yield row("rows a second, all cores", max(every), "rows/s", processes=cores, **about)
                    share = float(np.median([b / (cores * a) for a, b in zip(alone, every, strict=True)]))
                    yield row("efficiency of all cores", share, "", processes=cores,
                              wanted=f"ours >= {_EFFICIENCY}" if wanted else "", **about)  # fmt: skip


def _rate(holders: list[Holder], batch: int, seconds: float) -> float:
    """Rows a second of all of them at once."""
    at = time.time() + 0.3
    for holder in holders:
        holder.begin("throughput", batch=batch, seconds=seconds, at=at)
    return float(sum(holder.end()["rate"] for holder in holders))


def steady(run: Run) -> Iterator[Row]:
    """Memory and the collector's pauses over a million rows."""
    rows = max(20_000, int(_STEADY_ROWS * run.scale))
    for workload in (SA, AC):
        models = packed(workload, run.scale, run.folder)
        with holding(_tasks(workload, models)[0]) as (plans,):
            plans.ask("calls", hot=1)
            found: dict[str, Any] = plans.ask("steady", rows=rows)
        about = {"workload": workload, "plans": len(models.plans)}
        for done, size in found["curve"]:
            yield row("resident", size / 1e6, "MB", note=f"{done} rows", **about)
        early, late = found["curve"][1][1], found["curve"][-1][1]
        note = f"{rows:,} rows, from a tenth on; {found['calls']:,} calls, half with 1 row and half with 100"
        yield row("growth of memory", 100 * (late / early - 1), "%", wanted="ours <= 1", note=note, **about)
        pauses = found["pauses_ms"]
        worst = float(np.percentile(pauses, 99.9)) if pauses else 0.0
        note = f"{len(pauses)} collections, {sum(pauses):.1f} ms in all"
        yield row("pauses of the collector, p99.9", worst, "ms", wanted="ours <= 1", note=note, **about)
        yield row("compilations", found["compilations"], "", wanted="ours <= 0", **about)
