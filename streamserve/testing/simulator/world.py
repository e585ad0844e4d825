"""The scheduler: one heap of what happens when, over the loops of all processes, the broker and the fault plan."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any

from streamserve.testing.simulator.clock import MachineClock, WorldClock
from streamserve.testing.simulator.loops import SimulatedLoop, ran_in_turn

#: A loop that keeps itself ready runs so many batches at one time, then goes on a little later.
_BATCHES = 8
_STEP_MS = 0.05


class World:
    """All that is random about a run's timing comes from `rng`; equal times are told apart by a draw, then by order."""

    def __init__(self, seed: int) -> None:
        self.clock = WorldClock()
        self.rng = random.Random(seed)
        self.over = False
        self._draw = self.rng.random
        self._heap: list[tuple[float, float, int, Callable[..., Any], tuple[Any, ...]]] = []
        self._number = 0

    @property
    def now(self) -> float:
        return self.clock.now

    def at(self, when_ms: float, what: Callable[..., Any], *args: Any) -> None:
        self._number += 1
        now = self.clock.now
        heapq.heappush(self._heap, (when_ms if when_ms > now else now, self._draw(), self._number, what, args))

    def after(self, delay_ms: float, what: Callable[..., Any], *args: Any) -> None:
        self._number += 1
        now = self.clock.now
        when_ms = now + delay_ms if delay_ms > 0 else now
        heapq.heappush(self._heap, (when_ms, self._draw(), self._number, what, args))

    def forget(self) -> None:
        """Let go of all that was to happen."""
        self._heap.clear()

    def delay(self, low_ms: float, high_ms: float) -> float:
        return low_ms + (high_ms - low_ms) * self._draw()

    def run(self, until_ms: float) -> None:
        """Until that time, or until it is `over`."""
        heap, clock, pop = self._heap, self.clock, heapq.heappop
        self.over = False
        with ran_in_turn():
            while heap and heap[0][0] <= until_ms:
                when, _, _, what, args = pop(heap)
                clock.now = when
                what(*args)
                if self.over:
                    return
        clock.now = max(clock.now, until_ms)


class Machine:
    """One process's loop in the world: stepped when something is ready, unless it is stopped or dead."""

    def __init__(self, world: World, clock: MachineClock) -> None:
        self._world = world
        self.clock = clock
        self.loop = SimulatedLoop(clock, self._wake)  # type: ignore[abstract]
        self.dead = False
        self._stopped_until = 0.0
        self._wakes_at: float | None = None

    @property
    def stopped(self) -> bool:
        return self._world.now < self._stopped_until

    def stop_until(self, when_ms: float) -> None:
        """Nothing of it runs until then; what is sent to it waits in its sockets."""
        self._stopped_until = max(self._stopped_until, when_ms)
        self._world.at(self._stopped_until, self._wake)

    def kill(self) -> None:
        """Nothing of it ever runs again."""
        self.dead = self.loop.over = True

    def _wake(self) -> None:
        self._schedule(self._world.clock.now)

    def _schedule(self, when_ms: float) -> None:
        when_ms = max(when_ms, self._stopped_until)
        wakes_at = self._wakes_at
        if wakes_at is None or when_ms < wakes_at:
            self._wakes_at = when_ms
            self._world.at(when_ms, self._run, when_ms)

    def _run(self, when_ms: float) -> None:
        if self.dead or self._wakes_at != when_ms:
            return
        self._wakes_at = None
        if when_ms < self._stopped_until:
            self._schedule(self._stopped_until)
            return
        loop = self.loop
        busy = loop.step(_BATCHES)
        if self.dead:
            return
        if busy:
            self._schedule(when_ms + _STEP_MS)
            return
        due_s = loop.next_timer_s()
        if due_s is not None:
            self._schedule(self.clock.world_ms(due_s))
