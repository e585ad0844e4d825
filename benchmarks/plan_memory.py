"""`memory`: what many models weigh and how long they load, as plans and as baselines.

Ours, every one of them: the process's growth (proportional set size) after 1, 2, 5, ... plans, each asked once and all
their pages touched; four such processes at once; and a process in which no plan shares an array with another.
Baselines go up to the memory that the run may use: pickles in one process, and a process for each pickle, interpreter
and libraries counted (the stand-in for a container for each model). Beyond it stands the fitted increment for each
model times all models, marked `extrapolated`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np

from benchmarks.plan_packed import Packed, packed
from benchmarks.plan_process import Task, holding
from benchmarks.plan_questions import AC, AC_ALONE, SA
from benchmarks.plan_rows import WHOLE_SCALE, Run, row
from benchmarks.results import Row

PROCESSES = 4
_MARKS = (1, 2, 5, 10, 25, 50, 75, 100, 125, 150, 175, 200, 225, 250)
_MOST_SINGLES = 60
_MB = 1e6
#: Seconds to load all 250 plans, and times that they weigh less than a pickle each.
_LOAD_S = {SA: 15.0, AC: 2.8, AC_ALONE: 2.8}
_TIMES_LESS = {SA: 10, AC: 25}


def memory(run: Run) -> Iterator[Row]:
    """Every workload."""
    for workload in (SA, AC, AC_ALONE):
        yield from _of(workload, packed(workload, run.scale, run.folder), run)


def _of(workload: str, models: Packed, run: Run) -> Iterator[Row]:
    about = {"workload": workload, "plans": len(models.plans)}
    count = len(models.plans)
    least, mean, most = (size / _MB for size in models.pickle_bytes)
    note = f"generated one at a time; pickles of {least:,.2f} to {most:,.1f} MB, {mean:,.1f} in the mean"
    yield row("packing all", models.seconds, "s", note=note, **about)
    note = "arrays on disk, against a copy for every plan"
    yield row("store", models.store_bytes / _MB, "MB", theirs=models.unshared_bytes / _MB, note=note, **about)

    task = Task(what="plans", workload=workload, files=models.plans, store=models.store, marks=_marks(count))
    processes = PROCESSES if run.scale >= WHOLE_SCALE else 2
    without = _size_of_empty(processes)
    with holding(task) as (one,):
        # Alone: nobody shares its pages yet.
        ours, load_s, cpu_s = (one.loaded[name] for name in ("curve", "load_s", "load_cpu_s"))
        with holding(*[replace(task, marks=(count,))] * (processes - 1)) as others:
            together = (sum(holder.ask("memory")["all_bytes"] for holder in (one, *others)) - without) / _MB
    for plans, size in ours:
        yield row("plans", size / _MB, "MB", workload=workload, plans=plans)
    theirs = _pickles(workload, models, run)
    for plans, size in theirs:
        yield row("pickles", size / _MB, "MB", workload=workload, plans=plans)
    each, extrapolated = _fitted(theirs), theirs[-1][0] < count
    whole = (theirs[-1][1] + each * (count - theirs[-1][0])) / _MB
    of = f"theirs extrapolated from {theirs[-1][0]} at {each / _MB:,.1f} MB each" if extrapolated else "theirs: all"
    full = run.scale >= 1
    wanted = f"ratio >= {_TIMES_LESS[workload]}" if full and workload in _TIMES_LESS else ""
    yield row("memory, one process", ours[-1][1] / _MB, "MB", theirs=whole, wanted=wanted, note=of, **about)
    note = f"theirs: {processes} times that of one; PSS of all together, less that of as many without models"
    yield row(f"memory, {processes} processes", together, "MB", theirs=processes * whole, wanted=wanted, note=note,
              processes=processes, **about)  # fmt: skip

    wanted = f"ours <= {_LOAD_S[workload]}" if full else ""
    theirs_s = float(np.mean(_seconds(workload, models, run))) * count
    yield row("loading all", sum(load_s), "s", theirs=theirs_s, wanted=wanted, note="theirs extrapolated", **about)
    yield row("loading all (CPU)", cpu_s, "s", **about)
    yield row("loading one, median", 1e3 * float(np.median(load_s)), "ms", wanted="ours <= 10" if full else "", **about)
    yield row("loading one, slowest", 1e3 * max(load_s), "ms", **about)
    if workload != AC_ALONE:  # of its sizes, too
        yield from _singles(workload, models, run, ours[-1][1])


@cache
def _size_of_empty(processes: int) -> int:
    """Bytes of so many processes without models, what they share counted once."""
    with holding(*[Task(what="plans", workload=AC, files=(), store=".")] * processes) as holders:
        return sum(int(holder.ask("memory")["all_bytes"]) for holder in holders)


def _marks(count: int) -> tuple[int, ...]:
    return (*(mark for mark in _MARKS if mark < count), count)


def _fitted(curve: list[tuple[int, int]]) -> float:
    """Bytes for each further model: the slope through the points (through zero where there is but one)."""
    plans, sizes = np.array(curve, dtype=float).T
    return float(np.polyfit(plans, sizes, 1)[0]) if len(curve) > 1 else float(sizes[0] / plans[0])


def _in_turn(files: tuple[str, ...]) -> tuple[str, ...]:
    """All of them in an order in which the first few are of every kind."""
    return tuple(files[i] for i in np.random.default_rng(7).permutation(len(files)))


_kept: dict[str, tuple[list[tuple[int, int]], list[float]]] = {}


def _loaded_pickles(workload: str, models: Packed, run: Run) -> tuple[list[tuple[int, int]], list[float]]:
    if models.folder not in _kept:
        files = _in_turn(models.pickles)
        task = Task(what="pickles", workload=workload, files=files, marks=tuple(range(1, len(files) + 1)),
                    most_bytes=run.most_bytes)  # fmt: skip
        with holding(task) as (one,):
            _kept[models.folder] = one.loaded["curve"], one.loaded["load_s"]
    return _kept[models.folder]


def _pickles(workload: str, models: Packed, run: Run) -> list[tuple[int, int]]:
    return _loaded_pickles(workload, models, run)[0]


def _seconds(workload: str, models: Packed, run: Run) -> list[float]:
    return _loaded_pickles(workload, models, run)[1]


def _singles(workload: str, models: Packed, run: Run, ours: int) -> Iterator[Row]:
    """A process for each model, up to the memory of the run."""
    files = _in_turn(models.pickles)
    most = min(len(files), max(2, round(_MOST_SINGLES * run.scale)))
    tasks = [Task(what="pickles", workload=workload, files=(file,), marks=(1,)) for file in files[:most]]
    with contextlib.ExitStack() as stack:
        holders = stack.enter_context(holding(*tasks[:2]))
        each = max(holder.ask("memory")["all_bytes"] for holder in holders)
        holders += stack.enter_context(holding(*tasks[2 : int(run.most_bytes // each)]))
        sizes = [holder.ask("memory")["all_bytes"] for holder in holders]
    count = len(models.plans)
    note = f"theirs extrapolated from {len(sizes)} processes at {np.mean(sizes) / _MB:,.0f} MB each"
    whole = float(np.mean(sizes)) * count / _MB
    yield row("memory, a process for each", ours / _MB, "MB", theirs=whole, note=note, workload=workload, plans=count,
              processes=len(sizes))  # fmt: skip
