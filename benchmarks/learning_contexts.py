"""A million keyed contexts: memory of a learner and of a role that decides, and what a context costs in time."""

from __future__ import annotations

import gc
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import psutil

from benchmarks.failure_stream import MODELS
from benchmarks.figures import Figure
from benchmarks.play import F64
from streamserve.core.contexts import GLOBAL, ContextRule
from streamserve.core.epochs import EpochTable
from streamserve.core.events import ContextsFetched
from streamserve.core.records import StateRecord
from streamserve.core.routes import AppRules, Route
from streamserve.core.selection.hedge import Hedge
from streamserve.core.stages.update_keyed import RestingStates

CONTEXTS = 1_000_000
_BYTES = 400.0
_NOW_MS = 1_790_000_000_000
_FETCH = 500


def contexts(seeds: int) -> Iterator[Figure]:
    """Keys are UUIDs of 36 characters in one of ten segments; `hedge` with five models."""
    del seeds
    route = Route(
        name="r",
        models=MODELS,
        policy=Hedge(),
        combine="vote",
        deadline_ms=100,
        learns=True,
        contexts=ContextRule(source="key", keyed=True),
    )
    names = [f"s{number % 10}//{uuid.UUID(int=number * 7919)}" for number in range(CONTEXTS)]
    learner = RestingStates({route.name: route}, 0, republish_ms=42 * 3_600_000, keep_ms=120_000)
    held, seconds = _measured(lambda: _restore(learner, names))
    yield Figure(section="contexts", what="learner: bytes a context at 1M", values=(held,), limit=_BYTES)
    yield Figure(section="contexts", what="learner: µs to take one in at a start", values=(seconds * 1e6,))
    table = EpochTable(AppRules(routes=(route,)))
    table.own([0])
    held, seconds = _measured(lambda: table.apply(_records(names)))
    yield Figure(section="contexts", what="decides: bytes a context at 1M", values=(held,), limit=_BYTES)
    yield Figure(section="contexts", what="decides: µs to take one in at a start", values=(seconds * 1e6,))
    table.take(ContextsFetched(partition=0, loaded=True))
    shared = replace(next(_records([GLOBAL])), covers=0, learnt_ms=-1)
    table.apply([shared, *(replace(shared, context=f"s{number}", epoch=number) for number in range(10))])
    yield Figure(
        section="contexts",
        what="decides: µs a request, each of another context",
        values=(float(np.median(_decided(table, names))) * 1e6,),
    )


def _restore(learner: RestingStates, names: list[str]) -> None:
    for record in _records(names):
        learner.restore(record)


def _measured(fill: Callable[[], None]) -> tuple[float, float]:
    """Bytes of this process, and seconds, that each context has taken."""
    process = psutil.Process()
    gc.collect()
    before, started = process.memory_info().rss, time.thread_time()
    fill()
    seconds = time.thread_time() - started
    gc.collect()
    return (process.memory_info().rss - before) / CONTEXTS, seconds / CONTEXTS


def _records(names: list[str]) -> Iterator[StateRecord]:
    """As they are decoded: a text of its own for each context."""
    for number, name in enumerate(names):
        losses = {model: number % 97 + place / 7 for place, model in enumerate(MODELS)}
        yield StateRecord(
            route="r",
            context=name.encode().decode(),
            policy="hedge",
            data={"v": 1, "losses": losses, "events": number % 89},
            includes={0: number},
            partition=0,
            epoch=number,
            append_ms=_NOW_MS + number,
            previous=-1,
            covers=number + 1,
            learnt_ms=_NOW_MS + number - 200,
        )


def _decided(table: EpochTable, names: list[str]) -> F64:
    """Seconds a request, of some fetches."""
    rng, partition = np.random.default_rng(1), np.zeros(_FETCH, np.int64)
    found = []
    for number in range(30):
        asked = [names[place] for place in rng.integers(0, CONTEXTS, _FETCH).tolist()]
        offsets = np.arange(_FETCH, dtype=np.int64) + number * _FETCH
        started = time.thread_time()
        table.choose(0, partition, offsets, np.full(_FETCH, _NOW_MS + 2 * CONTEXTS), asked)
        found.append((time.thread_time() - started) / _FETCH)
    return np.array(found)
