"""What a process of its own costs a model, and what its troubles cost others. `python -m benchmarks.isolation`

First the overhead: a model that costs nothing, 64 x 784 float32, called by a thread of this process and in a process
of its own, in turn. Then a worker's runner with three models: one in a thread, one isolated, and one isolated that
misbehaves as soon as it is called, again whenever it is back. Others' latencies are compared with those of spans in
between in which nobody misbehaves.
"""

from __future__ import annotations

import os

# As a worker's own frameworks are held to one: a second one would wait for whoever has the other core.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.ending import unwind_on_sigterm
from benchmarks.isolated_models import FEATURES, TROUBLE
from streamserve.core.events import BatchFinished
from streamserve.core.messages import AnyArray
from streamserve.kafka.interpreter import tune_interpreter
from streamserve.kafka.runner import ModelRunner
from streamserve.runtimes import ModelSpec, Runtime, load
from streamserve.runtimes.isolated import IsolatedRuntime
from streamserve.runtimes.isolation import Limits

ROWS = 64
ROOT = Path(__file__).resolve().parents[1]
MIB = 1 << 20
_LIMITS = Limits(memory_bytes=512 * MIB, call_timeout_ms=500)


def made(name: str, function: str, limits: Limits | None) -> Runtime:
    source = f"benchmarks.isolated_models:{function}"
    return load(ModelSpec(name=name, version="1", source=source, isolation=limits), base_dir=ROOT)


def batch_of(what: int = 0) -> AnyArray:
    batch = np.random.default_rng(2).random((ROWS, FEATURES)).astype(np.float32)
    batch[0, 0] = what
    return batch


def overhead_us(calls: int) -> dict[str, np.ndarray]:
    """Microseconds a call, called in turn so that what disturbs one disturbs the other."""
    runtimes = {"thread": made("thread", "free", None), "process": made("process", "free", Limits())}
    batch = batch_of()
    times: dict[str, list[float]] = {name: [] for name in runtimes}
    for _ in range(calls):
        for name, runtime in runtimes.items():
            started = time.perf_counter()
            runtime.predict(batch)
            times[name].append((time.perf_counter() - started) * 1e6)
    for runtime in runtimes.values():
        runtime.close()
    return {name: np.array(values[calls // 10 :]) for name, values in times.items()}


async def overhead_on_loop_us(calls: int) -> dict[str, np.ndarray]:
    """The same from the event loop and back, as a worker calls."""
    ends: asyncio.Queue[BatchFinished] = asyncio.Queue()
    models = {"thread@1": made("thread", "free", None), "process@1": made("process", "free", Limits())}
    runner = ModelRunner(models, ends.put_nowait)
    batch = batch_of()
    times: dict[str, list[float]] = {name: [] for name in models}
    for number in range(calls):
        for name in models:
            started = time.perf_counter()
            runner.submit(number, name, batch)
            await ends.get()
            times[name].append((time.perf_counter() - started) * 1e6)
    runner.close()
    return {name.partition("@")[0]: np.array(values[calls // 10 :]) for name, values in times.items()}


@dataclass(slots=True)
class Span:
    """What one model's callers saw."""

    latencies_ms: list[float] = field(default_factory=list)
    failed: int = 0
    back_s: list[float] = field(default_factory=list)

    @property
    def p99_ms(self) -> float:
        return float(np.percentile(self.latencies_ms, 99))


class Worker:
    """A runner and its callers."""

    def __init__(self) -> None:
        self.bad = made("bad", "misbehaves", _LIMITS)
        assert isinstance(self.bad, IsolatedRuntime)
        models: dict[str, Runtime] = {
            "thread@1": made("thread", "works", None),
            "process@1": made("process", "works", Limits()),
            "bad@1": self.bad,
        }
        self.runner = ModelRunner(models, self._finished)
        self._waiting: dict[int, asyncio.Future[BatchFinished]] = {}
        self._number = 0

    def _finished(self, event: BatchFinished) -> None:
        self._waiting.pop(event.batch).set_result(event)

    async def call(self, model: str, batch: AnyArray, span: Span) -> bool:
        self._number += 1
        number = self._number
        done = self._waiting[number] = asyncio.get_running_loop().create_future()
        started = time.perf_counter()
        self.runner.submit(number, model, batch)
        event = await done
        if event.outputs is None:
            span.failed += 1
            return False
        span.latencies_ms.append((time.perf_counter() - started) * 1e3)
        return True

    async def _good(self, model: str, until: float, span: Span) -> None:
        batch = batch_of()
        while time.monotonic() < until:
            await self.call(model, batch, span)
            await asyncio.sleep(0.004)

    async def _bad(self, what: int, until: float, span: Span) -> None:
        """Asked for trouble, then asked until it answers again."""
        trouble, good = batch_of(what), batch_of()
        while time.monotonic() < until:
            fell = not await self.call("bad@1", trouble, span)
            since = time.monotonic()
            while not await self.call("bad@1", good, span):  # noqa: ASYNC110  (its return has no event)
                await asyncio.sleep(0.004)
            if fell:
                span.back_s.append(time.monotonic() - since)
            await asyncio.sleep(0.004)

    def spans(self) -> dict[str, Span]:
        return {model: Span() for model in self.runner.models}

    async def span(self, what: int, seconds: float, spans: dict[str, Span]) -> None:
        until = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            for model in ("thread@1", "process@1"):
                group.create_task(self._good(model, until, spans[model]))
            group.create_task(self._bad(what, until, spans["bad@1"]))


async def disturbances(seconds: float, rounds: int, say: Callable[[str], None]) -> None:
    worker = Worker()
    tune_interpreter()
    await worker.span(0, seconds, worker.spans())
    for what, name in enumerate(TROUBLE, start=1):
        quiet, loud = worker.spans(), worker.spans()
        for _ in range(rounds):
            await worker.span(0, seconds, quiet)
            await worker.span(what, seconds, loud)
        words = [f"{name:16}"]
        for model in ("thread@1", "process@1"):
            base, p99 = quiet[model].p99_ms, loud[model].p99_ms
            label = model.partition("@")[0]
            words.append(f"{label} p99 {base:5.2f} -> {p99:5.2f} ms (x {p99 / base:4.2f}), failed {loud[model].failed}")
        bad = loud["bad@1"]
        worst = f"{max(bad.back_s):.2f} s" if bad.back_s else "never away"
        words.append(f"bad: fell {len(bad.back_s)} times, back after at most {worst}")
        say("; ".join(words))
    worker.runner.close()


def _line(times: dict[str, np.ndarray]) -> str:
    thread, process = (np.percentile(times[name], (50, 99)) for name in ("thread", "process"))
    return (
        f"thread p50 {thread[0]:6.1f} us p99 {thread[1]:6.1f}; process p50 {process[0]:6.1f} us p99 {process[1]:6.1f}; "
        f"overhead p50 {process[0] - thread[0]:6.1f} us"
    )


def main() -> None:
    unwind_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--calls", type=int, default=5_000)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each span; 0: only the overhead")
    parser.add_argument("--rounds", type=int, default=4, help="quiet and disturbed spans in turn, for each trouble")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    print(f"{ROWS} x {FEATURES} float32, a model that costs nothing, {arguments.calls} calls each")
    print("  called directly:    ", _line(overhead_us(arguments.calls)))
    print("  from the loop, back:", _line(asyncio.run(overhead_on_loop_us(arguments.calls))))
    if arguments.seconds:
        spans = f"{arguments.rounds} x {arguments.seconds:g} s undisturbed -> disturbed, in turn"
        print(f"others while one isolated model is in trouble, {spans}, a call every 4 ms")
        asyncio.run(disturbances(arguments.seconds, arguments.rounds, lambda words: print(" ", words, flush=True)))


if __name__ == "__main__":
    main()
