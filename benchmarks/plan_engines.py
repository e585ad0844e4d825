"""Which engine a call runs on, in which order, and threads of one's own: rows 11 to 13 of PRETZEL's checklist.

In one process without a broker (`benchmarks.plan_trace`), over PRETZEL's structured workload. All settings of a figure
take turns, and are first in turn; each figure is the median of the turns. Row 11 is played twice: by processor clocks
(`benchmarks.plan_clocks`), which no other work of the machine moves, and in time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from benchmarks.plan_clocks import played_by_clocks
from benchmarks.plan_packed import packed
from benchmarks.plan_questions import AC, rows_for
from benchmarks.plan_rows import WHOLE_SCALE, Run, row
from benchmarks.plan_trace import Seen, Trace, joined, play
from benchmarks.results import Row
from streamserve.core.lanes import LaneRules
from streamserve.runtimes import ModelSpec, load
from streamserve.runtimes.base import Runtime
from streamserve.runtimes.sharing import share

_FOREVER_MS = 1e9
#: `inline`: PRETZEL's request-response engine for all: the loop makes every call. `batch`: its batch engine for all.
#: `at once`: that, and whatever can be cut is cut, as if every model had a thread of its own.
ENGINES = {
    "adaptive": LaneRules(),
    "inline": LaneRules(brief_ms=_FOREVER_MS, here_ms=_FOREVER_MS, few=1_000_000),
    "batch": LaneRules(brief_ms=0.0),
    "at once": LaneRules(brief_ms=0.0, ahead_ms=_FOREVER_MS),
}
_URGENT, _LAG = 0, 1
_URGENT_MS, _LAG_MS = 400, 10_000
_URGENT_PER_S = 100
_LARGE = 100
_BURST, _BURST_EVERY_S, _BURST_MODELS = 30, 1.0, 20
_WARM_SIZES = (1, 8, 64, _LARGE, 5 * _LARGE)
_WARM_S = 1.0
"""At the beginning, left out: what calls cost is learnt there."""
_OVERLOAD = 2.0
_RESERVED_PER_S = 50

Player = Callable[[Mapping[str, Runtime], LaneRules, Trace], Seen]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What one workload's figures are made with."""

    plans: tuple[str, ...]
    store: str
    values: list[bytes]
    """Requests of one row."""
    large: list[bytes]
    """Of `_LARGE` rows."""
    repeats: int
    seconds: float

    def trace(
        self, draw: np.random.Generator, at_s: NDArray[np.float64], model: NDArray[np.int64], kind: int, budget_ms: int
    ) -> Trace:
        """Requests at these times, of these models; urgent ones of one row, others of a hundred, as PRETZEL's are."""
        n, values = len(at_s), self.values if kind == _URGENT else self.large
        return Trace(
            at_s=at_s,
            model=model,
            budget_ms=np.full(n, budget_ms),
            values=[values[i] for i in draw.integers(len(values), size=n).tolist()],
            kind=np.full(n, kind),
            codec="rows",
        )

    def row(self, model: str, ours: float, unit: str, **more: Any) -> Row:
        """One figure of this workload."""
        return row(model, ours, unit, workload=AC, plans=len(self.plans), **more)


def engines(run: Run) -> Iterator[Row]:
    """Urgent rows beside bursts of lag; memory under overload; a model with a thread of its own beside overload."""
    repeats, seconds = (5, 4.0) if run.scale >= WHOLE_SCALE else (1, 2.0)
    models = packed(AC, run.scale, run.folder)
    rows = rows_for(AC, 50 * _LARGE)
    asked = _Asked(
        plans=models.plans,
        store=models.store,
        values=[orjson.dumps(one.tolist()) for one in rows],
        large=[orjson.dumps(rows[i : i + _LARGE].tolist()) for i in range(0, len(rows), _LARGE)],
        repeats=repeats,
        seconds=seconds,
    )
    runtimes = _loaded(asked)
    share(runtimes)
    for runtime in runtimes.values():  # as a worker does: else who takes the first turn pays for all
        for size in _WARM_SIZES:
            runtime.predict(rows[:size])
    yield from _mixed(asked, runtimes, played_by_clocks, ", by clocks")
    yield from _mixed(asked, runtimes, play, "")
    capacity = _capacity(asked, runtimes)
    yield asked.row("capacity", _LARGE * capacity, "rows/s")
    yield from _memory(asked, runtimes, capacity)
    yield from _reserved(asked, capacity)


def _loaded(asked: _Asked) -> dict[str, Runtime]:
    found: dict[str, Runtime] = {}
    for i, plan in enumerate(asked.plans):
        spec = ModelSpec(name=f"m{i}", version="1", source=plan, options={"store": asked.store})
        found[spec.model_id] = load(spec, base_dir=Path())
    return found


# -- traces ------------------------------------------------------------------------------------------------------------


def _poisson(asked: _Asked, draw: np.random.Generator, per_s: float, models: NDArray[np.int64]) -> Trace:
    """Urgent single rows of these models, skewed as PRETZEL's heavy load is (Zipf with exponent 2)."""
    n = draw.poisson(per_s * asked.seconds)
    chances = 1.0 / (1.0 + np.arange(len(models))) ** 2
    model = draw.choice(models, n, p=chances / chances.sum())
    return asked.trace(draw, np.sort(draw.uniform(0, asked.seconds, n)), model, _URGENT, _URGENT_MS)


def _bursts(asked: _Asked, draw: np.random.Generator) -> Trace:
    """Many requests at one moment, of some models, again and again."""
    moments = np.arange(_BURST_EVERY_S / 2, asked.seconds, _BURST_EVERY_S)
    count = len(asked.plans)
    which = [draw.choice(count, min(_BURST_MODELS, count), replace=False) for _ in moments]
    model = np.concatenate([draw.choice(some, _BURST) for some in which])
    return asked.trace(draw, np.repeat(moments, _BURST), model, _LAG, _LAG_MS)


def _latencies_ms(seen: Seen, trace: Trace, kind: int) -> NDArray[np.float64]:
    """Of those of a kind that came after the warm-up; who had no answer took for ever."""
    mine = (trace.kind == kind) & (trace.at_s >= _WARM_S)
    found: NDArray[np.float64] = np.nan_to_num(1000 * (seen.answered_s - trace.at_s)[mine], nan=np.inf)
    return found


# -- row 11 ------------------------------------------------------------------------------------------------------------


def _mixed(asked: _Asked, runtimes: Mapping[str, Runtime], player: Player, how: str) -> Iterator[Row]:
    """Each engine is once the first of its turn, once the second, and so on: none gets the others' caches."""
    figures: dict[str, list[tuple[float, float, float, float]]] = {name: [] for name in ENGINES}
    names = list(ENGINES)
    for repeat in range(asked.repeats):
        draw = np.random.default_rng(repeat)
        every = np.arange(len(runtimes))
        trace = joined(_poisson(asked, draw, _URGENT_PER_S, every), _bursts(asked, draw))
        first = repeat % len(names)
        for name in names[first:] + names[:first]:
            seen = player(runtimes, ENGINES[name], trace)
            urgent = _latencies_ms(seen, trace, _URGENT)
            missed = float(np.mean(urgent > _URGENT_MS))
            figures[name].append((*_shares(urgent), _drained_per_s(seen, trace), missed))
    medians = {name: np.median(found, axis=0) for name, found in figures.items()}
    best = medians["adaptive"]
    for name, found in medians.items():
        p50, p99, drained, missed = map(float, found)
        least, most = (round(pick([row[2] for row in figures[name]])) for pick in (min, max))
        note = f"{100 * missed:.2f} % missed; median of {asked.repeats}; theirs: adaptive"
        yield asked.row(f"{name}{how}: urgent p50", p50, "ms", theirs=float(best[0]), note=note)
        yield asked.row(f"{name}{how}: urgent p99", p99, "ms", theirs=float(best[1]))
        of_all = f"{least:,} to {most:,}"
        yield asked.row(
            f"{name}{how}: lag drained", drained, "rows/s", theirs=float(best[2]), more_is_better=True, note=of_all
        )


def _shares(latencies_ms: NDArray[np.float64]) -> tuple[float, float]:
    return (
        float(np.percentile(latencies_ms, 50, method="lower")),
        float(np.percentile(latencies_ms, 99, method="lower")),
    )


def _drained_per_s(seen: Seen, trace: Trace) -> float:
    """Rows a second of the bursts, from each one's moment to its last answer; the median of the bursts."""
    rates = []
    for moment in np.unique(trace.at_s[trace.kind == _LAG]):
        mine = seen.answered_s[(trace.kind == _LAG) & (trace.at_s == moment)]
        if moment >= _WARM_S:
            rates.append(_LARGE * np.count_nonzero(~np.isnan(mine)) / (np.nanmax(mine) - moment))
    return float(np.median(rates))


# -- row 12 ------------------------------------------------------------------------------------------------------------


def _capacity(asked: _Asked, runtimes: Mapping[str, Runtime]) -> float:
    """Requests a second that lag of all models is drained with."""
    draw, n = np.random.default_rng(5), 4 * _BURST
    trace = asked.trace(draw, np.zeros(n), draw.integers(len(runtimes), size=n), _LAG, _LAG_MS)
    rates = [n / float(np.nanmax(play(runtimes, ENGINES["adaptive"], trace).answered_s)) for _ in range(3)]
    return float(np.median(rates))


def _flood(asked: _Asked, draw: np.random.Generator, models: NDArray[np.int64], per_s: float) -> Trace:
    """So many requests a second of all of these models alike, which hurry."""
    at_s = np.sort(draw.uniform(0, asked.seconds, round(per_s * asked.seconds)))
    return asked.trace(draw, at_s, draw.choice(models, len(at_s)), _LAG, _URGENT_MS)


def _in_time(seen: Seen, trace: Trace) -> int:
    """Of the flood: how many were answered by their deadline."""
    return int(np.count_nonzero((1000 * (seen.answered_s - trace.at_s) <= trace.budget_ms)[trace.kind == _LAG]))


def _memory(asked: _Asked, runtimes: Mapping[str, Runtime], capacity: float) -> Iterator[Row]:
    found: dict[str, list[tuple[float, float]]] = {"adaptive": [], "at once": []}
    for repeat in range(asked.repeats):
        draw = np.random.default_rng(100 + repeat)
        trace = _flood(asked, draw, np.arange(len(runtimes)), _OVERLOAD * capacity)
        for name, rows in found.items():
            seen = play(runtimes, ENGINES[name], trace)
            rows.append((seen.peak_rows, _LARGE * _in_time(seen, trace) / asked.seconds))
    best = np.median(found["adaptive"], axis=0)
    for name, rows in found.items():
        peak, answered = map(float, np.median(rows, axis=0))
        note = f"{_OVERLOAD:g} times the capacity; theirs: adaptive"
        yield asked.row(f"{name}: rows in calls, at most", peak, "rows", theirs=float(best[0]), note=note)
        yield asked.row(f"{name}: answered in time", answered, "rows/s", theirs=float(best[1]), more_is_better=True)


# -- row 13 ------------------------------------------------------------------------------------------------------------


def _reserved(asked: _Asked, capacity: float) -> Iterator[Row]:
    """One model's urgent rows: alone, and beside twice what can be served of the others, with and without a thread."""
    shared, apart = _loaded(asked), _loaded(asked)
    share(shared)
    share(apart, own_thread=["m0@1"])
    one, others = np.array([0]), np.arange(1, len(asked.plans))
    names = ("alone", "own thread", "shared thread")
    p99: dict[str, list[float]] = {name: [] for name in names}
    rates: dict[str, list[float]] = {name: [] for name in names}
    for repeat in range(asked.repeats):
        draw = np.random.default_rng(200 + repeat)
        mine = _poisson(asked, draw, _RESERVED_PER_S, one)
        both = joined(mine, _flood(asked, draw, others, _OVERLOAD * capacity))
        for name, runtimes, trace in (
            ("alone", apart, mine),
            ("own thread", apart, both),
            ("shared thread", shared, both),
        ):
            seen = play(runtimes, ENGINES["adaptive"], trace)
            p99[name].append(_shares(_latencies_ms(seen, trace, _URGENT))[1])
            rates[name].append(_LARGE * _in_time(seen, trace) / asked.seconds)
    alone = float(np.median(p99["alone"]))
    for name in names:
        yield asked.row(
            f"one model, {name}: p99", float(np.median(p99[name])), "ms", theirs=alone, note="theirs: alone"
        )
    own = float(np.median(p99["own thread"])) / alone
    yield asked.row("one model, own thread: p99", own, "alone", wanted="ours <= 1.2")
    kept = float(np.median(rates["own thread"])) / float(np.median(rates["shared thread"]))
    yield asked.row("throughput of the others kept", 100 * kept, "%", wanted="ours >= 90")
