"""Runs models: a thread a model or a lane, calls in order, each answered by one `BatchFinished`. Brief calls of a lane
run on the loop's own thread, where the stage says so.

Long since calls of threads, lanes and the loop end in one queue, whose order with the loop's wake-up is one argument.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from queue import Empty, SimpleQueue
from typing import Protocol

import numpy as np

from streamserve.core.events import BatchFinished
from streamserve.core.messages import AnyArray, Outputs
from streamserve.errors import ModelAway, ModelError, ModelRaised
from streamserve.runtimes.base import Lane, Runtime, Sharing
from streamserve.runtimes.isolated import IsolatedRuntime
from streamserve.runtimes.isolation import ProcessState
from streamserve.runtimes.plain import plain_outputs
from streamserve.runtimes.plan_figures import PlanFigures, figures_of

_log = logging.getLogger(__name__)

WARM_SIZES = (1, 8, 64)
#: The end of a stack is where the model is.
_STACK_CHARS = 4_000
_WORDS_CHARS = 2_000
#: So long a loop that has nothing else to do stands still for calls that are about to end.
_LINGER_S = 0.001
#: A lane tells what has ended at most this often while it has more to do: each time wakes the loop.
_TELL_EVERY_S = 0.001


class _ModelThread:
    """Does what it is given, in order. Leaner than an executor: a call costs no future and no lock of Python's."""

    def __init__(self, name: str) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        # A call that never returns must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], None]) -> None:
        """`work` must not raise."""
        self._work.put(work)

    def end(self) -> None:
        """Do nothing more after what was given."""
        self._work.put(None)

    def close(self) -> None:
        """Do nothing more after the call that is running."""
        while not self._work.empty():
            self._work.get()
        self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except BaseException:  # noqa: BLE001  (without its thread the model would never answer again)
                _log.exception("%s: a call ended in an error of ours", self._thread.name)


Sampling = Callable[[str, Runtime], AnyArray | None]
"""Of a model id and its runtime, a row `[1, ...]` to warm it with; None: it names none."""


class Runner(Protocol):
    """Runs the models of one process; how is its own business."""

    async def warm(self, samples: Mapping[str, AnyArray | None]) -> None: ...

    async def adopt(self, model: str, make: Callable[[], Runtime], sample: Sampling) -> Runtime:
        """Load one more model and warm it, off the loop. Raises whatever it raises, and then hosts nothing new."""
        ...

    async def drop(self, model: str) -> None:
        """Free a model that is not called any more."""
        ...

    def submit(self, batch: int, model: str, inputs: AnyArray, *, here: bool = False) -> None:
        """Run one batch; it is answered by one `BatchFinished`, if it ever ends. `here`: on the loop's own thread."""
        ...

    def linger(self) -> None:
        """The loop has nothing else to do just now: stand still briefly for calls that are about to end."""
        ...

    def called_meanwhile(self, gap_ms: float) -> list[str]:
        """Models of this process that had a call under way for most of the last so many milliseconds."""
        ...

    def away(self) -> list[str]:
        """Why models in processes of their own cannot be called now; empty where all can."""
        ...

    def processes(self) -> list[ProcessState]:
        """Of the models in processes of their own."""
        ...

    def plans(self) -> PlanFigures | None:
        """Of the white-box plans of this process; None where it has none."""
        ...

    def close(self) -> None: ...


MakeRunner = Callable[[Mapping[str, Runtime], Callable[[BatchFinished], None]], Runner]


class ModelRunner:
    """The models of one process. `finished` is called on the event loop's thread."""

    def __init__(self, runtimes: Mapping[str, Runtime], finished: Callable[[BatchFinished], None]) -> None:
        self._runtimes = dict(runtimes)
        self._finished = finished
        self._lanes = {
            model: runtime.lane
            for model, runtime in self._runtimes.items()
            if isinstance(runtime, Sharing) and runtime.lane
        }
        self._threads = self._make_threads()
        self._together: dict[Lane, list[tuple[int, str, AnyArray]]] = {}
        """Of each lane: what was submitted for its thread in this turn of the loop."""
        self._here: dict[Lane, list[tuple[int, str, AnyArray]]] = {}
        """The same for the loop itself."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._called: dict[str, tuple[float, float | None]] = {}
        """Of each model: when its newest call began and, once it has, ended."""
        self._ended: SimpleQueue[tuple[str, BatchFinished]] = SimpleQueue()
        self._pending: list[tuple[_ModelThread, Callable[[], None]]] = []
        self._lingers = False
        """The loop's thread waits for `_ended`: it need not be woken."""
        self._brief: set[str] = set()
        """Models of this process whose last call was over within the time to linger."""
        self._under_way: set[str] = set()
        """Models that are called just now: a stage gives each one call at a time."""
        self.running = 0
        """Calls begun and not yet reported."""

    def _make_threads(self) -> dict[str, _ModelThread]:
        """One a model, or a lane."""
        of_lanes = {
            lane: _ModelThread(f"model {model} and those that share with it") for model, lane in self._lanes.items()
        }
        return {
            model: of_lanes[self._lanes[model]] if model in self._lanes else _ModelThread(f"model {model}")
            for model in self._runtimes
        }

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(self._runtimes)

    async def warm(self, samples: Mapping[str, AnyArray | None]) -> None:
        """Call every model whose sample row (`[1, ...]`) is known, at a few sizes. Raises ModelError."""
        self._loop = asyncio.get_running_loop()
        for model, runtime in self._runtimes.items():
            sample = samples.get(model)
            if sample is None:
                _log.info("model %s is not warmed: it names no sample row", model)
                continue
            try:
                await self._on_thread(self._threads[model], partial(_warm, runtime, sample))
            except Exception as error:
                raise ModelError(
                    f"model {model} failed on its sample row: {error!r}. Run `streamserve check` to see it alone"
                ) from error

    async def adopt(self, model: str, make: Callable[[], Runtime], sample: Sampling) -> Runtime:
        """As `Runner.adopt`: on the thread that will call it. It has no lane: it runs beside those that share one."""
        thread, found = _ModelThread(f"model {model}"), list[Runtime]()

        def load() -> None:
            runtime = make()
            row = sample(model, runtime)
            if row is not None:
                _warm(runtime, row)
            found.append(runtime)

        try:
            await self._on_thread(thread, load)
        except BaseException:
            thread.close()
            raise
        self._threads[model], self._runtimes[model] = thread, found[0]
        return found[0]

    async def drop(self, model: str) -> None:
        runtime, thread = self._runtimes.pop(model), self._threads.pop(model)
        lane = self._lanes.pop(model, None)
        self._called.pop(model, None)
        self._brief.discard(model)
        if lane is None:
            thread.submit(runtime.close)
            thread.end()

    def submit(self, batch: int, model: str, inputs: AnyArray, *, here: bool = False) -> None:
        """Run one batch; its end is reported by `finished`. `here`: of a lane, when the loop has done its turn."""
        loop = self._loop or asyncio.get_running_loop()
        self._loop = loop
        runtime = self._runtimes.get(model)
        self.running += 1
        if runtime is None:
            missing = BatchFinished(batch=batch, outputs=None, error=f"{model} is not hosted here")
            loop.call_soon(self._report, model, missing)
            return
        self._under_way.add(model)
        lane = self._lanes.get(model)
        call = partial(self._call, loop, batch, model, inputs)
        if lane is None and model not in self._brief:
            self._threads[model].submit(call)
            return
        if not self._pending and not self._together and not self._here:
            loop.call_soon(self._dispatch)
        if lane is None:
            self._pending.append((self._threads[model], call))
        else:
            (self._here if here else self._together).setdefault(lane, []).append((batch, model, inputs))

    def _dispatch(self) -> None:
        """Wake the threads of brief models: when the loop has done its turn, for they need the interpreter it holds.

        And those of lanes: all that the turn has cut goes in one call. Then the loop makes the calls that are its own.
        """
        pending, self._pending = self._pending, []
        for thread, call in pending:
            thread.submit(call)
        together, self._together = self._together, {}
        loop = self._loop or asyncio.get_running_loop()
        for lane, work in together.items():
            self._threads[work[0][1]].submit(partial(self._call_together, loop, lane, work))
        here, self._here = self._here, {}
        for lane, work in here.items():
            for ended in self._ends(lane, work):
                for model, done in ended:
                    self._report(model, done)

    @property
    def awaits_brief_calls(self) -> bool:
        """A model is called whose calls of late were over within the time to linger."""
        return not self._under_way.isdisjoint(self._brief)

    def linger(self) -> None:
        """Stand still, for at most a millisecond, until the calls that are as brief as that have ended.

        A loop that waits for sockets instead is woken by them while a call goes on: the two then take the interpreter
        from each other, and what takes 0.3 ms alone ends after several.
        """
        self._dispatch()
        until = time.monotonic() + _LINGER_S
        self._lingers = True
        while self.awaits_brief_calls and (left_s := until - time.monotonic()) > 0:
            with contextlib.suppress(Empty):
                self._report(*self._ended.get(timeout=left_s))
        self._lingers = False
        self._collect()
        self._brief -= self._under_way  # one that hangs would cost every turn a millisecond

    def _collect(self) -> None:
        with contextlib.suppress(Empty):
            while True:
                self._report(*self._ended.get_nowait())

    async def _on_thread(self, thread: _ModelThread, work: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def run() -> None:
            error: Exception | None = None
            try:
                work()
            except Exception as raised:  # noqa: BLE001  (a model is foreign code)
                error = raised
            except BaseException as raised:  # noqa: BLE001  (and may call `exit`, which is not to end this process)
                error = RuntimeError(f"it raised {raised!r}")
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_end, done, error)

        thread.submit(run)
        await done

    def _call(self, loop: asyncio.AbstractEventLoop, batch: int, model: str, inputs: AnyArray) -> None:
        runtime = self._runtimes[model]
        started = time.monotonic()
        self._called[model] = (started, None)
        try:
            outputs = plain_outputs(runtime.predict(inputs))
        except BaseException as error:  # noqa: BLE001  (a model is foreign code: even `exit` is a failed batch)
            done = _failed(batch, error, (time.monotonic() - started) * 1000)
        else:
            done = BatchFinished(batch=batch, outputs=outputs, duration_ms=(time.monotonic() - started) * 1000)
        self._called[model] = (started, time.monotonic())
        self._tell(loop, [(model, done)])

    def _call_together(
        self, loop: asyncio.AbstractEventLoop, lane: Lane, work: list[tuple[int, str, AnyArray]]
    ) -> None:
        ready: list[tuple[str, BatchFinished]] = []
        told_s = time.monotonic()
        for ended in self._ends(lane, work):
            ready += ended
            if (now_s := time.monotonic()) - told_s >= _TELL_EVERY_S:
                self._tell(loop, ready)
                ready, told_s = [], now_s
        if ready:
            self._tell(loop, ready)

    def _ends(self, lane: Lane, work: list[tuple[int, str, AnyArray]]) -> Iterator[list[tuple[str, BatchFinished]]]:
        """Run a lane's batches; those that ended together, as they end. Each is charged for its own pass only."""
        left = dict(enumerate(work))
        started_s = time.monotonic()
        self._called |= {model: (started_s, None) for _, model, _ in work}
        error: BaseException = ModelError("its lane has not run it")
        try:
            for ended in lane.predict_all([(model, inputs) for _, model, inputs in work]):
                now_s = time.monotonic()
                duration_ms, found = (now_s - started_s) * 1000, []
                for place, outputs in ended:
                    batch, model, _ = left.pop(place)
                    self._called[model] = (started_s, now_s)
                    found.append((model, _outcome(batch, outputs, duration_ms)))
                yield found
                started_s = time.monotonic()
        except BaseException as raised:  # noqa: BLE001  (as of one call: whatever it is, each batch has its end)
            error = raised
        now_s = time.monotonic()
        if left:
            self._called |= {model: (started_s, now_s) for _, model, _ in left.values()}
            yield [(model, _failed(batch, error, (now_s - started_s) * 1000)) for batch, model, _ in left.values()]

    def _tell(self, loop: asyncio.AbstractEventLoop, ended: list[tuple[str, BatchFinished]]) -> None:
        # In this order: who stops lingering looks once more into what has ended.
        for one in ended:
            self._ended.put(one)
        if self._lingers:
            return
        try:
            loop.call_soon_threadsafe(self._collect)
        except RuntimeError:  # the loop is closed: the process is ending and nobody waits for this
            _log.debug("%d batches ended after the loop", len(ended))

    def _report(self, model: str, done: BatchFinished) -> None:
        self.running -= 1
        self._under_way.discard(model)
        if done.duration_ms > _LINGER_S * 1000:
            self._brief.discard(model)
        elif model not in self._lanes and not isinstance(self._runtimes.get(model), IsolatedRuntime):
            self._brief.add(model)  # an isolated model's process does not need our interpreter; a lane has its own rule
        self._finished(done)

    def called_meanwhile(self, gap_ms: float) -> list[str]:
        """Models of this process that had a call under way for most of the last so many milliseconds."""
        now = time.monotonic()
        since, found = now - gap_ms / 1000, []
        for model, (began, ended) in list(self._called.items()):
            overlap_s = (now if ended is None else ended) - max(began, since)
            if overlap_s * 1000 > gap_ms / 2 and not isinstance(self._runtimes[model], IsolatedRuntime):
                found.append(model)
        return found

    @property
    def _isolated(self) -> list[IsolatedRuntime]:
        return [runtime for runtime in self._runtimes.values() if isinstance(runtime, IsolatedRuntime)]

    def away(self) -> list[str]:
        """Why isolated models cannot be called now; empty where all can."""
        return [words for runtime in self._isolated if (words := runtime.away)]

    def plans(self) -> PlanFigures | None:
        """Of the white-box plans of this process; None where it has none."""
        return figures_of(self._runtimes)

    def processes(self) -> list[ProcessState]:
        """Of the isolated models."""
        return [runtime.state() for runtime in self._isolated]

    def close(self) -> None:
        """Free the models. A call that never returns is left behind: its thread must not hold the process."""
        for thread in self._threads.values():
            thread.close()
        for runtime in self._runtimes.values():
            if not self.running or isinstance(runtime, IsolatedRuntime):  # its call can be ended
                runtime.close()


def _outcome(batch: int, outputs: Outputs | BaseException, duration_ms: float) -> BatchFinished:
    """What a lane found for one of its batches."""
    if isinstance(outputs, BaseException):
        return _failed(batch, outputs, duration_ms)
    try:
        plain = plain_outputs(outputs)
    except Exception as error:  # noqa: BLE001  (what a model answers is foreign)
        return _failed(batch, error, duration_ms)
    return BatchFinished(batch=batch, outputs=plain, duration_ms=duration_ms)


def _failed(batch: int, error: BaseException, duration_ms: float) -> BatchFinished:
    if isinstance(error, ModelAway | ModelRaised):  # their words are those of another process
        words, exception, stack = str(error), error.exception, error.stack
    else:
        words, stack = _words(error), _stack(error)
        exception = f"{type(error).__module__}.{type(error).__qualname__}"
    return BatchFinished(
        batch=batch,
        outputs=None,
        error=words,
        exception=exception,
        stack=stack,
        away=isinstance(error, ModelAway),
        duration_ms=duration_ms,
    )


def _words(error: BaseException) -> str:
    """An exception in words; foreign ones may raise when they are asked for them."""
    name = type(error).__name__
    try:
        return f"{name}: {error}"[:_WORDS_CHARS]
    except BaseException as worse:  # noqa: BLE001  (foreign code)
        return f"{name} (and its words cannot be read: {type(worse).__name__})"


def _stack(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))[-_STACK_CHARS:]
    except BaseException:  # noqa: BLE001  (foreign code: a stack is worth less than the request)
        return ""


def _end(done: asyncio.Future[None], error: Exception | None) -> None:
    if done.done():  # nobody waits any more
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


def _warm(runtime: Runtime, sample: AnyArray) -> None:
    for size in WARM_SIZES:
        runtime.predict(np.repeat(sample, size, axis=0))
