"""What all clients of one simulated process share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from streamserve.errors import BrokerError
from streamserve.testing.simulator.broker import SimulatedLog
from streamserve.testing.simulator.groups import Coordinator
from streamserve.testing.simulator.transactions import TransactionCoordinator
from streamserve.testing.simulator.world import Machine
from streamserve.testing.simulator.writer import Effects

#: Now and then an answer of the broker takes as long.
SLOW_MS = (200.0, 1_500.0)


@dataclass(slots=True, kw_only=True)
class Node:
    """What all clients of one process share."""

    name: str
    machine: Machine
    log: SimulatedLog
    coordinator: Coordinator
    session_ms: float
    heartbeat_ms: float
    transactions: TransactionCoordinator | None = None
    """Where delivery is exactly once."""
    effects: Effects = field(default_factory=Effects)
    follows_late: dict[str, float] = field(default_factory=dict)
    """Topic -> until when nothing more of it is read."""
    hands_over: Callable[[], bool] = lambda: False
    """Asked when it stops, whether another joins at once under the same name."""

    def answer(self, future: asyncio.Future[Any], value: object) -> None:
        """The broker's answer arrives."""
        if not self.machine.dead and not future.done():
            future.set_result(value)

    def delay(self, usual_ms: tuple[float, float], slow: float) -> float:
        """How long an answer of the broker is on its way."""
        world = self.log.world
        if world.rng.random() >= slow:
            return world.delay(*usual_ms)
        took_ms = world.delay(*SLOW_MS)
        self.effects.slow(took_ms)
        return took_ms

    def fail(self, future: asyncio.Future[Any], words: str) -> None:
        if not self.machine.dead and not future.done():
            future.set_exception(BrokerError(words))
