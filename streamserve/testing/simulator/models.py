"""Simulated models: what they answer tells who answered what, how long they take is drawn, how they fail is planned.

A row is `[input, noise]`: its first number names the input, so that who runs a batch knows whose rows are in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from streamserve.core.events import BatchFinished
from streamserve.core.messages import F64, I64, AnyArray, Outputs
from streamserve.kafka.runner import Sampling
from streamserve.runtimes.base import Runtime
from streamserve.runtimes.isolation import ProcessState
from streamserve.testing.simulator.world import Machine, World

CLASSES = 5
_OWN = 100
#: How a call can go wrong: it raises, never ends, answers too few rows, takes twenty times as long.
MODES = ("fail", "hang", "rows", "slow")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedModel:
    """A runtime that is only asked for its form; `number` makes its answers its own. Takes `a + b n` milliseconds."""

    model: str
    number: int
    numeric: bool
    probabilities: bool
    a_ms: float
    b_ms: float
    poor: bool = False
    """Always wrong."""
    doubts: bool = False
    """Unsure of every third input, and wrong with every second of these."""

    def sample(self) -> AnyArray | None:
        return np.zeros((1, 2))

    def predict(self, batch: AnyArray) -> Outputs:
        inputs = np.asarray(batch)[:, 0].astype(np.int64)
        if self.numeric:
            return Outputs(labels=numbers_of(inputs, self.number))
        labels = classes_of(inputs, self.number)
        if self.poor:
            labels = _OWN + 10 * self.number + (inputs + 1) % CLASSES
        if self.doubts:
            labels = np.where(inputs % 6 == 0, inputs + 1, inputs) % CLASSES
        if not self.probabilities:
            return Outputs(labels=labels)
        highest: F64 = np.where(inputs % 3 == 0, 0.52, 0.92) if self.doubts else np.full(len(labels), 0.6)
        shares: F64 = np.repeat((1.0 - highest) / (CLASSES - 1), CLASSES).reshape(-1, CLASSES)
        shares[np.arange(len(labels)), labels % CLASSES] = highest
        return Outputs(labels=labels % CLASSES, probabilities=shares)

    def close(self) -> None:
        pass


def classes_of(inputs: I64, number: int) -> I64:
    """Mostly what every model says of this input; for a quarter of the inputs a class that only this model knows."""
    own = ((inputs * (2 * number + 3)) >> 2) % 4 == 0
    labels: I64 = np.where(own, _OWN + 10 * number + inputs % CLASSES, inputs % CLASSES)
    return labels


def numbers_of(inputs: I64, number: int) -> F64:
    values: F64 = np.asarray((inputs % 1000) + number / 8.0, np.float64)
    return values


def truth_of(inputs: I64) -> I64:
    """The label that feedback names."""
    labels: I64 = inputs % CLASSES
    return labels


@dataclass(slots=True)
class Weather:
    """How models behave now, by (process, model): changed by the fault plan."""

    modes: dict[tuple[str, str], str] = field(default_factory=dict)
    """`fail` (raises), `hang` (never ends), `rows` (answers too few rows), `slow`."""
    used: Callable[[str], None] = lambda mode: None
    cut: Callable[[SimulatedModel, str, AnyArray, float, bool], None] = lambda *_: None
    """Told of each call: model, process, inputs, the true time until it could end, whether it is one of many."""


class SimulatedRunner:
    """`Runner` in virtual time: one call of a model at a time, as on its thread."""

    def __init__(
        self,
        runtimes: Mapping[str, Runtime],
        finished: Callable[[BatchFinished], None],
        *,
        machine: Machine,
        world: World,
        process: str,
        weather: Weather,
    ) -> None:
        self._runtimes = dict(runtimes)
        self._finished = finished
        self._machine, self._world, self._process, self._weather = machine, world, process, weather
        self._busy_until: dict[str, float] = {}

    async def warm(self, samples: Mapping[str, AnyArray | None]) -> None:
        await asyncio.sleep(self._world.delay(5, 40) / 1000)

    async def adopt(self, model: str, make: Callable[[], Runtime], sample: Sampling) -> Runtime:
        await asyncio.sleep(self._world.delay(5, 40) / 1000)
        self._runtimes[model] = make()
        return self._runtimes[model]

    async def drop(self, model: str) -> None:
        del self._runtimes[model]

    def submit(self, batch: int, model: str, inputs: AnyArray, *, here: bool = False) -> None:
        runtime = self._runtimes[model]
        if not isinstance(runtime, SimulatedModel):
            raise TypeError(f"{model} is not a simulated model")
        mode, world = self._weather.modes.get((self._process, model), ""), self._world
        if mode:
            self._weather.used(f"model {mode}")
        self._weather.cut(runtime, self._process, inputs, world.now, bool(mode))
        if mode == "hang":
            self._busy_until[model] = float("inf")
        took_ms = (runtime.a_ms + runtime.b_ms * len(inputs)) * (20.0 if mode == "slow" else 1.0)
        ends = max(world.now, self._busy_until.get(model, 0.0)) + took_ms * world.delay(0.9, 1.1)
        if ends == float("inf"):
            return
        self._busy_until[model] = ends
        world.at(ends, self._end, batch, runtime, inputs, mode, ends - world.now)

    def linger(self) -> None:
        """Virtual time stands still for a loop that does: no call ends meanwhile."""

    def _end(self, batch: int, runtime: SimulatedModel, inputs: AnyArray, mode: str, took_ms: float) -> None:
        if self._machine.dead:
            return
        if mode == "fail":
            done = BatchFinished(batch=batch, outputs=None, error="RuntimeError: planned", duration_ms=took_ms)
        else:
            outputs = runtime.predict(inputs if mode != "rows" else inputs[: len(inputs) // 2])
            done = BatchFinished(batch=batch, outputs=outputs, duration_ms=took_ms)
        self._machine.loop.call_soon(self._finished, done)

    def called_meanwhile(self, gap_ms: float) -> list[str]:
        return []

    def away(self) -> list[str]:
        return []

    def plans(self) -> None:
        """None of its models is a plan."""

    def processes(self) -> list[ProcessState]:
        return []

    def close(self) -> None:
        pass
