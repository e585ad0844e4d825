"""A worker process without a broker: the real loop, stage, models and threads, fed with a trace; used by `engines`.

Requests come when the trace says, whatever the process does meanwhile; a request's latency counts from then on until
its answer is handed over to be sent. Sends are acknowledged at once.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from streamserve.core.desk import ModelRules
from streamserve.core.effects import Effect, EmitAnswers, RunBatch, Settle
from streamserve.core.epochs import EpochTable
from streamserve.core.events import BatchFinished, Produced, Resume
from streamserve.core.lanes import LaneRules
from streamserve.core.messages import Headers
from streamserve.core.reasons import PRESENT
from streamserve.core.routes import AppRules, Route
from streamserve.core.selection.static import Static
from streamserve.core.stages.worker import WorkerStage
from streamserve.kafka.clock import BrokerClock
from streamserve.kafka.codecs.inputs import INPUT_CODECS
from streamserve.kafka.hosting import form_of_rows, with_lanes
from streamserve.kafka.intake import requests_event
from streamserve.kafka.loop import StageLoop, Wiring
from streamserve.kafka.metrics import RoleMetrics
from streamserve.kafka.ports import At, Chunk
from streamserve.kafka.runner import ModelRunner
from streamserve.runtimes.base import Runtime

_TOPIC = "requests"
#: As a worker process has it (`kafka.interpreter`).
_SWITCH_INTERVAL_S = 0.001
#: Whoever has no answer so long after the trace's end has none.
_PATIENCE_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests of one row each, `[n]`, in order of time."""

    at_s: NDArray[np.float64]
    """Since the beginning."""
    model: NDArray[np.int64]
    """Number of the model."""
    budget_ms: NDArray[np.int64]
    values: list[bytes]
    kind: NDArray[np.int64]
    """Whatever the caller tells apart."""
    codec: str


def joined(*traces: Trace) -> Trace:
    """All of them at once."""
    at_s = np.concatenate([trace.at_s for trace in traces])
    order = np.argsort(at_s, kind="stable")
    values = [value for trace in traces for value in trace.values]
    return Trace(
        at_s=at_s[order],
        model=np.concatenate([trace.model for trace in traces])[order],
        budget_ms=np.concatenate([trace.budget_ms for trace in traces])[order],
        values=[values[i] for i in order.tolist()],
        kind=np.concatenate([trace.kind for trace in traces])[order],
        codec=traces[0].codec,
    )


@dataclass(slots=True, kw_only=True)
class Seen:
    """What became of a trace."""

    answered_s: NDArray[np.float64]
    """`[n]`: when each was answered by its model, since the beginning; NaN: it was not."""
    peak_rows: int = 0
    """Rows that were cut and whose calls had not ended, at most."""
    calls: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})
    """Made by the loop (True) and by threads."""


def play(runtimes: Mapping[str, Runtime], engine: LaneRules, trace: Trace) -> Seen:
    """Run a trace to its end. `runtimes` in the order in which `trace.model` numbers them."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    gc.collect()
    gc.disable()  # a worker's collector runs rarely; here it would meet one engine and not another
    try:
        return asyncio.run(_Process(runtimes, engine, trace).run())
    finally:
        gc.enable()
        sys.setswitchinterval(interval_s)


def stage_of(runtimes: Mapping[str, Runtime], engine: LaneRules, codec: str) -> WorkerStage:
    """A route for each model, all in one pool."""
    routes = tuple(
        Route(name=model, models=(model,), policy=Static(), combine="vote", input=codec, deadline_ms=60_000)
        for model in runtimes
    )
    rules = AppRules(routes=routes)
    models = with_lanes(form_of_rows({model: ModelRules(model=model) for model in runtimes}, runtimes), runtimes)
    return WorkerStage(rules, models, INPUT_CODECS, EpochTable(rules), lane_rules=engine)


def chunk_of(trace: Trace, models: Sequence[str], first: int, end: int, zero_ms: int) -> Chunk:
    """These requests of a trace that began at `zero_ms`, as they are fetched."""
    headers: list[Headers] = [
        (("ss-route", models[model].encode()), ("ss-deadline-ms", b"%d" % budget))
        for model, budget in zip(trace.model[first:end].tolist(), trace.budget_ms[first:end].tolist(), strict=True)
    ]
    return Chunk(
        at=At(_TOPIC, 0),
        offsets=np.arange(first, end),
        append_ms=zero_ms + (trace.at_s[first:end] * 1000).astype(np.int64),
        keys=[None] * (end - first),
        values=list(trace.values[first:end]),
        headers=headers,
        next_offset=end,
    )


class _Process:
    def __init__(self, runtimes: Mapping[str, Runtime], engine: LaneRules, trace: Trace) -> None:
        self._trace = trace
        stage = stage_of(runtimes, engine, trace.codec)
        self._clock = BrokerClock()
        self._loop = StageLoop(
            stage=stage,
            wiring=Wiring(driving=_TOPIC, events={_TOPIC: requests_event}),
            clock=self._clock,
            metrics=RoleMetrics("worker", "engines"),
        )
        self._loop.performs(self._perform, lambda _letters: None)
        self._runner = ModelRunner(runtimes, self._finished)
        self._loop.linger = self._runner.linger
        self._rows: dict[int, int] = {}
        self._arrived = asyncio.Queue[Chunk]()
        self._seen = Seen(answered_s=np.full(len(trace.at_s), np.nan))
        self._settled = 0
        self._done = asyncio.Event()
        self._names = list(runtimes)
        self._began_s = 0.0

    async def run(self) -> Seen:
        self._loop.begin({0: Resume(position=0)})
        tasks = [asyncio.create_task(self._loop.drain(self, driving=True)), asyncio.create_task(self._loop.run())]
        self._began_s = monotonic()
        await self._feed()
        async with asyncio.timeout(_PATIENCE_S):
            await self._done.wait()
        self._loop.stop()
        tasks[0].cancel()
        await asyncio.wait(tasks)
        self._runner.close()
        return self._seen

    async def _feed(self) -> None:
        at_s, first = self._trace.at_s, 0
        while first < len(at_s):
            wait_s = self._began_s + float(at_s[first]) - monotonic()
            await asyncio.sleep(max(0.0, wait_s))
            end = int(np.searchsorted(at_s, monotonic() - self._began_s, side="right"))
            if end > first:
                self._arrived.put_nowait(self._chunk(first, end))
                first = end

    async def fetch(self, *, max_records: int, timeout_ms: int) -> list[Chunk]:
        chunk = await self._arrived.get()
        if len(chunk) > max_records:
            rest = int(chunk.offsets[max_records])
            self._arrived.put_nowait(self._chunk(rest, chunk.next_offset))
            chunk = self._chunk(int(chunk.offsets[0]), rest)
        return [chunk]

    def _chunk(self, first: int, end: int) -> Chunk:
        zero_ms = self._clock.now_ms() - int((monotonic() - self._began_s) * 1000)
        return chunk_of(self._trace, self._names, first, end, zero_ms)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case RunBatch():
                self._rows[effect.batch] = len(effect.inputs)
                self._seen.peak_rows = max(self._seen.peak_rows, sum(self._rows.values()))
                self._seen.calls[effect.here] += 1
                self._runner.submit(effect.batch, effect.model, effect.inputs, here=effect.here)
            case EmitAnswers():
                good = effect.answers.offsets[effect.answers.missing == PRESENT]
                self._seen.answered_s[good] = monotonic() - self._began_s
                self._loop.post_quietly(Produced(token=effect.token))
            case Settle():
                self._loop.ledgers[0].settle(effect.offsets)
                self._settled += len(effect.offsets)
                if self._settled == len(self._trace.at_s):
                    self._done.set()
            case _:
                pass

    def _finished(self, batch: BatchFinished) -> None:
        del self._rows[batch.batch]
        self._loop.post_finished(batch)
