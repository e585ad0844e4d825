"""`ablation`: what each mechanism is worth: everything on, against everything but one.

Rules one by one, and all of them; the choice of physical variants by measuring; the store (arrays shared between
plans); plans run together; kernels read before the first request. What a plan reuses from call to call (a thread's
scratch memory) and the scheduling of batches have no switch here: `benchmarks.core` and `benchmarks.overload` are about
those.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.plan_packed import Packed, packed
from benchmarks.plan_process import Task, holding
from benchmarks.plan_questions import AC, OUTPUT, SA, rows_for
from benchmarks.plan_rows import WHOLE_SCALE, Run, row
from benchmarks.results import Row
from streamserve.plan.compile import Plan, laid_out
from streamserve.plan.costs import chosen
from streamserve.plan.importers import import_fitted
from streamserve.plan.packing import load
from streamserve.plan.rules import RULES
from streamserve.plan.sharing import Group
from streamserve.plan.store import Store

_BATCHES = (1, 1000)
_REPEATS = 7
_TOGETHER = 8
_HELD = 50


def ablation(run: Run) -> Iterator[Row]:
    """Each mechanism off, over both workloads; `ours` with it, `theirs` without."""
    for workload in (SA, AC):
        models = packed(workload, run.scale, run.folder)
        yield from _rules(workload, models, run)
        yield from _together(workload, models)
        yield from _store(workload, models)
        yield from _warm(workload, models)


def _rules(workload: str, models: Packed, run: Run) -> Iterator[Row]:
    """The first pipeline of the workload: of AC a large one, of SA one of the most frequent form."""
    rows = rows_for(workload, _BATCHES[-1])
    graph = import_fitted(pickle.loads(Path(models.pickles[0]).read_bytes())).graph
    whole = laid_out(graph)
    without = {f"rule {rule.name}": laid_out(graph, disabled=[rule.name]) for rule in RULES}
    without = {name: plan for name, plan in without.items() if plan.digest != whole.digest}  # the others do nothing
    without["all rules"] = laid_out(graph, disabled=[rule.name for rule in RULES])
    repeats = _REPEATS if run.scale >= WHOLE_SCALE else 2
    for batch in _BATCHES:
        best = chosen(whole, rows[:100])
        for name, plan in {**without, "choice of variants": whole}.items():
            with_it = best if name == "choice of variants" else whole
            some = batch if run.scale >= WHOLE_SCALE else min(batch, 20)
            ours, theirs = _least_us([_call(each, workload) for each in (with_it, plan)], rows, some, repeats)
            yield row(f"without {name}", ours, "us/row", theirs=theirs, batch=batch, workload=workload, plans=1)


def _call(plan: Plan, workload: str) -> Callable[[Any], Any]:
    call: Callable[[Any], Any] = getattr(plan, OUTPUT[workload])
    return call


def _least_us(calls: list[Callable[[Any], Any]], rows: Any, batch: int, repeats: int) -> list[float]:
    """Microseconds a row of each, the least of calls that take turns: a disturbance meets all."""
    least = [float("inf")] * len(calls)
    turns = repeats * (20 if batch == 1 else 1)
    for turn in range(turns + 1):
        at = turn % (len(rows) - batch + 1)
        for i, call in enumerate(calls):
            started = time.perf_counter()
            call(rows[at : at + batch])
            least[i] = min(least[i], (time.perf_counter() - started) if turn else float("inf"))
    return [1e6 * seconds / batch for seconds in least]


def _together(workload: str, models: Packed) -> Iterator[Row]:
    """The same rows asked of some plans, as one pass and one by one."""
    store = Store(models.store)
    plans = {f"m{i}": load(Path(file), store) for i, file in enumerate(models.plans[:_TOGETHER])}
    group, asked = Group(plans), dict.fromkeys(plans, (OUTPUT[workload],))
    rows = rows_for(workload, 200)

    def one_by_one(part: Any) -> None:
        for plan in plans.values():
            plan.run(part, (OUTPUT[workload],))

    ours, theirs = _least_us([lambda part: group.run(part, asked), one_by_one], rows, 100, _REPEATS)
    note = f"{len(plans)} plans asked about the same rows"
    yield row("without running together", ours, "us/row", theirs=theirs, batch=100, workload=workload,
              plans=len(plans), note=note)  # fmt: skip


def _store(workload: str, models: Packed) -> Iterator[Row]:
    files = models.plans[:_HELD]
    sizes = []
    for what in ("plans", "copies"):
        task = Task(what=what, workload=workload, files=files, store=models.store, marks=(len(files),))
        with holding(task) as (one,):
            sizes.append(one.loaded["curve"][-1][1] / 1e6)
    yield row("without the store", sizes[0], "MB", theirs=sizes[1], workload=workload, plans=len(files))


def _warm(workload: str, models: Packed) -> Iterator[Row]:
    """Milliseconds until the first answer of a process that has its code, but has read no kernel yet."""
    spent = []
    for warms in (True, False):
        task = Task(what="plans", workload=workload, files=models.plans[:1], store=models.store, warms=warms)
        with holding(task) as (one,):
            spent.append(1e3 * one.loaded["load_s"][0] + one.ask("calls", hot=1)["cold"][0] / 1e3)
    note = "loading and first call of one plan; kernels from the cache folder"
    yield row("without warm kernels", spent[0], "ms", theirs=spent[1], workload=workload, plans=1, note=note)
