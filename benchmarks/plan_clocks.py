"""A trace played by processor clocks: what two engines do with two free cores, whatever else the machine has to do.

The real stage, codecs and models do the work, one after the other; each step is timed by this thread's processor clock
and moves the clock of the loop or of the lane's thread on, which run side by side. Not in it: the interpreter's lock,
the event loop and the scheduler, save for a hand-over between the two (`HAND_OVER_MS`).
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from heapq import heappop, heappush
from time import thread_time

import numpy as np

from benchmarks.plan_trace import Seen, Trace, chunk_of, stage_of
from streamserve.core.effects import Effect, EmitAnswers, RunBatch, Settle
from streamserve.core.events import Assigned, BatchesFinished, BatchFinished, Event, Produced, Resume, Tick
from streamserve.core.lanes import LaneRules
from streamserve.core.messages import AnyArray, Outputs
from streamserve.core.reasons import PRESENT
from streamserve.kafka.intake import requests_event
from streamserve.runtimes.base import Runtime, Sharing

HAND_OVER_MS = 0.1
"""From the loop to the thread, and back: a thread that waits is woken."""
_MOST_RECORDS = 500
_ZERO_MS = 1_700_000_000_000


def played_by_clocks(runtimes: Mapping[str, Runtime], engine: LaneRules, trace: Trace) -> Seen:
    """As `plan_trace.play`, in the time of processor clocks."""
    gc.collect()
    gc.disable()
    try:
        return _Clocks(runtimes, engine, trace).run()
    finally:
        gc.enable()


class _Clocks:
    """Of one lane: what the loop and its thread have done by when, in milliseconds since the beginning."""

    def __init__(self, runtimes: Mapping[str, Runtime], engine: LaneRules, trace: Trace) -> None:
        self._trace = trace
        self._names = list(runtimes)
        (self._lane,) = {runtime.lane for runtime in runtimes.values() if isinstance(runtime, Sharing) and runtime.lane}
        self._stage = stage_of(runtimes, engine, trace.codec)
        self._loop_ms = self._thread_ms = 0.0
        self._here: list[RunBatch] = []
        self._there: list[RunBatch] = []
        self._ends: list[tuple[float, int, BatchFinished]] = []
        self._acks: list[Event] = []
        self._settled = 0
        self._rows: dict[int, int] = {}
        self._seen = Seen(answered_s=np.full(len(trace.at_s), np.nan))

    def run(self) -> Seen:
        self._give(Assigned(partitions={0: Resume(position=0)}))
        at_ms, first = self._trace.at_s * 1000, 0
        while self._settled < len(at_ms):
            self._loop_ms = max(self._loop_ms, self._next_ms(at_ms[first] if first < len(at_ms) else np.inf))
            end = min(int(np.searchsorted(at_ms, self._loop_ms, side="right")), first + _MOST_RECORDS)
            if end > first:
                self._take(first, end)
                first = end
            ended = []
            while self._ends and self._ends[0][0] <= self._loop_ms:
                ended.append(heappop(self._ends)[2])
            if ended:
                self._give(BatchesFinished(batches=tuple(ended)))
            acks, self._acks = self._acks, []
            for ack in acks:
                self._give(ack)
            self._give(Tick())
            self._call()
        return self._seen

    def _next_ms(self, arrival_ms: float) -> float:
        """When the loop is woken next."""
        if self._acks:
            return self._loop_ms
        deadline = self._stage.next_deadline_ms()
        due_ms = np.inf if deadline is None else float(deadline - _ZERO_MS)
        return min(arrival_ms, due_ms, self._ends[0][0] if self._ends else np.inf)

    def _take(self, first: int, end: int) -> None:
        began_s = thread_time()
        event = requests_event(chunk_of(self._trace, self._names, first, end, _ZERO_MS))
        self._loop_ms += (thread_time() - began_s) * 1000
        self._give(event)

    def _give(self, event: Event) -> None:
        began_s = thread_time()
        effects = self._stage.handle(event, _ZERO_MS + int(self._loop_ms))
        self._loop_ms += (thread_time() - began_s) * 1000
        for effect in effects:
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case RunBatch():
                (self._here if effect.here else self._there).append(effect)
                self._rows[effect.batch] = len(effect.inputs)
                self._seen.peak_rows = max(self._seen.peak_rows, sum(self._rows.values()))
                self._seen.calls[effect.here] += 1
            case EmitAnswers():
                good = effect.answers.offsets[effect.answers.missing == PRESENT]
                self._seen.answered_s[good] = self._loop_ms / 1000
                self._acks.append(Produced(token=effect.token))
            case Settle():
                self._settled += len(effect.offsets)
            case _:
                pass

    def _call(self) -> None:
        """What this turn has cut: the thread does its part while the loop makes its own calls."""
        there, self._there = self._there, []
        if there:
            self._thread_ms = self._run(there, max(self._thread_ms, self._loop_ms + HAND_OVER_MS), HAND_OVER_MS)
        here, self._here = self._here, []
        if here:
            self._loop_ms = self._run(here, self._loop_ms, 0.0)

    def _run(self, calls: list[RunBatch], at_ms: float, way_ms: float) -> float:
        """When they have ended who begin then; their ends are known `way_ms` later."""
        batches: list[tuple[str, AnyArray]] = [(call.model, call.inputs) for call in calls]
        began_s = thread_time()
        for ended in self._lane.predict_all(batches):
            took_ms = (thread_time() - began_s) * 1000
            at_ms += took_ms
            for place, outputs in ended:
                number = calls[place].batch
                del self._rows[number]
                if not isinstance(outputs, Outputs):
                    raise outputs
                done = BatchFinished(batch=number, outputs=outputs, duration_ms=took_ms)
                heappush(self._ends, (at_ms + way_ms, number, done))
            began_s = thread_time()
        return at_ms
