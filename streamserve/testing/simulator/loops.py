"""An event loop of its own for each simulated process: no selector, no threads, time is its machine's clock.

It never runs by itself: the scheduler steps it, one batch of ready callbacks at a time.
"""

from __future__ import annotations

import asyncio
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any

from streamserve.testing.simulator.clock import MachineClock


class _Turns:
    """Whose turn it was last. To say which loop runs asks the system for the process's number, each time: where loops
    take turns it is said only when the turn goes to another, and taken back at the end."""

    last: SimulatedLoop | None = None
    are_taken = False


@contextmanager
def ran_in_turn() -> Iterator[None]:
    """Loops that are stepped in here stay the running one until another is."""
    before = events._get_running_loop()
    was_last, were_taken = _Turns.last, _Turns.are_taken
    _Turns.last, _Turns.are_taken = None, True
    try:
        yield
    finally:
        _Turns.last, _Turns.are_taken = was_last, were_taken
        events._set_running_loop(before)


class _Call(asyncio.Handle):
    """A callback to be run. What asyncio's own keeps for debugging takes longer to make than most take to run.

    Without a context of its own (each task has one) it runs in the scheduler's, which nothing changes.
    """

    __slots__ = ()

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None) -> None:
        self._callback = callback
        self._args = args
        self._context = context
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True


class _TimedCall(_Call, asyncio.TimerHandle):
    __slots__ = ("_at_s",)

    def __init__(
        self, at_s: float, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> None:
        self._callback = callback
        self._args = args
        self._context = context
        self._cancelled = False
        self._at_s = at_s

    def when(self) -> float:
        return self._at_s

    __hash__ = object.__hash__
    __eq__ = object.__eq__


class SimulatedLoop(asyncio.AbstractEventLoop):
    """What asyncio's tasks, futures and time-outs need of a loop; nothing of sockets or processes."""

    def __init__(self, clock: MachineClock, woken: Callable[[], None]) -> None:
        """`woken`: called when a callback becomes ready outside of a step, so that the scheduler steps this loop."""
        self._clock = clock
        self._woken = woken
        self._ready: deque[_Call] = deque()
        self._timers: list[tuple[float, int, _TimedCall]] = []
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._timer_number = 0
        self._stepping = False
        self.errors: list[str] = []
        """What was raised where nobody could catch it."""
        self.over = False
        """Its process is dead: what is said of its remains is of no interest."""

    # -- what the scheduler does with it ---------------------------------------------------------------------------

    def step(self, batches: int = 1) -> bool:
        """Run what is ready now; what that makes ready is for the next batch. Until nothing is, or it is over.

        Whether something is ready still.
        """
        if not _Turns.are_taken:
            with ran_in_turn():
                return self.step(batches)
        if _Turns.last is not self:
            events._set_running_loop(self)
            _Turns.last = self
        timers, ready, now = self._timers, self._ready, self._clock.monotonic() + 1e-9
        self._stepping = True
        try:
            for _ in range(batches):
                while timers and timers[0][0] <= now:
                    ready.append(heapq.heappop(timers)[2])
                for _ in range(len(ready)):
                    call = ready.popleft()
                    if call._cancelled:
                        continue
                    try:
                        if call._context is None:
                            call._callback(*call._args)
                        else:
                            call._context.run(call._callback, *call._args)
                    except (SystemExit, KeyboardInterrupt):
                        raise
                    except BaseException as error:  # noqa: BLE001  (as asyncio's own loop does)
                        self._failed(call, error)
                if not ready or self.over:
                    break
        finally:
            self._stepping = False
        return bool(ready)

    def _failed(self, call: _Call, error: BaseException) -> None:
        self.call_exception_handler({"message": f"exception in callback {call._callback}", "exception": error})

    def next_timer_s(self) -> float | None:
        """When its next timer is due, by its own clock."""
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        return timers[0][0] if timers else None

    def bury(self, rounds: int = 100) -> None:
        """End what a dead process left behind, so that the interpreter has nothing to say about it."""
        for task in [task for task in self._tasks if not task.done()]:
            task.cancel()
        for _ in range(rounds):
            for _, _, handle in self._timers:
                self._ready.append(handle)
            self._timers.clear()
            if not self._ready:
                left = [task for task in self._tasks if not task.done()]
                if not left:
                    break
                for task in left:
                    task.cancel()
            self.step()

    # -- what asyncio asks of it -----------------------------------------------------------------------------------

    def time(self) -> float:
        return self._clock.monotonic()

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = _Call(callback, args, context)
        self._ready.append(handle)
        if not self._stepping:
            self._woken()
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self._timed(self._clock.monotonic() + delay, callback, args, context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self._timed(when, callback, args, context)

    def _timed(
        self, when: float, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> _TimedCall:
        handle = _TimedCall(when, callback, args, context)
        self._timer_number += 1  # equal times in the order of the calls
        heapq.heappush(self._timers, (when, self._timer_number, handle))
        if not self._stepping:
            self._woken()
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass  # it is dropped when its time comes

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.__delitem__)
        return task

    get_debug = staticmethod(bool)  # False, and no call of Python's: each future and task asks

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.over:
            self.errors.append(f"{context.get('message')}: {context.get('exception')!r}")
